"""The benchmark scripts run and count what they say; how fast anything is, is not
asserted."""

import json
import os
import pathlib
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from budgets import flops
from grpo_jax import build, models
from grpo_jax.base import Rollout
from tests.benchmarks import (
    attention_check,
    common,
    compilations,
    continuous,
    forks,
    gpu,
    peers,
    rollout,
    update,
)

ROOT = pathlib.Path(__file__).parents[1]


@pytest.fixture
def run(capsys):
    """Runs a script; returns its figures by name, and the objects that it printed."""

    def call(script, *arguments):
        figures = script.main(list(arguments))
        lines = capsys.readouterr().out.splitlines()
        said = [json.loads(line) for line in lines if line.startswith("{")]
        shown = {row["what"]: row for row in said if "what" in row}
        assert set(shown) == {row.what for row in figures}
        assert all(np.isfinite(row.ratio) for row in figures)
        return {row.what: row for row in figures}, said

    return call


def test_a_figure_is_met_on_the_right_side_of_its_bound():
    twice = common.speedup("", 2.0, 4.0, 2.0)  # half the time
    assert (twice.ratio, twice.met) == (2.0, True)
    assert common.speedup("", 4.0, 2.0, 2.0).met is False
    assert common.share("", 4.0, 5.0, "tok/s", 0.8).met is True
    assert common.share("", 3.0, 5.0, "tok/s", 0.8).met is False
    assert common.at_most("", 2.0, 1.0, "s", 1.15).met is False
    assert common.at_most("", 0, 1, "programs", 0).met is True
    assert common.speedup("", 1.0, 1.0).met is None


def test_work_takes_turns_and_the_best_is_kept(monkeypatch):
    """One turn to compile, two timed, a peer after each, the third peer at the end."""
    order = []
    lasts = {"a": iter((1, 3, 2)), "b": iter((0, 1, 4))}

    def seconds(work):
        work()
        return next(lasts[order[-1]])

    monkeypatch.setattr(common, "seconds", seconds)
    works = {name: lambda name=name: order.append(name) for name in "ab"}
    between = [lambda n=n: order.append(n) for n in (1, 2, 3)]
    assert common.in_turns(works, 2, between) == {"a": 2, "b": 1}
    assert order == [*"ab", *"ab", 1, *"ab", 2, 3]


def python(code):
    return peers.child([sys.executable, "-c", code])


def test_a_process_reports_its_own_peak_of_memory(capsys):
    small = python("print('noise'); print('{\"x\": 1}')")
    large = python("x = b'1' * (300 << 20); print('{\"x\": 2}')")
    assert small is not None
    assert large is not None
    assert (small["x"], large["x"]) == (1, 2)
    assert large["peak_gib"] == pytest.approx(300 / 1024, abs=0.05)
    assert small["peak_gib"] < 0.1
    assert python("print('{}'); raise SystemExit('out of luck')") is None
    assert "left out: out of luck" in capsys.readouterr().out


def test_a_missing_peer_is_left_out_with_a_line(tmp_path, capsys):
    script = tmp_path / "peer.py"
    script.write_text("import sys, json; print(json.dumps({'said': sys.argv[1:]}))\n")
    parser = common.options("")
    given = ["--bench", str(tmp_path), "--peer-python", f"trl={sys.executable}"]
    some = peers.Peers(parser.parse_args(given), tmp_path)
    found = some.run("hf", "peer.py", 4, "x")  # the interpreter of trl has it
    assert found is not None
    assert found["said"] == [str(tmp_path), "4", "x"]
    assert some.run("tunix", "peer.py") is None
    assert some.run("trl", "other.py") is None
    assert peers.Peers(parser.parse_args(given), None).run("trl", "peer.py") is None
    said = capsys.readouterr().out
    for line in ("--peer-python tunix=PATH", "other.py is absent", "a random one"):
        assert line in said
    with pytest.raises(SystemExit, match="no such peer"):
        peers.Peers(parser.parse_args(["--peer-python", "x=y"]), None)


def test_the_floor_holds_every_product_of_a_rollout_and_no_other():
    config = common.tiny_config(width=64, ffw=192, num_heads=4, num_kv_heads=2)
    params = common.random_params(config)
    layout = jax.jit(models.functions(config).decode_layout)(params)
    bare = rollout.floor(layout, prompts=3, width=8, rows=6, steps=5)
    program = bare.func.lower(*bare.args).compile()
    # Four of a layer, in the prefill and in the loop, and the head in the loop.
    assert program.as_text().count(" dot(") == 2 * 4 * config.num_layers + 1
    # The compiler counts a loop's body once.
    shape = build.model_shape(config)
    wanted = flops.products(shape, tokens=3 * 8 + 6, heads=6, contexts=0)
    assert program.cost_analysis()["flops"] == pytest.approx(wanted, rel=0.02)
    text = program.as_text()
    assert '"known_trip_count":{"n":"5"}' in text


def test_rollout_runs(run):
    figures, said = run(rollout, "--tiny", "--repeats", "1")
    names = ["share of the matmul floor", "the same, weights laid out anew"]
    assert list(figures) == names
    assert said[0]["cores"] >= 1
    assert said[0]["jax"] == jax.__version__


def test_lengths_are_log_normal_and_clipped():
    many = continuous.lengths(10**5, mean=64, most=10**9)
    # The deviation of a log-normal of mean 64: 64 sqrt(exp(0.64) - 1) = 60.6.
    assert abs(many.mean() - 64) < 5 * 60.6 / 10**2.5
    assert np.log(many).std() == pytest.approx(0.8, abs=0.01)
    few = continuous.lengths(1024, mean=64, most=512)
    assert few.min() >= 1
    assert few.max() <= 512
    np.testing.assert_array_equal(few, continuous.lengths(1024, mean=64, most=512))


