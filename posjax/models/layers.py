"""The parts of a block's modules: projections and norms."""

import math
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from posjax.gradients import with_gradient


class Linear(nn.Module):
    """A matrix product over the last axes of x, and a bias: [..., *inputs] to [..., *outputs].

    The kernel [*inputs, *outputs] starts with variance 1 / inputs, whatever axes inputs and outputs have.
    """

    outputs: tuple[int, ...]
    num_inputs: int = 1  # axes of x that are summed over
    use_bias: bool | tuple[bool, ...] = True  # of all outputs, or of each row of their last axis but one
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
    """A config's norm of the last axis; statistics are float32 in every dtype."""

    config: Any  # a `BlockConfig`
    kind: str | None = None  # the config's where None

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
    """x, less its mean over the last axis if `centred`, over the root of the mean square of that.

    The backward pass is given x alone and computes the statistics again: cheaper than to store and read y.
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
    """Whether the caller asked for intermediates."""
    return not module.is_initializing() and module.is_mutable_collection("intermediates")
