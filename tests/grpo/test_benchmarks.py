"""The scripts of `tests/benchmarks` run; what they print is no test of speed."""

import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]
SAYS = {
    "growth": ("train step:", "rollout   :"),
    "startup": ("first  start:", "second start:", "second / first"),
}


@pytest.mark.parametrize("name", SAYS)
def test_a_script_runs_in_its_tiny_mode(name):
    done = subprocess.run(
        [sys.executable, "-m", f"tests.benchmarks.{name}", "--tiny"],
        cwd=ROOT,
        env=os.environ | {"JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    for words in SAYS[name]:
        assert words in done.stdout
