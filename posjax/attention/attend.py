"""`attend`: the one call for every way of computing attention."""

from collections.abc import Collection, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec
from jaxtyping import Float, Int32

from posjax.attention.backends import backend
from posjax.attention.choose import choose
from posjax.attention.dense import Operands, dense, reads_apart, repeated
from posjax.attention.explicit import spec_of, split_by_compiler
from posjax.encoding import HOOKS, Array, Encoding, Needs, Params, Site, canonical, without_padding
from posjax.spec import encoding_value


def _as_queries(given: Mapping[str, Any]) -> Any:
    """The partitions of the result of `attend`: of its output, and of its weights."""
    tokens, heads, _ = spec_of(given["q"])
    out, weights = PartitionSpec(tokens, heads), PartitionSpec(heads, tokens)
    return (out, weights) if given.get("return_weights") else out


@split_by_compiler(_as_queries)
def attend(
    encoding: Encoding,
    params: Params,
    q: Float[Array, "T H D"],
    k: Float[Array, "S K D"],
    v: Float[Array, "S K E"],
    q_site: Site,
    k_site: Site,
    *,
    causal: bool = False,
    q_order: Int32[Array, " T"] | None = None,
    k_order: Int32[Array, " S"] | None = None,
    implementation: str = "auto",
    scale: float | Array | None = None,
    softcap: float | None = None,
    return_weights: bool = False,
    consumed: Collection[str] = (),
    batch: int = 1,
) -> Float[jax.Array, "T H E"] | tuple[Float[jax.Array, "T H E"], Float[jax.Array, "H T S"]]:
    """softmax(scale * q' k'^T + bias, over the visible keys) v', of one sequence; `jax.vmap` it over a batch.

    In place of the softmax stands `encoding.weigh`, where the encoding has one.

    Args:
      encoding, params: what attention knows of position. q' and k' come from `encoding.rotate` and v' from
        `encoding.value`; the result goes through `encoding.output`.
      q: the queries.
      k, v: have K heads; each serves H / K query heads in a row (grouped queries, Ainslie et al. 2023, arXiv
        2305.13245), as if repeated H / K times along the head axis.
      q_site, k_site: where queries and keys stand. A query sees the keys of its own segment; segment 0 is padding, which
        may hold anything, NaN too.
      causal: also hides keys that come later in array order (which says nothing of positions); without orders it needs
        T == S.
      q_order, k_order: replace array order in causality, for tokens that are shuffled or a part of a sequence: a query sees
        the keys whose order is at most its own.
      implementation: "dense" builds the logits, "blockwise" only tiles of them, "pallas" is a kernel for GPUs,
        "pallas_tpu" one for TPUs, "cudnn" and "splash" are jax's own for GPUs and TPUs, "tokamax" is a library's; or one
        of your own (`posjax.attention.register`). "auto" takes what `choose` says for the platform, length and encoding.
      scale: of the logits before the bias, a number or a traced scalar; 1/sqrt(D) by default.
      softcap: keeps the scaled products before the bias within -softcap ... softcap, by softcap tanh(logits / softcap);
        dense, blockwise and tokamax have it.
      return_weights: also returns the attention weights, which sum to 1, or less where there is a sink or the encoding has
        `weigh`; dense only.
      consumed: the hooks among "place", "embed" and "observe" that were run before; `posjax.host` runs them all.
      batch: how many such sequences a device computes at once, which `jax.vmap` hides from the choice.

    Returns:
      What the queries read, in q's dtype; zeros for a query that sees no key.

    Raises:
      ValueError: for shapes that do not fit, a text instead of an encoding, an unknown implementation or one that cannot
        compute this, weights from any implementation but the dense one, or a hook that was not run.

    >>> import jax, jax.numpy as jnp
    >>> import posjax as pj
    >>> encoding, site = pj.parse("rope"), pj.sites(4)
    >>> params = encoding.init(jax.random.key(0), pj.Dims(width=16, num_heads=2, head_dim=8))
    >>> q = k = v = jnp.ones((4, 2, 8))
    >>> pj.attend(encoding, params, q, k, v, site, site, causal=True).shape
    (4, 2, 8)
    """
    check_consumed(encoding, consumed)
    q_site, k_site = canonical(q_site), canonical(k_site)
    check(q, k, v, q_site, k_site)
    q_order, k_order = orders_of(q, k, causal, q_order, k_order)
    if return_weights and implementation not in ("auto", "dense"):
        raise ValueError(
            f"implementation={implementation!r} never holds the attention weights: ask implementation='dense' for them"
        )
    orders = dict(q_order=q_order, k_order=k_order)
    implementation = "dense" if return_weights else implementation
    options = dict(causal=causal, **orders, softcap=softcap, implementation=implementation, batch=batch)
    name = choose(encoding, q, k, v, q_site, k_site, **options).implementation
    operands = transform(encoding, params, q, k, v, q_site, k_site, q_order, k_order)
    operands, scale = scaled(encoding, operands, scale, name)
    if not return_weights:
        options = dict(scale=scale) if softcap is None else dict(scale=scale, softcap=softcap)
        return finish(encoding, params, backend(name).run(encoding, operands, **options), q_site)
    out, weights = dense(encoding, operands, scale=scale, softcap=softcap)
    return finish(encoding, params, out, q_site), weights


