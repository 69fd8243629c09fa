"""Every option of a run, a frozen section each: its type, default, range and unit.

`grpo_jax.config` reads files into these classes and checks them. A bound is written
beside the default: `low` and `high` are allowed values, `above` and `below` are not.
"""

import dataclasses
from typing import Any, TypeAlias, TypeVar

_T = TypeVar("_T")
Bound: TypeAlias = int | float | None


def _knob(
    default: _T,
    *choices: str,
    low: Bound = None,
    high: Bound = None,
    above: Bound = None,
    below: Bound = None,
) -> _T:
    """A field with its default and its rule; typed as the default for pyright."""
    rule = {"choices": choices, "low": low, "high": high}
    field: Any = dataclasses.field(
        default=default, metadata=rule | {"above": above, "below": below}
    )
    return field


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
    """Where a run lives and what it stores."""

    dir: str = ""  # run directory; empty is runs/<config name>-seed<seed>
    save_every: int = _knob(20, low=1)  # updates between checkpoints
    keep_checkpoints: int = _knob(2, low=1)  # newest ones kept
    save_rollouts: bool = False  # store sampled ids by update and phase
    tensorboard: bool = True  # write event files beside metrics.jsonl
    wandb: bool = False  # log to Weights & Biases too
    wandb_project: str = "grpo-jax"  # read when wandb is on
    compilation_cache: bool = True  # keep compiled programs in the user's cache


@dataclasses.dataclass(frozen=True, kw_only=True)
class Model:
    """What is trained: a directory, a file, a known name, or the embedded model."""

    path: str = ""  # HF directory or hub name, GGUF file, known name; "" embedded
    width: int = _knob(128, low=1)  # of the embedded model, as is all to ffw
    num_layers: int = _knob(4, low=1)  # decoder blocks
    num_heads: int = _knob(4, low=1)  # query heads
    num_kv_heads: int = _knob(2, low=1)  # key-value heads; divides num_heads
    head_dim: int = _knob(32, low=2)  # even: rotary embedding turns pairs
    ffw: int = _knob(384, low=1)  # hidden width of the feed-forward layer
    compute_dtype: str = _knob("float32", "float32", "bfloat16")  # of activations
    remat: str = _knob("dots", "none", "full", "dots")  # what backward recomputes


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pretrain:
    """Next-token training of the embedded model on worked solutions, before RL."""

    updates: int = _knob(0, low=0)  # 0 is no pretraining
    sequences: int = _knob(4096, low=1)  # worked solutions per update
    batch_size: int = _knob(128, low=1)  # sequences per optimiser step
    learning_rate: float = _knob(1e-3, low=0)  # of AdamW
    warmup_steps: int = _knob(50, low=0)  # optimiser steps from 0 to learning_rate
    noise: float = _knob(0.25, low=0, high=1)  # share of solution steps made wrong


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task:
    """Problems with a verifier."""

    name: str = _knob(
        "arithmetic", "arithmetic", "addition", "reasoning_gym", "dataset"
    )  # kind of problem; dataset reads section data
    generator: str = ""  # reasoning_gym data set
    options: dict = dataclasses.field(default_factory=dict)  # given to the generator
    operands: int = _knob(3, low=2, high=100)  # numbers in an arithmetic problem
    min_operand: int = _knob(0, low=0)  # smallest of them
    max_operand: int = _knob(9, low=1, high=10**9)  # largest of them
    operators: str = "+-"  # drawn uniformly, one a character
    digits: int = _knob(2, low=1, high=9)  # of both numbers of an addition problem
    num_train: int = _knob(4096, low=1)  # training problems
    num_eval: int = _knob(300, low=1)  # held-out problems, none of them in training
    problem_seed: int = _knob(
        0, low=0, high=2**31 - 1
    )  # of the problems, apart from the run's seed


