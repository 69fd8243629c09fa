"""Rules between options of different fields, each with its remedy in one line."""

import dataclasses

from grpo_jax.config_schema import Config, Data


def check(config: Config) -> None:
    """Refuses a configuration whose options contradict each other.

    Raises:
      ValueError: one line with what was seen, the rule and the remedy.
    """
    for rule in (
        _model,
        _task,
        _data,
        _prompt,
        _method,
        _selection,
        _sampling,
        _batches,
        _optimizer,
        _budget,
        _points,
    ):
        rule(config)


def _refuse(wrong: bool, message: str) -> None:
    if wrong:
        raise ValueError(message)


def _model(config: Config) -> None:
    model, pretrain = config.model, config.pretrain
    if not model.path:
        _refuse(
            model.num_heads % model.num_kv_heads != 0,
            f"model.num_heads={model.num_heads} must be a multiple of"
            f" model.num_kv_heads={model.num_kv_heads}",
        )
        _refuse(
            model.head_dim % 2 != 0,
            f"model.head_dim={model.head_dim} must be even: rotary embedding turns"
            f" pairs; use {model.head_dim + 1}",
        )
    _refuse(
        bool(model.path) and pretrain.updates > 0,
        f"pretrain.updates={pretrain.updates} trains the embedded model, but"
        f" model.path={model.path!r} names another; set one of them only",
    )
    _refuse(
        pretrain.updates > 0 and config.task.name != "arithmetic",
        f"pretrain.updates={pretrain.updates} needs worked solutions, which"
        f" task.name={config.task.name!r} has none of; use pretrain.updates=0 or"
        " task.name=arithmetic",
    )


def _task(config: Config) -> None:
    task = config.task
    if task.name == "reasoning_gym":
        _refuse(
            not task.generator,
            "task.generator is empty; task.name='reasoning_gym' needs the name of one"
            " of its data sets, such as task.generator=chain_sum",
        )
    else:
        _refuse(
            bool(task.generator or task.options),
            f"task.generator and task.options are read by task.name='reasoning_gym'"
            f" only, not by {task.name!r}; remove them or change task.name",
        )
    _refuse(
        task.min_operand > task.max_operand,
        f"task.min_operand={task.min_operand} must be at most"
        f" task.max_operand={task.max_operand}; lower it",
    )
    _refuse(
        not task.operators or not set(task.operators) <= set("+-*"),
        f"task.operators={task.operators!r} must be made of + - *, such as '+-'",
    )


def _prompt(config: Config) -> None:
    prompt = config.prompt
    pairs = [p for p in prompt.examples if not _is_pair(p)]
    _refuse(
        bool(pairs),
        f"prompt.examples holds {pairs[:1]!r}; each is a pair of texts, such as"
        ' ["What is 1 + 1?", "2"]',
    )
    fields = ("system", "instruction", "examples", "shots")
    given = [f"prompt.{name}" for name in fields if getattr(prompt, name)]
    _refuse(
        bool(given) and prompt.style == "plain",
        f"prompt.style='plain' is the question alone and does not read"
        f" {' and '.join(given)}; remove what it does not read, or use"
        " prompt.style=chat or prompt.style=base",
    )
    _refuse(
        prompt.layout != "turns" and prompt.style != "chat",
        f"prompt.layout={prompt.layout!r} is read by prompt.style='chat' only, not by"
        f" {prompt.style!r}; use prompt.layout=turns",
    )
    _refuse(
        prompt.shots > 0 and bool(prompt.examples),
        f"prompt.shots={prompt.shots} takes examples from the problems and"
        " prompt.examples writes them; set one of them only",
    )
    name = config.task.name
    _refuse(
        prompt.shots > 0 and name not in ("arithmetic", "dataset"),
        f"prompt.shots={prompt.shots} needs worked solutions, which task.name={name!r}"
        " has none of; use prompt.examples",
    )


def _data(config: Config) -> None:
    data, name = config.data, config.task.name
    if name != "dataset":
        # Where readings are noted is read by evaluations of any task.
        plain = dataclasses.replace(Data(), readings=data.readings)
        named = [f.name for f in dataclasses.fields(data)]
        set_ = [f for f in named if getattr(data, f) != getattr(plain, f)]
        _refuse(
            bool(set_),
            f"data.{', data.'.join(set_)}: section data is read by task.name='dataset'"
            f" only, not by {name!r}; remove them or use task.name=dataset",
        )
        return
    _refuse(
        not (data.train or data.evaluation),
        "data.train is empty; task.name='dataset' needs problems, such as"
        " data.train=math/train, a .jsonl file or a hub name",
    )
    wrong = [x for x in data.levels if type(x) is not int or not 1 <= x <= 5]
    _refuse(
        bool(wrong),
        f"data.levels={data.levels!r} holds {wrong[:1]!r}; levels are integers from 1"
        " to 5, such as [3, 4, 5]",
    )
    _refuse(
        len(set(data.levels)) < len(data.levels),
        f"data.levels={data.levels!r} names a level twice; name each once",
    )
    _refuse(
        bool(data.evaluation) and data.holdout != Data().holdout,
        f"data.holdout={data.holdout} is read only where data.evaluation is empty;"
        f" remove one of them (data.evaluation={data.evaluation!r})",
    )


def _is_pair(value: object) -> bool:
    return (
        isinstance(value, list)
        and len(value) == 2
        and all(isinstance(text, str) for text in value)
    )


