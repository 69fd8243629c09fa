"""Other implementations, each measured by its own script in a process of its own."""

import argparse
import json
import os
import pathlib
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

ROOT = pathlib.Path(__file__).parents[2]
# What is asked of a peer's interpreter, and the packages whose versions are shown.
PEERS: Mapping[str, tuple[str, ...]] = {
    "hf": ("transformers", "torch"),
    "trl": ("trl", "transformers", "torch"),
    "tunix": ("google-tunix", "jax"),
}


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
        self._left_out: set[str] = set()

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
            if script not in self._left_out:  # once, however many runs it has
                print(f"{script}: left out, {missing}", flush=True)
            self._left_out.add(script)
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


# A process begins with the memory of the one that starts it, and that counts as its own
# peak: the one that starts it here is as small as can be.
_LAUNCH = """
import os, sys
_, status, usage = os.wait4(os.posix_spawnp(sys.argv[1], sys.argv[1:], os.environ), 0)
print(usage.ru_maxrss)
sys.exit(os.waitstatus_to_exitcode(status) != 0)
"""


def child(command: Sequence[object]) -> dict[str, Any] | None:
    """Runs a process and returns the last JSON object it printed, with its peak memory.

    The peak is of that process alone, as the system counts it. None if it fails, after
    a line that says so.
    """
    words = [str(word) for word in command]
    env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    if words[1:2] == ["-m"]:  # one of ours
        env["PYTHONPATH"] = str(ROOT)
    done = subprocess.run(
        [sys.executable, "-S", "-c", _LAUNCH, *words],
        env=env,
        capture_output=True,
        text=True,
    )
    *said, peak = done.stdout.splitlines() or [""]
    lines = [line for line in said if line.startswith("{")]
    if done.returncode or not lines:
        why = (done.stderr.strip().splitlines() or ["it printed no result"])[-1]
        print(f"{' '.join(words[1:3])}: failed, left out: {why}", flush=True)
        return None
    # Linux counts kibibytes.
    return json.loads(lines[-1]) | {"peak_gib": int(peak) / 2**20}
