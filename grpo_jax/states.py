"""The state that is trained: its first value, and how it lies on the mesh."""

import functools
import pathlib
from typing import Any

import jax
import optax

from grpo_jax import build, checkpoint, keys, models, sharding, step
from grpo_jax.base import Params, TrainState
from grpo_jax.setup import Setup


def load_params(setup: Setup) -> Params:
    """Returns the first parameters of the policy: read, or drawn if it is embedded.

    Raises:
      ValueError: the weights are not those of the model that was described.
    """
    path = setup.config.model.path
    if path:
        return models.load(path, mesh=setup.mesh).params
    where = models.shardings(setup.model, setup.mesh)
    make = jax.jit(functools.partial(models.init, setup.model), out_shardings=where)
    return make(keys.at(setup.root, keys.Stream.INIT))


def first_params(setup: Setup, run: pathlib.Path) -> Params | None:
    """Returns what a run begins with; None where its checkpoints hold all it needs.

    Args:
      setup: the run's parts.
      run: its directory.
    """
    resumes = checkpoint.latest(run / "checkpoints") is not None
    config = setup.config
    reads = build.needs_reference(config) and not config.pretrain.updates
    return None if resumes and not reads else load_params(setup)


def abstract(setup: Setup, tx: optax.GradientTransformation) -> TrainState:
    """Returns the shapes, types and shardings of the state, without its numbers."""
    params = models.abstract(setup.model)
    return with_shardings(setup, jax.eval_shape(lambda p: step.init(p, tx), params))


def first(setup: Setup, params: Params, tx: optax.GradientTransformation) -> TrainState:
    """Returns the state before the first step, laid out as every later one is.

    A moment created elsewhere than where the step leaves it would make the second
    step another program.
    """
    state = step.init(params, tx)
    where = with_shardings(setup, jax.eval_shape(lambda: state))
    return jax.tree.map(lambda x, s: jax.device_put(x, s.sharding), state, where)


def with_shardings(setup: Setup, like: Any) -> Any:
    """Returns an abstract state with the shardings of the run's parameters.

    Moments of the optimiser mirror the parameters and lie where they lie; everything
    else is a scalar and lies everywhere.
    """
    where = models.shardings(setup.model, setup.mesh)
    treedef = jax.tree.structure(where)
    everywhere = sharding.replicated(setup.mesh)

    def mirrors(node: Any) -> bool:
        return jax.tree.structure(node) == treedef

    def placed(node: Any) -> Any:
        shards = where if mirrors(node) else everywhere
        if not mirrors(node):
            return jax.ShapeDtypeStruct(node.shape, node.dtype, sharding=shards)
        return jax.tree.map(
            lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), node, where
        )

    return jax.tree.map(placed, like, is_leaf=mirrors)