def _method(config: Config) -> None:
    method, size = config.method, config.sampling.group_size
    _refuse(
        size == 1,
        f"sampling.group_size=1 leaves method.advantage={method.advantage!r} nothing"
        " to compare a reward with; use sampling.group_size=2 or more",
    )
    _refuse(
        method.kl == "none" and method.kl_coefficient > 0,
        f"method.kl_coefficient={method.kl_coefficient} is read by nothing while"
        " method.kl='none'; choose an estimator, such as method.kl=k3, or use 0",
    )
    _refuse(
        method.kl != "none" and method.kl_coefficient == 0,
        f"method.kl={method.kl!r} with method.kl_coefficient=0 pays for a reference"
        " and does nothing; set a coefficient or use method.kl=none",
    )
    _refuse(
        0 < method.dual_clip <= 1,
        f"method.dual_clip={method.dual_clip} must be above 1, as it bounds a ratio"
        " from above; 0 is off",
    )
    _refuse(
        method.dual_clip > 0 and method.loss != "clipped",
        f"method.dual_clip is read by method.loss='clipped' only, not by"
        f" {method.loss!r}; use 0",
    )


def _selection(config: Config) -> None:
    wanted, size = config.selection, config.sampling.group_size
    _refuse(
        config.method.name == "dense" and config.method.kl == "k1_reward",
        "method.kl='k1_reward' changes outcomes that method.name='dense' compares with"
        " values of states; use method.kl=k3, or none",
    )
    if not wanted.reuse:
        return
    _refuse(
        wanted.name not in ("filter", "random"),
        f"selection.reuse=true: selection.name={wanted.name!r} has no scoring samples"
        " to train on; use selection.reuse=false",
    )
    _refuse(
        wanted.scoring_samples > size,
        f"selection.reuse=true trains on selection.scoring_samples"
        f"={wanted.scoring_samples} of sampling.group_size={size} completions; use at"
        f" most {size}",
    )


def _points(config: Config) -> None:
    wanted = config.evaluation
    for name in ("at_updates", "at_tokens", "at_device_seconds"):
        points = getattr(wanted, name)
        kinds = (int, float) if name == "at_device_seconds" else (int,)
        numbers = all(type(x) in kinds and x > 0 for x in points)
        _refuse(
            not numbers or points != sorted(set(points)),
            f"evaluation.{name}={points!r} must be positive numbers in ascending order,"
            " each once" + ("" if float in kinds else ", whole ones"),
        )
        _refuse(
            bool(points) and wanted.every > 0,
            f"evaluation.{name} says where to evaluate, and evaluation.every="
            f"{wanted.every} too; use evaluation.every=0",
        )


def _sampling(config: Config) -> None:
    sampling = config.sampling
    for name, off in (("top_k", 0), ("top_p", 1.0), ("min_p", 0.0)):
        value = getattr(sampling, name)
        _refuse(
            value != off,
            f"sampling.{name}={value}: training samples the whole distribution in this"
            f" version, a truncated policy is refused; use sampling.{name}={off}"
            f" (evaluation.{name} may truncate)",
        )


def _batches(config: Config) -> None:
    sampling, mesh = config.sampling, config.mesh
    shards = mesh.data * mesh.fsdp
    devices = f"mesh.data*mesh.fsdp={shards}"
    rows = sampling.prompts_per_update * sampling.group_size
    batch = f"sampling.prompts_per_update*group_size={rows}"
    steps = config.method.minibatches
    micro = config.optimizer.microbatches
    _divides(batch, rows, devices, shards)
    _divides(batch, rows, f"method.minibatches={steps}", steps)
    small = rows // steps
    _divides(f"a mini-batch of {small} sequences", small, devices, shards)
    _refuse(
        micro > small // shards,
        f"optimizer.microbatches={micro} exceeds the {small // shards} sequences of a"
        f" mini-batch on each device; use at most {small // shards}, or 0 for parts of"
        " the device's size",
    )
    if config.pretrain.updates:
        sequences, size = config.pretrain.sequences, config.pretrain.batch_size
        wanted = f"pretrain.batch_size={size}"
        _divides(f"pretrain.sequences={sequences}", sequences, wanted, size)
        _divides(wanted, size, devices, shards)


def _divides(what: str, number: int, by: str, divisor: int) -> None:
    """Refuses a number that does not split evenly, and names the nearest that do."""
    below = number // divisor * divisor
    use = f"{below} or {below + divisor}" if below else f"{divisor}"
    _refuse(number % divisor != 0, f"{what} must be a multiple of {by}; make it {use}")


def _optimizer(config: Config) -> None:
    optimizer = config.optimizer
    decays = optimizer.schedule != "constant"
    _refuse(
        decays and optimizer.decay_steps <= optimizer.warmup_steps,
        f"optimizer.decay_steps={optimizer.decay_steps} must be above"
        f" optimizer.warmup_steps={optimizer.warmup_steps} for"
        f" optimizer.schedule={optimizer.schedule!r}; set the step at which it ends",
    )
    _refuse(
        not decays and optimizer.decay_steps > 0,
        f"optimizer.decay_steps={optimizer.decay_steps} is read by no"
        " optimizer.schedule='constant'; use schedule=linear or cosine, or 0",
    )


def _budget(config: Config) -> None:
    budget = config.budget
    _refuse(
        not (budget.updates or budget.tokens or budget.device_seconds),
        "budget has no limit, so the run would never end; set budget.updates,"
        " budget.tokens or budget.device_seconds above 0",
    )
