"""The order of a study's runs, what a restart does, and what a failure costs."""

import json

import pytest

from budgets import jsonl
from budgets.ledger import Cost, Ledger, Phase
from grpo_jax import child, compare, config, study_config, study_runs
from grpo_jax.signals import Terminated

STUDY = """
[task]
operands = 2

[sampling]
prompts_per_update = 2
group_size = 4

[budget]
updates = 4

[study]
seeds = [0, 1]
points = 2

[arms.grpo]
[arms.dense.method]
name = "dense"
[arms.filter.selection]
name = "filter"
"""


def evaluate(path, *updates, right=True):
    for update in updates:
        jsonl.extend(
            path / "eval.jsonl",
            [
                {
                    "update": update,
                    "split": "held-out",
                    "id": str(i),
                    "correct": [right, False],
                    "answers": ["1", "2"],
                    "lengths": [1, 1],
                    "truncated": [False, False],
                    "errors": [False, False],
                    "gold": "1",
                    "level": "",
                    "subject": "",
                }
                for i in range(3)
            ],
        )


class Children:
    """In the place of processes: a base, and runs that spend 10 tokens an update."""

    def __init__(self):
        self.started, self.fails, self.seen = [], {}, {}

    def __call__(self, module, arguments, *, log, say, stop):
        settings = config.load(arguments[0])
        path = study_runs.pathlib.Path(settings.run.dir)
        self.started.append(path.name)
        self.seen[path.name] = settings
        path.mkdir(exist_ok=True)
        if path.name in self.fails:
            say("error: it broke")
            found = self.fails[path.name]
            if isinstance(found, Exception):
                raise found
            return found
        if module == "grpo_jax.base_model":
            evaluate(path, 0)
            return 0
        updates = settings.budget.updates
        ledger = Ledger(path / "ledger.jsonl")
        for update in range(1, updates + 1):
            spent = Cost(generated=10 * (1 + settings.seed), device_seconds=0.5)
            ledger.charge(update, "train", "policy", Phase.ROLLOUT, spent)
            row = {"update": update, "trained": True}
            jsonl.append(path / "metrics.jsonl", row)
            say(f"update {update}/{updates} | reward 0.5")
        evaluate(path, *range(1, updates + 1), right=settings.method.name == "dense")
        return 0


@pytest.fixture
def children(monkeypatch):
    made = Children()
    monkeypatch.setattr(child, "run", made)
    return made


@pytest.fixture
def run(tmp_path, children):
    file = tmp_path / "one.toml"
    file.write_text(STUDY)

    def compared(*overrides):
        return compare.main([str(file), f"run.dir={tmp_path / 'study'}", *overrides])

    return compared


ORDER = [
    *("base", "grpo-seed0", "dense-seed0", "filter-seed0"),
    *("grpo-seed1", "dense-seed1", "filter-seed1"),
]


def test_the_plain_arm_of_each_seed_runs_first_and_sets_the_others_budgets(
    run, children, capsys
):
    assert run() == 0
    assert children.started == ORDER
    plain, dense = (children.seen[f"{arm}-seed1"] for arm in ("grpo", "dense"))
    assert plain.evaluation.at_updates == dense.evaluation.at_updates == [2, 4]
    assert plain.budget.tokens == 0
    assert plain.evaluation.at_tokens == []
    assert dense.budget.tokens == 80
    assert dense.budget.device_seconds == 2.0
    assert dense.evaluation.at_tokens == [40, 80]
    assert dense.evaluation.at_device_seconds == [1.0, 2.0]
    assert (plain.seed, dense.seed) == (1, 1)
    assert not dense.evaluation.before
    said = capsys.readouterr().out
    assert "smallest detectable difference" in said
    assert "dense \N{MINUS SIGN} grpo at equal tokens: +50.0 points" in said
    assert "filter \N{MINUS SIGN} grpo at equal tokens: +0.0 points" in said
    assert said.count("no difference seen") == 3


