"""Whole runs: killed, stopped, resumed, refused."""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from budgets import jsonl
from grpo_jax import checkpoint, config
from tests.grpo import families

ROOT = pathlib.Path(__file__).parents[2]
TINY = """
[model]
width = 16
num_layers = 1
num_heads = 2
num_kv_heads = 1
head_dim = 8
ffw = 32

[pretrain]
updates = 2
sequences = 64
batch_size = 32

[task]
operands = 2
num_train = 40
num_eval = 12

[sampling]
prompts_per_update = 2
group_size = 4
max_new_tokens = 8

[method]
minibatches = 2
kl = "k3"
kl_coefficient = 0.01

[optimizer]
learning_rate = 1e-3

[budget]
updates = 5

[evaluation]
samples = 2
every = 3
batch_prompts = 4

[run]
save_every = 2
save_rollouts = true
tensorboard = false
"""
UNMEASURED = ("device_seconds", "seconds", "compilations")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("runs")


def write(folder, text=TINY, name="tiny.toml"):
    path = folder / name
    path.write_text(text)
    return path


def command(folder, run, *overrides):
    return [
        *(sys.executable, "-m", "distill_jax.cli", "train"),
        *(str(write(folder)), f"run.dir={run}", *overrides),
    ]


def start(folder, run, *overrides):
    return subprocess.Popen(
        command(folder, run, *overrides),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | {"JAX_PLATFORMS": "cpu"},
    )


def finish(folder, run, *overrides):
    process = start(folder, run, *overrides)
    output, _ = process.communicate(timeout=300)
    return process.returncode, output


@pytest.fixture(scope="module")
def whole(folder):
    """A run that nobody disturbed."""
    run = folder / "whole"
    code, output = finish(folder, run)
    assert code == 0, output
    return run, output


def plain(rows):
    """Rows without what was measured."""
    return [
        {k: v for k, v in row.items() if k not in UNMEASURED}
        for row in rows
        if row.get("phase") != "compile"
    ]


def state_of(run):
    number = checkpoint.latest(run / "checkpoints")
    folder = run / "checkpoints" / str(number)
    import orbax.checkpoint as ocp

    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as reader:
        tree = reader.restore((folder / "tree").absolute())
    position = json.loads((folder / "position" / "metadata").read_text())
    return number, {k: np.asarray(v) for k, v in tree.items()}, position


def assert_same_run(run, other, *, ledger=True):
    for name in ("metrics.jsonl", "eval.jsonl", "pretrain.jsonl"):
        assert plain(jsonl.read(run / name)) == plain(jsonl.read(other / name)), name
    if ledger:
        mine, theirs = (plain(jsonl.read(x / "ledger.jsonl")) for x in (run, other))
        assert mine == theirs
    number, arrays, position = state_of(run)
    assert (number, position) == (state_of(other)[0], state_of(other)[2])
    for name, array in state_of(other)[1].items():
        np.testing.assert_array_equal(arrays[name], array, err_msg=name)
    files = sorted(x.name for x in (other / "rollouts").iterdir())
    assert sorted(x.name for x in (run / "rollouts").iterdir()) == files
    for name in files:
        one, two = (np.load(x / "rollouts" / name) for x in (run, other))
        for field in one.files:
            np.testing.assert_array_equal(one[field], two[field], err_msg=field)


def has(path, test):
    try:
        return any(test(row) for row in jsonl.read(path))
    except ValueError:
        return False


def saving(run, number):
    """Whether a checkpoint has been begun and is perhaps not whole yet."""
    folder = run / "checkpoints"
    return folder.exists() and any(
        x.name.startswith(str(number)) for x in folder.iterdir()
    )


MOMENTS = {
    "pretraining": lambda r: has(r / "pretrain.jsonl", lambda row: True),
    "first evaluation": lambda r: has(
        r / "ledger.jsonl", lambda row: row["phase"] == "eval"
    ),
    "sampling of update 2": lambda r: has(
        r / "ledger.jsonl", lambda row: row["update"] == 2 and row["generated"]
    ),
    "saving of update 2": lambda r: saving(r, 2),
    "evaluation of update 3": lambda r: has(
        r / "ledger.jsonl", lambda row: row["phase"] == "eval" and row["update"] == 3
    ),
    "last evaluation": lambda r: has(
        r / "ledger.jsonl", lambda row: row["phase"] == "eval" and row["update"] == 5
    ),
}


def test_a_run_killed_at_many_moments_ends_as_one_that_was_not(folder, whole):
    run = folder / "killed"
    for name, reached in MOMENTS.items():
        process = start(folder, run)
        deadline = time.time() + 200
        while not reached(run):
            assert process.poll() is None, f"{name}: {process.stdout.read()}"
            assert time.time() < deadline, name
            time.sleep(0.002)
        process.send_signal(signal.SIGKILL)
        process.wait()
    code, output = finish(folder, run)
    assert code == 0, output
    assert_same_run(run, whole[0])
    # What was lost is kept apart and is real spending.
    lost = jsonl.read(run / "lost.jsonl")
    assert {row["phase"] for row in lost} >= {"pretrain", "eval"}
    assert not (whole[0] / "lost.jsonl").exists()


