"""Does one implementation of attention agree with another? One layer under an encoding: its output and every gradient."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import posjax as pj
from posjax.describe.worlds import awake, axes_taken, box, grid_width, normal, with_relation
from posjax.encoding import Dims, Encoding, Needs, Params, Site

_FAINT = 0.01  # a gradient is compared with its largest number, or with this share of the largest one in its group
_GROUPS = ("output", "parameters", "tokens", "projections")
Gradients = tuple[Params, jax.Array, jax.Array]  # of the parameters, the tokens and the projections


class Layer(NamedTuple):
    """One layer of attention over some tokens, with grouped queries."""

    encoding: Encoding
    params: Params
    x: jax.Array  # [T, M]
    site: Site  # as a model gives it, not placed
    weights: jax.Array  # [M, H + 2 K, D]: the projections to q, k and v
    num_heads: int
    causal: bool


def two_documents(length: int, registers: bool) -> Site:
    """Two documents with padding in and behind them, the second with gaps in its positions, and perhaps registers."""
    first, second = length // 2 - 2, length // 2 - 3
    position = np.r_[np.arange(first), [0, 0], 7 * np.arange(second), [0] * (length - first - second - 2)]
    segment = np.repeat([1, 0, 2, 0], [first, 2, second, length - first - second - 2]).astype(np.int32)
    prefix = np.zeros(length, np.int32)
    if registers:
        prefix[[0, first + 3]] = 1
    return Site(position.astype(np.int32), segment, prefix)


def make_layer(
    encoding: Encoding,
    length: int,
    *,
    num_heads: int,
    kv_heads: int,
    head_dim: int,
    num_axes: int | None = None,
    plain: bool = False,
) -> Layer:
    """A layer with about so many tokens, causal if it can be.

    Args:
      num_axes: of positions; the smallest number that the encoding takes where None.
      plain: the tokens of one document without padding, instead of `two_documents`; on grids they always are.
    """
    num_axes, prefix = num_axes or axes_taken(encoding)[0], 0
    causal = num_axes == 1 and Needs.BOTH_DIRECTIONS not in encoding.needs
    if num_axes == 1:
        prefix = 0 if plain or causal else 1
        site = pj.sites(length) if plain else two_documents(length, registers=prefix == 1)
    else:
        side = round(length ** (1 / num_axes))
        site = box((side,) * num_axes)
    site = with_relation(encoding, site)
    grid = (side, grid_width(encoding) or side) if num_axes == 2 else None
    width = num_heads * head_dim
    dims = Dims(width, num_heads, head_dim, length=4 * length if num_axes == 1 else None, grid=grid, prefix=prefix)
    params, _ = awake(encoding.init(jax.random.key(1), dims))
    weights = normal(3, width, num_heads + 2 * kv_heads, head_dim) / width**0.5
    return Layer(encoding, params, normal(2, len(site.segment), width), site, weights, num_heads, causal)


def with_gradients(layer: Layer, implementation: str, dtype: Any, given: Any = None) -> Callable[..., Any]:
    """(params, x, weights) -> (output [T, H, D], `Gradients`), to be compiled.

    Args:
      dtype: in which the implementation gets q, k and v.
      given: to which they are rounded before; `dtype` where None. Given the same, an exact reference in float32 has the
        errors of the implementation alone.
    """
    heads, rounded = layer.num_heads, dtype if given is None else given

    def forward(params, x, weights):
        x, hosted = pj.host(layer.encoding, params, x, layer.site, key=None)
        served = heads // ((weights.shape[1] - heads) // 2)

        def project(x):
            q, k, v = jnp.split(jnp.einsum("tm,mhd->thd", x, weights), [heads, heads + heads // served], axis=1)
            return q, k, v

        hosted = hosted.in_layer(lambda rows: project(rows)[:2])
        q, k, v = (y.astype(rounded).astype(dtype) for y in project(x))
        return hosted.attend(q, k, v, x=x, causal=layer.causal, implementation=implementation).astype(jnp.float32)

    def both(params, x, weights):
        out, pull = jax.vjp(forward, params, x, weights)
        return out, pull(normal(5, *out.shape))

    return both


def differences(found: tuple[Any, Gradients], expected: tuple[Any, Gradients]) -> Mapping[str, float]:
    """The largest difference of the output and of each group of gradients, over the largest number there."""
    largest = {}
    for name, got, want in zip(_GROUPS, (found[0], *found[1]), (expected[0], *expected[1]), strict=True):
        got, want = ([np.asarray(leaf, np.float64) for leaf in jax.tree.leaves(group)] for group in (got, want))
        greatest = max((float(np.abs(leaf).max(initial=0.0)) for leaf in want), default=0.0)
        each = [
            float(np.abs(a - b).max(initial=0.0)) / max(float(np.abs(b).max(initial=0.0)), _FAINT * greatest, 1e-30)
            for a, b in zip(got, want, strict=True)
        ]
        if each:
            largest[name] = float(np.max(each))  # NaN where one is, unlike max
    return largest
