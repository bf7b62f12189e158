"""Losses of tokens, without the logits of a large vocabulary in memory."""

from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Float, Int

from posjax.encoding import Site
from posjax.models.decoder import Decoder

MOST = 2**26  # logits that are held at once; more are computed for some positions at a time


def token_losses(
    model: Decoder,
    params: Any,
    tokens: Int[jax.Array, "B T"],
    site: Site,
    targets: Int[jax.Array, "B T"],
    **options: Any,
) -> Float[jax.Array, "B T"]:
    """Returns the cross-entropy (nats) of every target.

    Where [B, T, V] logits are more than `MOST`, they are made for a chunk of positions at a time, and again in the backward
    pass. Chunks are of positions, so a batch that devices share stays where it is.

    Args:
      options: of the model's call, as `train` and `rngs`.
    """
    variables = {"params": params}
    if tokens.size * model.vocab_size <= MOST:
        logits = model.apply(variables, tokens, site, **options)
        return optax.softmax_cross_entropy_with_integer_labels(logits, targets)
    x, _ = model.apply(variables, tokens, site, method=Decoder.features, **options)
    batch, length = tokens.shape
    size = max(1, MOST // (batch * model.vocab_size))
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
