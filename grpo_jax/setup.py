"""From a configuration to the parts of a run: model, task, method, optimiser."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from budgets import flops
from grpo_jax import (
    keys,
    methods,
    models,
    optim,
    options,
    prompts,
    rollout,
    sharding,
    step,
    tasks,
    tokens,
)
from grpo_jax.base import Functions, Key, Method, Params, Problem
from grpo_jax.config import Config
from grpo_jax.meter import Sampler


class Setup(NamedTuple):
    """Everything a run needs but its directory.

    Attributes:
      config: as loaded.
      root: the run's key.
      mesh: the devices.
      model: configuration of the policy.
      functions: the policy.
      params: its first parameters, on the mesh.
      tokenizer: a `transformers` tokenizer.
      task: problems and verifier; the problems are encoded.
      train: training sampler.
      evaluation: the sampler of evaluations.
      shape: of the policy, for FLOPs.
    """

    config: Config
    root: Key
    mesh: Mesh
    model: models.ModelConfig
    functions: Functions
    params: Params
    tokenizer: Any
    task: tasks.Task
    train: Sampler
    evaluation: Sampler
    shape: flops.ModelShape

    @property
    def row_sharding(self) -> NamedSharding | None:
        """How sequences lie on the mesh; None on one device."""
        return self.train.row_sharding


def prepare(config: Config) -> Setup:
    """Loads the model and the problems, and refuses what cannot run.

    Raises:
      ValueError: one line that says what was seen, the rule, and the remedy.
    """
    mesh = sharding.make_mesh(config.mesh.data, config.mesh.fsdp, config.mesh.tensor)
    root = keys.root(config.seed)
    model, params, tokenizer = load_model(config, mesh, root)
    task = make_task(config)
    stop_ids = prompts.stop_ids(tokenizer, model.stop_ids)
    template, most = make_template(config), config.sampling.max_prompt_tokens
    train, evaluation = (
        prompts.encode_all(
            problems, template, tokenizer, limit=most or model.max_positions
        )
        for problems in (task.train, task.evaluation)
    )
    width = most or max(len(p.prompt) for p in (*train, *evaluation))
    limit = max(config.sampling.max_new_tokens, evaluation_limit(config))
    if width + limit > model.max_positions:
        raise ValueError(
            f"prompts of {width} tokens and {limit} new ones exceed the"
            f" {model.max_positions} positions of the model; lower"
            " sampling.max_new_tokens"
        )
    sampler = functools.partial(
        Sampler,
        stop_ids=rollout.stops(stop_ids),
        width=width,
        row_sharding=_rows(mesh),
    )
    how, wanted = config.sampling, config.evaluation
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
        params=params,
        tokenizer=tokenizer,
        task=task._replace(train=train, evaluation=evaluation),
        train=sampler(
            decoding=rollout.decoding(how.temperature),
            rows=how.prompts_per_update,
            max_new_tokens=how.max_new_tokens,
            prompt_sharding=_prompts(mesh, how.prompts_per_update),
        ),
        evaluation=sampler(
            decoding=rollout.decoding(
                wanted.temperature, wanted.top_k, wanted.top_p, wanted.min_p
            ),
            rows=min(wanted.batch_prompts, len(evaluation)),
            max_new_tokens=evaluation_limit(config),
            prompt_sharding=_prompts(mesh, min(wanted.batch_prompts, len(evaluation))),
        ),
        shape=model_shape(model),
    )


def evaluation_limit(config: Config) -> int:
    """Returns the most tokens of an evaluated answer: by default, training's."""
    return config.evaluation.max_new_tokens or config.sampling.max_new_tokens


def load_model(
    config: Config, mesh: Mesh, root: Key
) -> tuple[models.ModelConfig, Params, Any]:
    """Returns the policy's configuration, first parameters and tokenizer."""
    if not config.model.path:
        model, tokenizer = describe_model(config)
        where = models.shardings(model, mesh)
        make = jax.jit(functools.partial(models.init, model), out_shardings=where)
        return model, make(keys.at(root, keys.Stream.INIT)), tokenizer
    loaded = models.load(config.model.path, mesh=mesh)
    if loaded.tokenizer is None:
        raise ValueError(
            f"{config.model.path} has no tokenizer; add tokenizer.json to it"
        )
    return loaded.config, loaded.params, loaded.tokenizer


def describe_model(config: Config) -> tuple[models.ModelConfig, Any]:
    """Returns the policy's configuration and tokenizer, without its parameters."""
    wanted = config.model
    if wanted.path:
        return models.describe(wanted.path)
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


def model_shape(model: models.ModelConfig) -> flops.ModelShape:
    """Returns what the FLOPs of a model depend on."""
    return flops.ModelShape(
        layers=model.num_layers,
        width=model.width,
        heads=model.num_heads,
        kv_heads=model.num_kv_heads,
        head_dim=model.head_dim,
        ffw=model.ffw,
        vocab=model.vocab_size,
    )


