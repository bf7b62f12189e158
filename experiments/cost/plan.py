"""What a training needs before it is begun: bytes on each device by what holds them, operations of a step, and its time.

Nothing is computed and no parameter is made. The state and the batch are counted from their shapes and how they lie on the
devices; what the step holds beside them is what the compiler says of the very program that `train` runs.
"""

import collections
import copy
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from ml_collections import ConfigDict

from experiments.cost import flops
from experiments.cost.devices import Accelerator
from experiments.cost.programs import cache_shapes, held_bytes
from posjax.models import Decoder
from posjax.training.loop import Programs
from posjax.training.tasks import make_task

TYPICAL = 0.4  # of an accelerator's peak: what well-tuned trainings of transformers reach


class Plan(NamedTuple):
    """Bytes on each device, and the operations of a step on all of them."""

    devices: int
    parameters: int
    optimizer: int
    batch: int
    temporaries: int  # what the compiled step holds at once beside its arguments and what it writes over them
    activations: int  # of the temporaries, as traced: what the backward pass reads again; a compiler keeps less or more
    attention: int  # likewise: arrays of tokens by tokens
    held: int  # all of the step, as compiled
    cache: int | None  # of a decoder: keys, values and sites of one sequence as long as the longest that it is read on
    flops: float
    half: bool  # whether products are of half precision

    @property
    def state(self) -> int:
        return self.parameters + self.optimizer


class Prediction(NamedTuple):
    """Seconds of a step on a named accelerator, and whether it fits."""

    at_best: float  # the longer of computing at the peak and of moving the state and the temporaries once each way
    typical: float  # at `TYPICAL` of the peak, and no faster than memory allows
    share: float  # of the memory that is filled


def plan(config: ConfigDict, seeds: tuple[int, ...]) -> Plan:
    """The plan of a training of these seeds on all devices of this process, simulated ones on CPU among them.

    Raises:
      ValueError: as `train` does for what cannot be trained.
    """
    splits: dict = {}
    task = make_task(config, splits)
    programs = Programs(task, config, seeds)
    state, batch = programs.arguments()
    compiled = programs.step.lower(state, batch).compile()
    # Attention over all pairs: what is counted does not depend on who computes it.
    dense = _dense(config)
    traced = Programs(make_task(dense, splits), dense, seeds)
    kept = _kept(task, state.params, batch, _tokens(task, batch))
    activations, attention = (size // config.accumulate for size in kept)  # of one part of the batch
    held = held_bytes(compiled)
    parameters, optimizer = _held(state.params), _held(state.opt_state)
    given = _held(batch)
    return Plan(
        devices=jax.device_count(),
        parameters=parameters,
        optimizer=optimizer,
        batch=given,
        temporaries=held - parameters - optimizer - given,
        activations=activations,
        attention=attention,
        held=held,
        cache=_cache(task, config, state.params),
        flops=flops.count(traced.step.trace(*traced.arguments()).jaxpr),
        half=jnp.dtype(config.model.get("dtype") or "float32").itemsize == 2,
    )


def predict(plan: Plan, on: Accelerator) -> Prediction:
    """What the step takes on devices of this kind, if nothing waits for another device."""
    computing = plan.flops / plan.devices / (on.half if plan.half else on.single)
    moving = 2 * (plan.state + plan.temporaries) / on.bandwidth
    return Prediction(max(computing, moving), max(computing / TYPICAL, moving), plan.held / on.memory)


def _dense(config: ConfigDict) -> ConfigDict:
    """The config with dense attention, if its model attends."""
    copy = config.copy_and_resolve_references()
    if "implementation" in copy.model:
        copy.model.implementation = "dense"
    return copy


def _held(tree: Any) -> int:
    """Bytes on each device."""
    return sum(
        math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
        for leaf in jax.tree.leaves(tree)
        if not jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    )


def _kept(task: Any, params: Any, batch: Any, tokens: int) -> tuple[int, int]:
    """(bytes that the backward pass reads again on each device, those of them in arrays of tokens by tokens)."""
    # As one device computes it: what devices that share attention keep would be counted once for each of them.
    alone = copy.copy(task)
    if hasattr(task.model, "context"):
        alone.model = task.model.with_fields(context=None)

    def backward(params, batch, key):
        return jax.vjp(lambda params: alone.loss(params, batch, key)[0], params)[1]

    def runs(params, batch, key):
        return jax.vmap(backward, (0, 0, None))(params, batch, key)

    kept = jax.tree.leaves(jax.eval_shape(runs, params, batch, jax.eval_shape(lambda: jax.random.key(0))))
    # Parameters are among them; they are counted as such.
    own = collections.Counter((leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(params))
    beside = []
    for leaf in kept:
        if own[leaf.shape, leaf.dtype]:
            own[leaf.shape, leaf.dtype] -= 1
        elif not jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            beside.append(leaf)
    example = jax.tree.leaves(batch)[0]
    shares = math.prod(example.shape) // math.prod(example.sharding.shard_shape(example.shape))
    squares = [leaf for leaf in beside if sum(size == tokens for size in leaf.shape) >= 2]
    return tuple(sum(leaf.size * leaf.dtype.itemsize for leaf in each) // shares for each in (beside, squares))


def _tokens(task: Any, batch: Any) -> int:
    """Tokens of a sequence of the model."""
    if "tokens" in batch:
        return batch["tokens"].shape[-1]
    if hasattr(task.model, "image_size"):
        return len(task.model.sites(*task.model.image_size).segment)
    return -1


def _cache(task: Any, config: ConfigDict, params: Any) -> int | None:
    if not isinstance(task.model, Decoder):
        return None
    one = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), params)
    length = max(config.eval_lengths)
    caches = cache_shapes(task.model.with_fields(context=None), {"params": one}, 1, length)
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(caches))
