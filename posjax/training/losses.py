"""Losses of tokens, without the logits of a large vocabulary in memory."""

import functools
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

    Where [B, T, V] logits are more than `most_logits`, they are made for a chunk of positions at a time.

    Args:
      options: of the model's call, as `train` and `rngs`.
    """
    size = _chunk_size(model, tokens)
    if size >= tokens.shape[1]:
        logits = model.apply({"params": params}, tokens, site, **options)
        return optax.softmax_cross_entropy_with_integer_labels(logits, targets)
    x, _ = model.apply({"params": params}, tokens, site, method=Decoder.features, **options)
    losses = jax.lax.map(lambda part: _losses(model, params, *part), _chunks(size, x, targets))
    return losses.swapaxes(0, 1).reshape(len(tokens), -1)[:, : tokens.shape[1]]


def token_loss(
    model: Decoder,
    params: Any,
    tokens: Int[jax.Array, "B T"],
    site: Site,
    targets: Int[jax.Array, "B T"],
    weight: Float[jax.Array, "B T"],
    **options: Any,
) -> Float[jax.Array, ""]:
    """Returns the weighted sum of `token_losses`, to be differentiated.

    The gradient of a chunk is computed beside its losses, so that its logits are made once.
    """
    size = _chunk_size(model, tokens)
    if size >= tokens.shape[1]:
        return (token_losses(model, params, tokens, site, targets, **options) * weight).sum()
    x, _ = model.apply({"params": params}, tokens, site, method=Decoder.features, **options)
    name = "token_embedding" if model.tied_embedding else "head"  # all parameters that logits of features depend on
    return _summed(model, {name: params[name]}, *_chunks(size, x, targets, weight))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _summed(model, params, x, targets, weight):
    losses = jax.lax.map(lambda part: _losses(model, params, *part), (x, targets))
    return (losses * weight).sum()


def _summed_with_gradients(model, params, x, targets, weight):
    def add_chunk(d_params, chunk):
        x, targets, weight = chunk

        def loss(params, x):
            losses = _losses(model, params, x, targets)
            return (losses * weight).sum(), losses

        (_, losses), (d_chunk, d_x) = jax.value_and_grad(loss, argnums=(0, 1), has_aux=True)(params, x)
        return jax.tree.map(jnp.add, d_params, d_chunk), (losses, d_x)

    zeros = jax.tree.map(lambda leaf: jnp.zeros_like(leaf, jnp.float32), params)
    d_params, (losses, d_x) = jax.lax.scan(add_chunk, zeros, (x, targets, weight))
    d_params = jax.tree.map(lambda total, leaf: total.astype(leaf.dtype), d_params, params)
    return (losses * weight).sum(), (d_params, d_x, losses)


def _summed_backward(model, gradients, d_sum):
    d_params, d_x, losses = jax.tree.map(lambda leaf: (d_sum * leaf).astype(leaf.dtype), gradients)
    return d_params, d_x, None, losses


_summed.defvjp(_summed_with_gradients, _summed_backward)


def _losses(model, params, x, targets):
    logits = model.apply({"params": params}, x, method=Decoder.logits)
    return optax.softmax_cross_entropy_with_integer_labels(logits, targets)


def _chunk_size(model: Decoder, tokens: jax.Array) -> int:
    """Returns how many positions have their logits at once: all, a half, a quarter, ... Devices share rows, so these stay."""
    size, most = tokens.shape[1], most_logits(tokens) // (len(tokens) * model.vocab_size)
    while size > max(1, most):
        size = -(-size // 2)
    return size


def _chunks(size: int, *arrays: jax.Array) -> tuple[jax.Array, ...]:
    """Returns arrays [B, T, ...] as [chunks, B, size, ...], filled up with zeros."""

    def cut(array: jax.Array) -> jax.Array:
        batch, length = array.shape[:2]
        filled = jnp.pad(array, [(0, 0), (0, -length % size)] + [(0, 0)] * (array.ndim - 2))
        return filled.reshape(batch, -1, size, *array.shape[2:]).swapaxes(0, 1)

    return tuple(map(cut, arrays))


def most_logits(tokens: jax.Array | jax.ShapeDtypeStruct) -> int:
    """Returns how many logits of a batch are held at once: on each device that shares it a 32nd of the memory."""
    name, mesh = device_of(tokens).name, mesh_of(tokens)
    memory = next((size for part, size in _MEMORY.items() if part in name), 8) * 2**30
    shares = 1 if mesh is None else math.prod(mesh.shape.get(axis, 1) for axis in BATCH)
    return shares * memory // (4 * _SHARE)
