"""Models in and out: a directory, a GGUF file, or a name."""

import dataclasses
import pathlib
import re
from typing import Any

import jax.numpy as jnp
from jax.sharding import Mesh

from grpo_jax.base import Params
from grpo_jax.models import gguf, gguf_tokenizer, huggingface, known, tensors
from grpo_jax.models.config import ModelConfig

DTYPES = ("float32", "bfloat16", "float16")
HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
HUB_FILES = ("*.json", "*.safetensors", "*.jinja", "*.txt", "tokenizer.model")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Model:
    """A decoder with its weights; `tokenizer` is transformers' or None."""

    config: ModelConfig
    params: Params
    tokenizer: Any | None = None


def load(
    path: str | pathlib.Path, *, dtype: str = "float32", mesh: Mesh | None = None
) -> Model:
    """Reads a model: configuration, parameters, tokenizer.

    `functions(model.config)` gives the functions that engine and objectives take.

    Args:
      path: a Hugging Face directory, a GGUF file, a name that `grpo-jax get` knows,
        or an `owner/name` of the Hugging Face hub.
      dtype: type of the parameters.
      mesh: where to put them; each is placed in its shards as it is read.

    Raises:
      ValueError: one line, for anything that is not a model the decoder can run.
    """
    if str(jnp.dtype(dtype)) not in DTYPES:
        raise ValueError(f"dtype={dtype!r} must be one of {DTYPES}")
    config, tokenizer, source = _open(resolve(path))
    params = tensors.assemble(config, source, dtype=dtype, mesh=mesh)
    return Model(config=config, params=params, tokenizer=tokenizer)


def describe(path: str | pathlib.Path) -> tuple[ModelConfig, Any | None]:
    """Returns the configuration and the tokenizer that `load` would, reading no weight.

    Args:
      path: as for `load`.
    """
    return _open(resolve(path))[:2]


def _open(place: pathlib.Path) -> tuple[ModelConfig, Any | None, Any]:
    if place.is_dir():
        config = huggingface.read_config(place)
        tokenizer = huggingface.read_tokenizer(place, config)
        return config, tokenizer, huggingface.open_weights(place)
    file = gguf.File(place)
    config = gguf.read_config(file)
    tokenizer = gguf_tokenizer.build(file)
    if tokenizer is not None:
        huggingface.check_tokenizer(tokenizer, config, str(place))
    return config, tokenizer, gguf.open_weights(file, config)


def resolve(path: str | pathlib.Path) -> pathlib.Path:
    """Returns the directory or GGUF file that a path or a name stands for."""
    place = pathlib.Path(path).expanduser()
    if place.is_dir():
        return place
    if place.is_file():
        with place.open("rb") as file:
            if file.read(4) == b"GGUF":
                return place
        raise ValueError(
            f"{path} is neither a directory nor a GGUF file; give the directory "
            "that holds config.json"
        )
    name = str(path)
    if name in known.KNOWN:
        if not known.is_present(name):
            raise ValueError(
                f"model {name!r} is not in the cache; run `grpo-jax get {name}`"
            )
        return known.directory(name)
    if HUB_NAME.fullmatch(name):
        return _fetch_from_hub(name)
    raise ValueError(
        f"{path} does not exist; give a model directory, a GGUF file, or one of "
        f"{sorted(known.KNOWN)}"
    )


def _fetch_from_hub(name: str) -> pathlib.Path:
    from huggingface_hub import snapshot_download

    try:
        return pathlib.Path(snapshot_download(name, allow_patterns=list(HUB_FILES)))
    except (OSError, ValueError) as error:
        line = str(error).strip().splitlines()[0] if str(error).strip() else "no reason"
        raise ValueError(
            f"{name} is no directory here, and fetching it by that name failed: {line}"
        ) from error


def save(model: Model, path: str | pathlib.Path) -> None:
    """Writes a Hugging Face directory that transformers loads.

    Weights above 5 GB are cut into several files with an index.
    """
    place = pathlib.Path(path).expanduser()
    huggingface.write(place, model.config, model.params, model.tokenizer)
