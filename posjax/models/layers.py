"""Projections, norms and the call of attention: the parts of the modules of a block."""

import math
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from posjax.attention.devices import device_of, mesh_of
from posjax.attention.explicit import split_as
from posjax.encoding import Array
from posjax.gradients import with_gradient, with_transpose
from posjax.hosting import Hosted

_SUBLANES = 8  # the rows of a TPU's registers: a product with one row of ones would be a sum again


class Linear(nn.Module):
    """A matrix product over the last axes of x, and a bias: [..., *inputs] to [..., *outputs].

    The kernel [*inputs, *outputs] starts with variance 1 / inputs, whatever axes inputs and outputs have.
    With `parts`, the last axis but one of the outputs is cut into parts of these sizes, which are returned one by one: each
    is a product of its own, since a slice of a product is a copy.
    """

    outputs: tuple[int, ...]
    num_inputs: int = 1  # the number of axes of x that are summed over
    use_bias: bool | tuple[bool, ...] = True  # of all outputs, or of each row of the last axis but one
    parts: tuple[int, ...] | None = None
    dtype: Any = jnp.float32
    param_dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x: Float[jax.Array, "..."]) -> Float[jax.Array, "..."] | list[Float[jax.Array, "..."]]:
        shape = (*x.shape[-self.num_inputs :], *self.outputs)
        axes = range(len(shape))
        init = nn.initializers.lecun_normal(axes[: self.num_inputs], axes[self.num_inputs :])
        kernel = self.param("kernel", init, shape, self.param_dtype).astype(self.dtype)
        bias = self._bias() if np.any(self.use_bias) else None
        x, ends = x.astype(self.dtype), np.cumsum(self.parts or ())[:-1]
        kernels = [kernel] if self.parts is None else jnp.split(kernel, ends, axis=-2)
        found = [product(x, kernel, self.num_inputs) for kernel in kernels]
        if bias is not None:
            biases = [bias] if self.parts is None else jnp.split(bias, ends, axis=-2)
            found = [y + at_tokens(bias, y) for y, bias in zip(found, biases, strict=True)]
        return found[0] if self.parts is None else found

    def _bias(self):
        if np.all(self.use_bias):
            return self.param("bias", nn.initializers.zeros, self.outputs, self.param_dtype)
        rows = np.flatnonzero(self.use_bias)
        shape = (*self.outputs[:-2], len(rows), self.outputs[-1])
        bias = self.param("bias", nn.initializers.zeros, shape, self.param_dtype)
        return jnp.zeros(self.outputs, bias.dtype).at[..., rows, :].set(bias)


def product(x: Float[jax.Array, "..."], kernel: Float[Array, "..."], num_inputs: int) -> Float[jax.Array, "..."]:
    """Returns the product of x [..., *inputs] and a kernel [*inputs, *outputs], [..., *outputs].

    On one CPU it is a product of matrices, whose gradient is computed at three times the speed. Elsewhere axes stay: heads
    leave the product in the order in which a kernel of attention reads them, and devices may share any axis.
    """
    mesh = mesh_of(x)
    if device_of(x).platform != "cpu" or (mesh is not None and mesh.size > 1):
        return jnp.tensordot(x, kernel, num_inputs)
    inputs, outputs = kernel.shape[:num_inputs], kernel.shape[num_inputs:]
    flat = x.reshape(-1, math.prod(inputs)) @ kernel.reshape(math.prod(inputs), -1)
    return flat.reshape(*x.shape[:-num_inputs], *outputs)