def test_static_batches_stop_when_their_longest_ends(run):
    figures, _ = run(continuous, "--tiny")
    limits = continuous.lengths(32, mean=8, most=64).reshape(-1, 8)
    row = figures["slot utilisation of static batches"]
    assert (row.ours, row.other) == (limits.sum(), 8 * limits.max(1).sum())
    assert figures["slot utilisation"].ours == limits.sum()
    # No slot can be busier than always, and refilling wastes less than not refilling.
    assert row.ratio < figures["slot utilisation"].ratio <= 1


def test_forks_start_evenly_spread_inside_their_completion():
    columns = jnp.zeros((2, 12), jnp.int32)
    parent = Rollout(
        tokens=columns,
        sampled=columns,
        logp=columns,
        prompt_length=jnp.array([4, 4]),
        length=jnp.array([12, 8]),
        truncated=jnp.array([True, True]),
    )
    found = forks.boundaries(parent, 3)
    assert found.rows == [0, 0, 0, 1, 1, 1]
    assert found.positions == [6, 8, 10, 5, 6, 7]


def test_forks_run_and_none_is_prefilled_again(run):
    figures, _ = run(forks, "--tiny", "--repeats", "1")
    assert figures["forks that prefilled their prefix"].ours == 0


def test_update_runs(capsys):
    update.main(["--tiny", "--only", "ours", "--updates", "1"])
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert len(found["steps_s"]) == 2
    assert found["per_step_s"] == found["steps_s"][1]
    assert {"rollout", "train"} <= set(found["steps"][1]["phases"])


def test_an_update_is_compared_without_its_first():
    found = {
        "ours": {"steps_s": [50.0, 1.0, 3.0], "peak_gib": 2.0},
        "trl": {"steps_s": [60.0, 4.0, 8.0], "peak_gib": 5.0},
        "tunix": {"steps_s": [99.0, 3.0, 3.0], "peak_gib": 8.0},
    }
    ratios = {row.what: (row.ratio, row.met) for row in update.compared(found)}
    assert ratios == {
        "update against trl": (3.0, True),
        "update against tunix": (1.5, False),
        "peak memory over tunix": (0.25, True),
    }
    assert update.compared({"ours": found["ours"]}) == []


def test_compilations_runs(run):
    figures, said = run(compilations, "--tiny")
    row = figures["compiled after the 2nd update"]
    assert row.ours == sum(said[0]["programs"][2:]) == 0
    assert row.other > 0  # the first update compiles: it is counted
    assert min(said[0]["mean_lengths"][3:]) == 20


def test_a_decode_step_reads_its_layout_and_cache():
    functions = models.functions(gpu.QWEN, compute_dtype="bfloat16", backend="cpu")
    params = models.abstract(gpu.QWEN, dtype="bfloat16")
    layout = jax.eval_shape(functions.decode_layout, params)
    size = lambda tree: sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(tree))
    weights = size(layout["layers"]) + size(layout["head"])
    shape = build.model_shape(gpu.QWEN)
    # Biases and norms are left out.
    assert gpu.step_bytes(shape, rows=0, context=9) == pytest.approx(weights, rel=1e-3)
    _, cache = jax.eval_shape(
        lambda p, t, n: functions.prefill(p, t, n, cache_length=256),
        layout,
        jax.ShapeDtypeStruct((8, 16), "int32"),
        jax.ShapeDtypeStruct((8,), "int32"),
    )
    both = gpu.step_bytes(shape, rows=8, context=256)
    assert both - gpu.step_bytes(shape, rows=0, context=0) == size(cache)


def test_attention_is_checked_against_a_loop_over_packed_rows():
    given = attention_check.inputs(rows=3, length=32, heads=4, kv_heads=2, dim=8)
    segments = np.asarray(given.segments)
    assert (segments.max(1) >= 2).all()
    assert (segments[:, -4:] == 0).all()
    slow = attention_check.in_a_loop(given)
    # The first token of a segment sees itself alone.
    first = np.flatnonzero(np.diff(segments[0], prepend=0))[1]
    value = np.asarray(given.value, np.float64)[0, first].repeat(2, axis=0)
    np.testing.assert_allclose(slow[0, first], value, atol=1e-12)
    assert not slow[segments == 0].any()


def test_gpu_runs_on_a_processor(run):
    figures, said = run(gpu, "--cpu")
    assert figures["xla attention, gap to a loop"].met  # in bfloat16
    assert figures["forks that prefilled their prefix"].met
    assert {"bandwidth_gb_s", "matmul_tflop_s"} <= set(said[0])
    assert len(figures) == 6


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("growth", ("train step:", "rollout   :")),
        ("head", ("direct", "chunked")),
        ("startup", ("first  start:", "second start:", "second / first")),
    ],
)
def test_a_script_without_figures_runs_in_its_tiny_mode(name, words):
    done = subprocess.run(
        [sys.executable, "-m", f"tests.benchmarks.{name}", "--tiny"],
        cwd=ROOT,
        env=os.environ | {"JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    assert [word for word in words if word not in done.stdout] == []


def test_a_table_of_a_tiny_model_requires_nothing(capsys):
    row = common.speedup("x", 4.0, 2.0, 2.0)
    common.report("b", [row], model="", tiny=True)
    assert "met" not in capsys.readouterr().out.splitlines()[-1]
    common.report("b", [row], model="")
    assert capsys.readouterr().out.splitlines()[-1].endswith("not met")
    common.report("b", [], model="")
    assert "no ratio" in capsys.readouterr().out.splitlines()[-1]