def test_a_finished_run_run_again_changes_nothing(folder, whole):
    run = folder / "again"
    shutil.copytree(whole[0], run)
    code, output = finish(folder, run)
    assert code == 0
    assert_same_run(run, whole[0])
    assert "gain" in output


def test_sigterm_saves_and_exits_143_and_the_run_resumes(folder, whole):
    run = folder / "stopped"
    process = start(folder, run)
    while not has(run / "metrics.jsonl", lambda row: row["update"] == 1):
        assert process.poll() is None
        time.sleep(0.002)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 143, output
    done = max(row["update"] for row in jsonl.read(run / "metrics.jsonl"))
    assert checkpoint.latest(run / "checkpoints") == done
    code, output = finish(folder, run)
    assert code == 0, output
    # The checkpoint that SIGTERM asked for is one charge more than undisturbed.
    assert_same_run(run, whole[0], ledger=False)


def test_the_ledger_is_a_recount_of_the_saved_ids(whole):
    rows = jsonl.read(whole[0] / "ledger.jsonl")
    for update in range(1, 6):
        saved = np.load(whole[0] / "rollouts" / f"{update:06d}-rollout.npz")
        (charge,) = (
            r
            for r in rows
            if r["update"] == update
            and r["phase"] == "rollout"
            and r["role"] == "policy"
        )
        assert charge["generated"] == saved["sampled"].sum()
        assert charge["sequences"] == 8
        assert charge["prefilled"] == saved["prompt_length"][::4].sum()
        (scored,) = (
            r for r in rows if r["update"] == update and r["phase"] == "reference"
        )
        assert scored["prefilled"] == saved["length"].sum()
        trained = [r for r in rows if r["update"] == update and r["phase"] == "train"]
        assert sum(r["trained"] for r in trained) == saved["sampled"].sum()


def test_the_files_of_a_run_directory(whole):
    run, output = whole
    names = {x.name for x in run.iterdir()}
    assert names >= {
        *("config.toml", "environment.json", "metrics.jsonl", "ledger.jsonl"),
        *("eval.jsonl", "rollouts", "samples", "checkpoints"),
    }
    rows = jsonl.read(run / "metrics.jsonl")
    assert [row["update"] for row in rows] == [1, 2, 3, 4, 5]
    wanted = """update optimizer_steps reward loss grad_norm entropy kl_old
        truncated_share zero_variance_share grader_error_share duplicate_share
        mean_steps share_without_boundary refilled_forks tokens_real tokens_padded
        seconds compilations"""
    assert set(wanted.split()) <= set(rows[0])
    assert rows[-1]["optimizer_steps"] == 10  # five updates of two mini-batches
    for row in rows:
        saved = np.load(run / "rollouts" / f"{row['update']:06d}-rollout.npz")
        assert row["tokens_real"] == saved["length"].sum()
        assert 0 <= row["tokens_padded"] < saved["tokens"].size
    evaluated = jsonl.read(run / "eval.jsonl")
    assert sorted({row["update"] for row in evaluated}) == [0, 3, 5]
    assert {len(row["correct"]) for row in evaluated} == {2}
    assert "base : sampled-answer accuracy" in output
    assert "final: sampled-answer accuracy" in output
    environment = json.loads((run / "environment.json").read_text())
    assert environment["seed"] == 0
    assert environment["packages"]["jax"]


def test_nothing_compiles_after_the_first_updates(whole):
    rows = jsonl.read(whole[0] / "metrics.jsonl")
    assert rows[0]["compilations"] > 0
    assert [row["compilations"] for row in rows[2:]] == [0, 0, 0]


def test_a_loss_that_is_not_finite_stops_the_run_with_the_good_state_saved(folder):
    run = folder / "nan"
    # Weight decay alone blows the weights up in the first update, whatever is sampled.
    code, output = finish(
        folder,
        run,
        *("optimizer.learning_rate=1e20", "optimizer.weight_decay=1.0"),
        *("method.minibatches=1", "method.kl=none", "method.kl_coefficient=0"),
    )
    assert code == 3, output
    assert "not finite" in output.splitlines()[-1]
    number, arrays, _ = state_of(run)
    assert all(np.isfinite(x).all() for x in arrays.values())
    failed = max(row["update"] for row in jsonl.read(run / "ledger.jsonl"))
    assert number == failed - 1


def test_an_update_whose_answers_are_all_masked_is_no_fault(folder):
    run = folder / "masked"
    code, output = finish(
        folder,
        run,
        *("method.mask_truncated=true", "sampling.max_new_tokens=1"),
        *("pretrain.updates=0", "budget.updates=2", "method.minibatches=1"),
    )
    assert code == 0, output
    rows = jsonl.read(run / "metrics.jsonl")
    assert len(rows) == 2
    for row in rows:
        # Masked as a whole there is no mean; otherwise there is one.
        assert (row["loss"] is None) == (row["truncated_share"] == 1.0)
    assert any(row["loss"] is None for row in rows)


