"""Published sets of problems by name: where they are kept and how their rows look.

A side of a task is written as `preset/split`, as a path to a `.jsonl` or `.parquet`
file or to a directory, or as a name on the hub: `owner/name:config@split`, where config
and split may be left out (the only configuration, and train). A path to a directory
begins with `/`, `./`, `../` or `~`, so that none is taken for a name.
"""

import difflib
import pathlib
from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import NamedTuple

from grpo_jax import sources
from grpo_jax.rows import Layout
from grpo_jax.sources import Origin

OWN = "own"  # leads the ids of problems that no preset names


class Source(NamedTuple):
    """One published set of rows.

    Attributes:
      name: for people, `preset/split`.
      family: leads the ids of its problems; presets of the same problems share one.
      hub: name on the hub, and the directory of a local copy.
      split: on the hub.
      file: a local copy's name without its ending.
      layout: of a row.
      configs: configurations on the hub, all of them read, in this order.
      unanswered: ids of problems that were published without an answer.
    """

    name: str
    family: str
    hub: str
    split: str
    file: str
    layout: Layout
    configs: tuple[str, ...] = ("",)
    unanswered: frozenset[str] = frozenset()


class Split(NamedTuple):
    """One side that a task can be made of.

    Attributes:
      source: its rows.
      within: keeps only problems that stand there too; stands in where `source` is
        not to be found.
      outside: keeps only problems that do not stand there.
      held_out: is not trained on.
      locked: each reading is written down.
    """

    source: Source
    within: Source | None = None
    outside: Source | None = None
    held_out: bool = True
    locked: bool = False


_MATH = Layout(question=("problem",), subject=("type", "subject"))
_SUBJECTS = (
    "algebra",
    "counting_and_probability",
    "geometry",
    "intermediate_algebra",
    "number_theory",
    "prealgebra",
    "precalculus",
)
_OF_MATH = Source(
    name="math/train",
    family="math",
    hub="EleutherAI/hendrycks_math",
    configs=_SUBJECTS,
    split="train",
    file="math_train",
    layout=_MATH,
)
MATH_TRAIN = _OF_MATH._replace(
    # Their solutions end in an empty box.
    unanswered=frozenset({"math/8661fac1c823", "math/f25e61792419"}),
)
MATH_TEST = _OF_MATH._replace(name="math/test", split="test", file="math_test")
MATH_500 = Source(
    name="math500/test",
    family="math",
    hub="HuggingFaceH4/MATH-500",
    split="test",
    file="math500_test",
    layout=_MATH,
)
GSM8K_TRAIN = Source(
    name="gsm8k/train",
    family="gsm8k",
    hub="openai/gsm8k",
    configs=("main",),
    split="train",
    file="gsm8k_train",
    layout=Layout(question=("question",), answer=("answer",), marked=True),
)
GSM8K_TEST = GSM8K_TRAIN._replace(name="gsm8k/test", split="test", file="gsm8k_test")
AIME_24 = Source(
    name="aime24/test",
    family="aime24",
    hub="HuggingFaceH4/aime_2024",
    split="train",  # the only one it has
    file="aime24_test",
    layout=Layout(question=("problem",)),
)
AIME_25 = Source(
    name="aime25/test",
    family="aime25",
    hub="math-ai/aime25",
    split="test",
    file="aime25_test",
    layout=Layout(question=("problem",)),
)
AMC_23 = Source(
    name="amc23/test",
    family="amc23",
    hub="math-ai/amc23",
    split="test",
    file="amc23_test",
    layout=Layout(question=("question", "problem")),
)
DAPO = Source(
    name="dapo/train",
    family="dapo",
    hub="BytedTsinghua-SIA/DAPO-Math-17k",
    split="train",
    file="dapo_train",
    layout=Layout(
        question=("prompt",),
        answer=("reward_model.ground_truth",),
        instruction=(
            r"Solve the following math problem step by step\. The last line of your"
            r" response should be of the form Answer: [^\n]*? is the answer to the"
            r" problem\.",
            r'Remember to put your answer on its own line after "Answer:"\.?',
        ),
    ),
)

