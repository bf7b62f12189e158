"""The one call behind which every way of computing attention stands."""

import jax
from jaxtyping import Float

from posjax.attention.blockwise import blockwise
from posjax.attention.dense import dense, visible
from posjax.encoding import Array, Encoding, Params, Site
from posjax.spec import nearest

_IMPLEMENTATIONS = ["auto", "blockwise", "dense"]
_DENSE_LOGITS = 1024 * 1024  # up to here the logits of one head are small change, and one matrix product is fastest


def attend(
    encoding: Encoding,
    params: Params,
    q: Float[Array, "T H D"],
    k: Float[Array, "S H D"],
    v: Float[Array, "S H E"],
    q_site: Site,
    k_site: Site,
    *,
    causal: bool = False,
    implementation: str = "auto",
    scale: float | None = None,
    return_weights: bool = False,
) -> Float[jax.Array, "T H E"] | tuple[Float[jax.Array, "T H E"], Float[jax.Array, "H T S"]]:
    """softmax(scale * q' k'^T + bias, over the visible keys) v, of one sequence; `jax.vmap` it over a batch.

    Args:
      encoding, params: what the logits know of position; q' and k' are `encoding.rotate`'s.
      q_site, k_site: where queries and keys stand. A query sees the keys of its own segment; segment 0 is padding.
      causal: also hides keys that come later in array order (which says nothing of positions); needs T == S.
      implementation: "dense" builds the logits, "blockwise" only tiles of them, "auto" is dense for short sequences.
      scale: of the logits before the bias; 1/sqrt(D) by default.
      return_weights: also returns the attention weights; dense only.

    Returns:
      What the queries read, in q's dtype; zeros for a query that sees no key.

    Raises:
      ValueError: for shapes that do not fit, an unknown implementation, or weights asked of another than the dense one.
    """
    _check(q, k, v, q_site, k_site, causal)
    if implementation not in _IMPLEMENTATIONS:
        raise ValueError(f"no implementation is named {implementation!r}; {nearest(implementation, _IMPLEMENTATIONS)}")
    if return_weights and implementation == "blockwise":
        raise ValueError(
            "implementation='blockwise' never holds the attention weights: ask implementation='dense' for them"
        )
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    rotated = encoding.rotate(params, q, q_site, k, k_site)
    if implementation == "auto":
        small = q.shape[0] * k.shape[0] <= _DENSE_LOGITS
        implementation = "dense" if small or return_weights else "blockwise"
    if implementation == "blockwise":
        return blockwise(encoding, params, q, k, *rotated, v, q_site, k_site, causal=causal, scale=scale)
    seen = visible(encoding, q_site, k_site, causal_from=0 if causal else None)
    out, weights = dense(encoding, params, q, k, *rotated, v, q_site, k_site, seen=seen, scale=scale)
    return (out, weights) if return_weights else out


def _check(q, k, v, q_site: Site, k_site: Site, causal: bool) -> None:
    if q.ndim != 3 or k.ndim != 3 or v.ndim != 3:
        raise ValueError(
            f"attend takes one sequence, q [T, H, D], k and v [S, H, D]: got {q.shape}, {k.shape}, {v.shape}; "
            "jax.vmap it over a batch"
        )
    if q.shape[1:] != k.shape[1:] or k.shape[:2] != v.shape[:2]:
        raise ValueError(f"q, k and v do not fit each other: got {q.shape}, {k.shape}, {v.shape}")
    for what, tokens, site in (("q", q, q_site), ("k", k, k_site)):
        if site.position.shape[0] != tokens.shape[0]:
            raise ValueError(f"{what} has {tokens.shape[0]} tokens, {what}_site {site.position.shape[0]}")
    if q_site.position.shape[1:] != k_site.position.shape[1:]:
        raise ValueError(
            f"queries and keys must stand on the same axes: got positions {q_site.position.shape} and {k_site.position.shape}"
        )
    if causal and q.shape[0] != k.shape[0]:
        raise ValueError(f"causal attention needs as many queries as keys, got {q.shape[0]} and {k.shape[0]}")