def make_task(config: Config) -> tasks.Task:
    """Returns the problems and verifier that a configuration names."""
    task = config.task
    counts: dict[str, Any] = {
        "num_train": task.num_train,
        "num_eval": task.num_eval,
        "seed": task.problem_seed,
    }
    if task.name == "reasoning_gym":
        return tasks.reasoning_gym(
            task.generator,
            options=task.options,
            require_box=task.require_box,
            **counts,
        )
    if task.name == "addition":
        return tasks.addition(
            digits=task.digits,
            examples=[tuple(pair) for pair in config.prompt.examples],
            require_box=task.require_box,
            **counts,
        )
    return tasks.arithmetic(
        operands=task.operands,
        min_operand=task.min_operand,
        max_operand=task.max_operand,
        operators=task.operators,
        noise=config.pretrain.noise,
        require_box=task.require_box,
        **counts,
    )


def make_template(config: Config) -> prompts.Template:
    """Returns how a question becomes prompt ids."""
    wanted = config.prompt
    if wanted.style == "plain":
        return prompts.plain
    return prompts.chat(
        system=wanted.system or None,
        instruction=wanted.instruction,
        examples=[(asked, answer) for asked, answer in wanted.examples],
        layout=prompts.in_message if wanted.layout == "message" else prompts.as_turns,
    )


def make_optimizer(config: Config) -> optax.GradientTransformation:
    """Returns the optimiser of the run."""
    wanted = config.optimizer
    return optim.adamw(
        learning_rate=wanted.learning_rate,
        b1=wanted.b1,
        b2=wanted.b2,
        eps=wanted.eps,
        weight_decay=wanted.weight_decay,
        clip_norm=wanted.clip_norm,
        warmup_steps=wanted.warmup_steps,
        schedule=options.SCHEDULES[wanted.schedule],
        decay_steps=wanted.decay_steps,
        decay_mask=models.decay_mask,
    )


def make_method(setup: Setup, reference: Params | None) -> Method:
    """Returns the training method that a configuration names."""
    config = setup.config
    wanted, how = config.method, config.sampling
    in_reward = wanted.kl == "k1_reward"
    in_loss = wanted.kl not in ("none", "k1_reward")
    return methods.grpo(
        setup.functions,
        group_size=how.group_size,
        prompts_per_update=how.prompts_per_update,
        temperature=how.temperature,
        window=how.max_new_tokens,
        mask_truncated=wanted.mask_truncated,
        clip_low=wanted.clip_low,
        clip_high=wanted.clip_high,
        reduce=options.aggregation(wanted.aggregation, length=how.max_new_tokens),
        kl=options.KLS[wanted.kl] if in_loss else None,
        kl_coefficient=wanted.kl_coefficient if in_loss else 0.0,
        kl_in_reward=wanted.kl_coefficient if in_reward else 0.0,
        reference=reference,
        **options.loss(wanted.loss, dual_clip=wanted.dual_clip or None),
        **options.advantage(wanted.advantage, ddof=wanted.ddof),
    )


def needs_reference(config: Config) -> bool:
    """Whether the method reads a frozen copy of the first parameters."""
    return config.method.kl != "none"


def pretrain_method(setup: Setup) -> Method:
    """Returns next-token training on worked solutions, ended by the stop token."""
    stop = [int(setup.tokenizer.eos_token_id)]

    def completion(problem: Problem) -> list[int]:
        return tokens.encode(setup.tokenizer, problem.solution) + stop

    width = max(len(p.prompt) + len(completion(p)) for p in setup.task.train)
    return methods.next_token(
        setup.functions,
        encode=lambda problem: (problem.prompt, completion(problem)),
        sequences_per_update=setup.config.pretrain.sequences,
        width=width,
    )


def decoder(setup: Setup) -> Callable[[np.ndarray, np.ndarray], list[str]]:
    """Returns the function from sampled ids to texts."""
    return functools.partial(tokens.decode_completions, setup.tokenizer)


def _rows(mesh: Mesh) -> NamedSharding | None:
    if mesh.size == 1:
        return None
    return NamedSharding(mesh, PartitionSpec(("data", "fsdp")))


def _prompts(mesh: Mesh, count: int) -> NamedSharding | None:
    if mesh.size == 1:
        return None
    parts = mesh.shape["data"] * mesh.shape["fsdp"]
    spec = PartitionSpec(("data", "fsdp")) if count % parts == 0 else PartitionSpec()
    return NamedSharding(mesh, spec)


def with_shardings(setup: Setup, like: Any) -> Any:
    """Returns an abstract state with the shardings of the run's parameters.

    Moments of the optimiser mirror the parameters and lie where they lie; everything
    else is a scalar and lies everywhere.
    """
    where = models.shardings(setup.model, setup.mesh)
    treedef = jax.tree.structure(where)
    everywhere = sharding.replicated(setup.mesh)

    def mirrors(node: Any) -> bool:
        return jax.tree.structure(node) == treedef

    def placed(node: Any) -> Any:
        shards = where if mirrors(node) else everywhere
        if not mirrors(node):
            return jax.ShapeDtypeStruct(node.shape, node.dtype, sharding=shards)
        return jax.tree.map(
            lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), node, where
        )

    return jax.tree.map(placed, like, is_leaf=mirrors)


def first_state(setup: Setup, params: Params, tx: optax.GradientTransformation) -> Any:
    """Returns the state before the first step, laid out as every later one is.

    A moment created elsewhere than where the step leaves it would make the second
    step another program.
    """
    state = step.init(params, tx)
    where = with_shardings(setup, jax.eval_shape(lambda: state))
    return jax.tree.map(lambda x, s: jax.device_put(x, s.sharding), state, where)