def test_a_run_may_be_moved_and_resumed(folder, whole):
    run = folder / "moved"
    shutil.copytree(whole[0], run)
    code, output = finish(folder, run)
    assert code == 0, output
    assert_same_run(run, whole[0])


def test_a_finished_base_evaluation_survives_a_kill_in_the_first_update(folder):
    run = folder / "base"
    free = ["pretrain.updates=0", "budget.updates=2"]
    process = start(folder, run, *free)
    while not has(run / "ledger.jsonl", lambda row: row["update"] == 1):
        assert process.poll() is None
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.wait()
    before = [r for r in jsonl.read(run / "ledger.jsonl") if r["update"] == 0]
    code, output = finish(folder, run, *free)
    assert code == 0, output
    after = [r for r in jsonl.read(run / "ledger.jsonl") if r["update"] == 0]
    assert [r for r in after if r["phase"] == "eval"] == [
        r for r in before if r["phase"] == "eval"
    ]


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda run: (run / "ledger.jsonl").unlink(), "no charges of update 1"),
        (lambda run: (run / "metrics.jsonl").write_text('{"a": 1}\n'), "metrics.jsonl"),
        (
            lambda run: (run / "ledger.jsonl").write_text('{"tor\n{"a": 1}\n'),
            "ledger.jsonl",
        ),
    ],
    ids=["ledger removed", "metrics damaged", "ledger damaged"],
)
def test_damaged_records_are_refused_in_one_line(damage, said, folder, whole, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(whole[0], run)
    damage(run)
    code, output = finish(folder, run)
    assert code == 2, output
    assert output.splitlines()[-1].startswith("error: ")
    assert said in output.splitlines()[-1]


def test_a_run_without_its_base_evaluation_still_ends(folder, whole, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(whole[0], run)
    (run / "eval.jsonl").unlink()
    code, output = finish(folder, run)
    assert code == 0, output
    assert "gain: unknown" in output


def test_a_damaged_checkpoint_stops_the_run_with_a_remedy(folder, whole):
    run = folder / "damaged"
    shutil.copytree(whole[0], run)
    for file in (run / "checkpoints" / "5" / "tree").rglob("*"):
        if file.is_file() and file.parent.name == "d":
            file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    before = (run / "ledger.jsonl").read_bytes()
    code, output = finish(folder, run)
    assert code == 3, output
    # Orbax may add a line of its own when the process ends.
    (line,) = (x for x in output.splitlines() if x.startswith("stopped: "))
    assert "remove that folder" in line
    assert (run / "ledger.jsonl").read_bytes() == before
    shutil.rmtree(run / "checkpoints" / "5")
    code, output = finish(folder, run)
    assert code == 0, output
    assert_same_run(run, whole[0])


def test_a_budget_of_tokens_ends_the_run_on_sampling(folder):
    run = folder / "tokens"
    code, output = finish(
        folder,
        run,
        *("budget.tokens=100", "budget.until=first", "pretrain.updates=0"),
        *("method.kl=none", "method.kl_coefficient=0"),
    )
    assert code == 0, output
    rows = jsonl.read(run / "metrics.jsonl")
    assert [row["trained"] for row in rows] == [True] * (len(rows) - 1) + [False]
    charges = jsonl.read(run / "ledger.jsonl")
    spent = 0
    for row in charges:
        if row["phase"] not in ("eval", "checkpoint", "compile", "pretrain"):
            spent += row["generated"]
            assert row["inside_budget"] == (spent <= 100)
    assert spent > 100
    assert config.load(run / "config.toml").budget.tokens == 100


def test_export_is_a_directory_that_transformers_decodes_alike(whole, tmp_path):
    """Greedy ids of the exported model, by torch and by us, token for token."""
    torch = pytest.importorskip("torch")
    import transformers

    from grpo_jax import export, models

    out = tmp_path / "exported"
    assert export.main([str(whole[0]), str(out)]) == 0
    theirs = transformers.AutoModelForCausalLM.from_pretrained(out).eval()
    ours = models.load(out)
    texts = [f"{a}+{b}=" for a in range(5) for b in range(4)]
    prompts = [ours.tokenizer(text)["input_ids"] for text in texts]
    families.assert_greedy_ids_agree(torch, theirs, ours, prompts, max_new_tokens=8)


def test_export_leaves_a_directory_that_holds_something_alone(whole, tmp_path, capsys):
    from grpo_jax import export

    (tmp_path / "mine").write_text("kept")
    with pytest.raises(SystemExit) as stop:
        export.main([str(whole[0]), str(tmp_path)])
    assert stop.value.code == 2
    assert "not empty" in capsys.readouterr().err
