"""Every way to generate text is on the ledger, and saved ids say how much it was."""

import json
import zlib

import numpy as np
import pytest

from budgets.ledger import MATCHED, Ledger, Phase
from grpo_jax import build, resident, slots, train
from grpo_jax.base import Verdict

TINY = """
[model]
width = 16
num_layers = 1
num_heads = 2
num_kv_heads = 1
head_dim = 8
ffw = 32

[task]
operands = 2
num_train = 40
num_eval = 8

[credit]
min_chars = 1
max_steps = 4
continuations = 2

[selection]
candidates = 2
scoring_samples = 2

[sampling]
prompts_per_update = 6
group_size = 4
max_new_tokens = 24

[optimizer]
learning_rate = 1e-3

[budget]
updates = 3

[evaluation]
samples = 2
batch_prompts = 8

[run]
save_rollouts = true
tensorboard = false
"""
# Every way to generate text in training.
ARMS = {
    "grpo": (),
    "dense": ("method.name=dense",),
    "fresh": ("method.name=dense", "credit.baseline=fresh"),
    "filter": ("selection.name=filter",),
    "random": ("selection.name=random",),
    "reuse": ("selection.name=filter", "selection.reuse=true"),
    "history": ("selection.name=history",),
    "dynamic": ("selection.name=dynamic",),
    "dense+filter": ("method.name=dense", "selection.name=filter"),
    "dense+reuse": (
        *("method.name=dense", "selection.name=filter"),
        "selection.reuse=true",
    ),
    "dense+dynamic": ("method.name=dense", "selection.name=dynamic"),
    "refilled": ("method.name=dense", "sampling.kept_cache_gib=0"),
}


def graded_by_text(text, problem):
    """Right or wrong as the text's bytes have it, so that groups of a model that has
    learned nothing differ."""
    return Verdict(zlib.crc32(text.encode()) % 2 == 0, text, None)


class Runs:
    """Runs of the arms, each once; `drawn` counts what the engine sampled."""

    def __init__(self, folder, patch):
        self.folder, self.drawn, self.done = folder, {}, {}
        self.count, original = 0, slots.run

        def counting(*args, **options):
            result = original(*args, **options)
            self.count += sum(map(len, result.tokens.values()))
            return result

        task = build.task
        patch.setattr(resident.slots, "run", counting)
        patch.setattr(
            build, "task", lambda config: task(config)._replace(verify=graded_by_text)
        )
        (folder / "tiny.toml").write_text(TINY)

    def __call__(self, arm, *more):
        name = "-".join((arm, *more)).replace("/", "")
        if name not in self.done:
            path, self.count = self.folder / name, 0
            code = train.main(
                [str(self.folder / "tiny.toml"), f"run.dir={path}", *ARMS[arm], *more]
            )
            assert code == 0
            self.done[name], self.drawn[name] = path, self.count
        return self.done[name], self.drawn[name]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        yield Runs(tmp_path_factory.mktemp("arms"), patch)


def charges(path):
    return Ledger.read(path / "ledger.jsonl").rows


def recounted(path):
    """`{(update, phase): tokens}` from the saved ids alone."""
    found = {}
    for file in sorted((path / "rollouts").glob("*.npz")):
        update, phase = file.stem.split("-")[:2]
        key = int(update), Phase(phase)
        found[key] = found.get(key, 0) + int(np.load(file)["sampled"].sum())
    return found


@pytest.mark.parametrize("arm", ARMS)
def test_what_the_engine_drew_is_what_the_ledger_says_and_the_saved_ids_show(arm, runs):
    path, drawn = runs(arm)
    rows = charges(path)
    assert sum(row.cost.generated for row in rows) == drawn
    charged = {}
    for row in rows:
        if row.cost.generated and row.phase in MATCHED:
            key = row.update, row.phase
            charged[key] = charged.get(key, 0) + row.cost.generated
    assert charged == recounted(path)
    assert {update for update, _ in charged} == {1, 2, 3}
    phases = {phase for _, phase in charged}
    assert (Phase.CONTINUATION in phases) == ("method.name=dense" in ARMS[arm])
    scores = {"selection.name=filter", "selection.name=random"} & set(ARMS[arm])
    assert (Phase.CANDIDATE in phases) == bool(scores)


