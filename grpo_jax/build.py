"""From the words of a configuration to tasks, templates, methods and optimisers."""

from collections.abc import Sequence
from typing import Any

import optax

from budgets import flops
from grpo_jax import (
    methods,
    models,
    optim,
    options,
    problemsets,
    prompts,
    rows,
    scored,
    selection,
    shots,
    steps,
    supervised,
    tasks,
    tokens,
)
from grpo_jax.base import Functions, Method, Params, Problem
from grpo_jax.config import Config


def task(config: Config) -> tasks.Task:
    """Returns the problems and verifier that a configuration names."""
    found = _problems(config)
    if config.prompt.style == "base":
        return found._replace(verify=prompts.of_first_answer(found.verify))
    return found


def _problems(config: Config) -> tasks.Task:
    task = config.task
    if task.name == "dataset":
        return _dataset(config)
    counts: dict[str, Any] = {
        "num_train": task.num_train,
        "num_eval": task.num_eval,
        "seed": task.problem_seed,
    }
    if task.name == "reasoning_gym":
        return tasks.reasoning_gym(
            task.generator,
            options=task.options,
            require_box=config.rewards.require_box,
            **counts,
        )
    if task.name == "addition":
        return tasks.addition(
            digits=task.digits,
            examples=[tuple(pair) for pair in config.prompt.examples],
            require_box=config.rewards.require_box,
            **counts,
        )
    return tasks.arithmetic(
        operands=task.operands,
        min_operand=task.min_operand,
        max_operand=task.max_operand,
        operators=task.operators,
        noise=config.pretrain.noise,
        require_box=config.rewards.require_box,
        **counts,
    )


def examples(config: Config, task: tasks.Task) -> prompts.Examples:
    """Returns the worked examples of every prompt, written or taken from the task."""
    wanted = config.prompt
    if wanted.shots:
        return shots.worked_examples(task.train, wanted.shots)
    return [(asked, answer) for asked, answer in wanted.examples]


def _dataset(config: Config) -> tasks.Task:
    """The problems that section data names."""
    data, usual = config.data, rows.Layout()
    return problemsets.load(
        data.train,
        data.evaluation,
        root=data.root,
        own=rows.Layout(
            question=(data.question_field,) if data.question_field else usual.question,
            answer=(data.answer_field,) if data.answer_field else usual.answer,
            solution=(data.solution_field,) if data.solution_field else usual.solution,
            level=(data.level_field,) if data.level_field else usual.level,
            subject=(data.subject_field,) if data.subject_field else usual.subject,
        ),
        levels=data.levels,
        numeric=data.numeric,
        half=data.half,
        holdout=data.holdout,
        max_train=data.max_train,
        max_evaluation=data.max_evaluation,
        max_dropped=data.max_dropped,
        require_box=config.rewards.require_box,
    )


def template(config: Config, examples: prompts.Examples) -> prompts.Template:
    """Returns how a question becomes prompt ids, beside `examples` of the same task."""
    wanted = config.prompt
    if wanted.style == "plain":
        return prompts.plain
    if wanted.style == "base":
        return prompts.base(
            system=wanted.system, instruction=wanted.instruction, examples=examples
        )
    return prompts.chat(
        system=wanted.system or None,
        instruction=wanted.instruction,
        examples=examples,
        layout=prompts.in_message if wanted.layout == "message" else prompts.as_turns,
    )


def optimizer(config: Config) -> optax.GradientTransformation:
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
        # In the file a decay ends at a step; the schedule counts from the warmup.
        decay_steps=max(wanted.decay_steps - wanted.warmup_steps, 0),
        decay_mask=models.decay_mask,
    )


def needs_reference(config: Config) -> bool:
    """Whether the method reads a frozen copy of the first parameters."""
    return config.method.kl != "none"


def method(
    config: Config,
    functions: Functions,
    reference: Params | None,
    tokenizer: tokens.Tokenizer,
) -> Method:
    """Returns the training method that a configuration names."""
    wanted, how = config.method, config.sampling
    in_reward = wanted.kl == "k1_reward"
    in_loss = wanted.kl not in ("none", "k1_reward")
    common: dict[str, Any] = {
        "group_size": how.group_size,
        "prompts_per_update": how.prompts_per_update,
        "selector": selector(config),
        "temperature": how.temperature,
        "mask_truncated": wanted.mask_truncated,
        "clip_low": wanted.clip_low,
        "clip_high": wanted.clip_high,
        "reduce": options.aggregation(wanted.aggregation, length=how.max_new_tokens),
        "kl": options.KLS[wanted.kl] if in_loss else None,
        "kl_coefficient": wanted.kl_coefficient if in_loss else 0.0,
        "reference": reference,
        **options.loss(wanted.loss, dual_clip=wanted.dual_clip or None),
    }
    advantage = options.advantage(wanted.advantage, ddof=wanted.ddof)
    if wanted.name == "dense":
        return methods.dense(
            functions,
            segment=segmenter(config, tokenizer),
            compare=advantage["compare"],
            **options.step_credit(config.credit),
            **common,
        )
    return methods.grpo(
        functions,
        kl_in_reward=wanted.kl_coefficient if in_reward else 0.0,
        **advantage,
        **common,
    )


def segmenter(config: Config, tokenizer: tokens.Tokenizer) -> methods.Segment:
    """Returns how sampled ids fall into steps."""
    wanted = config.credit
    return steps.segmenter(
        lambda ids: tokens.decode(tokenizer, [list(ids)])[0],
        max_steps=wanted.max_steps,
        min_chars=wanted.min_chars,
    )


def selector(config: Config) -> selection.Selector:
    """Returns what chooses the problems of an update."""
    wanted, size = config.selection, config.sampling.prompts_per_update
    scoring = {
        "candidates": wanted.candidates,
        "scoring_samples": wanted.scoring_samples,
        "reused_in": config.sampling.group_size if wanted.reuse else 0,
    }
    if wanted.name == "filter":
        found = scored.filtered(size, target=wanted.target, **scoring)
    elif wanted.name == "random":
        found = scored.at_random(size, **scoring)
    elif wanted.name == "history":
        found = selection.history(
            size,
            candidates=wanted.history_candidates,
            target=wanted.target,
            forgetting=wanted.forgetting,
        )
    elif wanted.name == "dynamic":
        found = selection.dynamic(
            size,
            group_size=config.sampling.group_size,
            max_rounds=wanted.max_rounds,
        )
    else:
        found = selection.uniform(size)
    return found


def pretrain_method(
    config: Config,
    functions: Functions,
    tokenizer: tokens.Tokenizer,
    problems: Sequence[Problem],
) -> Method:
    """Returns next-token training on worked solutions, ended by the stop token."""
    stop = [int(tokenizer.eos_token_id)]

    def completion(problem: Problem) -> list[int]:
        return tokens.encode(tokenizer, problem.solution) + stop

    width = max(len(p.prompt) + len(completion(p)) for p in problems)
    return supervised.next_token(
        functions,
        encode=lambda problem: (problem.prompt, completion(problem)),
        sequences_per_update=config.pretrain.sequences,
        width=width,
    )


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
