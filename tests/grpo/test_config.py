import dataclasses
import pathlib

import pytest

from grpo_jax import config, options
from grpo_jax.config import Config
from grpo_jax.config_schema import Mesh, Method, Optimizer, Sampling

ROOT = pathlib.Path(__file__).parents[2]


def written(tmp_path, text=""):
    path = tmp_path / "study.toml"
    path.write_text(text, encoding="utf-8")
    return path


def refusal(path, *overrides):
    with pytest.raises(ValueError, match=r"^[^\n]+$") as caught:
        config.load(path, overrides)
    return str(caught.value)


RUNS = [p for p in (ROOT / "configs").glob("*.toml") if "[study]" not in p.read_text()]


@pytest.mark.parametrize("path", sorted(RUNS), ids=str)
def test_shipped_configuration_loads(path):
    assert config.load(path).run.dir == f"runs/{path.stem}-seed0"


def test_an_empty_file_is_the_defaults_with_a_directory_of_its_own(tmp_path):
    loaded = config.load(written(tmp_path), ["seed=3"])
    assert loaded.run.dir == "runs/study-seed3"
    assert config.differences(loaded, Config()) == ["seed", "run.dir"]


def test_overrides_win_over_the_file_and_later_ones_over_earlier(tmp_path):
    path = written(tmp_path, "[sampling]\ngroup_size = 4\nmax_new_tokens = 9\n")
    loaded = config.load(path, ["sampling.group_size=16", "sampling.group_size=2"])
    assert (loaded.sampling.group_size, loaded.sampling.max_new_tokens) == (2, 9)


def test_override_values_are_toml_or_bare_text(tmp_path):
    loaded = config.load(
        written(tmp_path),
        [
            "optimizer.learning_rate=1",
            "run.dir=2024",
            "model.path=some/dir",
            "run.wandb = true",
            "prompt.style=chat",
            'prompt.instruction="say = \\"4\\""',
            "task.name=reasoning_gym",
            "task.generator=chain_sum",
            "task.options.min_terms=2",
            "task.options.ops=[1, 2]",
        ],
    )
    assert type(loaded.optimizer.learning_rate) is float
    assert (loaded.run.dir, loaded.model.path, loaded.run.wandb) == (
        "2024",
        "some/dir",
        True,
    )
    assert loaded.prompt.instruction == 'say = "4"'
    assert loaded.task.options == {"min_terms": 2, "ops": [1, 2]}


def test_resolved_configuration_round_trips_exactly(tmp_path):
    awkward = "tab\t quote\" back\\ newline\n é \U0001f600 \x7f \x00 ''' #"
    start = config.load(
        written(tmp_path),
        [
            "optimizer.learning_rate=1e-6",
            "optimizer.eps=0.1000000000000000055",
            "budget.tokens=123456789012345678901",
            "alarms.truncated=1",
            "task.name=reasoning_gym",
            "task.generator=chain_sum",
        ],
    )
    task = dataclasses.replace(
        start.task, options={"a": 1, "b c": [True, 1.5e300, awkward], awkward: "x"}
    )
    prompt = dataclasses.replace(
        start.prompt, style="chat", instruction=awkward, examples=[["1 + 1", awkward]]
    )
    start = dataclasses.replace(start, task=task, prompt=prompt)
    path = tmp_path / "config.toml"
    path.write_text(config.to_toml(start), encoding="utf-8", newline="")
    again = config.load(path)
    assert again == start
    assert config.differences(again, start) == []


def test_written_file_names_every_option(tmp_path):
    text = config.to_toml(Config())
    for name in config.flat(Config()):
        assert f"\n{name.rpartition('.')[2]} = " in "\n" + text