@dataclasses.dataclass(frozen=True, kw_only=True)
class Data:
    """Problems from files or the hub; read by task.name = "dataset"."""

    train: str = ""  # preset/split such as math/train, a file, or a hub name
    evaluation: str = ""  # the same; empty holds out a share of train by hash
    root: str = ""  # directory of local copies of the presets; empty is the hub
    levels: list = dataclasses.field(default_factory=list)  # kept; [] keeps all
    numeric: bool = False  # only problems whose gold answer is a number
    half: str = _knob("", "", "1H", "2H")  # one of two fixed halves of train
    holdout: float = _knob(0.1, above=0, below=1)  # share held out by hash
    max_train: int = _knob(0, low=0)  # training problems; 0 is all
    max_evaluation: int = _knob(0, low=0)  # held-out problems; 0 is all
    max_dropped: int = _knob(0, low=0)  # malformed rows that may be left out
    question_field: str = ""  # of your own rows; empty tries the usual names
    answer_field: str = ""  # the same, as for the three below
    solution_field: str = ""
    level_field: str = ""
    subject_field: str = ""
    readings: str = "runs/readings.jsonl"  # where readings of locked splits are noted


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rewards:
    """How an answer is read and graded."""

    require_box: bool = False  # only an answer in \boxed{} counts


@dataclasses.dataclass(frozen=True, kw_only=True)
class Prompt:
    """How a problem becomes text."""

    style: str = _knob(
        "plain", "plain", "chat", "base"
    )  # chat is the model's own template, base asks a base model
    shots: int = _knob(0, low=0)  # worked examples taken from the training problems
    system: str = ""  # system message; empty is what the template says
    instruction: str = ""  # how to answer
    layout: str = _knob("turns", "turns", "message")  # where examples stand
    examples: list = dataclasses.field(default_factory=list)  # [[question, answer], …]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Method:
    """How rewards become a loss."""

    name: str = _knob("grpo", "grpo", "dense")  # training method
    advantage: str = _knob(
        "group_relative", "group_relative", "centred", "leave_one_out", "batch"
    )  # what a reward is compared with
    ddof: int = _knob(1, low=0, high=1)  # of the standard deviation of rewards
    clip_low: float = _knob(0.2, low=0, high=1)  # ratio is clipped to 1 - clip_low
    clip_high: float = _knob(0.2, low=0)  # and to 1 + clip_high
    dual_clip: float = _knob(0.0, low=0)  # bound for negative advantages; 0 is off
    loss: str = _knob("clipped", "clipped", "cispo", "gspo")  # surrogate
    aggregation: str = _knob(
        "token_mean", "token_mean", "sequence_mean", "sequence_sum", "constant"
    )  # denominator, global over an optimiser step
    kl: str = _knob(
        "none", "none", "k1_reward", "k2", "k3", "k3_value_k2_gradient"
    )  # estimator of KL(policy || reference)
    kl_coefficient: float = _knob(0.0, low=0)  # weight of the KL, reward per nat
    mask_truncated: bool = False  # drop truncated answers from the loss
    epochs: int = _knob(1, low=1)  # passes over each rollout batch
    minibatches: int = _knob(1, low=1)  # optimiser steps per pass


@dataclasses.dataclass(frozen=True, kw_only=True)
class Credit:
    """Steps of an answer, and their values; method.name = "dense" pays for these."""

    max_steps: int = _knob(6, low=1)  # S_max; the last step runs to the end
    min_chars: int = _knob(20, low=1)  # of a step before it may end
    continuations: int = _knob(4, low=1)  # K, from every interior boundary
    variant: str = _knob("difference", "difference", "return_to_go", "mixed")
    mix: float = _knob(0.5, low=0, high=1)  # weight of the step's part in mixed
    normalise: str = _knob("std", "std", "whiten", "none")  # over steps of an update
    baseline: str = _knob("leave_one_out", "leave_one_out", "fresh")  # value at start


@dataclasses.dataclass(frozen=True, kw_only=True)
class Selection:
    """Which problems an update trains on."""

    name: str = _knob("uniform", "uniform", "filter", "random", "history", "dynamic")
    target: float = _knob(0.5, low=0, high=1)  # pass rate wanted by filter, history
    candidates: int = _knob(4, low=1)  # times prompts_per_update; filter, random
    scoring_samples: int = _knob(4, low=1)  # of each candidate; filter, random
    reuse: bool = False  # train on scoring samples too: biased by the selection
    history_candidates: int = _knob(16, low=1)  # times prompts_per_update; history
    forgetting: float = _knob(0.1, low=0, high=1)  # share of past counts lost; history
    max_rounds: int = _knob(10, low=1)  # of refilling before dynamic gives up


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sampling:
    """How training completions are drawn."""

    prompts_per_update: int = _knob(8, low=1)  # problems per rollout batch
    group_size: int = _knob(8, low=1)  # completions per problem
    max_new_tokens: int = _knob(64, low=1)  # limit of a completion
    temperature: float = _knob(1.0, above=0)  # of the policy, in training too
    top_k: int = _knob(0, low=0)  # 0 is off; training allows nothing else
    top_p: float = _knob(1.0, above=0, high=1)  # 1 is off; the same
    min_p: float = _knob(0.0, low=0, below=1)  # 0 is off; the same
    max_prompt_tokens: int = _knob(0, low=0)  # of training; 0 is the model's room
    slots: int = _knob(0, low=0)  # sequences decoded together; 0: all, to 256
    kept_cache_gib: float = _knob(4.0, low=0)  # of caches kept for continuations


