"""What the benchmark scripts share: the model, work timed in turns, the table.

Every figure is a ratio of two things measured in one run. They take turns, so that
whatever else the machine does falls on both, and the best of each is taken.
"""

import argparse
import datetime
import functools
import importlib.metadata
import json
import os
import pathlib
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from grpo_jax import keys, models
from grpo_jax.base import Params
from tests.benchmarks import peers


class Figure(NamedTuple):
    """One measurement beside what is required of it.

    Attributes:
      what: was measured.
      ours: in `unit`.
      other: what it is compared with, in `unit`.
      unit: of both.
      ratio: of the two; which way round, `compare` says.
      required: bound of the ratio; None where nothing is required.
      least: whether the bound is the least; else it is the most.
    """

    what: str
    ours: float
    other: float
    unit: str
    ratio: float
    required: float | None = None
    least: bool = True

    @property
    def met(self) -> bool | None:
        """Whether the ratio is as required; None where nothing is."""
        if self.required is None:
            return None
        return (
            self.ratio >= self.required if self.least else self.ratio <= self.required
        )

    @property
    def rule(self) -> str:
        """The requirement as text."""
        if self.required is None:
            return ""
        return f"{'>=' if self.least else '<='} {self.required:g}"


def speedup(
    what: str, ours: float, other: float, least: float | None = None, unit: str = "s"
) -> Figure:
    """How many times faster ours is, from two times."""
    return Figure(what, ours, other, unit, other / ours, least)


def share(
    what: str, ours: float, other: float, unit: str, least: float | None = None
) -> Figure:
    """Ours as a share of the other: rates, or amounts of which more is better."""
    return Figure(what, ours, other, unit, ours / other, least)


def at_most(what: str, ours: float, other: float, unit: str, most: float) -> Figure:
    """Ours over the other, of which less is better."""
    return Figure(what, ours, other, unit, ours / other, most, least=False)


class Subject(NamedTuple):
    """The model that is measured.

    Attributes:
      name: for the heading.
      directory: of a real one, which peers read too; None for a random one.
      config: its shape.
      params: float32.
    """

    name: str
    directory: pathlib.Path | None
    config: models.ModelConfig
    params: Params


def options(doc: str | None, *, repeats: int = 3) -> argparse.ArgumentParser:
    """Returns the parser of a script with what all scripts take."""
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="smollm2", help="directory, file or name")
    parser.add_argument("--tiny", action="store_true", help="a random model, quick")
    parser.add_argument("--repeats", type=int, default=repeats, help="best of so many")
    parser.add_argument(
        "--peer-python",
        action="append",
        default=[],
        metavar="NAME=PATH",
        help=f"interpreter of a peer: {', '.join(peers.PEERS)}; may be repeated",
    )
    parser.add_argument(
        "--bench",
        type=pathlib.Path,
        default=peers.ROOT.parent / "shared" / "bench",
        help="directory of the peers' scripts",
    )
    return parser


def tiny_config(**changes: Any) -> models.ModelConfig:
    """Returns the shape of a model that is there to run the scripts, not to measure."""
    shape: dict[str, Any] = {
        "family": "llama",
        "vocab_size": 128,
        "width": 16,
        "ffw": 32,
        "num_layers": 2,
        "num_heads": 2,
        "num_kv_heads": 1,
        "head_dim": 8,
        "tied": True,
    }
    return models.ModelConfig(**shape | changes)


def random_params(
    config: models.ModelConfig, *, dtype: str = "float32", seed: int = 0
) -> Params:
    """Returns random parameters, drawn on the device."""
    draw = functools.partial(models.init, config, dtype=dtype)
    return jax.jit(draw)(keys.root(seed))


def subject(wanted: argparse.Namespace) -> Subject:
    """Returns the model that the options name."""
    if wanted.tiny:
        config = tiny_config()
        return Subject("random, two layers", None, config, random_params(config))
    loaded = models.load(wanted.model)
    return Subject(
        wanted.model, models.resolve(wanted.model), loaded.config, loaded.params
    )


def random_prompts(count: int, width: int, vocab: int) -> list[list[int]]:
    """Returns prompts of random tokens, all of one width."""
    low = min(5, vocab // 2)
    return np.random.default_rng(0).integers(low, vocab, (count, width)).tolist()


def seconds(work: Callable[[], Any]) -> float:
    """Returns how long it takes, with what it leaves on the devices done."""
    start = time.perf_counter()
    jax.block_until_ready(work())
    return time.perf_counter() - start


def in_turns(
    works: Mapping[str, Callable[[], Any]],
    repeats: int,
    between: Sequence[Callable[[], Any]] = (),
    *,
    warm: bool = True,
) -> dict[str, float]:
    """Returns the least seconds of each, measured in turns after one that compiles.

    Args:
      works: what is timed; each fences itself or returns arrays.
      repeats: turns.
      between: run one after each turn, the rest after the last: peers, which time
        themselves.
      warm: False leaves the turn that compiles to the caller.
    """
    taken: dict[str, list[float]] = {name: [] for name in works}
    for turn in range(-1 if warm else 0, max(repeats, 1)):
        for name, work in works.items():
            spent = seconds(work)
            if turn >= 0:
                taken[name].append(spent)
        for peer in between[turn : turn + 1] if turn >= 0 else ():
            peer()
    for peer in between[max(repeats, 1) :]:
        peer()
    return {name: min(spent) for name, spent in taken.items()}


def processor() -> str:
    """Returns the name of the processor."""
    path = pathlib.Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.is_file() else []
    names = [line.partition(":")[2] for line in lines if line.startswith("model name")]
    return names[0].strip() if names else platform.processor() or platform.machine()


def say(benchmark: str, **numbers: Any) -> None:
    """Prints one measurement as a line of JSON."""
    print(json.dumps({"benchmark": benchmark, **numbers}), flush=True)


def report(
    benchmark: str,
    figures: Sequence[Figure],
    *,
    model: str,
    others: peers.Peers | None = None,
    tiny: bool = False,
    **settings: Any,
) -> None:
    """Prints where and with what it was measured, a line of JSON a figure, a table.

    Of a tiny model nothing is required: its speed means nothing.
    """
    if tiny:
        figures = [row._replace(required=None) for row in figures]
    device = jax.devices()[0]
    say(
        benchmark,
        date=datetime.date.today().isoformat(),
        machine=processor(),
        cores=len(os.sched_getaffinity(0)),
        device=f"{device.platform} {device.device_kind}",
        python=platform.python_version(),
        jax=jax.__version__,
        jaxlib=importlib.metadata.version("jaxlib"),
        peers=others.versions() if others else {},
        model=model,
        tiny=tiny,
        **settings,
    )
    for row in figures:
        say(benchmark, **row._asdict() | {"required": row.rule, "met": row.met})
    if not figures:
        print("nothing was measured on two sides: there is no ratio to show")
        return
    wide = max(len(row.what) for row in figures)
    print(f"{'':{wide}} {'ours':>10} {'other':>10} {'':7} {'ratio':>7} required")
    for row in figures:
        met = {None: "", True: "met", False: "not met"}[row.met]
        print(
            f"{row.what:{wide}} {row.ours:10.4g} {row.other:10.4g} {row.unit:7}"
            f" {row.ratio:7.3f} {row.rule:8} {met}"
        )