def transform(
    encoding: Encoding,
    params: Params,
    q: Float[Array, "T H D"],
    k: Float[Array, "S K D"],
    v: Float[Array, "S K E"],
    q_site: Site,
    k_site: Site,
    q_order: Int32[Array, " T"] | None = None,
    k_order: Int32[Array, " S"] | None = None,
) -> Operands:
    """All that a backend computes with: `encoding.rotate` of queries and keys and `encoding.value` of values.

    For an encoding that treats heads differently, keys and values of grouped queries are repeated first. Padding is zeros.
    Parameters in float64 are rounded to float32, in which attention computes.
    """
    wide = lambda x: getattr(x, "dtype", None) == np.float64  # noqa: E731
    params = jax.tree.map(lambda x: x.astype(np.float32) if wide(x) else x, params)
    q, k, v = without_padding(q, q_site), without_padding(k, k_site), without_padding(v, k_site)
    keys, values = k, v
    if Needs.EVERY_HEAD in encoding.needs:
        keys = repeated(k, q.shape[1])
        values = repeated(v, q.shape[1]) if "value" in encoding.hooks else v
    rotated = encoding.rotate(params, q, q_site, keys, k_site)
    values = encoding.value(params, values, k_site).astype(v.dtype)
    return Operands(params, q, k, *rotated, values, q_site, k_site, q_order, k_order)


def scaled(
    encoding: Encoding, x: Operands, scale: float | Array | None, implementation: str
) -> tuple[Operands, float | Array]:
    """Returns the operands and the scale for an implementation: dense attention alone takes a traced one, else queries do."""
    scale = x.q.shape[-1] ** -0.5 if scale is None else scale
    if implementation == "dense" or isinstance(scale, float | int):
        return x, scale
    if "product" in encoding.hooks:
        raise ValueError(
            f"a scale that is traced goes into queries, and {encoding} multiplies them with keys in its own way: "
            f"implementation={implementation!r} takes a number for it, implementation='dense' an array"
        )
    return x._replace(rotated_q=(x.rotated_q * scale).astype(x.q.dtype)), 1.0


def finish(encoding: Encoding, params: Params, out: Float[Array, "T H C"], q_site: Site) -> Float[jax.Array, "T H E"]:
    """Applies `encoding.output` to the result of a backend. Padding is zero, and so is what reaches it backwards."""
    if "output" in encoding.hooks:
        out, beside = jnp.split(out, 2, axis=-1) if reads_apart(encoding) else (out, 0.0)
        out = (encoding.output(params, out, q_site) + beside).astype(out.dtype)
    return without_padding(out, q_site)


