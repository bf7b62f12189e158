"""Losses of tokens, without the logits of a large vocabulary in memory."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Float, Int

from posjax.attention.devices import device_of, mesh_of
from posjax.encoding import Site
from posjax.models.decoder import Decoder
from posjax.training.mesh import BATCH

# Memory of a device in GiB, by a part of the name that jax gives it; 8 GiB for all other names.
_MEMORY = {"H100": 80, "H200": 141, "B200": 180, "A100": 40, "v5 lite": 16, "v6 lite": 32, "v4": 32, "v5": 95}
_SHARE = 32  # of a device's memory, for logits in float32


def token_losses(
    model: Decoder,
    params: Any,
    tokens: Int[jax.Array, "B T"],
    site: Site,
    targets: Int[jax.Array, "B T"],
    **options: Any,
) -> Float[jax.Array, "B T"]:
    """Returns the cross-entropy (nats) of every target.

    Where [B, T, V] logits are more than `most_logits`, they are made for a chunk of positions at a time, and again in the
    backward pass. Chunks are of positions, so a batch that devices share stays where it is.

    Args:
      options: of the model's call, as `train` and `rngs`.
    """
    variables = {"params": params}
    most = most_logits(tokens)
    if tokens.size * model.vocab_size <= most:
        logits = model.apply(variables, tokens, site, **options)
        return optax.softmax_cross_entropy_with_integer_labels(logits, targets)
    x, _ = model.apply(variables, tokens, site, method=Decoder.features, **options)
    batch, length = tokens.shape
    size = max(1, most // (batch * model.vocab_size))
    count = -(-length // size)

    def chunks(array: jax.Array) -> jax.Array:
        filled = jnp.pad(array, [(0, 0), (0, count * size - length)] + [(0, 0)] * (array.ndim - 2))
        return filled.reshape(batch, count, size, *array.shape[2:]).swapaxes(0, 1)

    @jax.checkpoint
    def loss(part):
        logits = model.apply(variables, part[0], method=Decoder.logits)
        return optax.softmax_cross_entropy_with_integer_labels(logits, part[1])

    losses = jax.lax.map(loss, (chunks(x), chunks(targets)))
    return losses.swapaxes(0, 1).reshape(batch, -1)[:, :length]


def most_logits(tokens: jax.Array | jax.ShapeDtypeStruct) -> int:
    """Returns how many logits of a batch are held at once: on each device that shares it a 32nd of the memory."""
    name, mesh = device_of(tokens).name, mesh_of(tokens)
    memory = next((size for part, size in _MEMORY.items() if part in name), 8) * 2**30
    shares = 1 if mesh is None else math.prod(mesh.shape.get(axis, 1) for axis in BATCH)
    return shares * memory // (4 * _SHARE)
