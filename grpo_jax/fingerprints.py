"""Which weights a directory's numbers belong to, without reading all of them."""

import hashlib
import json
import pathlib

from grpo_jax import models
from grpo_jax.rundir import write_text

SLICE = 1 << 20  # bytes read at each end of a file


def of_model(path: str) -> dict[str, str]:
    """Returns a digest of each weight file: of its size, its first and its last MiB.

    Args:
      path: anything that `models.load` takes.
    """
    place = models.resolve(path)
    files = sorted(place.glob("*.safetensors")) if place.is_dir() else [place]
    return {file.name: _digest(file) for file in files}


def _digest(path: pathlib.Path) -> str:
    size = path.stat().st_size
    with path.open("rb") as file:
        state = hashlib.sha256(str(size).encode() + file.read(SLICE))
        file.seek(max(size - SLICE, 0))
        state.update(file.read(SLICE))
    return state.hexdigest()[:16]


def claim(file: pathlib.Path, path: str) -> None:
    """Writes the fingerprint of a model to `file`, or checks that it is the same.

    Raises:
      ValueError: the weights at `path` are others than those of the fingerprint.
    """
    now = of_model(path)
    if not file.exists():
        write_text(file, json.dumps(now, indent=2) + "\n")
    elif json.loads(file.read_text(encoding="utf-8")) != now:
        raise ValueError(
            f"the weights at {path} are not those that {file.parent} began with;"
            " choose another run.dir"
        )
