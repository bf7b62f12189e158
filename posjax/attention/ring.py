"""Attention in a ring of devices: each share of the keys passes by every device, which holds one share at a time.

Liu, Zaharia & Abbeel (2023), Ring Attention with Blockwise Transformers, arXiv 2310.01889. A device merges its output over
one share into that over earlier shares by the logs of their softmax denominators. In the backward pass every share goes
round once more and gathers its gradient on the way.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from posjax.attention.attend import transform
from posjax.attention.blockwise import SAVED, backward, forward, laid_out, plan_of, with_sink
from posjax.attention.dense import Operands, with_room
from posjax.attention.tiles import Plan
from posjax.encoding import Array, Encoding, Params, Site
from posjax.gradients import split_floats, with_gradient

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
    """The output of this device's queries over the keys of all devices, [T, H, E], before `encoding.output`; every device
    along the axis calls it."""
    out, log_total = _attention(ring, (params, queries, keys))
    # Both without the tokens that pad the last tile.
    length, dtype = len(queries.q), queries.q.dtype
    return with_sink(ring.encoding, params, queries.site, out[:length].astype(dtype), log_total[:, :length])


def _forward(ring: Ring, x: tuple[Params, Queries, Keys]):
    """The output of T' queries in whole tiles, [T', H, E] in float32, and their log denominators, [H, T']."""
    params, queries, keys = x
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


def _backward(ring: Ring, x: tuple[Params, Queries, Keys], found, gradients):
    params, queries, keys = x
    plan = _plan(ring, queries, keys)

    def step(_, carry):
        keys, (d_params, d_queries, d_keys) = carry
        floats, joined = split_floats((params, queries, keys))
        operands, pull = jax.vjp(lambda floats: _operands(ring, plan, *joined(floats)), floats)
        (more,) = pull(backward(plan, operands, *found, *gradients))
        more = iter(more)
        total = [[d + next(more).astype(d.dtype) for d in part] for part in (d_params, d_queries, d_keys)]
        # A gradient travels with its keys and is back home with them after the last step.
        return _passed_on(ring, keys), (*total[:2], _passed_on(ring, total[2]))

    zeros = [[jnp.zeros(x.shape, jnp.float32) for x in split_floats(tree)[0]] for tree in (params, queries, keys)]
    _, gradients = jax.lax.fori_loop(0, ring.size, step, (keys, tuple(zeros)))
    floats, joined = split_floats(x)
    return joined([g.astype(y.dtype) for g, y in zip(jax.tree.leaves(gradients), floats, strict=True)])


_attention = with_gradient(_forward, _backward, saved=SAVED)


def _plan(ring: Ring, queries: Queries, keys: Keys) -> Plan:
    return plan_of(ring.encoding, queries.q, keys.k, scale=ring.scale)


def _operands(ring: Ring, plan: Plan, params: Params, queries: Queries, keys: Keys) -> Operands:
    sites_and_orders = (queries.site, keys.site, queries.order, keys.order)
    return laid_out(plan, transform(ring.encoding, params, queries.q, keys.k, keys.v, *sites_and_orders))


def _passed_on(ring: Ring, tree: Any) -> Any:
    """Receives what the previous device in the ring holds."""
    to_next = [(d, (d + 1) % ring.size) for d in range(ring.size)]
    return jax.tree.map(lambda x: jax.lax.ppermute(x, ring.axis, to_next), tree)
