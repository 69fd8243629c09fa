"""Study files: what an arm may say, and that it says no more."""

import pytest

from grpo_jax import config, study_config

STUDY = """
[task]
operands = 2

[sampling]
prompts_per_update = 2
group_size = 4

[budget]
updates = 8

[study]
seeds = [0, 3]
points = 2

[arms.grpo]
[arms.dense.method]
name = "dense"
[arms.filter]
selection.name = "filter"
optimizer.learning_rate = 1e-5
"""


@pytest.fixture
def written(tmp_path):
    def write(text=STUDY):
        path = tmp_path / "one.toml"
        path.write_text(text)
        return path

    return write


def test_an_arm_is_the_base_but_for_what_it_says(written):
    study = study_config.load(written())
    assert list(study.arms) == ["grpo", "dense", "filter"]
    assert study.arms["grpo"] == study.base
    assert study.differences("dense") == {"method.name": "dense"}
    assert study.differences("filter") == {
        "selection.name": "filter",
        "optimizer.learning_rate": 1e-5,
    }
    assert (study.plain, study.seeds, study.points) == ("grpo", (0, 3), 2)
    assert study.base.sampling.group_size == 4
    assert not study.given


def test_overrides_reach_the_base_the_study_and_an_arm(written):
    study = study_config.load(
        written(),
        [
            "optimizer.learning_rate=1e-3",
            "study.seeds=[7]",
            "arms.dense.credit.continuations=9",
        ],
    )
    assert study.seeds == (7,)
    assert study.arms["grpo"].optimizer.learning_rate == 1e-3
    assert study.arms["filter"].optimizer.learning_rate == 1e-5
    assert study.arms["dense"].credit.continuations == 9
    assert study.base.credit.continuations == config.Config().credit.continuations


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("study.seed=[1]", "did you mean study.seeds"),
        ("study.seeds=[1, 1]", "names a seed twice"),
        ("study.seeds=[]", "whole numbers"),
        ("study.points=9", "from 1 to budget.updates=8"),
        ("study.plain=dens", "is no arm; use one of grpo, dense, filter"),
        ("budget.updates=0", "budget"),
        ("budget.tokens=100", "must both be given"),
        ("evaluation.every=2", "set by study.points"),
        ("arms.dense.task.operands=3", "an arm sets method, credit"),
        ("arms.dense.sampling.max_new_tokens=3", "is shared by all arms"),
        ("arms.dense.method.nam=x", "did you mean method.name"),
        ("arms.dense.method.name=gdpo", "arms.dense: method.name='gdpo'"),
        ("arms.base.method.name=grpo", "the name of an arm"),
    ],
)
def test_a_wrong_study_is_refused_in_one_line(written, override, message):
    with pytest.raises(ValueError, match=message.replace("[", r"\[")) as fault:
        study_config.load(written(), [override])
    assert "\n" not in str(fault.value)


def test_a_file_without_a_study_is_for_another_command(written):
    with pytest.raises(ValueError, match="grpo-jax train"):
        study_config.load(written(STUDY.partition("[study]")[0]))
    with pytest.raises(ValueError, match="run it with `grpo-jax compare`"):
        config.load(written())
