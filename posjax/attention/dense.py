"""Attention by its definition: in float32 the oracle of every other implementation."""

import functools
import operator
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int32

from posjax.encoding import Array, Encoding, Params, Site, both_stand
from posjax.gradients import einsum


class Operands(NamedTuple):
    """The arguments of every implementation of attention, beside the encoding and the scale."""

    params: Params
    q: Float[Array, "T H D"]
    k: Float[Array, "S K D"]
    rotated_q: Float[Array, "T H C"]  # after `encoding.rotate`
    rotated_k: Float[Array, "S K2 C"]
    v: Float[Array, "S K3 E"]  # after `encoding.value`
    q_site: Site
    k_site: Site
    q_order: Int32[Array, " T"] | None = None  # a query sees the keys of its order and those before; None: not causal
    k_order: Int32[Array, " S"] | None = None


class Part(NamedTuple):
    """The part of an attention that one device computes within `jax.shard_map`: some of the heads, some of the queries.

    `heads` and `queries` are (axis of the mesh, number of devices along it), None where all are on each device. `orders`
    holds the orders of the queries of all devices, [T], device after device, where they are known.
    """

    heads: tuple[str, int] | None = None
    queries: tuple[str, int] | None = None
    orders: np.ndarray | None = None

    def all_heads(self, own: int) -> int:
        """Returns the number of heads of all devices."""
        return own * (1 if self.heads is None else self.heads[1])

    def own_heads(self, x: Array, axis: int = 0) -> Array:
        """Returns the device's share of an array along its axis of all heads."""
        return _own(x, self.heads, axis)

    def among_heads(self, x: Float[Array, "T H D"]) -> Float[Array, "T H2 D"]:
        """Returns the device's heads in their places among all heads, zeros in all other places."""
        if self.heads is None:
            return x
        places = jnp.zeros((len(x), self.all_heads(x.shape[1]), x.shape[2]), x.dtype)
        start = jax.lax.axis_index(self.heads[0]) * x.shape[1]
        return jax.lax.dynamic_update_slice_in_dim(places, x, start, 1)

    def own_queries(self, x: Array, axis: int = 0) -> Array:
        """Returns the device's share of an array along its axis of all queries, or of blocks of them."""
        return _own(x, self.queries, axis)


def _own(x: Array, share: tuple[str, int] | None, axis: int) -> Array:
    if share is None:
        return x
    size = x.shape[axis] // share[1]
    return jax.lax.dynamic_slice_in_dim(jnp.asarray(x), jax.lax.axis_index(share[0]) * size, size, axis)


WHOLE = Part()


def dense(
    encoding: Encoding, x: Operands, *, scale: float | Array, softcap: float | None = None
) -> tuple[Float[jax.Array, "T H F"], Float[jax.Array, "H T S"]]:
    """The output and the weights of attention; both are zero for a query that sees nothing.

    With a sink the weights of a query sum to less than 1, and an encoding that has `weigh` makes its own. F is E, or 2 E for
    encodings for which `with_room` adds channels.
    """
    seen = visible(encoding, x.q_site, x.k_site, x.q_order, x.k_order)
    logits = tile_logits(encoding, scale, *x[:5], x.q_site, x.k_site, softcap)
    weights = encoding.weigh(x.params, logits, seen, x.q_site, x.k_site)
    v = with_room(encoding, x.v)
    by_group = weights.astype(v.dtype).reshape(v.shape[1], -1, *weights.shape[1:])
    out = einsum("kgts,ske->tkge", by_group, v)
    out = out.reshape(out.shape[0], -1, out.shape[-1])
    out = out + read_beside(encoding, x.params, weights, x.q_site, x.k_site)
    return out.astype(x.q.dtype), weights


def reads_apart(encoding: Encoding) -> bool:
    """Whether the result of `read` must be kept apart from the sum of values, as `output` transforms only the latter."""
    return {"read", "output"} <= encoding.hooks


def with_room(encoding: Encoding, v: Float[Array, "S K E"]) -> Float[Array, "S K C"]:
    """Appends E zero channels to values where `read` needs its own, so that outputs are [values | read]."""
    return jnp.concatenate([v, jnp.zeros_like(v)], axis=-1) if reads_apart(encoding) else v


def read_beside(encoding: Encoding, params: Params, weights: Float[Array, "H T S"], q_site: Site, k_site: Site):
    """`encoding.read`, in the last channels where it is kept apart."""
    found = encoding.read(params, weights, q_site, k_site)
    if not reads_apart(encoding) or jnp.ndim(found) == 0:
        return found
    return jnp.pad(found, ((0, 0), (0, 0), (found.shape[-1], 0)))


def tile_logits(encoding: Encoding, scale, params: Params, q, k, rotated_q, rotated_k, q_site, k_site, softcap=None):
    """scale * q' k'^T, capped, + bias of a tile, [H, T, S] in float32."""
    logits = encoding.product(rotated_q, q_site, rotated_k, k_site)
    return capped(scale * logits, softcap) + encoding.bias(params, q, q_site, repeated(k, q.shape[1]), k_site)


def capped(logits: Float[Array, "H T S"], softcap: float | None) -> Float[Array, "H T S"]:
    """softcap tanh(logits / softcap), between -softcap and softcap: Gemma Team (2024), arXiv 2408.00118."""
    return logits if softcap is None else softcap * jnp.tanh(logits / softcap)


def repeated(k: Float[Array, "S K D"], num_heads: int) -> Float[Array, "S H D"]:
    """Repeats each of K key heads H / K times in a row (grouped queries)."""
    return k if k.shape[1] == num_heads else jnp.repeat(k, num_heads // k.shape[1], axis=1)


def visible(
    encoding: Encoding,
    q_site: Site,
    k_site: Site,
    q_order: Int32[Array, " T"] | None = None,
    k_order: Int32[Array, " S"] | None = None,
) -> Bool[Array, "T S"]:
    """Marks the keys that a tile of queries sees: keys of its own document that the encoding shows, and no padding.

    With orders, no query sees a key whose order is above its own: causality.
    """
    seen = (q_site.segment[:, None] == k_site.segment[None]) & (k_site.segment > 0)[None]
    seen = jnp.asarray(seen & shown(encoding, q_site, k_site))
    return seen if q_order is None else seen & (k_order[None] <= q_order[:, None])


def shown(encoding: Encoding, q_site: Site, k_site: Site) -> Bool[Array, "T S"] | bool:
    """Marks the keys that a mask shows to a tile of queries. Tokens that stand nowhere see all and are seen by all."""
    terms = encoding.mask().terms(q_site, k_site)
    if not terms:
        return True
    seen = ~both_stand(q_site, k_site)
    each = (mask.shows(tuple(x[:, None] for x in q), tuple(x[None] for x in k)) for mask, q, k in terms)
    return seen | functools.reduce(operator.and_, each)
