"""A run's parts, from its configuration: model, problems, devices, samplers."""

import functools
from collections.abc import Callable, Sequence, Set
from typing import Any, NamedTuple

import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from budgets import flops
from grpo_jax import (
    build,
    keys,
    metrics,
    models,
    prompts,
    rollout,
    sharding,
    tasks,
    tokens,
)
from grpo_jax.base import Functions, Key, Problem
from grpo_jax.config import Config
from grpo_jax.resident import Sampler
from grpo_jax.splits import Count

NARROWEST = 64  # tokens that a prompt is padded to at least, if others are longer


class Setup(NamedTuple):
    """Everything a run needs but its directory.

    Attributes:
      config: as loaded.
      root: the run's key.
      mesh: the devices.
      model: configuration of the policy.
      functions: the policy.
      tokenizer: a `transformers` tokenizer.
      task: problems and verifier; the problems are encoded.
      train: training sampler.
      evaluation: the sampler of evaluations.
      batch_prompts: problems that are evaluated in one call.
      row_sharding: how sequences lie on the mesh; None on one device.
      shape: of the policy, for FLOPs.
    """

    config: Config
    root: Key
    mesh: Mesh
    model: models.ModelConfig
    functions: Functions
    tokenizer: Any
    task: tasks.Task
    train: Sampler
    evaluation: Sampler
    batch_prompts: int
    row_sharding: NamedSharding | None
    shape: flops.ModelShape


def prepare(config: Config, *, trains: bool = True) -> Setup:
    """Describes the model, makes the problems, and refuses what cannot run.

    Weights are not read here: a run that resumes has its own.

    Args:
      config: of the run.
      trains: False leaves the training problems out, and prompts are as wide as those
        of the evaluation.

    Raises:
      ValueError: one line that says what was seen, the rule, and the remedy.
    """
    if config.run.wandb:
        metrics.check_wandb()
    mesh = sharding.make_mesh(config.mesh.data, config.mesh.fsdp, config.mesh.tensor)
    root = keys.root(config.seed)
    model, tokenizer = describe_model(config)
    task = _encoded(config, build.task(config), model, tokenizer, trains)
    stop_ids = prompts.stop_ids(tokenizer, model.stop_ids)
    how, wanted = config.sampling, config.evaluation
    if trains:
        _check_room(task.train, how.max_new_tokens, model, "sampling")
    section = "evaluation" if wanted.max_new_tokens else "sampling"
    _check_room(task.evaluation, evaluation_limit(config), model, section)
    stops = rollout.stops(stop_ids)
    together = min(wanted.batch_prompts, len(task.evaluation))
    sizes = functools.partial(
        rollout.geometry,
        num_slots=how.slots,
        mesh=mesh if mesh.size > 1 else None,
    )
    return Setup(
        config=config,
        root=root,
        mesh=mesh,
        model=model,
        functions=models.functions(
            model,
            compute_dtype=config.model.compute_dtype,
            remat=config.model.remat,
        ),
        tokenizer=tokenizer,
        task=task,
        train=Sampler(
            decoding=rollout.decoding(how.temperature),
            stop_ids=stops,
            geometry=sizes(
                widths=_widths(task.train),
                max_new_tokens=how.max_new_tokens,
                sequences=how.prompts_per_update * how.group_size,
                num_samples=how.group_size,
            ),
            max_new_tokens=how.max_new_tokens,
            kept_bytes=int(how.kept_cache_gib * 2**30),
        ),
        evaluation=Sampler(
            decoding=rollout.decoding(
                wanted.temperature, wanted.top_k, wanted.top_p, wanted.min_p
            ),
            stop_ids=stops,
            geometry=sizes(
                widths=_widths(task.evaluation),
                max_new_tokens=evaluation_limit(config),
                sequences=together * wanted.samples,
                num_samples=wanted.samples,
            ),
            max_new_tokens=evaluation_limit(config),
        ),
        batch_prompts=together,
        row_sharding=_rows(mesh),
        shape=build.model_shape(model),
    )


