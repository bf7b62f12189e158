"""Masks as values: which keys a query sees, by where the two stand, beside causality and documents.

    near(512)                                           # a sliding window
    near(512) | first_keys(4)                           # with attention sinks
    near(8, inclusive=True) & every(2)                  # a dilated window
    blocks(64, near(1, inclusive=True) | first_keys(2)) # on the numbers of blocks of 64 positions

`shows` is the one definition of a mask. It works element by element on coordinates, never on indices, and dense tiles,
blockwise attention and the GPU kernel all call it. `spans` bound the pairs that it can show; the tiles that are computed
and the tokens that a cache keeps follow from them. A mask is about tokens that stand somewhere: class token and
registers see all and are seen by all, which the interpreters see to.
"""

import functools
import itertools
import math
import operator
import typing
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Int32, UInt32

if typing.TYPE_CHECKING:
    Array = jax.Array | np.ndarray
else:  # one class: a union would say each shape of a signature twice

    class _Arrays(type):
        def __instancecheck__(cls, value):
            return isinstance(value, (jax.Array, np.ndarray))

    class Array(metaclass=_Arrays):
        """An array of JAX or of NumPy."""


_ROUNDING = 2.0**-22  # of two float32 positions, as shares of themselves: each is a product of two rounded numbers
Coordinates = tuple[Any, ...]  # one array for each position axis; query and key coordinates broadcast together


class Bounds(NamedTuple):
    """The least and the greatest values within each tile of tokens: two trees of arrays [N, ...] for N tiles."""

    low: Any
    high: Any


class Memory(NamedTuple):
    """The tokens of a document that a causal query may see: its `last` ones, the query's own among them, and its `first`.

    Positions rise, or fall, by at least 1 from token to token; where `first` is not 0, they rise from 0 or above.
    """

    last: float = math.inf
    first: int = 0


class Span(NamedTuple):
    """Pairs less than `within` apart on every axis, with the key below one position and the query below another.

    A key after its query is less than `ahead` away from it.
    """

    within: float = math.inf
    keys_below: float = math.inf
    queries_below: float = math.inf
    ahead: float = math.inf

    def meets(self, q: Bounds, k: Bounds) -> Bool[Array, "N O"] | bool:
        """Whether two tiles may hold a pair of this span."""
        found = True
        if self.within < math.inf:
            for q_low, q_high, k_low, k_high in zip(*q, *k, strict=True):
                found = found & (k_low - q_high < min(self.within, self.ahead)) & (q_low - k_high < self.within)
        for bounds, below in ((k, self.keys_below), (q, self.queries_below)):
            found = found & (bounds.low[0] < below) if below < math.inf else found
        return found

    @property
    def memory(self) -> Memory:
        if self.within < math.inf:
            return Memory(math.ceil(self.within))
        first = min(self.keys_below, self.queries_below)
        return Memory(1, math.ceil(first)) if first < math.inf else Memory()


class Term(NamedTuple):
    """An elementwise mask and the coordinates, [T] and [S] on each axis, that it compares."""

    mask: "Mask"
    q: Coordinates
    k: Coordinates


