"""How encodings compose: `position_map >> encoding` and `a + b`."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import jax

from posjax.encoding import Encoding, Params, PositionMap, Site
from posjax.mask import Mask


def _if_any(trait: str) -> property:
    return property(lambda self: any(getattr(member, trait) for member in self.members))


class Composition(Encoding):
    """An encoding made of others. It is relative if all of them are, and has every other trait that one of them has."""

    @property
    def members(self) -> tuple[Encoding, ...]:
        raise NotImplementedError

    @property
    def hooks(self) -> frozenset[str]:
        return frozenset().union(*(member.hooks for member in self.members))

    @property
    def relative(self) -> bool:
        return all(member.relative for member in self.members)

    @property
    def reach(self) -> float:
        return min(member.reach for member in self.members)

    @property
    def observes(self) -> float:
        return max(member.observes for member in self.members)

    whole_positions = _if_any("whole_positions")
    length_dependent = _if_any("length_dependent")
    reads_keys = _if_any("reads_keys")
    widens = _if_any("widens")
    reads_weights = _if_any("reads_weights")
    whole_rows = _if_any("whole_rows")
    heads_differ = _if_any("heads_differ")
    mixes_tokens = _if_any("mixes_tokens")
    constant_params = _if_any("constant_params")
    places_whole = _if_any("places_whole")


@dataclass(frozen=True)
class Placed(Composition):
    """`position_map >> encoding`. Parameters: the pair (map's, encoding's)."""

    position_map: PositionMap
    encoding: Encoding

    @property
    def members(self) -> tuple[Encoding, ...]:
        return self.position_map, self.encoding

    @property
    def dimensions(self) -> tuple[int, ...]:
        after = self.position_map.axes_after
        return tuple(a for a in self.position_map.dimensions if after(a) in self.encoding.dimensions)

    def __rshift__(self, other: Encoding) -> Encoding:
        return self.position_map >> (self.encoding >> other)

    def init(self, key, dims):
        map_key, encoding_key = jax.random.split(key)
        return self.position_map.init(map_key, dims), self.encoding.init(encoding_key, self.position_map.dims(dims))

    def place(self, params, site, key=None):
        map_key, encoding_key = (None, None) if key is None else jax.random.split(key)
        return self.encoding.place(params[1], self.position_map.place(params[0], site, map_key), encoding_key)

    def observe(self, params, x, site, past=None):
        return self.encoding.observe(params[1], x, site, past)

    def embed(self, params, x, site):
        return self.encoding.embed(params[1], x, site)

    def rotate(self, params, q, q_site, k, k_site):
        return self.encoding.rotate(params[1], q, q_site, k, k_site)

    def product(self, q, q_site, k, k_site):
        return self.encoding.product(q, q_site, k, k_site)

    def bias(self, params, q, q_site, k, k_site):
        return self.encoding.bias(params[1], q, q_site, k, k_site)

    def mask(self):
        return _Moved(self.position_map, self.encoding.mask())

    def read(self, params, weights, q_site, k_site):
        return self.encoding.read(params[1], weights, q_site, k_site)

    def resized(self, params, old_grid, new_grid, method="torch_bicubic"):
        position_map, map_params = self.position_map.resized(params[0], old_grid, new_grid, method)
        old, new = self.position_map.grid_after(old_grid), position_map.grid_after(new_grid)
        laid_out = [isinstance(grid[0], tuple) for grid in (old_grid, old, new)]
        if laid_out[0] and not all(laid_out) and old != new:
            raise ValueError(f"{self} has more places on its line than the grid has: it cannot be resized as that grid")
        encoding, encoding_params = self.encoding.resized(params[1], old, new, method)
        return replace(self, position_map=position_map, encoding=encoding), (map_params, encoding_params)


@dataclass(frozen=True)
class Sum(Composition):
    """`a + b + ...`: codes and biases add up, transforms chain, masks intersect. Parameters: a tuple, one per part.

    A part may move its own tokens or keep its own state without the others seeing it: then `site.state` holds
    one Site per part.
    """

    parts: tuple[Encoding, ...]

    def __post_init__(self):
        if sum(part.widens for part in self.parts) > 1:
            raise ValueError(f"only one part of a sum can turn queries and keys into another head dim: {self}")

    @property
    def members(self) -> tuple[Encoding, ...]:
        return self.parts

    @property
    def dimensions(self) -> tuple[int, ...]:
        return tuple(sorted(set.intersection(*(set(part.dimensions) for part in self.parts))))

    def init(self, key, dims):
        keys = jax.random.split(key, len(self.parts))
        return tuple(part.init(part_key, dims) for part, part_key in zip(self.parts, keys, strict=True))

    def place(self, params, site, key=None):
        keys = [None] * len(self.parts) if key is None else jax.random.split(key, len(self.parts))
        return _joined(
            site, [part.place(p, s, k) for (part, p, s), k in zip(self._each(params, site), keys, strict=True)]
        )

    def observe(self, params, x, site, past=None):
        if past is None:
            return _joined(site, [part.observe(p, x, s) for part, p, s in self._each(params, site)])
        return _joined(site, [part.observe(p, x, s, before) for part, p, s, before in self._each(params, site, past)])

    def embed(self, params, x, site):
        for part, p, s in self._each(params, site):
            x = part.embed(p, x, s)
        return x

    def rotate(self, params, q, q_site, k, k_site):
        # The part that leaves another head dim goes last: the others rotate the one that the model has.
        for part, p, qs, ks in sorted(self._each(params, q_site, k_site), key=lambda each: each[0].widens):
            q, k = part.rotate(p, q, qs, k, ks)
        return q, k

    def product(self, q, q_site, k, k_site):
        for part, _, qs, ks in self._each(self.parts, q_site, k_site):
            if part.widens:
                return part.product(q, qs, k, ks)
        return super().product(q, q_site, k, k_site)

    def bias(self, params, q, q_site, k, k_site):
        return sum(part.bias(p, q, qs, k, ks) for part, p, qs, ks in self._each(params, q_site, k_site))

    def mask(self):
        return _OfParts(tuple(part.mask() for part in self.parts))

    def read(self, params, weights, q_site, k_site):
        return sum(part.read(p, weights, qs, ks) for part, p, qs, ks in self._each(params, q_site, k_site))

    def resized(self, params, old_grid, new_grid, method="torch_bicubic"):
        each = [part.resized(p, old_grid, new_grid, method) for part, p in zip(self.parts, params, strict=True)]
        return Sum(tuple(part for part, _ in each)), tuple(p for _, p in each)

    def _each(self, params, *whole_sites):
        """(part, its parameters, its view of each site) for every part."""
        return zip(self.parts, params, *(_views(site, len(self.parts)) for site in whole_sites), strict=True)


@dataclass(frozen=True)
class _Moved(Mask):
    """A mask on tokens that a position map has moved."""

    position_map: PositionMap
    mask: Mask

    @property
    def tile(self):
        return self.mask.tile

    @property
    def memory(self):
        return self.position_map.before(self.mask.memory)

    @property
    def placed_memory(self):
        return self.mask.placed_memory

    def terms(self, q_site, k_site):
        return self.mask.terms(q_site, k_site)


@dataclass(frozen=True)
class _OfParts(Mask):
    """The masks of the parts of a sum, each at the part's own sites."""

    masks: tuple[Mask, ...]

    @property
    def tile(self):
        return min((mask.tile for mask in self.masks if mask.tile), default=None)

    @property
    def memory(self):
        return min((mask.memory for mask in self.masks), key=sum)  # what all parts show, each of them shows

    def terms(self, q_site, k_site):
        views = (_views(site, len(self.masks)) for site in (q_site, k_site))
        return [term for mask, q, k in zip(self.masks, *views, strict=True) for term in mask.terms(q, k)]