HELD_OUT = (MATH_TEST, MATH_500, GSM8K_TEST, AIME_24, AIME_25, AMC_23)
PRESETS: Mapping[str, Mapping[str, Split]] = MappingProxyType(
    {
        "math": {
            "train": Split(MATH_TRAIN, held_out=False),
            "dev": Split(MATH_TEST, within=MATH_500),
            "fresh": Split(MATH_TEST, outside=MATH_500, locked=True),
            "test": Split(MATH_TEST, locked=True),  # fresh is a part of it
        },
        "math500": {"test": Split(MATH_500)},
        "gsm8k": {
            "train": Split(GSM8K_TRAIN, held_out=False),
            "test": Split(GSM8K_TEST),
        },
        "aime24": {"test": Split(AIME_24)},
        "aime25": {"test": Split(AIME_25)},
        "amc23": {"test": Split(AMC_23)},
        "dapo": {"train": Split(DAPO, held_out=False)},
    }
)


def find(text: str, own: Layout) -> Split:
    """What a text in a configuration names.

    Args:
      text: `preset/split`, a path, or a name on the hub.
      own: how rows look that are no preset's.

    Raises:
      ValueError: it is none of them; one line.
    """
    preset, slash, part = text.partition("/")
    if preset in PRESETS and slash:
        splits = PRESETS[preset]
        if part not in splits:
            raise ValueError(
                f"{text!r}: {preset} has no split {part!r}; use one of"
                f" {', '.join(f'{preset}/{name}' for name in splits)}"
            )
        return splits[part]
    if not is_path(text) and not _is_hub_name(text):
        known = [f"{name}/{part}" for name, parts in PRESETS.items() for part in parts]
        near = difflib.get_close_matches(text, known, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ValueError(
            f"{text!r} is no preset/split, no .jsonl or .parquet file, no directory"
            f" (./{text}) and no name on the hub (owner/name){hint}; presets are"
            f" {', '.join(known)}"
        )
    path, config, split = (text, "", "") if sources.is_file(text) else _parts(text)
    if is_path(text):
        path = str(pathlib.Path(path).expanduser().absolute())
    source = Source(
        name=text,
        family=OWN,
        hub=path,
        configs=(config,),
        split=split,
        file="",
        layout=own,
    )
    return Split(source, held_out=False)


def is_path(text: str) -> bool:
    """Whether a text names a file or directory, rather than a preset or the hub."""
    return text.startswith(("/", "./", "../", "~")) or sources.is_file(text)


def _is_hub_name(text: str) -> bool:
    owner, _, name = text.partition("/")
    return bool(owner and name) and "/" not in name and not any(map(str.isspace, text))


def _parts(text: str) -> tuple[str, str, str]:
    """A directory or name, its configuration and its split."""
    head, _, split = text.partition("@")
    path, _, config = head.partition(":")
    return path, config, split or "train"


def origins(source: Source, root: str) -> tuple[Origin, ...]:
    """Where the rows of a source are: under `root`, or on the hub where it is empty.

    Raises:
      ValueError: they are not under `root`; says what was looked for.
    """
    found = local(source, root)
    if found is None:
        names = [f"{source.file}{ending}" for ending in sources.FILES]
        raise ValueError(
            f"data.root={root!r} holds neither {' nor '.join(names)} nor the directory"
            f" {source.hub}, one of which {source.name} needs; put it there, or clear"
            " data.root to read from the hub"
        )
    return found


def local(source: Source, root: str) -> tuple[Origin, ...] | None:
    """The same; None where `root` has no copy."""
    path = source.hub
    if root and source.family != OWN:
        base = pathlib.Path(root).expanduser().absolute()
        for ending in sources.FILES:
            if (base / f"{source.file}{ending}").is_file():
                return (Origin(str(base / f"{source.file}{ending}")),)
        if not (base / source.hub).is_dir():
            return None
        path = str(base / source.hub)
    return tuple(Origin(path, config, source.split) for config in source.configs)


def held_out(families: Collection[str]) -> tuple[Source, ...]:
    """The published held-out sets of some families."""
    return tuple(source for source in HELD_OUT if source.family in families)