class Mask:
    """The keys that a query sees. Masks join by `&` and `|`; to write one, derive from this and define `shows`.

    >>> mask = near(2) | first_keys(1)
    >>> position = np.arange(5)
    >>> print(np.asarray(mask.shows((position[:, None],), (position,))).astype(int))    # a row for each query
    [[1 1 0 0 0]
     [1 1 1 0 0]
     [1 1 1 1 0]
     [1 0 1 1 1]
     [1 0 0 1 1]]
    """

    @property
    def spans(self) -> tuple[Span, ...]:
        """The spans that together hold all pairs that `shows` can show."""
        return (Span(),)

    def shows(self, q: Coordinates, k: Coordinates) -> Bool[Array, "..."]:
        """Whether queries see keys, element by element: comparisons and arithmetic, no look-ups and no reductions."""
        raise NotImplementedError

    def may_show(self, q: Bounds, k: Bounds) -> Bool[Array, "N O"] | bool:
        """Whether a tile of queries may see a key of a tile of keys; False only where no query sees any key."""
        return _any(span.meets(q, k) for span in self.spans)

    @property
    def tile(self) -> int | None:
        """The number of tokens a side of a tile that suits the mask; None where it rules out few tiles."""
        sides = [_tile_within(span.within) for span in self.spans if span.within < math.inf]
        return min(sides, default=None)

    @property
    def memory(self) -> Memory:
        """The earlier tokens that a causal query may see, where positions are as the model gives them.

        >>> (near(512) | first_keys(4)).memory
        Memory(last=512, first=4)
        """
        each = [span.memory for span in self.spans]
        return Memory(max(memory.last for memory in each), max(memory.first for memory in each))

    @property
    def placed_memory(self) -> Memory:
        """The same as `memory`, for positions that `place` has already moved."""
        return self.memory

    def terms(self, q_site: Any, k_site: Any) -> list[Term]:
        """The elementwise masks with their coordinates at these sites; a key is seen if all show it."""
        return [Term(self, coordinates(q_site), coordinates(k_site))]

    def __and__(self, other: "Mask") -> "Mask":
        return _All((self, other)) if isinstance(other, Mask) else NotImplemented

    def __or__(self, other: "Mask") -> "Mask":
        return _Any((self, other)) if isinstance(other, Mask) else NotImplemented


@dataclass(frozen=True)
class everything(Mask):
    """All keys are seen."""

    def shows(self, q, k):
        return True

    def terms(self, q_site, k_site):
        return []


@dataclass(frozen=True)
class near(Mask):
    """Keys less than `size` away, or at most `size` if inclusive, on either side; Chebyshev's distance on a grid.

    Of the keys after the query it shows those at most `ahead` away; None: the bound is that of the other side.
    """

    size: float
    inclusive: bool = False
    ahead: float | None = None

    @property
    def spans(self):
        size = self.size + 1 if self.inclusive else self.size
        ahead = size if self.ahead is None else self.ahead + 1
        return (Span(within=max(size, ahead), ahead=ahead),)

    def shows(self, q, k):
        closer = operator.le if self.inclusive else operator.lt
        offsets = [offset(a, b) for a, b in zip(q, k, strict=True)]
        if self.ahead is None:
            return _all(closer(jnp.abs(x), self.size) for x in offsets)
        return _all(closer(-x, self.size) & (x <= self.ahead) for x in offsets)


@dataclass(frozen=True)
class every(Mask):
    """Keys at a multiple of `step` from the query, on every axis; a fractional distance is no multiple.

    >>> mask = near(8, inclusive=True) & every(3)
    >>> np.flatnonzero(mask.shows((np.int32(10),), (np.arange(20),))).tolist()
    [4, 7, 10, 13, 16]
    """

    step: int

    def shows(self, q, k):
        return _all(offset(a, b) % self.step == 0 for a, b in zip(q, k, strict=True))


@dataclass(frozen=True)
class first_keys(Mask):
    """The keys at positions 0 to count - 1, on a line."""

    count: int

    @property
    def spans(self):
        return (Span(keys_below=self.count),)

    def shows(self, q, k):
        return _on_line(self, k) < self.count


@dataclass(frozen=True)
class first_queries(Mask):
    """The queries at positions 0 to count - 1, on a line, see all keys."""

    count: int

    @property
    def spans(self):
        return (Span(queries_below=self.count),)

    def shows(self, q, k):
        return _on_line(self, q) < self.count