def _encoded(
    config: Config,
    task: tasks.Task,
    model: models.ModelConfig,
    tokenizer: Any,
    trains: bool,
) -> tasks.Task:
    """The task with prompts; its worked examples are on neither side."""
    examples = build.examples(config, task)
    shown = {tasks.text_identity(asked) for asked, _ in examples}
    template = build.template(config, examples)
    most = config.sampling.max_prompt_tokens or model.max_positions
    train, counts = (), task.counts
    if trains:
        if not task.train:
            raise ValueError(
                "there are no problems to train on; set data.train, such as"
                " data.train=math/train, a .jsonl file or a hub name"
            )
        train = prompts.encode(_without(task.train, shown), template, tokenizer)
        if config.task.name == "dataset":
            # Nobody reads through a published data set to find the long ones.
            fitting = tuple(p for p in train if len(p.prompt) <= most)
            long = len(train) - len(fitting)
            counts = (*counts, Count(f"train: prompts over {most} tokens", long))
            train = fitting
        if not train:
            raise ValueError(
                f"no problem is left to train on (of {len(task.train)}, the rest have"
                f" prompts over {most} tokens or are worked examples); raise"
                " sampling.max_prompt_tokens or name other problems"
            )
        prompts.check_known(train, tokenizer)
        prompts.check_lengths(train, most)
    evaluation = prompts.encode_all(
        _without(task.evaluation, shown),
        template,
        tokenizer,
        limit=model.max_positions,  # a held-out problem is never left out
    )
    if not evaluation:
        raise ValueError(
            "every held-out problem is among the worked examples; take other examples"
        )
    return task._replace(train=train, evaluation=evaluation, counts=counts)


def _width(problems: Sequence[Problem]) -> int:
    return max((len(problem.prompt) for problem in problems), default=1)


def _widths(problems: Sequence[Problem]) -> tuple[int, ...]:
    """What prompts are padded to: the longest, and quarters of it that some fit in."""
    shortest = min((len(problem.prompt) for problem in problems), default=1)
    found = [_width(problems)]
    while found[-1] // 4 >= max(shortest, NARROWEST):
        found.append(found[-1] // 4)
    return tuple(reversed(found))


def _check_room(
    problems: Sequence[Problem], limit: int, model: models.ModelConfig, section: str
) -> None:
    """Refuses prompts and answers that have no room in the model."""
    width = _width(problems)
    if width + limit > model.max_positions:
        raise ValueError(
            f"prompts of {width} tokens and {limit} new ones exceed the"
            f" {model.max_positions} positions of the model; lower"
            f" {section}.max_new_tokens or set sampling.max_prompt_tokens"
        )


def _without(problems: Sequence[Problem], shown: Set[str]) -> tuple[Problem, ...]:
    """The problems that are not among the worked examples of every prompt."""
    return tuple(p for p in problems if tasks.text_identity(p.question) not in shown)


def evaluation_limit(config: Config) -> int:
    """Returns the most tokens of an evaluated answer: by default, training's."""
    return config.evaluation.max_new_tokens or config.sampling.max_new_tokens


def describe_model(config: Config) -> tuple[models.ModelConfig, Any]:
    """Returns the policy's configuration and tokenizer, without its parameters."""
    wanted = config.model
    if wanted.path:
        model, tokenizer = models.describe(wanted.path)
        if tokenizer is None:
            raise ValueError(
                f"{wanted.path} has no tokenizer; add tokenizer.json to it"
            )
        return model, tokenizer
    tokenizer = tokens.character_tokenizer()
    model = models.ModelConfig(
        family="qwen3",
        qk_norm=True,
        # Rows that no text uses, so that a mesh can cut the vocabulary.
        vocab_size=-(-len(tokenizer) // 32) * 32,
        width=wanted.width,
        ffw=wanted.ffw,
        num_layers=wanted.num_layers,
        num_heads=wanted.num_heads,
        num_kv_heads=wanted.num_kv_heads,
        head_dim=wanted.head_dim,
        max_positions=2048,
        stop_ids=(tokenizer.eos_token_id,),
        pad_id=tokenizer.pad_token_id,
    )
    return model, tokenizer


def decoder(setup: Setup) -> Callable[[np.ndarray, np.ndarray], list[str]]:
    """Returns the function from sampled ids to texts."""
    return functools.partial(tokens.decode_completions, setup.tokenizer)


def _rows(mesh: Mesh) -> NamedSharding | None:
    if mesh.size == 1:
        return None
    return NamedSharding(mesh, PartitionSpec(("data", "fsdp")))
