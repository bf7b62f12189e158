"""The bias inside the tiles of blockwise attention, the terms of `read`, and the gradients of both."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float, Int32

from posjax.attention.dense import Operands, capped, read_beside, repeated, visible
from posjax.attention.terms import has_no_bias, is_of_offset
from posjax.attention.tiles import ON_K, ON_Q, Plan, add, cut
from posjax.encoding import Array, Encoding, Params, Site, axes, members, side_by_side
from posjax.encodings.offsets import choose
from posjax.encodings.pairs import toeplitz


def reads_content(
    encoding: Encoding, params: Params, q: Float[Array, "T H D"], k: Float[Array, "S K D"], q_site: Site, k_site: Site
) -> tuple[bool, bool]:
    """Whether `bias` depends on the content of raw queries, and of raw keys, not just on their shapes."""
    if "bias" not in encoding.hooks:
        return False, False

    def bias(q, k):
        return jnp.asarray(encoding.bias(params, q, q_tile, repeated(k, q.shape[1]), k_tile))

    q_tile, k_tile = (jax.tree.map(lambda x: x[:1], site) for site in (q_site, k_site))
    return tuple(_leaves_read(bias, q[:1], k[:1]))


def _bias(plan: Plan, tile: Operands):
    """The bias of a tile. Zeros replace queries and keys that no bias reads, as it still needs their shapes."""
    heads = plan.num_heads, plan.head_dim
    q = jnp.zeros((len(tile.q_site.segment), *heads), jnp.float32) if tile.q is None else tile.q
    k = (
        jnp.zeros((len(tile.k_site.segment), *heads), jnp.float32)
        if tile.k is None
        else repeated(tile.k, plan.num_heads)
    )
    return plan.encoding.bias(tile.params, q, tile.q_site, k, tile.k_site)


class TileBias:
    """A bias, or a whole product, that is computed in every tile; JAX differentiates it.

    The loop goes by runs: successive tiles with the same result of `shared`. It carries the sums of gradients.
    """

    by_diagonal = False  # the order in which it wants the tiles

    def __init__(self, plan: Plan, operands: Operands):
        self.plan, self.operands = plan, operands

    def runs(self, pairs: Int32[Array, "P 2"], count: Int32[Array, ""]) -> Bool[Array, " P"]:
        """Marks the pairs of tiles that begin a run."""
        return jnp.arange(len(pairs), dtype=jnp.int32) == 0

    def shared(self, i, j) -> Any:
        """The data that all tiles of a run share, if it begins with tiles i and j."""
        return None

    def logits(self, shared, tile: Operands) -> Any:
        """The term added to the scaled products of a tile; all of its logits if the encoding has a `product`."""
        bias = _bias(self.plan, tile)
        if "product" not in self.plan.encoding.hooks:
            return bias
        q, k = (jnp.moveaxis(x, 0, 1) for x in (tile.rotated_q, tile.rotated_k))
        product = self.plan.encoding.product(q, tile.q_site, k, tile.k_site)
        return capped(self.plan.scale * product, self.plan.softcap) + bias

    def no_gradients(self) -> Any:
        return jax.tree.map(lambda x: jnp.zeros(x.shape, jnp.float32), self._trained(self.operands))

    def pull(self, sums, tile: Operands, d_logits: Float[Array, "H T S"], i, j) -> Any:
        """`sums` plus the gradients through `logits`."""
        trained = self._trained(tile)
        if not jax.tree.leaves(trained):
            return sums
        _, back = jax.vjp(lambda t: jnp.asarray(self.logits(None, _filled(t, tile)), jnp.float32), trained)
        logits = jax.eval_shape(lambda: jnp.asarray(self.logits(None, tile)))
        return self._sum(sums, back(_unbroadcast(d_logits, logits.shape))[0], i, j)

    def pull_shared(self, sums, i, j) -> Any:
        """`sums` at the end of a run that began with tiles i and j."""
        return sums

    def gradients(self, sums) -> Operands:
        """The gradients as operands; None where there is none."""
        return sums

    def read(self, tile: Operands, weights: Float[Array, "H T S"]) -> Float[Array, "H T E"]:
        """The further arrays that the weights read beside the values."""
        found = read_beside(self.plan.encoding, tile.params, weights, tile.q_site, tile.k_site)
        return jnp.moveaxis(jnp.asarray(found, jnp.float32), 1, 0)

    def pull_read(self, sums, tile: Operands, weights, d_out, i, j) -> tuple[Float[Array, "H T S"], Any]:
        """Backward pass of `read`: returns the gradient of the weights, and `sums` plus all other gradients."""
        _, back = jax.vjp(lambda w, t: self.read(_filled(t, tile), w), weights, self._trained(tile))
        d_weights, d_tile = back(d_out.astype(jnp.float32))
        return d_weights, self._sum(sums, d_tile, i, j)

    def weigh(self, tile: Operands, logits: Float[Array, "H T S"]) -> Float[Array, "H T S"]:
        """The weights of whole rows of logits, by `encoding.weigh`."""
        seen = visible(self.plan.encoding, tile.q_site, tile.k_site, tile.q_order, tile.k_order)
        return self.plan.encoding.weigh(tile.params, logits, seen, tile.q_site, tile.k_site)

    def pull_weigh(self, sums, tile: Operands, logits, d_weights, i, j) -> tuple[Float[Array, "H T S"], Any]:
        """Backward pass of `weigh`: returns the gradient of the logits, and `sums` plus all other gradients."""
        _, back = jax.vjp(lambda z, t: self.weigh(_filled(t, tile), z), logits, self._trained(tile))
        d_logits, d_tile = back(d_weights)
        return d_logits, self._sum(sums, d_tile, i, j)

    def _trained(self, tile: Operands) -> Operands:
        """The float operands that are read, None for all others."""
        reads = [_leaves_read(lambda tile: jnp.asarray(self.logits(None, tile)), tile)]
        shape = self.plan.num_heads, len(tile.q_site.segment), len(tile.k_site.segment)
        for hook, run in (("read", self.read), ("weigh", self.weigh)):
            if hook in self.plan.encoding.hooks:
                reads.append(_leaves_read(lambda tile, run=run: run(tile, jnp.zeros(shape, jnp.float32)), tile))
        leaves, structure = jax.tree.flatten(tile)
        read = [any(by) and _is_float(x) for x, *by in zip(leaves, *reads, strict=True)]
        return structure.unflatten([x if is_read else None for x, is_read in zip(leaves, read, strict=True)])

    def _sum(self, total: Operands, tile: Operands, i, j) -> Operands:
        def onto(name, axis, index, size):
            return jax.tree.map(lambda x, y: add(x, y, index, size, axis), getattr(total, name), getattr(tile, name))

        on_q = {name: onto(name, axis, i, self.plan.q_tile) for name, axis in ON_Q.items()}
        on_k = {name: onto(name, axis, j, self.plan.k_tile) for name, axis in ON_K.items()}
        return Operands(params=jax.tree.map(jnp.add, total.params, tile.params), **on_q, **on_k)


class SharedBias(TileBias):
    """A bias that depends on offsets alone: computed and differentiated once for successive tiles with equal offsets."""

    by_diagonal = True

    def __init__(self, plan: Plan, operands: Operands, shape: tuple[int, int, int]):
        super().__init__(plan, operands)
        self.shape = shape
        sides = (operands.q_site, plan.q_tile), (operands.k_site, plan.k_tile)
        self.patterns = [
            [_pattern(each, site.segment, size) for each in _sites_within(site)] for site, size in sides
        ]  # of queries, and of keys
        self.on_line = _on_one_line([(each, size) for site, size in sides for each in _sites_within(site)])
        self.trained = any(map(_is_float, jax.tree.leaves(operands.params)))

    def runs(self, pairs, count):
        i, j = pairs.T
        begins = jnp.arange(len(pairs), dtype=jnp.int32) == 0
        for (q_first, q_even, q_full), (k_first, k_even, k_full) in zip(*self.patterns, strict=True):
            even, full = q_even[i] & k_even[j], q_full[i] & k_full[j]
            offset = k_first[j] - q_first[i]
            same = jnp.all(offset[1:] == offset[:-1], axis=-1) & even[1:] & full[:-1]
            begins |= jnp.concatenate([jnp.ones(1, bool), ~same])
        return begins & (jnp.arange(len(pairs), dtype=jnp.int32) < count)

    def shared(self, i, j):
        return self._bias(self._first(i, j), i, j)

    def _bias(self, tile: Operands, i, j) -> Float[jax.Array, "#H T S"]:
        """The bias of a tile. Where its tokens stand side by side, one query and a key at each offset have all of it."""
        num_q, num_k = self.plan.q_tile, self.plan.k_tile

        def by_offset(tile):
            one = jax.tree.map(lambda x: x[:1], tile.q_site)
            row = self._of_pairs(tile._replace(q_site=_lined_up(one, 0), k_site=_lined_up(tile.k_site, num_q - 1)))
            return toeplitz(row[:, 0], num_q, num_k)

        if self.plan.on_line:
            return by_offset(tile)
        if self.on_line is None:
            return self._of_pairs(tile)
        even = [q_even[i] & k_even[j] for (_, q_even, _), (_, k_even, _) in zip(*self.patterns, strict=True)]
        return choose(functools.reduce(jnp.logical_and, even, self.on_line), by_offset, self._of_pairs, tile)

    def _of_pairs(self, tile: Operands) -> Float[jax.Array, "#H T S"]:
        return jnp.asarray(_bias(self.plan, tile), jnp.float32)

    def logits(self, shared, tile):
        return shared

    def no_gradients(self):
        if not self.trained:
            return None
        params = jax.tree.map(lambda x: jnp.zeros(x.shape, jnp.float32) if _is_float(x) else None, self.operands.params)
        return jnp.zeros(self.shape, jnp.float32), params

    def pull(self, sums, tile, d_logits, i, j):
        return (sums[0] + _unbroadcast(d_logits, self.shape), sums[1]) if self.trained else sums

    def pull_shared(self, sums, i, j):
        if not self.trained:
            return sums
        tile, (d_bias, d_params) = self._first(i, j), sums
        floats = jax.tree.map(lambda x: x if _is_float(x) else None, tile.params)
        bias = lambda floats: self._bias(tile._replace(params=_filled(floats, tile.params)), i, j)  # noqa: E731
        _, back = jax.vjp(bias, floats)
        d_params = jax.tree.map(lambda x, y: x + y.astype(x.dtype), d_params, back(d_bias)[0])
        return jnp.zeros(self.shape, jnp.float32), d_params

    def gradients(self, sums):
        nothing = jax.tree.map(lambda x: None, self.operands)
        return nothing._replace(params=sums[1]) if self.trained else nothing

    def _first(self, i, j) -> Operands:
        """The tile, as if it was one document: pairs across documents are hidden anyway."""
        tile = cut(self.plan, self.operands, i, j)
        return tile._replace(q_site=_one_document(tile.q_site), k_site=_one_document(tile.k_site))


def _pattern(
    site: Site, segment: Int32[Array, " T"], size: int
) -> tuple[Int32[Array, "N A"], Bool[Array, " N"], Bool[Array, " N"]]:
    """The beginnings of tiles, and marks of tiles that continue like the first one, or with all their tokens."""
    position = axes(site).reshape(-1, size, axes(site).shape[1])
    prefix = jnp.asarray(site.prefix).reshape(-1, size)
    first = jnp.asarray(position[:, 0])
    alike = jnp.all(position - first[:, None] == position[:1] - first[:1], axis=-1) & (prefix == prefix[:1])
    # Padding may stand anywhere, as it is hidden, but no tile may follow one that holds some.
    even = jnp.all(alike | (segment.reshape(-1, size) == 0), axis=1) & jnp.all(segment[:size] > 0)
    return first, even, jnp.all(alike, axis=1) & even


def known_on_line(site: Site) -> bool:
    """`side_by_side`, of all sites within it too."""
    return all(map(side_by_side, _sites_within(site)))


def _on_one_line(sites: list[tuple[Site, int]]) -> Bool[Array, ""] | None:
    """Whether in all first tiles, of these sizes, every token stands right behind the token before it; None on a grid."""
    lines = []
    for site, size in sites:
        position, prefix = axes(site)[:size], jnp.asarray(site.prefix)[:size]
        if position.shape[1] > 1:
            return None
        line = position[0, 0] + jnp.arange(size, dtype=position.dtype)
        lines.append(jnp.all(position[:, 0] == line) & jnp.all(prefix == 0))
    return jnp.all(jnp.stack(lines))


def _lined_up(site: Site, before: int) -> Site:
    """A tile on a line, with so many tokens more before it; its padding stands there too."""
    place = jnp.arange(-before, len(site.segment), dtype=jnp.int32)

    def lined_up(site):
        first = site.position[before]
        position = first + place.astype(first.dtype).reshape(-1, *first.shape)
        return site._replace(position=position, prefix=jnp.zeros_like(site.prefix))

    return _each_site(lined_up, jax.tree.map(lambda x: x[jnp.maximum(place, 0)], site))


def tile_bias_of(plan: Plan, operands: Operands) -> TileBias:
    tile = cut(plan, operands, 0, 0)
    bias = jax.eval_shape(lambda tile: jnp.asarray(_bias(plan, tile)), tile)
    sites = [*_sites_within(operands.q_site), *_sites_within(operands.k_site)]
    whole = all(jnp.issubdtype(site.position.dtype, jnp.integer) for site in sites)
    plain = plan.encoding.hooks.isdisjoint({"product", "weigh", "read"})  # every tile has its own gradients of these
    of_offsets = all(has_no_bias(member) or is_of_offset(member) for member in members(plan.encoding))
    if bias.ndim == 3 and whole and plain and of_offsets:
        return SharedBias(plan, operands, bias.shape)
    return TileBias(plan, operands)


def _one_document(site: Site) -> Site:
    return _each_site(lambda site: site._replace(segment=jnp.ones_like(site.segment)), site)


def _each_site(change: Callable[[Site], Site], site: Site) -> Site:
    """The site, and all sites within it, changed."""
    inner = lambda x: _each_site(change, x) if isinstance(x, Site) else x  # noqa: E731
    state = jax.tree.map(inner, site.state, is_leaf=lambda leaf: isinstance(leaf, Site))
    return change(site)._replace(state=state)


def _sites_within(site: Site) -> list[Site]:
    inner = jax.tree.leaves(site.state, is_leaf=lambda leaf: isinstance(leaf, Site))
    return [site] + [s for leaf in inner if isinstance(leaf, Site) for s in _sites_within(leaf)]


def _leaves_read(function, *args) -> list[bool]:
    """For every leaf of the arguments, whether the result depends on it, by its jaxpr."""
    jaxpr = jax.make_jaxpr(function)(*args).jaxpr
    live = {v for v in jaxpr.outvars if not hasattr(v, "val")}
    for eqn in reversed(jaxpr.eqns):
        if live & set(eqn.outvars):
            live.update(v for v in eqn.invars if not hasattr(v, "val"))
    return [v in live for v in jaxpr.invars]


def _is_float(x) -> bool:
    return jnp.issubdtype(x.dtype, jnp.inexact)


def _unbroadcast(x: Float[Array, "H T S"], shape: tuple[int, ...]) -> Float[jax.Array, "*S"]:
    """The gradient of an array of this shape that was broadcast to the shape of x."""
    x = jnp.sum(x, axis=tuple(range(x.ndim - len(shape))))
    wider = tuple(axis for axis, size in enumerate(shape) if size == 1 and x.shape[axis] != 1)
    return jnp.sum(x, axis=wider, keepdims=True) if wider else x


def _filled(some, rest):
    """`rest`, replaced by `some` wherever that is not None."""
    return jax.tree.map(lambda y, x: y if x is None else x, rest, some)
