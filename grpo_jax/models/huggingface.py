"""Hugging Face directories: `config.json`, safetensors and the tokenizer's files.

Weights are read from safetensors only, never from pickles, and no code that comes
with a model is run.
"""

import contextlib
import json
import os
import pathlib
import secrets
import shutil
from collections.abc import Iterator
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from grpo_jax.base import Params
from grpo_jax.models import tensors
from grpo_jax.models.config import ModelConfig, from_hf, to_hf

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
SHARD_BYTES = 5 * 10**9
FLOATS = {"F32", "F16", "BF16"}
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model")
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")


def read_json(path: pathlib.Path) -> dict[str, Any]:
    """Reads a JSON object; a broken one is an error that names the file."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise ValueError(f"{path} cannot be read as JSON: {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} holds a {type(content).__name__}, not an object")
    return content


def read_config(directory: pathlib.Path) -> ModelConfig:
    """Reads `config.json`, and the stop ids that only `generation_config.json` has."""
    path = directory / "config.json"
    if not path.is_file():
        raise ValueError(
            f"{directory} has no config.json; give a directory that holds a model"
        )
    hf = read_json(path)
    extra = directory / "generation_config.json"
    if extra.is_file():
        # Chat models list every end-of-turn id here and one of them in config.json.
        generation = read_json(extra)
        both = [generation.get("eos_token_id"), hf.get("eos_token_id")]
        flat = [i for ids in both for i in (ids if isinstance(ids, list) else [ids])]
        hf["eos_token_id"] = list(dict.fromkeys(i for i in flat if i is not None))
        for name in ("pad_token_id", "bos_token_id"):
            if hf.get(name) is None:
                hf[name] = generation.get(name)
    try:
        return from_hf(hf)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def open_weights(directory: pathlib.Path) -> tensors.Source:
    """Opens single or sharded safetensors; reads headers only."""
    shapes: dict[str, tuple[int, ...]] = {}
    holders: dict[str, Any] = {}
    for path in _weight_files(directory):
        try:
            handle = safe_open(path, framework="np")
        except (SafetensorError, OSError) as error:
            raise ValueError(
                f"{path} is truncated or no safetensors file ({error}); fetch it again"
            ) from error
        for name in handle.keys():
            part = handle.get_slice(name)
            if part.get_dtype() not in FLOATS:
                raise ValueError(
                    f"{path}: {name} is {part.get_dtype()}, but only "
                    f"{sorted(FLOATS)} are read; use an unquantised checkpoint"
                )
            shapes[name] = tuple(part.get_shape())
            holders[name] = handle
    return tensors.Source(
        shapes, lambda name: holders[name].get_tensor(name), str(directory)
    )


def _weight_files(directory: pathlib.Path) -> list[pathlib.Path]:
    index = directory / INDEX
    if index.is_file():
        listed = read_json(index).get("weight_map") or {}
        files = sorted({directory / str(name) for name in listed.values()})
        absent = [f.name for f in files if not f.is_file()]
        if absent or not files:
            raise ValueError(
                f"{index} lists {absent or 'no files'}, not present; fetch them again"
            )
        if any(f.parent != directory for f in files):
            raise ValueError(f"{index} lists files outside its own directory")
        return files
    files = [directory / SINGLE]
    if not files[0].is_file():
        files = sorted(directory.glob("*.safetensors"))
    if len(files) == 1:
        return files
    if not files and any(next(directory.glob(p), None) for p in PICKLES):
        raise ValueError(
            f"{directory} holds pickled weights only, which can run code when read; "
            "convert them to safetensors"
        )
    raise ValueError(
        f"{directory} has {len(files)} .safetensors files and no {INDEX}; "
        f"give one {SINGLE}, or shards with their index"
    )


def read_tokenizer(directory: pathlib.Path, config: ModelConfig) -> Any | None:
    """Returns the directory's tokenizer, or None if there is none in it.

    Raises:
      ValueError: it cannot be read, or has ids beyond the embedding.
    """
    if not any((directory / name).is_file() for name in TOKENIZER_FILES):
        return None
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(
            str(directory), local_files_only=True, trust_remote_code=False
        )
    except (OSError, ValueError, ImportError, KeyError) as error:
        line = str(error).strip().splitlines()[0] if str(error).strip() else "?"
        raise ValueError(f"{directory}: cannot read its tokenizer: {line}") from error
    check_tokenizer(tokenizer, config, str(directory))
    return tokenizer


def check_tokenizer(tokenizer: Any, config: ModelConfig, where: str) -> None:
    """Raises ValueError if an id has no row in the embedding."""
    ids = max(tokenizer.get_vocab().values(), default=-1) + 1
    if ids > config.vocab_size:
        raise ValueError(
            f"{where}: its tokenizer has {ids} ids but the embedding has "
            f"{config.vocab_size} rows; use the tokenizer that belongs to the model"
        )


def write(
    path: pathlib.Path,
    config: ModelConfig,
    params: Params,
    tokenizer: Any | None,
    *,
    shard_bytes: int = SHARD_BYTES,
) -> None:
    """Writes a directory that transformers loads; whole, or not at all.

    Files that the directory already has are replaced; other files are kept.
    """
    with _replacing(path) as partial:
        dtype = str(params["embed"].dtype)
        _write_json(partial / "config.json", to_hf(config, dtype=dtype))
        ids = to_hf(config)
        names = ("bos_token_id", "eos_token_id", "pad_token_id")
        _write_json(
            partial / "generation_config.json",
            {n: ids[n] for n in names if ids[n] is not None},
        )
        _write_weights(partial, params, shard_bytes)
        if tokenizer is not None:
            tokenizer.save_pretrained(str(partial))


@contextlib.contextmanager
def _replacing(path: pathlib.Path) -> Iterator[pathlib.Path]:
    partial = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.parent / f".{path.name}-{secrets.token_hex(4)}"
        partial.mkdir()
        yield partial
        if path.is_dir():
            # Weights first: a shard left from before would be read with the new ones.
            for old in (*path.glob("model*.safetensors"), path / INDEX):
                old.unlink(missing_ok=True)
            for new in partial.iterdir():
                os.replace(new, path / new.name)
        else:
            os.rename(partial, path)
    except (OSError, SafetensorError) as error:
        raise ValueError(
            f"{path} cannot be written: {error}; choose another directory or make room"
        ) from error
    finally:
        if partial is not None:
            shutil.rmtree(partial, ignore_errors=True)


def _write_json(path: pathlib.Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def _write_weights(path: pathlib.Path, params: Params, shard_bytes: int) -> None:
    names: dict[str, int] = {}  # tensor -> shard number
    sizes: dict[str, int] = {}
    held: dict[str, np.ndarray] = {}
    shard = 0

    def flush() -> None:
        # Named by number until the count of shards is known.
        part = path / f"{shard}.part"
        save_file(held, part, metadata={"format": "pt"})
        shutil.copymode(path / "config.json", part)  # the library makes it private
        held.clear()

    for name, x in tensors.disassemble(params):
        if held and sum(v.nbytes for v in held.values()) + x.nbytes > shard_bytes:
            flush()
            shard += 1
        held[name], names[name], sizes[name] = x, shard, x.nbytes
    flush()
    if shard == 0:
        os.rename(path / "0.part", path / SINGLE)
        return
    final = [
        f"model-{i + 1:05}-of-{shard + 1:05}.safetensors" for i in range(shard + 1)
    ]
    for i, file in enumerate(final):
        os.rename(path / f"{i}.part", path / file)
    total = {"total_size": sum(sizes.values())}
    weight_map = {name: final[i] for name, i in names.items()}
    _write_json(path / INDEX, {"metadata": total, "weight_map": weight_map})
