"""A profile shows where the time goes, and changes nothing of the run."""

import dataclasses
import os
import subprocess
import types

import jax.numpy as jnp
import numpy as np
import pytest

from budgets import jsonl
from budgets.flops import ModelShape
from budgets.ledger import Charge, Cost, Ledger, Phase
from distill_jax import cli
from grpo_jax import config, floors, profiling
from grpo_jax.base import Batch, Feedback, Rollout
from grpo_jax.books import Books
from grpo_jax.loop import Update
from grpo_jax.setup import Setup
from tests.grpo.test_train import ROOT, command, plain

SHORT = ("evaluation.every=0", "pretrain.updates=0", "budget.updates=4")
MACHINE = floors.Machine(
    bandwidth=1000.0, decode_rate=10_000.0, matmul_rate=20_000.0, rows=4
)
# 288 weights in blocks and 40 in the head, as in test_floors.
SHAPE = ModelShape(layers=2, width=4, heads=2, kv_heads=1, head_dim=2, ffw=8, vocab=10)


def update(number, *, over=False):
    """An update of two prompts of 3 tokens, two samples each of 2, 2, 2 and 3."""
    length = jnp.asarray([5, 5, 5, 6])
    columns = jnp.arange(6)[None]
    sampled = (columns >= 3) & (columns < length[:, None])
    rollout = Rollout(
        tokens=jnp.zeros((4, 6), jnp.int32),
        sampled=sampled,
        logp=jnp.zeros((4, 6)),
        prompt_length=jnp.full(4, 3),
        length=length,
        truncated=jnp.zeros(4, bool),
    )
    batch = Batch(rollout=rollout, advantage=jnp.zeros(4), mask=sampled, targets={})
    return Update(
        number=number,
        state=None,
        selection=(),
        prompts=(),
        batch=batch,
        feedback=Feedback(
            reward=np.zeros(4, np.float32),
            error=np.zeros(4, bool),
            answers=(None,) * 4,
        ),
        metrics={},
        trained=True,
        over=over,
    )


def parts(**model):
    plain = config.Config()
    wanted = dataclasses.replace(
        plain,
        sampling=dataclasses.replace(plain.sampling, group_size=2),
        method=dataclasses.replace(plain.method, epochs=3),
        model=dataclasses.replace(plain.model, **model),
    )
    sampler = types.SimpleNamespace(geometry=types.SimpleNamespace(slots=4))
    blank = dict.fromkeys(Setup._fields)
    return Setup(**blank | {"config": wanted, "train": sampler, "shape": SHAPE})


def charge(phase, **cost):
    return Charge(
        update=3,
        stage="train",
        role="policy",
        phase=phase,
        cost=Cost(**cost),
        inside_budget=True,
    )


CHARGES = [
    charge(Phase.HOST, device_seconds=1.0),
    charge(
        Phase.ROLLOUT,
        device_seconds=4.0,
        generated=9,
        prefilled=6,
        sequences=4,
        flops=7000,
    ),
    charge(Phase.ROLLOUT, verifier_calls=4),
    charge(Phase.REFERENCE, device_seconds=2.0, prefilled=21, flops=12_000),
    charge(Phase.TRAIN, device_seconds=5.0, trained=27, flops=100_000),
    charge(Phase.HOST, device_seconds=0.5),
]


def test_phases_by_hand():
    rows = {x.phase: x for x in profiling.phases(CHARGES, update(3), parts(), MACHINE)}
    assert list(rows) == ["rollout", "reference", "train", "host"]
    assert rows["host"] == profiling.Row("host", 1.5, 0, 0, None)
    assert rows["rollout"][:4] == ("rollout", 4.0, 9, 7000)
    # 9 - 4 tokens by 4 rows: 2 steps; context 6 x 2 / 4 + 9 / 4 / 2 = 4.125; a
    # position is 2 x 2 layers x 1 head x 2 numbers x 4 bytes.
    step = max((328 * 4 + 4 * 4.125 * 32) / 1000, 2 * 328 * 4 / 10_000)
    prompts = 2 * (288 * 6 + 40 * 2) / 20_000
    assert rows["rollout"].floor == pytest.approx(prompts + 2 * step)
    # 21 real tokens, 9 of them sampled.
    forward = 2 * (288 * 21 + 40 * 9) / 20_000
    assert rows["reference"][:4] == ("reference", 2.0, 21, 12_000)
    assert rows["reference"].floor == pytest.approx(forward)
    assert rows["train"][:4] == ("train", 5.0, 27, 100_000)
    assert rows["train"].floor == pytest.approx(3 * 3 * forward)


def test_full_rematerialisation_makes_the_floor_of_training_higher():
    plain, again = (
        profiling.phases(CHARGES, update(3), parts(remat=remat), MACHINE)
        for remat in ("dots", "full")
    )
    train = [row.phase for row in plain].index("train")
    assert again[train].floor == pytest.approx(plain[train].floor * 4 / 3)


