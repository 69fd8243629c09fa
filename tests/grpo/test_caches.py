"""Programs outlive a process, and a bad cache costs a line and no run."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

from distill_jax import cli
from grpo_jax import caches
from tests.grpo.test_train import write

ROOT = pathlib.Path(__file__).parents[2]
PROGRAM = """
import json, sys
import jax, jax.numpy as jnp
from grpo_jax import caches
from grpo_jax.compilations import Watch

heard = []
jax.monitoring.register_event_listener(lambda name, **_: heard.append(name))
caches.keep_programs(sys.argv[1] == "true")
watch = Watch()
x = jnp.asarray([1.0, 2.0])
watch.take()
y = float(jax.jit(lambda x: jnp.sin(x) @ jnp.cos(x) + 11)(x))
count, seconds = watch.take()
hits = heard.count("/jax/compilation_cache/cache_hits")
print(json.dumps({"y": y, "count": count, "seconds": seconds, "hits": hits}))
"""


def start(cache, wanted="true", **more):
    """What a process prints that compiles one program, and what it complains of."""
    names = ("JAX_COMPILATION_CACHE_DIR", "GRPO_JAX_CACHE")
    environment = {k: v for k, v in os.environ.items() if k not in names}
    environment |= {"GRPO_JAX_CACHE": str(cache), "PYTHONPATH": str(ROOT)} | more
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, wanted],
        env=environment | {"JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), done.stderr


def entries(cache):
    return [file for file in pathlib.Path(cache).rglob("*") if file.is_file()]


def test_a_second_process_reads_what_the_first_compiled_and_counts_it(tmp_path):
    first, _ = start(tmp_path)
    second, said = start(tmp_path)
    assert (first["count"], first["hits"]) == (1, 0)
    assert second["count"] == 1  # first seen is first seen, compiled or read
    assert second["hits"] >= 1
    assert second["seconds"] > 0
    assert second["y"] == first["y"]
    assert not said


def test_a_damaged_entry_is_compiled_again_without_a_word(tmp_path):
    first, _ = start(tmp_path)
    for file in entries(tmp_path):
        file.write_bytes(file.read_bytes()[:40])
    again, said = start(tmp_path)
    assert again["y"] == first["y"]
    assert (again["count"], again["hits"]) == (1, 0)
    assert not said


def test_a_cache_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    done, said = start(tmp_path / "file")
    assert done["count"] == 1
    assert said.startswith("warning: compiled programs cannot be kept in ")
    assert len(said.splitlines()) == 1
    assert "run.compilation_cache=false" in said


def test_a_cache_that_is_not_wanted_is_not_made(tmp_path):
    own = tmp_path / "own"
    every = {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    start(tmp_path, "false", JAX_COMPILATION_CACHE_DIR=str(own), **every)
    assert not entries(tmp_path)


def test_the_directory_that_jax_was_given_is_used(tmp_path):
    own = tmp_path / "own"
    start(tmp_path / "ours", JAX_COMPILATION_CACHE_DIR=str(own))
    assert entries(own)
    assert not entries(tmp_path / "ours")


def test_the_oldest_programs_go_first(tmp_path):
    for age, name in enumerate(("newest", "middle", "oldest")):
        (tmp_path / name).write_bytes(b"x" * 10)
        os.utime(tmp_path / name, (1000 - age, 1000 - age))
    caches.prune(tmp_path, most=30)
    assert len(entries(tmp_path)) == 3
    caches.prune(tmp_path, most=20)
    assert {x.name for x in entries(tmp_path)} == {"newest", "middle"}
    caches.prune(tmp_path, most=9)
    assert not entries(tmp_path)


@pytest.mark.parametrize("command", ["train", "evaluate"])
def test_both_commands_ask_for_the_cache(command, tmp_path, monkeypatch, capsys):
    asked = []
    monkeypatch.setattr(caches, "keep_programs", asked.append)
    words = [str(write(tmp_path)), f"run.dir={tmp_path / 'run'}"]
    words += ["run.compilation_cache=false", "model.path=/absent"]
    words += ["pretrain.updates=0"]
    place = ["/absent"] if command == "evaluate" else []
    with pytest.raises(SystemExit):
        cli.main([command, *place, *words])
    capsys.readouterr()
    assert asked == [False]
