"""What an encoding adds to the tiles of blockwise attention, and the way back onto what it was computed from."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float, Int32

from posjax.attention.dense import repeated
from posjax.attention.tiles import ON_K, ON_Q, Operands, Plan, add, cut
from posjax.encoding import Array, Site


def reads_content(plan: Plan, params, q, k, q_site: Site, k_site: Site) -> tuple[bool, bool]:
    """Whether the bias looks into untransformed queries and keys, or knows no more of them than their shapes."""

    def bias(q, k):
        return jnp.asarray(plan.encoding.bias(params, q, q_tile, repeated(k, plan.num_heads), k_tile))

    q_tile, k_tile = (jax.tree.map(lambda x: x[:1], site) for site in (q_site, k_site))
    return tuple(_leaves_read(bias, q[:1], k[:1]))


def _bias(plan: Plan, tile: Operands):
    """The bias of a tile; where nobody reads queries and keys, arrays of their shapes stand for them."""
    heads = plan.num_heads, plan.head_dim
    q = jnp.zeros((len(tile.q_site.segment), *heads)) if tile.q is None else tile.q
    k = jnp.zeros((len(tile.k_site.segment), *heads)) if tile.k is None else repeated(tile.k, plan.num_heads)
    return plan.encoding.bias(tile.params, q, tile.q_site, k, tile.k_site)


class Extras:
    """What every tile computes for itself; differentiated by JAX.

    Beside the tiles, a loop over them carries what is `known`: here the sums of gradients.
    """

    def __init__(self, plan: Plan, operands: Operands):
        self.plan, self.operands = plan, operands

    def nothing_known(self, gradients: bool = False) -> Any:
        """What is known before the first tile."""
        if not gradients:
            return ()
        return jax.tree.map(lambda x: jnp.zeros(x.shape), self._trained(self.operands))

    def logits(self, known, tile: Operands, i, j) -> tuple[Any, Any]:
        """What is added to the scaled products of a tile, or all of its logits where the encoding `widens`; and `known`."""
        return self._logits(tile), known

    def pull(self, known, tile: Operands, d_logits: Float[Array, "H T S"], i, j) -> Any:
        """`known` with the gradients by way of `logits`."""
        trained = self._trained(tile)
        if not jax.tree.leaves(trained):
            return known
        _, back = jax.vjp(lambda trained: jnp.asarray(self._logits(_filled(trained, tile)), jnp.float32), trained)
        logits = jax.eval_shape(lambda: jnp.asarray(self._logits(tile)))
        return self._sum(known, back(_unbroadcast(d_logits, logits.shape))[0], i, j)

    def read(self, tile: Operands, weights: Float[Array, "H T S"]) -> Float[Array, "H T E"]:
        """What the weights read beside the values."""
        read = self.plan.encoding.read(tile.params, weights, tile.q_site, tile.k_site)
        return jnp.moveaxis(jnp.asarray(read, jnp.float32), 1, 0)

    def pull_read(self, known, tile: Operands, weights, d_out, i, j) -> tuple[Float[Array, "H T S"], Any]:
        """The gradient to the weights by way of `read`, and `known` with those to all else."""
        _, back = jax.vjp(lambda w, t: self.read(_filled(t, tile), w), weights, self._trained(tile))
        d_weights, d_tile = back(d_out.astype(jnp.float32))
        return d_weights, self._sum(known, d_tile, i, j)

    def gradients(self, known) -> Operands:
        """The sums, None for what gets no gradient."""
        return known

    def _logits(self, tile: Operands):
        bias = _bias(self.plan, tile)
        if not self.plan.encoding.widens:
            return bias
        q, k = (jnp.moveaxis(x, 0, 1) for x in (tile.rotated_q, tile.rotated_k))
        return self.plan.scale * self.plan.encoding.product(q, tile.q_site, k, tile.k_site) + bias

    def _trained(self, tile: Operands) -> Operands:
        """The floats that are read, None for all else."""
        reads = [_leaves_read(self._logits, tile)]
        if self.plan.encoding.reads_weights:
            shape = self.plan.num_heads, len(tile.q_site.segment), len(tile.k_site.segment)
            reads.append(_leaves_read(lambda tile: self.read(tile, jnp.zeros(shape)), tile))
        leaves, structure = jax.tree.flatten(tile)
        read = [any(by) and _is_float(x) for x, *by in zip(leaves, *reads, strict=True)]
        return structure.unflatten([x if is_read else None for x, is_read in zip(leaves, read, strict=True)])

    def _sum(self, total: Operands, tile: Operands, i, j) -> Operands:
        def onto(name, axis, index, size):
            return jax.tree.map(lambda x, y: add(x, y, index, size, axis), getattr(total, name), getattr(tile, name))

        on_q = {name: onto(name, axis, i, self.plan.q_tile) for name, axis in ON_Q.items()}
        on_k = {name: onto(name, axis, j, self.plan.k_tile) for name, axis in ON_K.items()}
        return Operands(params=jax.tree.map(jnp.add, total.params, tile.params), **on_q, **on_k)


class _Known(NamedTuple):
    """A bias, the tile that it was computed for, and the gradients to it and to the parameters so far."""

    pair: Int32[Array, "2"]
    bias: Float[Array, "#H T S"]
    d_bias: Any
    d_params: Any


class SharedBias(Extras):
    """A bias of nothing but offsets: computed once for all the tiles in a row that show the same ones."""

    def __init__(self, plan: Plan, operands: Operands, shape: tuple[int, int, int]):
        super().__init__(plan, operands)
        self.shape = shape

    def nothing_known(self, gradients=False):
        floats = jax.tree.map(lambda x: jnp.zeros(x.shape) if _is_float(x) else None, self.operands.params)
        gradients = gradients and bool(jax.tree.leaves(floats))
        d_bias, d_params = (jnp.zeros(self.shape), floats) if gradients else (None, None)
        return _Known(jnp.full(2, -1), jnp.zeros(self.shape), d_bias, d_params)

    def logits(self, known, tile, i, j):
        pair = jnp.stack([i, j])
        before = cut(self.plan, self.operands, *jnp.maximum(known.pair, 0))
        same = (known.pair[0] >= 0) & self._same_offsets(before, tile)
        known = jax.lax.cond(same, lambda known: known, lambda known: self._renewed(known, before, tile, pair), known)
        return known.bias, known

    def pull(self, known, tile, d_logits, i, j):
        if known.d_bias is None:
            return known
        return known._replace(d_bias=known.d_bias + _unbroadcast(d_logits, self.shape))

    def gradients(self, known):
        nothing = jax.tree.map(lambda x: None, self.operands)
        if known.d_bias is None:
            return nothing
        last = self._pulled(known, cut(self.plan, self.operands, *jnp.maximum(known.pair, 0)))
        return nothing._replace(params=last)

    def _renewed(self, known: _Known, before: Operands, tile: Operands, pair) -> _Known:
        bias = jnp.asarray(_bias(self.plan, _one_document(tile)), jnp.float32)
        if known.d_bias is None:
            return known._replace(pair=pair, bias=bias)
        return _Known(pair, bias, jnp.zeros(self.shape), self._pulled(known, before))

    def _pulled(self, known: _Known, before: Operands):
        """The gradients to the parameters with those of the bias in them."""
        before = _one_document(before)
        floats = jax.tree.map(lambda x: x if _is_float(x) else None, before.params)
        _, back = jax.vjp(
            lambda floats: _bias(self.plan, before._replace(params=_filled(floats, before.params))), floats
        )
        return jax.tree.map(lambda x, y: x + y.astype(x.dtype), known.d_params, back(known.d_bias)[0])

    def _same_offsets(self, a: Operands, b: Operands) -> Bool[Array, ""]:
        """Whether all offsets of b's tokens that are no padding are those of a's."""
        same = jnp.array(True)
        for a_q, a_k, b_q, b_k in zip(
            *(_sites_within(s) for s in (a.q_site, a.k_site, b.q_site, b.k_site)), strict=True
        ):
            for before, now, b_site in ((a_q, b_q, b.q_site), (a_k, b_k, b.k_site)):
                offset = (now.position - b_q.position[:1]) == (before.position - a_q.position[:1])
                equal = jnp.all(offset.reshape(len(offset), -1), axis=1) & (now.prefix == before.prefix)
                same &= jnp.all(equal | (b_site.segment == 0))
        return same


def extras_of(plan: Plan, operands: Operands) -> Extras:
    tile = cut(plan, operands, 0, 0)
    bias = jax.eval_shape(lambda tile: jnp.asarray(_bias(plan, tile)), tile)
    whole = all(jnp.issubdtype(site.position.dtype, jnp.integer) for site in _sites(operands))
    if plan.encoding.offset_bias and bias.ndim == 3 and whole and not plan.encoding.widens:
        return SharedBias(plan, operands, bias.shape)
    return Extras(plan, operands)


def _one_document(tile: Operands) -> Operands:
    """Pairs of different documents are hidden anyway; so a bias holds wherever documents end."""

    def site(x):
        if not isinstance(x, Site):
            return x
        state = jax.tree.map(site, x.state, is_leaf=lambda leaf: isinstance(leaf, Site))
        return x._replace(segment=jnp.ones_like(x.segment), state=state)

    return tile._replace(q_site=site(tile.q_site), k_site=site(tile.k_site))


def _sites(operands: Operands) -> list[Site]:
    return [*_sites_within(operands.q_site), *_sites_within(operands.k_site)]


def _sites_within(site: Site) -> list[Site]:
    inner = jax.tree.leaves(site.state, is_leaf=lambda leaf: isinstance(leaf, Site))
    return [site] + [s for leaf in inner if isinstance(leaf, Site) for s in _sites_within(leaf)]


def _leaves_read(function, *args) -> list[bool]:
    """For every leaf of the arguments, whether the result depends on it by what jax computes."""
    jaxpr = jax.make_jaxpr(function)(*args).jaxpr
    live = {v for v in jaxpr.outvars if not hasattr(v, "val")}
    for eqn in reversed(jaxpr.eqns):
        if live & set(eqn.outvars):
            live.update(v for v in eqn.invars if not hasattr(v, "val"))
    return [v in live for v in jaxpr.invars]


def _is_float(x) -> bool:
    return jnp.issubdtype(x.dtype, jnp.inexact)


def _unbroadcast(x: Float[Array, "H T S"], shape: tuple[int, ...]) -> Float[jax.Array, "*S"]:
    """The gradient to an array of that shape that was broadcast to x's."""
    x = jnp.sum(x, axis=tuple(range(x.ndim - len(shape))))
    wider = tuple(axis for axis, size in enumerate(shape) if size == 1 and x.shape[axis] != 1)
    return jnp.sum(x, axis=wider, keepdims=True) if wider else x


def _filled(some, rest):
    """`rest` with `some` in it, where that is not None."""
    return jax.tree.map(lambda y, x: y if x is None else x, rest, some)