def orders_of(q, k, causal: bool, q_order, k_order):
    """The orders by which causality hides keys, or None. Raises as `attend`."""
    if not causal:
        if q_order is not None or k_order is not None:
            raise ValueError("q_order and k_order say what comes later, which only causal=True hides")
        return None, None
    if (q_order is None) != (k_order is None):
        raise ValueError("causal attention takes both q_order and k_order, or neither")
    if q_order is not None:
        if q_order.shape != q.shape[:1] or k_order.shape != k.shape[:1]:
            raise ValueError(
                f"orders are [T] and [S], {q.shape[:1]} and {k.shape[:1]}; got {q_order.shape}, {k_order.shape}"
            )
        return q_order, k_order
    if q.shape[0] != k.shape[0]:
        raise ValueError(
            f"causal attention needs as many queries as keys, or their orders; got {q.shape[0]} and {k.shape[0]}"
        )
    return (np.arange(q.shape[0], dtype=np.int32),) * 2


# The hooks that act before attention, and what each does.
BEFORE_ATTENTION = {name: hook.does for name, hook in HOOKS.items() if hook.when == "before"}


def check_consumed(encoding: Encoding, consumed: Collection[str]) -> None:
    """Refuses anything but an encoding, and an encoding with a hook before attention that was not run."""
    encoding_value(encoding)
    if unknown := set(consumed) - BEFORE_ATTENTION.keys():
        raise ValueError(f"consumed={sorted(unknown)}: the hooks before attention are {', '.join(BEFORE_ATTENTION)}")
    lost = [hook for hook in BEFORE_ATTENTION if hook in encoding.hooks and hook not in consumed]
    if lost:
        what = " and ".join(f"{BEFORE_ATTENTION[hook]} (`{hook}`)" for hook in lost)
        raise ValueError(
            f"{encoding} {what}, which attention alone does not do: x, hosted = posjax.host(encoding, params, x, site, "
            "key=...), then hosted.attend(q, k, v, x=...) in each layer. If you have called "
            f"{' and '.join(f'encoding.{hook}' for hook in lost)}, say consumed={tuple(lost)}"
        )


def check(q, k, v, q_site: Site, k_site: Site) -> None:
    """Refuses shapes that do not fit each other. Raises as `attend`."""
    if q.ndim != 3 or k.ndim != 3 or v.ndim != 3:
        raise ValueError(
            f"attend takes one sequence, q [T, H, D], k and v [S, K, D]: got {q.shape}, {k.shape}, {v.shape}; "
            "jax.vmap it over a batch"
        )
    if q.shape[2] != k.shape[2] or k.shape[:2] != v.shape[:2]:
        raise ValueError(f"q, k and v do not fit each other: got {q.shape}, {k.shape}, {v.shape}")
    if not (q.shape[1] and q.shape[2] and v.shape[2]):
        raise ValueError(f"q and v need heads of at least one channel, got {q.shape} and {v.shape}")
    if not (q.shape[0] and k.shape[0]):
        raise ValueError(f"attention needs at least one query and one key, got {q.shape[0]} and {k.shape[0]}")
    if k.shape[1] < 1 or q.shape[1] % k.shape[1]:
        raise ValueError(f"{k.shape[1]} key heads cannot be shared evenly by {q.shape[1]} query heads")
    for what, tokens, site in (("q", q, q_site), ("k", k, k_site)):
        if site.position.shape[0] != tokens.shape[0]:
            raise ValueError(f"{what} has {tokens.shape[0]} tokens, {what}_site {site.position.shape[0]}")
        if related := [leaf.shape for leaf in jax.tree.leaves(site.relation) if leaf.shape[:1] != tokens.shape[:1]]:
            raise ValueError(
                f"{what} has {tokens.shape[0]} tokens, {what}_site.relation a leaf of shape {related[0]}: "
                "each has a row for each token"
            )
    if q_site.position.shape[1:] != k_site.position.shape[1:]:
        raise ValueError(
            f"queries and keys must stand on the same axes: got positions {q_site.position.shape} and {k_site.position.shape}"
        )
    if all(isinstance(leaf, np.ndarray) for site in (q_site, k_site) for leaf in site[:3]):
        standing = [site.position[(site.segment > 0) & (site.prefix == 0)] for site in (q_site, k_site)]
        position = np.concatenate(standing).astype(np.float64)
        if q_site.position.dtype == np.int32 and len(position) and np.ptp(position, axis=0).max() >= 2**31:
            raise ValueError(
                f"positions from {position.min():.0f} to {position.max():.0f} are 2^31 and more apart, a distance that int32 "
                "does not hold: give them as float32, or divide them"
            )
