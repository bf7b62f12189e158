"""Attention by its definition: the oracle of every other implementation."""

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float

from posjax.encoding import Array, Encoding, Params, Site


def dense(
    encoding: Encoding,
    params: Params,
    q: Float[Array, "T H D"],
    k: Float[Array, "S H D"],
    rotated_q: Float[Array, "T H C"],
    rotated_k: Float[Array, "S H C"],
    v: Float[Array, "S H E"],
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
    out = jnp.einsum("hts,she->the", weights.astype(v.dtype), v, preferred_element_type=jnp.float32)
    out = out + encoding.read(params, weights, q_site, k_site)
    return out.astype(q.dtype), weights


def tile_logits(encoding: Encoding, scale: float, params: Params, q, k, rotated_q, rotated_k, q_site, k_site):
    """scale * q' k'^T + bias of a tile, [H, T, S] in float32."""
    logits = encoding.product(rotated_q, q_site, rotated_k, k_site)
    return scale * logits + encoding.bias(params, q, q_site, k, k_site)


def visible(encoding: Encoding, q_site: Site, k_site: Site, *, causal_from=None) -> Bool[Array, "T S"]:
    """Which keys a tile of queries sees: those of its own document that the encoding shows, and none of padding.

    `causal_from` is the array index of the first query less that of the first key; it also hides every later key.
    """
    seen = (q_site.segment[:, None] == k_site.segment[None]) & (k_site.segment > 0)[None]
    seen = jnp.asarray(seen & encoding.mask(q_site, k_site))
    if causal_from is None:
        return seen
    query, key = jnp.arange(seen.shape[0]), jnp.arange(seen.shape[1])
    return seen & (key[None] <= query[:, None] + causal_from)
