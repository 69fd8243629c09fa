"""`grpo-jax evaluate`: killed and resumed, compared, refused."""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

import jax
import numpy as np
import pytest

from budgets import jsonl, stats
from grpo_jax import config, evaluate, evaluation, models, setup, train

ROOT = pathlib.Path(__file__).parents[2]
SETTINGS = """
[task]
operands = 2
num_train = 8
num_eval = 22

[sampling]
max_new_tokens = 6

[evaluation]
samples = 4
batch_prompts = 4
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A tiny model in a directory, and a configuration file."""
    folder = tmp_path_factory.mktemp("evaluate")
    (folder / "sums.toml").write_text(SETTINGS)
    shape = "width=16 num_layers=1 num_heads=2 num_kv_heads=1 head_dim=8 ffw=32"
    tiny = config.load(folder / "sums.toml", [f"model.{x}" for x in shape.split()])
    described, tokenizer = setup.describe_model(tiny)
    for seed, name in enumerate(("model", "other")):
        params = models.init(described, jax.random.key(seed))
        whole = models.Model(config=described, params=params, tokenizer=tokenizer)
        models.save(whole, folder / name)
    return folder


def command(folder, run, *more, model="model"):
    return [
        *(sys.executable, "-m", "distill_jax.cli", "evaluate", str(folder / model)),
        *(str(folder / "sums.toml"), f"run.dir={run}", *more),
    ]


def here(capsys, *args, **kwargs):
    """The command in this process."""
    try:
        code = evaluate.main(command(*args, **kwargs)[4:])
    except SystemExit as stop:
        code = stop.code
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def start(*args, **kwargs):
    return subprocess.Popen(
        command(*args, **kwargs),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | {"JAX_PLATFORMS": "cpu"},
    )


def finish(*args, **kwargs):
    process = start(*args, **kwargs)
    output, _ = process.communicate(timeout=300)
    return process.returncode, output


@pytest.fixture(scope="module")
def whole(folder):
    code, output = finish(folder, folder / "whole")
    assert code == 0, output
    return folder / "whole", output


def charges(run):
    rows = [r for r in jsonl.read(run / "ledger.jsonl") if r["phase"] != "compile"]
    return [{k: v for k, v in r.items() if k != "device_seconds"} for r in rows]


def test_an_evaluation_killed_again_and_again_ends_as_one_that_was_not(folder, whole):
    run = folder / "killed"
    for parts in (1, 3, 4):
        process = start(folder, run)
        deadline = time.time() + 200
        # The verifier's row of a part is written before its problems are.
        while sum(r["role"] == "verifier" for r in charged(run)) < parts:
            assert process.poll() is None, process.stdout.read()
            assert time.time() < deadline
            time.sleep(0.001)
        process.send_signal(signal.SIGKILL)
        process.wait()
    code, output = finish(folder, run)
    assert code == 0, output
    assert (run / "eval.jsonl").read_bytes() == (whole[0] / "eval.jsonl").read_bytes()
    assert charges(run) == charges(whole[0])
    assert results(run) == results(whole[0])


def charged(run):
    try:
        return jsonl.read(run / "ledger.jsonl")
    except ValueError:
        return []


def results(run):
    return json.loads((run / "evaluation.json").read_text()) | {"model": ""}


def test_a_finished_evaluation_is_printed_again_and_not_made_again(folder, whole):
    before = (whole[0] / "ledger.jsonl").read_bytes()
    code, output = finish(folder, whole[0])
    assert code == 0, output
    assert (whole[0] / "ledger.jsonl").read_bytes() == before
    assert output[output.index("model:") :] == whole[1][whole[1].index("model:") :]


def test_the_numbers_are_those_of_the_matrix(whole):
    run, output = whole
    rows, found = jsonl.read(run / "eval.jsonl"), results(run)
    correct = np.array([row["correct"] for row in rows])
    assert correct.shape == (22, 4)
    assert found["accuracy"] == pytest.approx(correct.mean())
    p = correct.mean(1)
    assert found["error_over_problems"] == pytest.approx(p.std(ddof=1) / 22**0.5)
    assert found["pass_at_k"]["4"] == pytest.approx(correct.any(1).mean())
    assert found["pass_at_k"]["1"] == pytest.approx(correct.mean())
    lengths = np.array([row["lengths"] for row in rows])
    truncated = np.array([row["truncated"] for row in rows])
    assert found["mean_length"] == pytest.approx(lengths.mean())
    assert found["truncated_share"] == pytest.approx(truncated.mean())
    assert found["levels"]["2 operands"]["problems"] == 22
    spent = [r for r in jsonl.read(run / "ledger.jsonl") if r["phase"] == "eval"]
    assert sum(r["generated"] for r in spent) == lengths.sum()
    assert sum(r["verifier_calls"] for r in spent) == 88
    assert f"{found['accuracy']:.4f}" in output


