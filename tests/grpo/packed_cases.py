"""A small transformer, sequences of many lengths, and what packing them must keep."""

import jax
import jax.numpy as jnp
import numpy as np

from grpo_jax import models
from grpo_jax.base import Batch, Rollout

CONFIG = models.ModelConfig(
    family="qwen3",
    qk_norm=True,
    vocab_size=31,
    width=16,
    ffw=32,
    num_layers=2,
    num_heads=2,
    num_kv_heads=1,
    head_dim=8,
)
FUNCTIONS = models.functions(CONFIG)
COLUMNS = 12


def params(key):
    return jax.jit(lambda key: models.init(CONFIG, key))(key)


def rollout(seed=0, rows=16, columns=COLUMNS, shortest=2):
    """Prompts of 1 to 3 tokens, lengths from `shortest` to all columns."""
    draw = np.random.default_rng(seed)
    length = draw.integers(shortest, columns + 1, rows).astype(np.int32)
    prompt = np.minimum(draw.integers(1, 4, rows), length - 1).astype(np.int32)
    column = np.arange(columns)[None]
    sampled = (column >= prompt[:, None]) & (column < length[:, None])
    logp = np.where(sampled, draw.normal(-3.4, 0.3, sampled.shape), 0)
    return Rollout(
        tokens=draw.integers(0, 31, sampled.shape).astype(np.int32),
        sampled=sampled,
        logp=logp.astype(np.float32),
        prompt_length=prompt,
        length=length,
        truncated=length == columns,
    )


def batch(seed=0, *, mask_truncated=False, **options):
    """Any credit, and a reference a little off the policy that sampled."""
    some = rollout(seed, **options)
    draw = np.random.default_rng(seed + 1)
    credit = draw.normal(size=some.tokens.shape).astype(np.float32)
    mask = some.sampled & ~(mask_truncated & some.truncated[:, None])
    ref = (some.logp - 0.1 * np.abs(credit)).astype(np.float32)
    made = Batch(rollout=some, advantage=credit, mask=mask, targets={"logp_ref": ref})
    return jax.tree.map(jnp.asarray, made)