class Acting(NamedTuple):
    """One of a composition's `members`, with its parameters and its own view of where tokens stand."""

    encoding: Encoding
    params: Params
    q_site: Site
    k_site: Site


def acting(encoding: Encoding, params: Params, q_site: Site, k_site: Site) -> list[Acting]:
    """The `members` of a composition, each as it sees the tokens; `params` may be None for who asks of the sites only."""
    if type(encoding) is Placed:
        return acting(encoding.encoding, None if params is None else params[1], q_site, k_site)
    if type(encoding) is Sum:
        count = len(encoding.parts)
        views = (_views(site, count) for site in (q_site, k_site))
        each = zip(encoding.parts, (None,) * count if params is None else params, *views, strict=True)
        return [member for part in each for member in acting(*part)]
    return [Acting(encoding, params, q_site, k_site)]


def members(encoding: Encoding) -> Iterator[Encoding]:
    """The encodings of a composition that act within attention: neither sums nor position maps, in the order of `acting`.

    A class that derives from `Placed` or `Sum` composes in a way of its own, and is a member itself.
    """
    if type(encoding) is Placed:
        yield from members(encoding.encoding)
    elif type(encoding) is Sum:
        for part in encoding.parts:
            yield from members(part)
    else:
        yield encoding


def parts(encoding: Encoding) -> tuple[Encoding, ...]:
    return encoding.parts if isinstance(encoding, Sum) else (encoding,)


def _views(site: Site, count: int) -> tuple[Site, ...]:
    """The site as each part of a sum sees it."""
    return site.state if site.state else (site,) * count


def _joined(site: Site, part_sites: list[Site]) -> Site:
    if all(part_site is site for part_site in part_sites):
        return site
    return site._replace(state=tuple(part_sites))
