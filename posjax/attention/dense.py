"""Attention by its definition: the oracle of every other implementation."""

import functools
import operator

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float, Int32

from posjax.encoding import Array, Encoding, Params, Site, both_stand


def dense(
    encoding: Encoding,
    params: Params,
    q: Float[Array, "T H D"],
    k: Float[Array, "S K D"],
    rotated_q: Float[Array, "T H C"],
    rotated_k: Float[Array, "S K2 C"],
    v: Float[Array, "S K E"],
    q_site: Site,
    k_site: Site,
    *,
    seen: Bool[Array, "T S"],
    scale: float,
) -> tuple[Float[jax.Array, "T H E"], Float[jax.Array, "H T S"]]:
    """What the queries read and the weights they read it with; both zero for a query that sees nothing."""
    logits = tile_logits(encoding, scale, params, q, k, rotated_q, rotated_k, q_site, k_site)
    # -inf never meets arithmetic: a hidden logit is replaced before the maximum and after the exponential.
    peak = jax.lax.stop_gradient(jnp.max(logits, axis=-1, keepdims=True, where=seen, initial=-jnp.inf))
    peak = jnp.where(jnp.isfinite(peak), peak, 0.0)
    weights = jnp.where(seen, jnp.exp(jnp.where(seen, logits - peak, 0.0)), 0.0)
    total = jnp.sum(weights, axis=-1, keepdims=True)
    weights = weights / jnp.where(total > 0, total, 1.0)
    by_group = weights.astype(v.dtype).reshape(v.shape[1], -1, *weights.shape[1:])
    out = jnp.einsum("kgts,ske->tkge", by_group, v, preferred_element_type=jnp.float32)
    out = out.reshape(out.shape[0], -1, out.shape[-1]) + encoding.read(params, weights, q_site, k_site)
    return out.astype(q.dtype), weights


def tile_logits(encoding: Encoding, scale: float, params: Params, q, k, rotated_q, rotated_k, q_site, k_site):
    """scale * q' k'^T + bias of a tile, [H, T, S] in float32."""
    logits = encoding.product(rotated_q, q_site, rotated_k, k_site)
    return scale * logits + encoding.bias(params, q, q_site, repeated(k, q.shape[1]), k_site)


def repeated(k: Float[Array, "S K D"], num_heads: int) -> Float[Array, "S H D"]:
    """Each of K key heads as often as it has query heads, in a row."""
    return k if k.shape[1] == num_heads else jnp.repeat(k, num_heads // k.shape[1], axis=1)


def visible(
    encoding: Encoding,
    q_site: Site,
    k_site: Site,
    q_order: Int32[Array, " T"] | None = None,
    k_order: Int32[Array, " S"] | None = None,
) -> Bool[Array, "T S"]:
    """Which keys a tile of queries sees: those of its own document that the encoding shows, and none of padding.

    With orders, no query sees a key whose order is above its own: causality.
    """
    seen = (q_site.segment[:, None] == k_site.segment[None]) & (k_site.segment > 0)[None]
    seen = jnp.asarray(seen & shown(encoding, q_site, k_site))
    return seen if q_order is None else seen & (k_order[None] <= q_order[:, None])


def shown(encoding: Encoding, q_site: Site, k_site: Site) -> Bool[Array, "T S"] | bool:
    """Which keys an encoding's mask shows to a tile of queries. Tokens that stand nowhere see all and are seen by all."""
    terms = encoding.mask().terms(q_site, k_site)
    if not terms:
        return True
    seen = ~both_stand(q_site, k_site)
    each = (mask.shows(tuple(x[:, None] for x in q), tuple(x[None] for x in k)) for mask, q, k in terms)
    return seen | functools.reduce(operator.and_, each)