def test_a_comparison_is_paired_and_says_what_differs(folder, whole, capsys):
    run = folder / "colder"
    more = ("evaluation.temperature=0.5", "--against", str(whole[0]))
    code, output, _ = here(capsys, folder, run, *more, model="other")
    assert code == 0, output
    a, b = (evaluation.read(x, 0, "eval") for x in (run, whole[0]))
    interval = stats.paired_bootstrap(a.correct, b.correct)
    found = results(run)["against"]
    assert found["difference"] == pytest.approx(a.correct.mean() - b.correct.mean())
    assert (found["low"], found["p"]) == (interval.low, interval.p)
    assert "evaluation.temperature (1.0 there, 0.5 here)" in output


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--against", "nowhere"], "nowhere is no directory"),
        (["task.num_eval=9", "--against", "WHOLE"], "9 of them among the 9 here"),
        (["evaluation.samples=0"], "evaluation.samples"),
        (["task.name=dataset"], "data.train is empty"),
    ],
)
def test_wrong_input_is_one_line_and_costs_nothing(
    folder, whole, more, said, tmp_path, capsys
):
    more = [str(whole[0]) if word == "WHOLE" else word for word in more]
    code, _, faults = here(capsys, folder, tmp_path / "run", *more)
    assert (code, len(faults.splitlines())) == (2, 1), faults
    assert said in faults
    assert not (tmp_path / "run" / "eval.jsonl").exists()


@pytest.fixture
def copied(folder, whole, tmp_path):
    """The finished evaluation of a model, both in a place of their own."""
    shutil.copytree(folder / "model", tmp_path / "model")
    shutil.copytree(whole[0], tmp_path / "run")
    file = tmp_path / "run" / "config.toml"
    text = file.read_text()
    file.write_text(text.replace(str(folder / "model"), str(tmp_path / "model")))
    (tmp_path / "sums.toml").write_text(SETTINGS)
    return tmp_path


def test_other_weights_at_the_same_place_are_not_mixed_in(copied, folder, capsys):
    assert here(capsys, copied, copied / "run")[0] == 0
    weights = "model.safetensors"
    shutil.copy(folder / "other" / weights, copied / "model" / weights)
    code, _, faults = here(capsys, copied, copied / "run")
    assert code == 2
    assert "are not those" in faults


def test_other_problems_are_not_mixed_in(copied, capsys):
    rows = jsonl.read(copied / "run" / "eval.jsonl")
    jsonl.rewrite(copied / "run" / "eval.jsonl", [rows[1], rows[0], *rows[2:]])
    code, _, faults = here(capsys, copied, copied / "run")
    assert code == 2
    assert "holds other problems" in faults
    assert len(jsonl.read(copied / "run" / "eval.jsonl")) == len(rows)


def test_golds_that_changed_are_not_mixed_in(copied, capsys):
    file = copied / "run" / "eval.jsonl"
    rows = jsonl.read(file)
    jsonl.rewrite(file, [rows[0] | {"gold": "999"}, *rows[1:8]])
    code, _, faults = here(capsys, copied, copied / "run")
    assert code == 2
    assert "holds other problems" in faults


def test_an_evaluation_whose_charges_are_gone_is_refused(copied, capsys):
    (copied / "run" / "ledger.jsonl").unlink()
    code, _, faults = here(capsys, copied, copied / "run")
    assert code == 2
    assert "has charges of 0 parts and eval.jsonl holds 6" in faults


def test_a_damaged_evaluation_is_refused_in_one_line(copied, capsys):
    file = copied / "run" / "eval.jsonl"
    rows = jsonl.read(file)
    for damage in ({"correct": "yes"}, {"answers": ["1"]}, {"lengths": None}):
        jsonl.rewrite(file, [rows[0] | damage, *rows[1:]])
        code, _, faults = here(capsys, copied, copied / "run")
        assert (code, len(faults.splitlines())) == (2, 1), faults
        assert "is damaged" in faults


def test_a_model_without_a_name_is_refused(folder, capsys):
    with pytest.raises(SystemExit):
        evaluate.main(["", str(folder / "sums.toml")])
    assert "the model is empty" in capsys.readouterr().err


def test_a_run_directory_is_evaluated_at_its_latest_checkpoint(folder, capsys):
    run = folder / "trained"
    shape = "width=16 num_layers=1 num_heads=2 num_kv_heads=1 head_dim=8 ffw=32"
    options = [f"model.{x}" for x in shape.split()]
    options += ["budget.updates=1", "sampling.prompts_per_update=2"]
    options += ["sampling.group_size=2", "run.tensorboard=false", f"run.dir={run}"]
    assert train.main([str(folder / "sums.toml"), *options]) == 0
    code, output, _ = here(capsys, folder, folder / "of-run", model="trained")
    assert code == 0, output
    # The same parameters, problems and keys as the run's own evaluation.
    mine, theirs = (evaluation.read(x, 1, "eval") for x in (folder / "of-run", run))
    assert mine.answers == theirs.answers
    assert (mine.lengths == theirs.lengths).all()
    # Another run's evaluation is not taken for it, nor written into the run.
    options[-1] = f"run.dir={folder / 'more' / 'trained'}"
    assert train.main([str(folder / "sums.toml"), *options, "seed=1"]) == 0
    code, _, faults = here(capsys, folder, folder / "of-run", model="more/trained")
    assert code == 2
    assert "are not those" in faults
    code, _, faults = here(capsys, folder, run, model="trained")
    assert code == 2
    assert "is the run that is evaluated" in faults


def test_the_default_directory_names_model_and_configuration(folder, monkeypatch):
    seen = []
    monkeypatch.setattr(
        evaluate.rundir, "RunDirectory", lambda home, _: seen.append(str(home)) or 1 / 0
    )
    with pytest.raises(ZeroDivisionError):
        evaluate.main([str(folder / "model"), str(folder / "sums.toml")])
    assert seen == ["runs/eval-model-sums-seed0"]
