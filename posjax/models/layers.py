"""Projections, norms and the call of attention: the parts of the modules of a block."""

import math
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from posjax.gradients import with_gradient
from posjax.hosting import Hosted


class Linear(nn.Module):
    """A matrix product over the last axes of x, and a bias: [..., *inputs] to [..., *outputs].

    The kernel [*inputs, *outputs] starts with variance 1 / inputs, whatever axes inputs and outputs have.
    """

    outputs: tuple[int, ...]
    num_inputs: int = 1  # the number of axes of x that are summed over
    use_bias: bool | tuple[bool, ...] = True  # of all outputs, or of each row of the last axis but one
    dtype: Any = jnp.float32
    param_dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x: Float[jax.Array, "..."]) -> Float[jax.Array, "..."]:
        batch, inputs = x.shape[: -self.num_inputs], x.shape[-self.num_inputs :]
        shape = (*inputs, *self.outputs)
        axes = range(len(shape))
        init = nn.initializers.lecun_normal(axes[: self.num_inputs], axes[self.num_inputs :])
        kernel = self.param("kernel", init, shape, self.param_dtype).astype(self.dtype)
        y = x.astype(self.dtype).reshape(*batch, math.prod(inputs)) @ kernel.reshape(math.prod(inputs), -1)
        y = y.reshape(*batch, *self.outputs)
        return y + self._bias().astype(self.dtype) if np.any(self.use_bias) else y

    def _bias(self):
        if np.all(self.use_bias):
            return self.param("bias", nn.initializers.zeros, self.outputs, self.param_dtype)
        rows = np.flatnonzero(self.use_bias)
        shape = (*self.outputs[:-2], len(rows), self.outputs[-1])
        bias = self.param("bias", nn.initializers.zeros, shape, self.param_dtype)
        return jnp.zeros(self.outputs, bias.dtype).at[..., rows, :].set(bias)


class Norm(nn.Module):
    """The norm of the last axis that a config describes; statistics are float32 in every dtype."""

    config: Any  # a `BlockConfig`
    kind: str | None = None  # None: the config's

    @nn.compact
    def __call__(self, x: Float[jax.Array, "..."]) -> Float[jax.Array, "..."]:
        c, shape = self.config, x.shape[-1:]
        centred = (self.kind or c.norm) == "layer"
        start = nn.initializers.constant(1 - c.norm_offset)
        scale = self.param("scale", start, shape, c.param_dtype).astype(jnp.float32) + c.norm_offset
        y = normalised(x.astype(jnp.float32), centred, c.norm_epsilon) * scale
        if centred and c.norm_bias:
            y = y + self.param("bias", nn.initializers.zeros, shape, c.param_dtype).astype(jnp.float32)
        return y.astype(c.dtype)


def normalised(x: Float[jax.Array, "..."], centred: bool, epsilon: float) -> Float[jax.Array, "..."]:
    """Returns x / sqrt(mean(x^2) + epsilon) over the last axis; `centred` subtracts the mean from x first.

    The backward pass reads x alone and computes the statistics again: cheaper than to store and read the output.
    """
    return _norm((centred, epsilon), x)


def _normalised(static: tuple[bool, float], x):
    centred, epsilon = static
    x = x - jnp.mean(x, axis=-1, keepdims=True) if centred else x
    return x * jax.lax.rsqrt(jnp.mean(jnp.square(x), axis=-1, keepdims=True) + epsilon)


def _normalised_backward(static: tuple[bool, float], x, _, d_y):
    centred, epsilon = static
    x = x - jnp.mean(x, axis=-1, keepdims=True) if centred else x
    factor = jax.lax.rsqrt(jnp.mean(jnp.square(x), axis=-1, keepdims=True) + epsilon)
    d_x = d_y - x * jnp.square(factor) * jnp.mean(d_y * x, axis=-1, keepdims=True)
    d_x = d_x - jnp.mean(d_x, axis=-1, keepdims=True) if centred else d_x
    return factor * d_x


_norm = with_gradient(_normalised, _normalised_backward)


def watched(module: nn.Module) -> bool:
    """Says whether the caller asked for intermediates."""
    return not module.is_initializing() and module.is_mutable_collection("intermediates")


def attend_whole(
    module: nn.Module, hosted: Hosted, q: Float[jax.Array, "B T H D"], k, v, x, **options: Any
) -> Float[jax.Array, "B T H E"]:
    """Returns the attention of whole sequences; sows weights, queries, keys and values if intermediates are asked for.

    Args:
      module: of attention, with `config` and `causal`.
      k, v: [B, T, K, D] and [B, T, K, E].
      x: the input of the layer, [B, T, M].
      options: of `posjax.attend`.
    """
    config, options = module.config, dict(x=x, causal=module.causal, **options)
    if not watched(module):
        context = None if module.is_initializing() else config.context  # the batch of `init` is too small to share
        return hosted.attend(q, k, v, implementation=config.implementation, context=context, **options)
    read, weights = hosted.attend(q, k, v, implementation="dense", return_weights=True, **options)
    for name, value in {"weights": weights, "queries": q, "keys": k, "values": v}.items():
        module.sow("intermediates", name, value)
    return read
