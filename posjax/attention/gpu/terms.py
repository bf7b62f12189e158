"""The biases and the masks of a composition, as the GPU kernel computes them for one head and one tile."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from posjax.attention.terms import HIDDEN, POSITIONS, Masks, Pairs, apart, biased, has_no_bias, is_of_offset, seen
from posjax.encoding import Encoding, Params, Site, members
from posjax.encodings.pairs import ElementwiseBias
from posjax.mask import Coordinates, coordinates


class Bias(NamedTuple):
    """An elementwise bias and the columns of its constants; `learned`: whether these need a gradient."""

    encoding: ElementwiseBias
    start: int
    stop: int
    learned: bool


class Terms(NamedTuple):
    """The static masks and biases of a composition. The positions of masks come before those of biases."""

    masks: Masks = ()
    biases: tuple[Bias, ...] = ()

    @property
    def of_masks(self) -> int:
        """The rows of the marks that masks compare."""
        return sum(count for _, count in self.masks)

    @property
    def count(self) -> int:
        return self.of_masks + len(self.biases)


def supported(encoding: Encoding) -> str | None:
    """Why the kernel cannot compute what this encoding does within attention; None if it can."""
    for member in members(encoding):
        if not (has_no_bias(member) or _is_elementwise(member)):
            return f"the bias of {member} is not written for a kernel (ElementwiseBias in posjax/encodings/pairs.py)"
    return None


def _is_elementwise(member: Encoding) -> bool:
    """Whether `logit` defines the whole bias: a subclass may have overridden the other methods."""
    ours = is_of_offset(member) and isinstance(member, ElementwiseBias)
    return ours and type(member).of_offset is ElementwiseBias.of_offset


def terms(
    encoding: Encoding, params: Params, q_site: Site, k_site: Site, num_heads: int
) -> tuple[Terms, jax.Array, list[Coordinates], list[Coordinates]]:
    """The terms, their constants [H, P], and the positions of queries and of keys that each of them sees."""
    biases = biased(encoding, params, q_site, k_site)
    masks = encoding.mask().terms(q_site, k_site)
    each = [jnp.asarray(one.encoding.constants(one.params, num_heads), jnp.float32) for one in biases]
    ends = np.cumsum([0, *(one.shape[1] for one in each)]).tolist()
    learned = [bool(jax.tree.leaves(one.params)) for one in biases]
    static = tuple(map(Bias, [one.encoding for one in biases], ends[:-1], ends[1:], learned))
    constants = jnp.concatenate([*each, jnp.zeros((num_heads, 0), jnp.float32)], axis=1)
    q = [*(mask.q for mask in masks), *(coordinates(one.q_site) for one in biases)]
    k = [*(mask.k for mask in masks), *(coordinates(one.k_site) for one in biases)]
    return Terms(tuple((mask.mask, len(mask.q)) for mask in masks), static), constants, q, k


class View(NamedTuple):
    """A bias on one head of one tile."""

    encoding: ElementwiseBias
    learned: bool
    constants: tuple  # scalars
    offset: jax.Array  # k - q, over the tile
    beyond: tuple | None  # whether the bias is constant on this tile, and an offset with that value


def views(static: Terms, constants: list, pairs: Pairs) -> list[View]:
    """The view of every bias on this tile; `constants` are those of the head."""
    found = []
    for index, (encoding, start, stop, learned) in enumerate(static.biases, start=static.of_masks):
        offset = pairs.k(POSITIONS + index) - pairs.q(POSITIONS + index)
        found.append(View(encoding, learned, tuple(constants[start:stop]), offset, _beyond(encoding, index, pairs)))
    return found


def _beyond(encoding: ElementwiseBias, index: int, pairs: Pairs) -> tuple | None:
    if not np.isfinite(least := encoding.constant_beyond):
        return None
    (q_low, q_high), (k_low, k_high) = pairs.q_bounds(index), pairs.k_bounds(index)
    after, before = k_low - q_high >= least, k_high - q_low <= -least
    return after | before, jnp.where(after, jnp.int32(least), jnp.int32(-least))


def add_bias(static: Terms, found: list[View], causal: bool, s: jax.Array, pairs: Pairs) -> jax.Array:
    """Logits of a tile with every bias, and HIDDEN where the query does not see the key."""
    if found:
        s = s + jnp.where(apart(pairs), 0.0, sum(map(_bias, found)))
    return jnp.where(seen(static.masks, causal, pairs), s, HIDDEN)


def pull_bias(found: list[View], d_s: jax.Array, pairs: Pairs) -> list[jax.Array]:
    """Pulls the gradients of a tile's logits, [T, S], back to each learned constant, summed over keys: [T]."""
    learned = [view for view in found if view.learned]
    d_bias = jnp.where(apart(pairs), 0.0, d_s) if learned else d_s
    return [row for view in learned for row in _pull(view, d_bias)]


def _bias(view: View) -> jax.Array:
    def by_offset():
        return view.encoding.logit(view.constants, (view.offset,))

    if view.beyond is None:
        return by_offset()
    is_constant, offset = view.beyond
    constant = view.encoding.logit(view.constants, (offset,))
    return jax.lax.cond(is_constant, lambda: jnp.full(view.offset.shape, constant, jnp.float32), by_offset)


def _pull(view: View, d_bias: jax.Array) -> tuple[jax.Array, ...]:
    encoding, shape = view.encoding, d_bias.shape

    def by_offset():
        def bias(rows):  # a constant per query, so that its gradient is a sum over keys
            spread = tuple(jax.lax.broadcast_in_dim(row, shape, (0,)) for row in rows)
            return encoding.logit(spread, (view.offset,))

        rows = tuple(jnp.full(shape[:1], constant, jnp.float32) for constant in view.constants)
        return jax.vjp(bias, rows)[1](d_bias)[0]

    if view.beyond is None:
        return by_offset()
    is_constant, offset = view.beyond

    def constant():
        (weights,) = jax.vjp(lambda own: encoding.logit(own, (offset,)), view.constants)[1](jnp.float32(1.0))
        total = jnp.sum(d_bias, axis=1)
        return tuple(weight * total for weight in weights)

    return jax.lax.cond(is_constant, constant, by_offset)