def at_tokens(bias: Float[Array, "*C"], y: Float[jax.Array, "..."]) -> Float[jax.Array, "..."]:
    """Returns the bias at every token of y, in y's dtype; its gradient is a sum over those tokens in float32.

    The gradient of `y + bias.astype(y.dtype)` is a sum in bfloat16, which lost half of 65,536 terms on a CPU, and under a
    `jax.vmap` over the batch it still is. An addition in float32 would keep cuBLAS from adding the bias to its product. A TPU
    sums over tokens by a product with ones, since its vector unit takes ten times as long.
    """
    mesh, wide = mesh_of(y), jnp.promote_types(bias.dtype, jnp.float32)
    spread = lambda bias: jnp.broadcast_to(bias.astype(wide), y.shape)  # noqa: E731
    if device_of(y).platform != "tpu" or (mesh is not None and mesh.explicit_axes):
        return split_as(y, spread(bias)).astype(y.dtype)
    tokens = y.shape[: y.ndim - bias.ndim]

    def summed(g):
        axes, precision = tuple(range(len(tokens))), jax.lax.Precision.HIGHEST if g.dtype == jnp.float32 else None
        options = dict(precision=precision, preferred_element_type=jnp.float32)
        return jnp.tensordot(jnp.ones((*tokens, _SUBLANES), g.dtype), g, (axes, axes), **options)[0].astype(bias.dtype)

    return with_transpose(lambda bias: spread(bias).astype(y.dtype), summed)(bias)


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
        y = normalised(x, centred, c.norm_epsilon) * scale
        if centred and c.norm_bias:
            y = y + self.param("bias", nn.initializers.zeros, shape, c.param_dtype).astype(jnp.float32)
        return y.astype(c.dtype)


def normalised(x: Float[jax.Array, "..."], centred: bool, epsilon: float) -> Float[jax.Array, "..."]:
    """Returns x / sqrt(mean(x^2) + epsilon) over the last axis, in float32; `centred` subtracts the mean from x first.

    The backward pass reads x, in its own dtype, and two numbers a token: cheaper than to store and read the output.
    """
    return _norm((centred, epsilon), x)[0]


def _normalised(static: tuple[bool, float], x):
    """Returns the norm of x, what was subtracted from x and by what the rest was multiplied."""
    centred, epsilon = static
    x = x.astype(jnp.float32)
    mean = jnp.mean(x, axis=-1, keepdims=True) if centred else jnp.zeros_like(x[..., :1])
    factor = jax.lax.rsqrt(jnp.mean(jnp.square(x - mean), axis=-1, keepdims=True) + epsilon)
    return (x - mean) * factor, mean, factor


def _normalised_backward(static: tuple[bool, float], x, out, d_out):
    # The cotangents of the mean and the factor are 0 but in a derivative of this gradient.
    (_, mean, factor), (d_y, d_mean, d_factor) = out, d_out
    y = (x.astype(jnp.float32) - mean) * factor
    d_x = d_y - y * (jnp.mean(d_y * y, axis=-1, keepdims=True) + d_factor * factor / x.shape[-1])
    if static[0]:
        d_x = d_x - jnp.mean(d_y, axis=-1, keepdims=True) + d_mean / factor / x.shape[-1]
    return (factor * d_x).astype(x.dtype)


_norm = with_gradient(_normalised, _normalised_backward)


def outputs_of_heads(
    c: Any, x: Float[jax.Array, "B T M"], read: Float[jax.Array, "B T H E"]
) -> Float[jax.Array, "B T M"]:
    """Returns the output of attention of what its heads read; called within a module of attention, which holds the kernels.

    Qiu et al. (2025), Gated attention, arXiv 2505.06708, position G1: each head's result is multiplied by sigmoid(W x + b)
    before the output projection, with one number a head or one a channel. W is "output_gate", [M, H, 1] or [M, H, E]; the
    bias b, [H, 1] or [H, E], is there where queries have one. It starts at 0, and the gate near a half. Attention weights are
    those before the gate.

    The paper has a projection of its own, without a bias. Both codes take the gate out of the query projection: the authors'
    has all queries of a key head before all their gates, transformers' Qwen3-Next each query before its gate, and gates by
    channel alone.

    Args:
      c: a `BlockConfig`.
      x: the input of the layer, behind its norm.
    """
    read = read.astype(c.dtype)
    if c.attention_gate is not None:
        outputs = (c.num_heads, read.shape[-1] if c.attention_gate == "channel" else 1)
        gate = Linear(outputs, use_bias="query" in c.attention_bias, **c.types, name="output_gate")(x)
        read = read * jax.nn.sigmoid(gate)
    return Linear((c.width,), 2, "out" in c.attention_bias, **c.types, name="out")(read)


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
