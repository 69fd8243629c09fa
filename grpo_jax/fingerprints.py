"""What a directory's numbers belong to: weights and whatever else decides them."""

import hashlib
import json
import pathlib

from grpo_jax.rundir import write_json

SLICE = 1 << 20  # bytes read at each end of a file


def of_files(place: pathlib.Path) -> dict[str, str]:
    """Returns a digest of each file of a model: of its size, first and last MiB.

    Args:
      place: a directory, whose weights, configurations and tokenizer count, or a file.
    """
    kinds = ("*.safetensors", "*.json", "*.jinja", "*.toml")
    files = [file for kind in kinds for file in place.glob(kind)] or [place]
    return {file.name: _digest(file) for file in sorted(files)}


def _digest(path: pathlib.Path) -> str:
    size = path.stat().st_size
    with path.open("rb") as file:
        state = hashlib.sha256(str(size).encode() + file.read(SLICE))
        file.seek(max(size - SLICE, 0))
        state.update(file.read(SLICE))
    return state.hexdigest()[:16]


def claim(file: pathlib.Path, now: dict[str, str], name: str) -> None:
    """Writes a fingerprint to `file`, or checks that it is the same.

    Args:
      file: in the directory that is claimed.
      now: names and digests.
      name: of the model, for the error.

    Raises:
      ValueError: the fingerprint differs from the one there.
    """
    if not file.exists():
        write_json(file, now)
        return
    try:
        before = json.loads(file.read_text(encoding="utf-8"))
    except ValueError:
        before = None
    if before != now:
        raise ValueError(
            f"{name} and its problems are not those that {file.parent} began with"
            f" ({file.name} differs); choose another run.dir"
        )