def test_dense_over_plain_tokens_is_the_recount_exactly(runs):
    """At the first update, where both arms sample the same rollouts."""
    paths = [runs(arm)[0] for arm in ("grpo", "dense")]
    plain, dense = (recounted(path) for path in paths)
    assert plain[1, Phase.ROLLOUT] == dense[1, Phase.ROLLOUT]
    for update in (1, 2, 3):
        charged = [
            Ledger.read(path / "ledger.jsonl").update_total(update).generated
            for path in paths
        ]
        counted = [
            sum(n for (u, _), n in found.items() if u == update)
            for found in (plain, dense)
        ]
        assert charged == counted
        assert charged[1] / charged[0] == counted[1] / counted[0] > 1


def candidates(path, update):
    return np.load(path / "rollouts" / f"{update:06d}-candidate.npz")


def candidate_charges(path, updates):
    found = []
    for row in charges(path):
        if row.phase == Phase.CANDIDATE and row.update in updates:
            plain = row.to_json()
            plain.pop("device_seconds")
            plain.pop("labels" if row.role != "verifier" else "prompts")
            found.append(plain)
    return found


def test_the_filter_and_its_control_score_the_same_at_update_1(runs):
    paths = [runs(arm)[0] for arm in ("filter", "random")]
    for field in ("tokens", "sampled", "logp", "ids", "reward"):
        one, two = (candidates(path, 1)[field] for path in paths)
        assert one.tobytes() == two.tobytes(), field
    one, two = (candidate_charges(path, {1}) for path in paths)
    assert one == two
    # Later the same prompts are candidates, whatever was learned.
    for update in (2, 3):
        one, two = (candidates(path, update)["ids"].tolist() for path in paths)
        assert one == two


def test_at_learning_rate_0_they_score_the_same_throughout(runs):
    frozen = "optimizer.learning_rate=0"
    paths = [runs(arm, frozen)[0] for arm in ("filter", "random")]
    for update in (1, 2, 3):
        for field in ("tokens", "sampled", "logp", "ids", "reward"):
            one, two = (candidates(path, update)[field] for path in paths)
            assert one.tobytes() == two.tobytes(), (update, field)
    one, two = (candidate_charges(path, {1, 2, 3}) for path in paths)
    assert one == two


def test_forks_without_a_cache_are_counted_and_charged_for_reading_again(runs):
    kept, refilled = (runs(arm)[0] for arm in ("dense", "refilled"))
    rows = [
        json.loads(x) for x in (refilled / "metrics.jsonl").read_text().split("\n")[:-1]
    ]
    assert sum(row["refilled_forks"] for row in rows) > 0
    read = {
        path: sum(
            row.cost.prefilled for row in charges(path) if row.phase == "continuation"
        )
        for path in (kept, refilled)
    }
    assert read[kept] == 0 < read[refilled]
    # The tokens are the same, wherever their prefix came from.
    one, two = (
        np.load(path / "rollouts" / "000001-continuation.npz")["tokens"]
        for path in (kept, refilled)
    )
    np.testing.assert_array_equal(one, two)


def test_dense_steps_are_in_the_metrics_and_plain_ones_by_their_text(runs):
    for arm in ("grpo", "dense"):
        lines = (runs(arm)[0] / "metrics.jsonl").read_text().splitlines()
        for row in map(json.loads, lines):
            assert 1 <= row["mean_steps"] <= 4
            assert 0 <= row["share_without_boundary"] <= 1


def test_nothing_is_compiled_after_the_second_update(runs):
    for arm in ("dense", "dense+filter", "reuse", "dynamic", "history"):
        lines = (runs(arm)[0] / "metrics.jsonl").read_text().splitlines()
        assert json.loads(lines[-1])["compilations"] == 0, arm
