"""Language models as pure functions of their parameters."""

from grpo_jax.models.config import Llama3Rope, ModelConfig, from_hf, to_hf
from grpo_jax.models.decoder import functions, logits, segment_positions
from grpo_jax.models.load import Model, describe, load, resolve, save
from grpo_jax.models.nnx import from_nnx
from grpo_jax.models.parameters import (
    abstract,
    count,
    decay_mask,
    declare,
    init,
    shardings,
)

__all__ = [
    "Llama3Rope",
    "Model",
    "ModelConfig",
    "abstract",
    "count",
    "decay_mask",
    "declare",
    "describe",
    "from_hf",
    "from_nnx",
    "functions",
    "init",
    "load",
    "logits",
    "resolve",
    "save",
    "segment_positions",
    "shardings",
    "to_hf",
]