def test_arms_of_a_seed_differ_only_where_they_say(run, children):
    assert run() == 0
    filtered, dense = (children.seen[f"{arm}-seed0"] for arm in ("filter", "dense"))
    assert set(config.differences(filtered, dense)) == {
        "run.dir",
        "method.name",
        "selection.name",
    }


def test_what_has_ended_is_not_started_again(run, children):
    children.fails["dense-seed0"] = Terminated()
    assert run() == 143
    assert children.started == ["base", "grpo-seed0", "dense-seed0"]
    children.fails.clear()
    assert run() == 0
    assert children.started[3:] == ORDER[2:]
    assert run() == 0
    assert len(children.started) == 3 + len(ORDER[2:])


def test_an_arm_that_fails_costs_no_other_and_is_tried_again(run, children, capsys):
    children.fails["dense-seed0"] = -9
    assert run() == 3
    assert children.started == ORDER
    said = capsys.readouterr().out
    assert "dense seed 0: exit code -9: error: it broke" in said
    assert "dense \N{MINUS SIGN} grpo at equal tokens" in said
    children.fails.clear()
    assert run() == 0
    assert children.started[len(ORDER) :] == ["dense-seed0"]


def test_without_its_plain_arm_a_seed_has_no_budgets(run, children, tmp_path):
    children.fails["grpo-seed0"] = 3
    assert run() == 3
    assert children.started == [n for n in ORDER if n[-1] != "0" or n[:4] == "grpo"]
    status = json.loads((tmp_path / "study" / "status.json").read_text())
    assert "grpo-seed0, which sets its budget, failed" in str(status["dense-seed0"])


def test_budgets_that_are_given_hold_for_every_arm(run, children):
    assert run("budget.tokens=100", "budget.device_seconds=8.0") == 0
    for name in ("grpo-seed0", "filter-seed1"):
        settings = children.seen[name]
        assert settings.budget.tokens == 100
        assert settings.evaluation.at_tokens == [50, 100]
        assert settings.evaluation.at_device_seconds == [4.0, 8.0]


def test_seeds_and_arms_may_be_added_and_nothing_else_changes(run, children, capsys):
    assert run("study.seeds=[0]") == 0
    assert run() == 0
    assert children.started == ORDER
    assert run("arms.more.method.name=grpo") == 0
    assert children.started[len(ORDER) :] == ["more-seed0", "more-seed1"]
    capsys.readouterr()
    for change in ("optimizer.learning_rate=1e-3", "arms.dense.method.kl=k3"):
        with pytest.raises(SystemExit) as end:
            run(change, "method.kl_coefficient=0.0")
        assert end.value.code == 2


def test_a_study_says_the_time_it_still_takes(run, children, tmp_path):
    assert run() == 0
    study = study_config.load(tmp_path / "one.toml", [f"run.dir={tmp_path / 'other'}"])
    (tmp_path / "other").mkdir()
    made = compare.Comparison(study)
    left = made._left("grpo", 0, "update 2/4 | reward", 10.0)
    # Ten more seconds of this run; then dense at 1 + 4 * 5 / 2 = 11 and the filter at
    # 1 + 4 * 4 / 4 = 5 times 20 seconds, and all three again: 10 + 2 * 320 + 20.
    assert left == "study 11m 10s to go"
    assert made._left("grpo", 0, "pretraining 1/2", 10.0) == ""


def test_a_process_reports_its_lines_and_its_end(tmp_path, monkeypatch):
    (tmp_path / "fake_run.py").write_text(
        "import sys; print('update 1/2'); print('to err', file=sys.stderr);"
        "sys.exit(int(sys.argv[1]))"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    lines, log = [], tmp_path / "log"
    for code in (0, 3):
        assert code == child.run(
            "fake_run", [str(code)], log=log, say=lines.append, stop=child.Stop()
        )
    assert sorted(lines) == ["to err", "to err", "update 1/2", "update 1/2"]
    assert log.read_text().splitlines() == lines