def test_the_table_adds_updates_and_leaves_the_unknown_empty(tmp_path):
    one = profiling.Row("train", 2.0, 10, 4 * 10**12, 1.0)
    other = profiling.Row("host", 1.0, 0, 0, None)
    lines = profiling.report([one, other, one], [3, 4], MACHINE, tmp_path).splitlines()
    assert lines[0] == f"profile of updates 3 and 4: {tmp_path}"
    assert lines[1].split()[:4] == ["phase", "seconds", "share", "tokens"]
    # 4 of 5 seconds; 8 TFLOP in 4 seconds; a floor of 2 of 4 seconds.
    assert lines[2].split() == ["train", "4", "80.0%", "20", "2", "2", "50%"]
    assert lines[3].split() == ["host", "1", "20.0%"]
    # Tokens of different phases may be the same ones: they have no total.
    assert lines[4].split() == ["total", "5", "100.0%", "1.6", "2", "40%"]


class Said:
    """Stands for a run's progress and its meter."""

    def __init__(self):
        self.lines, self.skipped = [], 0

    def say(self, text):
        self.lines.append(text)

    def skip(self):
        self.skipped += 1
        return 0.0


@pytest.fixture
def trace(monkeypatch):
    """What the profiler and the measurements were asked for, without doing it."""
    asked = []
    start = lambda *_, **__: asked.append("start")
    monkeypatch.setattr(profiling.jax.profiler, "start_trace", start)
    monkeypatch.setattr(
        profiling.jax.profiler, "stop_trace", lambda: asked.append("stop")
    )
    monkeypatch.setattr(floors, "measure", lambda *_, **__: MACHINE)
    return asked


def pass_through(folder, number, trace, **evaluation):
    """The events around a run of `number` updates, and what was said."""
    said, run = Said(), parts()
    wanted = dataclasses.replace(
        run.config, evaluation=config.Config().evaluation.__class__(**evaluation)
    )
    kept = Books(*[None] * 11)._replace(ledger=Ledger(), progress=said, meter=said)

    def updates():
        for i in range(1, number + 1):
            trace.append(i)
            yield update(i, over=i == number)

    out = profiling.traced(updates(), folder, run._replace(config=wanted), kept)
    assert [done.number for done in out] == list(range(1, number + 1))
    return trace, said


@pytest.mark.parametrize(
    ("number", "every", "events"),
    [
        (6, 0, [1, 2, "start", 3, 4, "stop", 5, 6]),
        (3, 0, [1, 2, "start", 3, "stop"]),
        (5, 3, [1, 2, "start", 3, "stop", 4, 5]),  # an evaluation follows the third
    ],
)
def test_the_third_and_fourth_update_are_traced(number, every, events, tmp_path, trace):
    found, said = pass_through(tmp_path, number, trace, every=every)
    assert found == events
    assert said.skipped == 2  # neither the measurements nor the writing is charged
    assert len(said.lines) == 1
    assert (tmp_path / "phases.txt").read_text().startswith("profile of update")


def test_a_run_too_short_for_a_trace_says_so(tmp_path, trace):
    found, said = pass_through(tmp_path, 2, trace)
    assert found == [1, 2]
    assert said.lines == [
        "profile: nothing was traced, since this process did 2 updates and the first"
        " 2 compile; raise the budget"
    ]


def test_an_interrupted_trace_is_ended(tmp_path, trace):
    kept = Books(*[None] * 11)._replace(ledger=Ledger(), meter=Said())
    out = profiling.traced((update(i) for i in range(1, 9)), tmp_path, parts(), kept)
    for _ in range(3):
        next(out)
    out.close()
    assert trace == ["start", "stop"]


def refused(capsys, words):
    try:
        code = cli.main(words)
    except SystemExit as stop:
        code = stop.code
    said = capsys.readouterr().err.strip().splitlines()
    assert code == 2
    assert len(said) == 1, said
    return said[0]


def test_a_profile_writes_a_trace_and_charges_as_without(tmp_path, capsys):
    environment = os.environ | {
        "JAX_PLATFORMS": "cpu",
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path / "cache"),
    }
    for name, more in (("plain", ()), ("traced", ("--profile", tmp_path / "dir"))):
        done = subprocess.run(
            [*command(tmp_path, tmp_path / name, *SHORT), *map(str, more)],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
    assert "profile of updates 3 and 4" in done.stderr
    for phase in ("rollout", "reference", "train", "host", "total"):
        assert f"\n{phase} " in done.stderr
    assert list((tmp_path / "dir").rglob("*.xplane.pb"))
    for name in ("metrics.jsonl", "ledger.jsonl", "eval.jsonl"):
        mine, theirs = (
            plain(jsonl.read(tmp_path / run / name)) for run in ("traced", "plain")
        )
        assert mine == theirs, name
    compiled = [
        row["compilations"] for row in jsonl.read(tmp_path / "traced/metrics.jsonl")
    ]
    assert compiled[2:] == [0, 0]
    again = command(tmp_path, tmp_path / "traced", *SHORT)[3:]
    line = refused(capsys, [*again, "--profile", str(tmp_path / "late")])
    assert "is over after 4 updates" in line
    assert not (tmp_path / "late").exists()


def test_a_profile_that_cannot_be_written_is_refused(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    words = command(tmp_path, tmp_path / "run", *SHORT)[3:]
    line = refused(capsys, [*words, "--profile", str(tmp_path / "file" / "dir")])
    assert line.startswith("error: --profile ")
    assert "cannot be written" in line
    assert not (tmp_path / "run").exists()
