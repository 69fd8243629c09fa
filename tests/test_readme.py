"""The README's Python runs as it stands."""

import os
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).parent.parent
README = ROOT / "README.md"
FENCE = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SECONDS = 240  # of a slow machine; the longest block is meant to take 40


def blocks():
    return FENCE.findall(README.read_text(encoding="utf-8"))


def run(source, folder):
    """Runs a block as a program of its own, away from the clone."""
    search = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, "-c", source],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": search.strip(os.pathsep)},
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )


def test_python_of_the_readme_runs_and_the_users_own_model_learns(tmp_path):
    ran = {source: run(source, tmp_path) for source in blocks()}
    for source, done in ran.items():
        assert done.returncode == 0, f"{source}\n{done.stderr[-2000:]}"
    own = [x.stdout for source, x in ran.items() if "models.from_nnx(" in source]
    assert len(own) == 1
    rewards = [float(x) for x in re.findall(r"reward (\d\.\d+)", own[0])]
    assert len(rewards) >= 3, own[0]
    assert rewards[-1] > rewards[0] + 0.4, own[0]