@dataclasses.dataclass(frozen=True, kw_only=True)
class Optimizer:
    """AdamW with clipping and a schedule; steps are optimiser steps."""

    learning_rate: float = _knob(1e-6, low=0)  # after warmup
    b1: float = _knob(0.9, low=0, below=1)  # decay of the first moment
    b2: float = _knob(0.999, low=0, below=1)  # decay of the second
    eps: float = _knob(1e-8, above=0)  # added to the root of the second
    weight_decay: float = _knob(0.0, low=0)  # not on norms and biases
    clip_norm: float = _knob(1.0, above=0)  # largest global norm of a gradient
    warmup_steps: int = _knob(0, low=0)  # from 0 to learning_rate
    schedule: str = _knob("constant", "constant", "linear", "cosine")  # after warmup
    decay_steps: int = _knob(0, low=0)  # step at which a decay ends, warmup included
    microbatches: int = _knob(0, low=0)  # parts of a gradient; 0 is automatic


@dataclasses.dataclass(frozen=True, kw_only=True)
class Budget:
    """When a run ends; 0 is no limit."""

    updates: int = _knob(100, low=0)  # rollout batches trained on
    tokens: int = _knob(0, low=0)  # generated in training
    device_seconds: float = _knob(0.0, low=0)  # wall seconds times devices
    until: str = _knob("both", "both", "first")  # all limits reached, or any


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Sampled-answer accuracy on the held-out problems."""

    every: int = _knob(0, low=0)  # updates; 0 is before and after only
    before: bool = True  # the first parameters too
    at_updates: list = dataclasses.field(default_factory=list)  # and nowhere else
    at_tokens: list = dataclasses.field(default_factory=list)  # last update within each
    at_device_seconds: list = dataclasses.field(default_factory=list)  # the same
    samples: int = _knob(8, low=1)  # answers per problem
    batch_prompts: int = _knob(64, low=1)  # problems sampled together
    temperature: float = _knob(1.0, low=0)  # 0 takes the likeliest token
    top_k: int = _knob(0, low=0)  # 0 is off
    top_p: float = _knob(1.0, above=0, high=1)  # 1 is off
    min_p: float = _knob(0.0, low=0, below=1)  # 0 is off
    max_new_tokens: int = _knob(0, low=0)  # 0 is the training limit


@dataclasses.dataclass(frozen=True, kw_only=True)
class Mesh:
    """Devices along each axis; their product is how many are used."""

    data: int = _knob(1, low=1)  # copies that split the batch
    fsdp: int = _knob(1, low=1)  # splits of the batch and of every parameter
    tensor: int = _knob(1, low=1)  # splits of heads, hidden units and vocabulary


@dataclasses.dataclass(frozen=True, kw_only=True)
class Alarms:
    """Shares above which a warning is printed."""

    truncated: float = _knob(0.1, low=0, high=1)  # completions cut by the limit
    zero_variance: float = _knob(0.8, low=0, high=1)  # groups of equal rewards
    grader_errors: float = _knob(0.01, low=0, high=1)  # completions not graded
    duplicates: float = _knob(0.5, low=0, high=1)  # repeats within a group
    no_boundary: float = _knob(0.5, low=0, high=1)  # answers of one step, under dense


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """A whole run; what a configuration file holds."""

    seed: int = _knob(0, low=0, high=2**31 - 1)  # of every random draw but the problems
    run: Run = Run()
    model: Model = Model()
    pretrain: Pretrain = Pretrain()
    task: Task = Task()
    data: Data = Data()
    rewards: Rewards = Rewards()
    prompt: Prompt = Prompt()
    method: Method = Method()
    credit: Credit = Credit()
    selection: Selection = Selection()
    sampling: Sampling = Sampling()
    optimizer: Optimizer = Optimizer()
    budget: Budget = Budget()
    evaluation: Evaluation = Evaluation()
    mesh: Mesh = Mesh()
    alarms: Alarms = Alarms()