def test_differences_name_each_field_that_differs():
    a = Config()
    b = dataclasses.replace(a, seed=1, mesh=Mesh(data=2), sampling=Sampling(top_k=1))
    assert config.differences(a, b) == ["seed", "sampling.top_k", "mesh.data"]


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("sampling.group_sise=4", "did you mean sampling.group_size?"),
        ("samplng.group_size=4", "did you mean sampling?"),
        ("group_size=4", "did you mean sampling.group_size?"),
        ("method.group_size=4", "did you mean sampling.group_size?"),
        ("sampling.zzzz=4", "sampling.zzzz is no option; did you mean"),
        ("sampling", "write section.field=value"),
        ("sampling.=4", "write section.field=value"),
        ("seed.x=4", "seed"),
        ("sampling=4", "a section is a table"),
        ("sampling.group_size='4'", "is text; it must be an integer"),
        ("sampling.group_size=4.0", "is a number; it must be an integer"),
        ("sampling.group_size=true", "is true or false; it must be an integer"),
        ("optimizer.learning_rate=false", "is true or false; it must be a number"),
        ("run.tensorboard=1", "is an integer; it must be true or false"),
        ("task.options=4", "it must be a table"),
        ("task.options.x=1979-05-27", "it must be a number, text"),
        ("optimizer.learning_rate=nan", "finite"),
        ("optimizer.learning_rate=-1", "must be at least 0"),
        ("optimizer.b2=1.0", "must be below 1"),
        ("sampling.temperature=0", "sampling.temperature=0.0 must be above 0"),
        ("evaluation.top_p=1.5", "must be at most 1"),
        ("method.loss=cipso", "did you mean 'cispo'?"),
    ],
)
def test_wrong_options_are_refused_in_one_line(tmp_path, override, said):
    assert said in refusal(written(tmp_path), override)


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["sampling.group_size=1"], "group_size=2"),
        (["sampling.group_size=1", "method.advantage=leave_one_out"], "leave_one_out"),
        (["sampling.group_size=1", "method.advantage=centred"], "centred"),
        (["sampling.top_p=0.9"], "evaluation.top_p"),
        (["sampling.top_k=5"], "sampling.top_k=5"),
        (["sampling.min_p=0.1"], "sampling.min_p=0.1"),
        (["mesh.data=3"], "make it 63 or 66"),
        (["mesh.data=3", "mesh.fsdp=5"], "mesh.data*mesh.fsdp=15"),
        (["method.minibatches=5"], "method.minibatches=5; make it 60 or 65"),
        (
            ["method.minibatches=16", "mesh.fsdp=8"],
            "a mini-batch of 4 sequences must be a multiple of mesh.data*mesh.fsdp=8",
        ),
        (["optimizer.microbatches=65"], "optimizer.microbatches=65 exceeds the 64"),
        (
            ["optimizer.microbatches=9", "mesh.fsdp=8"],
            "use at most 8, or 0 for parts of the device's size",
        ),
        (["method.kl_coefficient=0.1"], "method.kl='none'"),
        (["method.kl=k3"], "method.kl_coefficient=0"),
        (["method.dual_clip=0.5"], "above 1"),
        (["method.dual_clip=3.0", "method.loss=cispo"], "use 0"),
        (["optimizer.schedule=cosine"], "optimizer.decay_steps=0"),
        (["optimizer.decay_steps=9"], "'constant'"),
        (["pretrain.updates=1", "model.path=x"], "set one of them"),
        (["pretrain.updates=1", "task.name=addition"], "worked solutions"),
        (["sampling.group_size=1", "method.advantage=batch"], "nothing"),
        (["pretrain.updates=1", "pretrain.batch_size=100"], "pretrain.sequences=4096"),
        (["model.num_kv_heads=3"], "model.num_heads=4"),
        (["model.head_dim=33"], "even"),
        (["task.name=reasoning_gym"], "task.generator"),
        (["task.generator=chain_sum"], "reasoning_gym"),
        (["task.operators=+/"], "'+/'"),
        (["task.min_operand=10"], "task.max_operand=9"),
        (["prompt.system=x"], "prompt.style=chat"),
        (["prompt.instruction=x"], "prompt.style=chat"),
        (["prompt.style=chat", "prompt.examples=[['q']]"], "a pair of texts"),
        (["budget.updates=0"], "never end"),
    ],
)
def test_contradicting_options_are_refused_in_one_line(tmp_path, overrides, said):
    assert said in refusal(written(tmp_path), *overrides)


@pytest.mark.parametrize(
    "overrides",
    [
        ["evaluation.top_p=0.8", "evaluation.top_k=20", "evaluation.min_p=0.1"],
        ["task.num_eval=30", "evaluation.samples=1", "mesh.data=4"],
        ["optimizer.learning_rate=0"],
        ["method.kl=k3", "method.kl_coefficient=5e-4"],
        ["optimizer.schedule=linear", "optimizer.decay_steps=9"],
        ["budget.updates=0", "budget.tokens=1000"],
        ["mesh.data=4", "mesh.fsdp=2", "optimizer.microbatches=8"],
        ["optimizer.microbatches=3"],
        ["optimizer.microbatches=0"],
        ["model.path=x", "model.num_kv_heads=3"],
    ],
)
def test_what_is_allowed_loads(tmp_path, overrides):
    config.load(written(tmp_path), overrides)


def test_files_that_cannot_be_read_are_refused_in_one_line(tmp_path):
    assert "no such configuration" in refusal(tmp_path / "none.toml")
    assert "cannot be read" in refusal(tmp_path)
    assert "not TOML" in refusal(written(tmp_path, "[sampling\n"))
    binary = tmp_path / "binary.toml"
    binary.write_bytes(b"\xff\xfe")
    assert "not TOML" in refusal(binary)
    assert "did you mean" in refusal(written(tmp_path, '"two\\nlines" = 1'))


def test_sections_are_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Config().sampling.top_k = 3  # pyright: ignore


@pytest.mark.parametrize(
    ("section", "field", "table"),
    [
        (Method, "advantage", options.ADVANTAGES),
        (Method, "loss", options.LOSSES),
        (Method, "aggregation", options.AGGREGATIONS),
        (Method, "kl", {"none", "k1_reward", *options.KLS}),
        (Optimizer, "schedule", options.SCHEDULES),
    ],
)
def test_choices_are_the_functions_that_there_are(section, field, table):
    (found,) = [f for f in dataclasses.fields(section) if f.name == field]
    assert set(found.metadata["choices"]) == set(table)
