"""What the benchmark scripts share: the model, work timed in turns, peers, the table.

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
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from grpo_jax import keys, models
from grpo_jax.base import Params

ROOT = pathlib.Path(__file__).parents[2]
# What is asked of a peer's interpreter, and the packages whose versions are shown.
PEERS: Mapping[str, tuple[str, ...]] = {
    "hf": ("transformers", "torch"),
    "trl": ("trl", "transformers", "torch"),
    "tunix": ("google-tunix", "jax"),
}


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
        help=f"interpreter that has the peer {' or '.join(PEERS)}; may be repeated",
    )
    parser.add_argument(
        "--bench",
        type=pathlib.Path,
        default=ROOT.parent / "shared" / "bench",
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


class Peers:
    """Other implementations, each in a process of its own interpreter."""

    def __init__(self, wanted: argparse.Namespace, directory: pathlib.Path | None):
        """Takes the interpreters from the options.

        Args:
          wanted: parsed `options`.
          directory: of the model; None for a random one, which no peer reads.
        """
        pairs = [text.partition("=") for text in wanted.peer_python]
        unknown = [name for name, _, _ in pairs if name not in PEERS]
        if unknown:
            raise SystemExit(
                f"--peer-python {unknown[0]}: no such peer; use {', '.join(PEERS)}"
            )
        self._pythons = {name: path for name, _, path in pairs}
        if "trl" in self._pythons:
            self._pythons.setdefault("hf", self._pythons["trl"])
        self._bench, self._directory = wanted.bench, directory

    def run(self, name: str, script: str, *arguments: object) -> dict[str, Any] | None:
        """Returns what a peer's script reports, with `peak_gib`; None if left out."""
        path, python = self._bench / script, self._pythons.get(name)
        missing = (
            "the model is a random one"
            if self._directory is None
            else f"give --peer-python {name}=PATH"
            if python is None
            else f"{path} is absent"
            if not path.is_file()
            else ""
        )
        if missing or python is None:
            print(f"{script}: left out, {missing}", flush=True)
            return None
        return child([python, path, self._directory, *arguments])

    def versions(self) -> dict[str, dict[str, str]]:
        """Returns the versions of each peer's packages."""
        out = {}
        for name, python in self._pythons.items():
            code = (
                "import importlib.metadata as m, json\n"
                f"print(json.dumps({{n: m.version(n) for n in {PEERS[name]!r}}}))"
            )
            out[name] = child([python, "-c", code]) or {}
            out[name].pop("peak_gib", None)
        return out


def child(command: Sequence[object]) -> dict[str, Any] | None:
    """Runs a process and returns the last JSON object it printed, with its peak memory.

    The peak is of that process alone, as the system counts it. None if it fails, after
    a line that says so.
    """
    words = [str(word) for word in command]
    env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    if words[1:2] == ["-m"]:  # one of ours
        env["PYTHONPATH"] = str(ROOT)
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen(words, stdout=out, stderr=said, env=env, cwd=ROOT)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        said.seek(0)
        lines = [line for line in out.read().splitlines() if line.startswith("{")]
        if process.returncode or not lines:
            why = (said.read().strip().splitlines() or ["it printed no result"])[-1]
            print(f"{' '.join(words[1:3])}: failed, left out: {why}", flush=True)
            return None
    # Linux counts kibibytes.
    return json.loads(lines[-1]) | {"peak_gib": usage.ru_maxrss / 2**20}


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
    peers: Peers | None = None,
    **settings: Any,
) -> None:
    """Prints where and with what it was measured, a line of JSON a figure, a table."""
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
        peers=peers.versions() if peers else {},
        model=model,
        **settings,
    )
    for row in figures:
        say(benchmark, **row._asdict() | {"required": row.rule, "met": row.met})
    wide = max((len(row.what) for row in figures), default=4)
    print(f"{'':{wide}} {'ours':>10} {'other':>10} {'':7} {'ratio':>7} required")
    for row in figures:
        met = {None: "", True: "met", False: "not met"}[row.met]
        print(
            f"{row.what:{wide}} {row.ours:10.4g} {row.other:10.4g} {row.unit:7}"
            f" {row.ratio:7.3f} {row.rule:8} {met}"
        )
