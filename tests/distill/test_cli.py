"""What a user gets wrong is told in one line, with exit code 2."""

import json
import re

import pytest

from distill_jax import cli
from grpo_jax import config, models, rundir, tokens
from tests.grpo.test_train import TINY, write


@pytest.fixture
def tiny(tmp_path):
    return str(write(tmp_path))


def refused(capsys, *words):
    """The line that a command prints when it refuses its input."""
    try:
        code = cli.main(list(words))
    except SystemExit as stop:
        code = stop.code
    said = capsys.readouterr().err.strip().splitlines()
    assert code == 2
    assert len(said) == 1, said
    assert said[0].startswith("error: ")
    assert "Traceback" not in said[0]
    return said[0]


@pytest.fixture
def embedded(tmp_path, getkey):
    """A small model as a directory, for damaging."""
    import jax

    tokenizer = tokens.character_tokenizer()
    shape = models.ModelConfig(
        family="qwen3",
        qk_norm=True,
        vocab_size=len(tokenizer),
        width=8,
        ffw=16,
        num_layers=1,
        num_heads=2,
        num_kv_heads=1,
        head_dim=4,
        stop_ids=(tokenizer.eos_token_id,),
    )
    params = jax.jit(lambda key: models.init(shape, key))(getkey())
    model = models.Model(config=shape, params=params, tokenizer=tokenizer)
    models.save(model, tmp_path / "model")
    return tmp_path / "model"


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("sampling.grup_size=4", "did you mean sampling.group_size"),
        ("smapling.group_size=4", "sampling"),
        ("sampling.group_size=four", "integer"),
        ("optimizer.learning_rate=true", "number"),
        ("sampling.group_size=1", "nothing to compare"),
        ("mesh.data=3", "multiple of"),
        ("sampling.top_p=0.9", "refused"),
        ("task.num_train=0", "at least 1"),
        ("task.num_train=100000", "problems"),
        ("sampling.max_prompt_tokens=2", "more than 2 tokens"),
        ("run.dir=/dev/null/run", "cannot be written"),
        ("model.path=/nonexistent/model", "does not exist"),
    ],
)
def test_wrong_options_are_refused_in_one_line(override, said, tiny, tmp_path, capsys):
    free = [f"run.dir={tmp_path / 'run'}", "pretrain.updates=0"]
    assert said in refused(capsys, "train", tiny, *free, override)


def test_a_prompt_longer_than_the_cache_names_ids_and_lengths(tiny, tmp_path, capsys):
    line = refused(
        capsys,
        "train",
        tiny,
        f"run.dir={tmp_path / 'r'}",
        "sampling.max_prompt_tokens=3",
    )
    assert re.search(r"arithmetic/[0-9a-f]{12}: 4", line)


def train_on(capsys, tiny, tmp_path, model):
    return refused(
        capsys,
        "train",
        tiny,
        f"run.dir={tmp_path / 'run'}",
        f"model.path={model}",
        "pretrain.updates=0",
    )


def test_a_model_directory_without_config(embedded, tiny, tmp_path, capsys):
    (embedded / "config.json").unlink()
    assert "config.json" in train_on(capsys, tiny, tmp_path, embedded)


def test_truncated_safetensors(embedded, tiny, tmp_path, capsys):
    file = embedded / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    line = train_on(capsys, tiny, tmp_path, embedded)
    assert "model.safetensors" in line


def test_a_tokenizer_with_more_ids_than_the_embedding(embedded, tiny, tmp_path, capsys):
    tokenizer = tokens.character_tokenizer()
    tokenizer.add_tokens(["one more", "and another"])
    tokenizer.save_pretrained(embedded)
    line = train_on(capsys, tiny, tmp_path, embedded)
    assert str(len(tokenizer)) in line


def test_refused_input_leaves_no_directory_that_was_not_there(tiny, tmp_path, capsys):
    run = tmp_path / "run"
    train_on(capsys, tiny, tmp_path, tmp_path / "nothing")
    assert not run.exists()
    run.mkdir()
    train_on(capsys, tiny, tmp_path, tmp_path / "nothing")
    assert run.is_dir()


def test_resuming_under_another_configuration_names_what_differs(
    tiny, tmp_path, capsys
):
    run = tmp_path / "run"
    before = config.load(tiny, [f"run.dir={run}"])
    held = rundir.RunDirectory(run, before)
    held.claim(before)
    held.close()
    line = refused(capsys, "train", tiny, f"run.dir={run}", "optimizer.b1=0.5")
    assert "optimizer.b1 (0.9 there, 0.5 now)" in line


def test_a_directory_that_is_no_run_is_left_alone(tiny, tmp_path, capsys):
    other = tmp_path / "other"
    other.mkdir()
    (other / "thesis.txt").write_text("precious")
    assert "thesis.txt" in refused(capsys, "train", tiny, f"run.dir={other}")
    assert (other / "thesis.txt").read_text() == "precious"


def test_a_run_in_use_is_refused(tiny, tmp_path, capsys):
    run = tmp_path / "run"
    held = rundir.RunDirectory(run, config.load(tiny, [f"run.dir={run}"]))
    try:
        assert "in use" in refused(capsys, "train", tiny, f"run.dir={run}")
    finally:
        held.close()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["trian"], "'trian' is not a command"),
        (["train", "no-such.toml"], "no such configuration file"),
        (["export", "no-such-run", "out"], "no config.toml"),
        (["get", "gpt5"], "gpt5"),
    ],
)
def test_wrong_words_are_refused_in_one_line(words, said, capsys):
    assert said in refused(capsys, *words)


def test_a_file_that_is_not_toml(tmp_path, capsys):
    (tmp_path / "bad.toml").write_text(TINY + "\n[model\n")
    assert "not TOML" in refused(capsys, "train", str(tmp_path / "bad.toml"))


def test_help_needs_nothing(capsys):
    assert cli.main(["--help"]) == 0
    assert "train" in capsys.readouterr().out


def test_json_of_a_model_directory_is_what_was_exported(embedded):
    assert json.loads((embedded / "config.json").read_text())["model_type"] == "qwen3"