@dataclass(frozen=True)
class blocks(Mask):
    """`mask` on the numbers of the blocks, of `size` positions each, in which query and key stand.

    >>> mask = blocks(4, near(1, inclusive=True))
    >>> np.flatnonzero(mask.shows((np.int32(9),), (np.arange(20),))).tolist()
    [4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]
    """

    size: int
    mask: Mask

    @property
    def spans(self):
        return tuple(Span(*(bound * self.size for bound in span)) for span in self.mask.spans)

    def shows(self, q, k):
        return self.mask.shows(self._numbers(q), self._numbers(k))

    def may_show(self, q, k):
        return self.mask.may_show(*(Bounds(*map(self._numbers, bounds)) for bounds in (q, k)))

    def terms(self, q_site, k_site):
        """The terms of `mask`, where each token stands at the number of its block: no pair divides."""
        numbered = (site._replace(position=(site.position // self.size).astype(np.int32)) for site in (q_site, k_site))
        return self.mask.terms(*numbered)

    def _numbers(self, position: Coordinates) -> Coordinates:
        return tuple((axis // self.size).astype(np.int32) for axis in position)


@dataclass(frozen=True)
class drawn(Mask):
    """Random edges of an undirected graph: each position is joined to `count` positions from `first` to its neighbour.

    One is drawn from each of `count` equal shares by a hash of (seed, position, share): the same in every layer,
    head and document, on every device, in training and in decoding.
    """

    count: int
    first: int
    seed: int

    @property
    def spans(self):
        return (Span(),) if self.count else ()

    def shows(self, q, k):
        return _Joined().shows(self._draws(q), self._draws(k))

    def may_show(self, q, k):
        return _Joined().may_show(*(Bounds(*map(self._draws, bounds)) for bounds in (q, k)))

    def terms(self, q_site, k_site):
        """What each token draws stands beside its position: no pair draws."""
        return [Term(_Joined(), *(self._draws(coordinates(site)) for site in (q_site, k_site)))]

    def _draws(self, position: Coordinates) -> Coordinates:
        """The position, and those that it draws."""
        line = _on_line(self, position)
        return line, *(self._draw(line, share) for share in range(self.count))

    def _draw(self, position: Int32[Array, "..."], share: int) -> Int32[Array, "..."]:
        """The position that each position draws from a share; -1 from an empty share."""
        count = jnp.maximum(position - 1 - self.first, 0)
        start, end = share * count // self.count, (share + 1) * count // self.count
        size = jnp.maximum(end - start, 1).astype(jnp.uint32)
        pick = (_hash(position, share, self.seed) % size).astype(jnp.int32)
        return jnp.where(end > start, self.first + start + pick, -1)


@dataclass(frozen=True)
class _Joined(Mask):
    """Pairs in which one token drew the other; drawn positions stand behind a token's own."""

    def shows(self, q, k):
        return _any((a == k[0]) | (b == q[0]) for a, b in zip(q[1:], k[1:], strict=True))

    def may_show(self, q, k):
        """Exact where each tile holds one position; of other tiles all are computed."""
        several = (q.low[0] != q.high[0]) | (k.low[0] != k.high[0])
        return self.shows(q.low, k.low) | several if len(q.low) > 1 else False


@dataclass(frozen=True)
class _All(Mask):
    masks: tuple[Mask, ...]

    @property
    def spans(self):
        each = itertools.product(*(mask.spans for mask in self.masks))
        return tuple(Span(*map(min, *spans)) for spans in each)

    def shows(self, q, k):
        return _all(mask.shows(q, k) for mask in self.masks)

    def may_show(self, q, k):
        return _all(mask.may_show(q, k) for mask in self.masks)

    def terms(self, q_site, k_site):
        if _share_coordinates(self.masks):
            return super().terms(q_site, k_site)
        return [term for mask in self.masks for term in mask.terms(q_site, k_site)]


@dataclass(frozen=True)
class _Any(Mask):
    masks: tuple[Mask, ...]

    @property
    def spans(self):
        return tuple(span for mask in self.masks for span in mask.spans)

    def shows(self, q, k):
        return _any(mask.shows(q, k) for mask in self.masks)

    def may_show(self, q, k):
        return _any(mask.may_show(q, k) for mask in self.masks)

    def terms(self, q_site, k_site):
        if _share_coordinates(self.masks):
            return super().terms(q_site, k_site)
        each = [mask.terms(q_site, k_site) for mask in self.masks]
        q, k = (sum((term[side] for terms in each for term in terms), ()) for side in (1, 2))
        return [Term(_Either(tuple(tuple((term.mask, len(term.q)) for term in terms) for terms in each)), q, k)]


def _share_coordinates(masks: tuple[Mask, ...]) -> bool:
    """Whether all masks compare the positions as they are, those within unions and intersections too."""
    return all(
        _share_coordinates(mask.masks) if isinstance(mask, _All | _Any) else type(mask).terms is Mask.terms
        for mask in masks
    )


@dataclass(frozen=True)
class _Either(Mask):
    """Pairs that all masks of one group show, each at its own coordinates: (mask, how many) stand one behind the other."""

    groups: tuple[tuple[tuple[Mask, int], ...], ...]

    def shows(self, q, k):
        return self._any_group(lambda mask, part: mask.shows(q[part], k[part]))

    def may_show(self, q, k):
        parts = lambda part: (Bounds(x.low[part], x.high[part]) for x in (q, k))  # noqa: E731
        return self._any_group(lambda mask, part: mask.may_show(*parts(part)))

    def _any_group(self, shown: Callable[[Mask, slice], Any]) -> Any:
        ends = iter(itertools.accumulate(count for group in self.groups for _, count in group))
        part = lambda count: slice((end := next(ends)) - count, end)  # noqa: E731
        return _any(_all([shown(mask, part(count)) for mask, count in group]) for group in self.groups)


def coordinates(site: Any) -> Coordinates:
    """The positions of a site, an array [T] for each axis."""
    position = site.position
    return (position,) if position.ndim == 1 else tuple(position[:, axis] for axis in range(position.shape[1]))


def offset(q: Any, k: Any) -> Any:
    """k - q of positions that broadcast together; a fraction that is whole but for rounding is the whole number.

    A map that divides positions, as `interpolate(factor=3)`, rounds 7/3 and 1/3, and their difference falls short of 2: it
    must not fall into another bucket, or out of a window. It has the gradients of k - q.
    """
    difference = k - q
    if jnp.issubdtype(jnp.result_type(difference), jnp.integer):
        return difference
    short = jnp.round(difference) - difference
    rounded = jnp.abs(short) <= _ROUNDING * jnp.maximum(jnp.abs(q), jnp.abs(k))
    return difference + jax.lax.stop_gradient(jnp.where(rounded, short, 0.0))


def _on_line(mask: Mask, position: Coordinates) -> Array:
    if len(position) != 1:
        raise ValueError(f"{mask} takes positions of 1 axis, got {len(position)}: write raster(width=...) >> before it")
    return position[0]


def _tile_within(distance: float) -> int:
    """The number of tokens a side of tiles that waste little where keys are seen within this distance only."""
    return min(256, max(64, 1 << max(int(distance) // 4, 1).bit_length() - 1))


def _all(each) -> Bool[Array, "..."] | bool:
    return functools.reduce(operator.and_, each, True)


def _any(each) -> Bool[Array, "..."] | bool:
    return functools.reduce(operator.or_, each, False)


def _hash(position: Int32[Array, "..."], share: int, seed: int) -> UInt32[Array, "..."]:
    """32 well-mixed bits: the finaliser of MurmurHash3 on a linear combination of the three."""
    x = position.astype(jnp.uint32) * jnp.uint32(0x9E3779B1)
    x = x + jnp.uint32((share * 0x85EBCA77 + seed * 0xC2B2AE3D) % 2**32)
    x = (x ^ (x >> 16)) * jnp.uint32(0x85EBCA6B)
    x = (x ^ (x >> 13)) * jnp.uint32(0xC2B2AE35)
    return x ^ (x >> 16)
