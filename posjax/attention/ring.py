"""Attention in a ring of devices: each share of the keys passes by every device, which holds one share at a time.

Liu, Zaharia & Abbeel (2023), Ring Attention with Blockwise Transformers, arXiv 2310.01889. A device merges its output over
one share into that over earlier shares by the logs of their softmax denominators. In the backward pass every share goes
round once more and gathers its gradient on the way.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.ad_checkpoint import checkpoint_name

from posjax.attention.attend import finish, transform
from posjax.attention.blockwise import SAVED, backward, forward, laid_out, plan_of, with_sink
from posjax.attention.dense import Operands, with_room
from posjax.attention.tiles import Plan
from posjax.encoding import Array, Encoding, Params, Site

_UNSEEN = 0.5 * float(jnp.finfo(jnp.float32).max)  # a log denominator above this means that no key is seen


class Ring(NamedTuple):
    """The static arguments."""

    encoding: Encoding
    axis: str
    size: int
    scale: float


class Queries(NamedTuple):
    q: Array  # [T, H, D]
    site: Site
    order: Array | None


class Keys(NamedTuple):
    k: Array  # [S, K, D]
    v: Array  # [S, K, E]
    site: Site
    order: Array | None


def attend_in_ring(ring: Ring, params: Params, queries: Queries, keys: Keys):
    """The output of this device's queries over the keys of all devices, [T, H, E]; every device along the axis calls it."""
    out = with_sink(ring.encoding, params, *_attention(ring, params, queries, keys))
    return finish(ring.encoding, params, out, queries.site)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attention(ring: Ring, params: Params, queries: Queries, keys: Keys):
    """The sums of values, [T, H, E], and the log of the softmax's denominator without the sink, [H, T]."""
    return _of_queries(queries, *_forward(ring, params, queries, keys))


def _of_queries(queries: Queries, out, log_total):
    """Both without the tokens that pad the last tile, and outputs in the queries' dtype."""
    length = len(queries.q)
    return out[:length].astype(queries.q.dtype), log_total[:, :length]


def _forward(ring: Ring, params: Params, queries: Queries, keys: Keys):
    """The output of T' queries in whole tiles, [T', H, E] in float32, and their log denominators, [H, T']."""
    plan = _plan(ring, queries, keys)
    length = -(-len(queries.q) // plan.q_tile) * plan.q_tile

    def step(_, carry):
        keys, out, log_total = carry
        part, part_log = forward(plan, _operands(ring, plan, params, queries, keys))
        part_log = jnp.where(part_log < _UNSEEN, part_log, -_UNSEEN)
        total = jnp.logaddexp(log_total, part_log)
        fade, share = (jnp.exp(log - total).T[..., None] for log in (log_total, part_log))
        return _passed_on(ring, keys), out * fade + part * share, total

    channels = jax.eval_shape(lambda v: with_room(ring.encoding, v), keys.v).shape[-1]
    out = jnp.zeros((length, plan.num_heads, channels), jnp.float32)
    nothing = jnp.full((plan.num_heads, length), -_UNSEEN, jnp.float32)
    _, out, log_total = jax.lax.fori_loop(0, ring.size, step, (keys, out, nothing))
    return out, jnp.where(log_total > -_UNSEEN / 2, log_total, _UNSEEN)


def _forward_rule(ring: Ring, params: Params, queries: Queries, keys: Keys):
    out, log_total = checkpoint_name(_forward(ring, params, queries, keys), SAVED)
    return _of_queries(queries, out, log_total), (params, queries, keys, out, log_total)


def _backward_rule(ring: Ring, saved, gradients):
    params, queries, keys, out, log_total = saved
    plan = _plan(ring, queries, keys)
    d_read, d_log_total = gradients
    added = len(out) - len(d_read)
    d_out = jnp.pad(d_read, [(0, added), (0, 0), (0, 0)])
    d_log_total = jnp.pad(d_log_total, [(0, 0), (0, added)])

    def step(_, carry):
        keys, (d_params, d_queries, d_keys) = carry
        floats, joined = _floats((params, queries, keys))
        operands, pull = jax.vjp(lambda floats: _operands(ring, plan, *joined(floats)), floats)
        (more,) = pull(backward(plan, operands, out, log_total, d_out, d_log_total))
        more = iter(more)
        total = [[d + next(more) for d in part] for part in (d_params, d_queries, d_keys)]
        # A gradient travels with its keys and is back home with them after the last step.
        return _passed_on(ring, keys), (*total[:2], _passed_on(ring, total[2]))

    zeros = [[jnp.zeros(x.shape, jnp.float32) for x in _floats(tree)[0]] for tree in (params, queries, keys)]
    _, gradients = jax.lax.fori_loop(0, ring.size, step, (keys, tuple(zeros)))
    return tuple(map(_with_zeros, gradients, (params, queries, keys)))


_attention.defvjp(_forward_rule, _backward_rule)


def _plan(ring: Ring, queries: Queries, keys: Keys) -> Plan:
    return plan_of(ring.encoding, queries.q, keys.k, scale=ring.scale)


def _operands(ring: Ring, plan: Plan, params: Params, queries: Queries, keys: Keys) -> Operands:
    sites_and_orders = (queries.site, keys.site, queries.order, keys.order)
    return laid_out(plan, transform(ring.encoding, params, queries.q, keys.k, keys.v, *sites_and_orders))


def _passed_on(ring: Ring, tree: Any) -> Any:
    """Receives what the previous device in the ring holds."""
    to_next = [(d, (d + 1) % ring.size) for d in range(ring.size)]
    return jax.tree.map(lambda x: jax.lax.ppermute(x, ring.axis, to_next), tree)


def _floats(tree: Any):
    """The float leaves, and a function that rebuilds the tree with other ones in their place."""
    leaves, structure = jax.tree.flatten(tree)
    is_float = [jnp.issubdtype(leaf.dtype, jnp.inexact) for leaf in leaves]

    def joined(floats):
        floats = iter(floats)
        return jax.tree.unflatten(structure, [next(floats) if f else x for f, x in zip(is_float, leaves, strict=True)])

    return [leaf for f, leaf in zip(is_float, leaves, strict=True) if f], joined


def _with_zeros(gradients: list[Array], tree: Any) -> Any:
    """The gradients as a tree, with JAX's zero gradients for integer leaves."""
    found = iter(gradients)

    def leaf(x):
        if jnp.issubdtype(x.dtype, jnp.inexact):
            return next(found).astype(x.dtype)
        return np.zeros(x.shape, jax.dtypes.float0)

    return jax.tree.map(leaf, tree)
