import json
import struct
import sys
import time
import types

import numpy as np
import pytest
from tensorboardX.proto import event_pb2

from budgets import jsonl
from grpo_jax import metrics
from grpo_jax.config_schema import Alarms


def events(directory):
    """Every event under a directory, oldest file first, checksums not read."""
    found = []
    for path in sorted(directory.iterdir(), key=lambda p: p.stat().st_mtime_ns):
        data = path.read_bytes()
        while data:
            (size,) = struct.unpack("<Q", data[:8])
            found.append(event_pb2.Event.FromString(data[12 : 12 + size]))
            data = data[16 + size :]
    return found


def scalars(directory):
    """What a TensorBoard shows: a session that starts at a step hides it and later."""
    shown = []
    for event in events(directory):
        if event.session_log.status == event.session_log.START:
            shown = [entry for entry in shown if entry[0] < event.step]
        for value in event.summary.value:
            shown.append((event.step, value.tag, value.simple_value))
    return shown


def test_duplicates_worked_by_hand():
    # Two groups of three; the prompt in column 0 and the padding are not compared.
    tokens = np.array(
        [
            [1, 5, 6, 0],
            [2, 5, 6, 9],
            [1, 5, 7, 0],
            [1, 5, 6, 0],
            [1, 5, 0, 0],
            [1, 5, 0, 9],
        ]
    )
    sampled = np.array(
        [[0, 1, 1, 0]] * 4 + [[0, 1, 0, 0], [0, 1, 0, 0]],
        bool,
    )
    # Row 1 repeats row 0; row 3 equals row 0 but is of another group; 5 repeats 4.
    assert metrics.duplicate_share(tokens, sampled, 3) == pytest.approx(2 / 6)
    assert metrics.duplicate_share(tokens, sampled, 1) == 0.0


def test_a_longer_completion_is_no_repeat_of_its_start():
    tokens = np.array([[1, 5, 0], [1, 5, 0]])
    sampled = np.array([[0, 1, 0], [0, 1, 1]], bool)
    assert metrics.duplicate_share(tokens, sampled, 2) == 0.0


def test_zero_variance_counts_groups_of_equal_rewards():
    rewards = np.array([1, 1, 0, 0, 1, 0, 0.1, 0.1], np.float32)
    assert metrics.zero_variance_share(rewards, 2) == 0.75
    # The mean of six equal float32 may be an ulp off, so a variance test would miss.
    equal = np.full(6 * 200, 0, np.float32) + np.repeat(
        np.random.default_rng(0).random(200, np.float32), 6
    )
    assert metrics.zero_variance_share(equal, 6) == 1.0


@pytest.mark.parametrize(("rows", "size"), [(4, 3), (0, 2), (4, 0)])
def test_rows_that_do_not_fill_groups_are_refused(rows, size):
    with pytest.raises(ValueError, match=f"group_size={size}"):
        metrics.zero_variance_share(np.zeros(rows, np.float32), size)


def row(update, **shares):
    return {"update": update} | shares


@pytest.mark.parametrize(
    ("key", "name", "remedy"),
    [
        ("truncated_share", "truncated", "sampling.max_new_tokens"),
        ("zero_variance_share", "zero_variance", "sampling.group_size"),
        ("grader_error_share", "grader_errors", "samples"),
        ("duplicate_share", "duplicates", "sampling.temperature"),
    ],
)
def test_alarms_say_number_threshold_and_remedy(key, name, remedy):
    thresholds = Alarms(**{name: 0.25})
    assert metrics.alarms(row(7, **{key: 0.25}), thresholds) == []
    (text,) = metrics.alarms(row(7, **{key: 0.375}), thresholds)
    for part in ("update 7", "37.5%", f"alarms.{name} = 25.0%", remedy):
        assert part in text


def test_missing_shares_raise_no_alarm():
    assert metrics.alarms(row(1, truncated_share=None), Alarms()) == []


def test_an_alarm_is_given_once_when_it_starts():
    watch = metrics.Watch(Alarms(truncated=0.1))
    # On from 2 to 5 with a gap at 4; off for more than ten updates; on again at 20.
    high = {2, 3, 5, 20, 21}
    given = [u for u in range(1, 30) if watch.new(row(u, truncated_share=u in high))]
    assert given == [2, 20]


def test_two_alarms_start_independently():
    watch = metrics.Watch(Alarms(truncated=0.1, duplicates=0.1))
    assert len(watch.new(row(1, truncated_share=0.5, duplicate_share=0.0))) == 1
    (text,) = watch.new(row(2, truncated_share=0.5, duplicate_share=0.5))
    assert "alarms.duplicates" in text


def test_rows_are_json_whatever_numpy_and_infinities_they_hold(tmp_path):
    writers = metrics.Writers(tmp_path, tensorboard=False)
    writers.write(
        {
            "update": 1,
            "loss": np.float32(0.5),
            "entropy": float("nan"),
            "steps": np.int64(3),
            "seconds": {"train": np.float64("inf"), "host": 1.5},
            "list": np.arange(2),
        }
    )
    text = (tmp_path / "metrics.jsonl").read_text()
    assert json.loads(text) == {
        "update": 1,
        "loss": 0.5,
        "entropy": None,
        "steps": 3,
        "seconds": {"train": None, "host": 1.5},
        "list": [0, 1],
    }


def test_a_resumed_run_shows_each_step_once_with_its_later_value(tmp_path):
    first = metrics.Writers(tmp_path)
    for update in (1, 2, 3):
        first.write({"update": update, "reward": 0.1 * update, "loss": None})
    # Killed: not closed. The board is written by a thread, so wait for it.
    deadline = time.monotonic() + 10
    while len(scalars(tmp_path / "tensorboard")) < 3 and time.monotonic() < deadline:
        first.scalars(0, {})
        time.sleep(0.01)
    assert len(scalars(tmp_path / "tensorboard")) == 3
    again = metrics.Writers(tmp_path, update=2)
    again.write({"update": 3, "reward": 0.9, "seconds": {"train": 2.0}})
    again.scalars(3, {"accuracy": 0.5}, "eval")
    again.close()
    assert [r["reward"] for r in jsonl.read(tmp_path / "metrics.jsonl")] == [
        pytest.approx(0.1),
        pytest.approx(0.2),
        0.9,
    ]
    shown = scalars(tmp_path / "tensorboard")
    assert shown == [
        (1, "train/reward", pytest.approx(0.1)),
        (2, "train/reward", pytest.approx(0.2)),
        (3, "train/reward", pytest.approx(0.9)),
        (3, "seconds/train", 2.0),
        (3, "eval/accuracy", 0.5),
    ]


def test_wandb_missing_is_refused_with_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ValueError, match=r"pip install grpo-jax\[wandb\]"):
        metrics.Writers(tmp_path, tensorboard=False, wandb_project="p")


def test_wandb_run_is_the_same_one_after_a_resume(tmp_path, monkeypatch):
    calls = []
    run = types.SimpleNamespace(
        log=lambda values, step: calls.append((values, step)),
        finish=lambda: calls.append("finish"),
    )
    init = lambda **options: calls.append(options) or run
    monkeypatch.setitem(sys.modules, "wandb", types.SimpleNamespace(init=init))
    for _ in range(2):
        writers = metrics.Writers(
            tmp_path, tensorboard=False, wandb_project="p", config={"seed": 1}
        )
        writers.write({"update": 1, "reward": 0.5})
        writers.close()
    assert calls[0] == calls[3]
    assert (calls[0]["project"], calls[0]["config"]) == ("p", {"seed": 1})
    assert calls[1:3] == [({"train/reward": 0.5}, 1), "finish"]
