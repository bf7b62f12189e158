"""The contract: where tokens stand (`Site`), what tells a model about it (`Encoding`), and how encodings are spelled.

Methods are written for ONE sequence; `jax.vmap` them over a batch. Shape letters, everywhere in posjax:
`T` query tokens, `S` key tokens, `H` heads, `D` head dim, `M` model width, `A` position axes, `B` batch.

    encoding = parse("rope(base=500000) + alibi()")
    params = encoding.init(key, Dims(width=512, num_heads=8, head_dim=64))
    site = sites(1024)                                  # or grid(14, 14, prefix=1)
    x = encoding.embed(params, x, site)                 # additive codes
    out = attend(encoding, params, q, k, v, site, site, causal=True)
"""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int32, Shaped

Array = jax.Array | np.ndarray
Params = Any  # any pytree of arrays; () where an encoding learns nothing


class Site(NamedTuple):
    """Where each token of one sequence stands. Every leaf has the tokens as its first axis."""

    position: Shaped[Array, "T *A"]  # int32 or float32, never a half-precision type
    segment: Int32[Array, " T"]  # document within a packed row; 0 is padding
    prefix: Int32[Array, " T"]  # 0 for a token that stands somewhere, k for the k-th that does not (class, registers)
    state: Any = ()  # what the encoding itself knows of each token; travels into the KV cache


class Dims(NamedTuple):
    """The sizes of the model that hosts an encoding; only `init` sees them.

    `length` is the number of positions that a 1-D table must hold, `grid` the (height, width) of a 2-D one,
    `prefix` the number of tokens that stand nowhere (class token and registers).
    """

    width: int
    num_heads: int
    head_dim: int
    length: int | None = None
    grid: tuple[int, int] | None = None
    prefix: int = 0


def sites(length: int, start: int = 0) -> Site:
    """The sites of one unpadded document: positions start, ..., start + length - 1."""
    position = np.arange(start, start + length, dtype=np.int32)
    return Site(position, np.ones_like(position), np.zeros_like(position))


def grid(height: int, width: int, prefix: int = 0) -> Site:
    """The sites of an image's patches in raster order, (row, column) each, behind `prefix` tokens that stand nowhere."""
    patches = np.stack(np.mgrid[:height, :width], axis=-1).reshape(height * width, 2)
    position = np.concatenate([np.zeros((prefix, 2)), patches]).astype(np.int32)
    count = prefix + height * width
    nowhere = np.concatenate([np.arange(1, prefix + 1), np.zeros(height * width)]).astype(np.int32)
    return Site(position, np.ones(count, np.int32), nowhere)


@dataclass(frozen=True)
class Encoding:
    """A positional encoding: a value with pure methods. Every hook defaults to "knows nothing of position".

    An encoding knows no array sizes, framework or model: it reads the head dim and the number of heads off its arguments.
    """

    spec_name: ClassVar[str] = ""
    relative: ClassVar[bool] = True  # logits of tokens that stand somewhere see only differences of positions
    length_dependent: ClassVar[bool] = False  # the transform of a key depends on tokens to come: caches keep raw keys
    reads_keys: ClassVar[bool] = False  # `bias` depends on what k holds, not on its shape alone: caches keep raw keys

    def init(self, key: jax.Array, dims: Dims) -> Params:
        """Parameters of this encoding in a model of these sizes."""
        return ()

    def place(self, params: Params, site: Site, key: jax.Array | None = None) -> Site:
        """Moves tokens (randomise, interpolate, jitter). `key` is given in training only."""
        return site

    def observe(self, params: Params, x: Float[Array, "T M"], site: Site) -> Site:
        """Reads per-token state (cumulative gates) off a layer's input into `site.state`."""
        return site

    def embed(self, params: Params, x: Float[Array, "T M"], site: Site) -> Float[Array, "T M"]:
        """Adds a code to the tokens."""
        return x

    def rotate(
        self, params: Params, q: Float[Array, "T H D"], q_site: Site, k: Float[Array, "S H D"], k_site: Site
    ) -> tuple[Float[Array, "T H D"], Float[Array, "S H D"]]:
        """Transforms queries and keys."""
        return q, k

    def bias(
        self, params: Params, q: Float[Array, "T H D"], q_site: Site, k: Float[Array, "S H D"], k_site: Site
    ) -> Float[Array, "#H T S"] | float:
        """What is added to a TILE of scaled logits; q and k come untransformed."""
        return 0.0

    def mask(self, q_site: Site, k_site: Site) -> Bool[Array, "T S"] | bool:
        """Which keys a TILE of queries may see, beyond causality and documents."""
        return True

    def __add__(self, other: "Encoding") -> "Encoding":
        if not isinstance(other, Encoding):
            return NotImplemented
        return Sum(_parts(self) + _parts(other))

    def __rshift__(self, other: "Encoding") -> "Encoding":
        raise TypeError(f"only a position map can stand left of >>; {self} is not one")

    def __str__(self) -> str:
        from posjax.spec import spec_text  # the grammar knows the values, the values need not know the grammar

        return spec_text(self)


class PositionMap(Encoding):
    """An encoding that only moves tokens, by `place`: `position_map >> encoding` shows `encoding` the moved tokens."""

    def dims(self, dims: Dims) -> Dims:
        """The dims in which the moved tokens stand."""
        return dims

    def __rshift__(self, other: Encoding) -> Encoding:
        if not isinstance(other, Encoding):
            return NotImplemented
        return Placed(self, other)


@dataclass(frozen=True)
class Placed(Encoding):
    """`position_map >> encoding`. Parameters: the pair (map's, encoding's)."""

    position_map: PositionMap
    encoding: Encoding

    @property
    def relative(self) -> bool:
        return self.position_map.relative and self.encoding.relative

    @property
    def length_dependent(self) -> bool:
        return self.position_map.length_dependent or self.encoding.length_dependent

    @property
    def reads_keys(self) -> bool:
        return self.encoding.reads_keys

    def __rshift__(self, other: Encoding) -> Encoding:
        return self.position_map >> (self.encoding >> other)

    def init(self, key, dims):
        map_key, encoding_key = jax.random.split(key)
        return self.position_map.init(map_key, dims), self.encoding.init(encoding_key, self.position_map.dims(dims))

    def place(self, params, site, key=None):
        map_key, encoding_key = (None, None) if key is None else jax.random.split(key)
        return self.encoding.place(params[1], self.position_map.place(params[0], site, map_key), encoding_key)

    def observe(self, params, x, site):
        return self.encoding.observe(params[1], x, site)

    def embed(self, params, x, site):
        return self.encoding.embed(params[1], x, site)

    def rotate(self, params, q, q_site, k, k_site):
        return self.encoding.rotate(params[1], q, q_site, k, k_site)

    def bias(self, params, q, q_site, k, k_site):
        return self.encoding.bias(params[1], q, q_site, k, k_site)

    def mask(self, q_site, k_site):
        return self.encoding.mask(q_site, k_site)


@dataclass(frozen=True)
class Sum(Encoding):
    """`a + b + ...`: codes and biases add up, transforms chain, masks intersect. Parameters: a tuple, one per part.

    A part may move its own tokens or keep its own state without the others seeing it: then `site.state` holds
    one Site per part.
    """

    parts: tuple[Encoding, ...]

    @property
    def relative(self) -> bool:
        return all(part.relative for part in self.parts)

    @property
    def length_dependent(self) -> bool:
        return any(part.length_dependent for part in self.parts)

    @property
    def reads_keys(self) -> bool:
        return any(part.reads_keys for part in self.parts)

    def init(self, key, dims):
        keys = jax.random.split(key, len(self.parts))
        return tuple(part.init(part_key, dims) for part, part_key in zip(self.parts, keys, strict=True))

    def place(self, params, site, key=None):
        keys = [None] * len(self.parts) if key is None else jax.random.split(key, len(self.parts))
        return _joined(
            site, [part.place(p, s, k) for (part, p, s), k in zip(self._each(params, site), keys, strict=True)]
        )

    def observe(self, params, x, site):
        return _joined(site, [part.observe(p, x, s) for part, p, s in self._each(params, site)])

    def embed(self, params, x, site):
        for part, p, s in self._each(params, site):
            x = part.embed(p, x, s)
        return x

    def rotate(self, params, q, q_site, k, k_site):
        for part, p, qs, ks in self._each(params, q_site, k_site):
            q, k = part.rotate(p, q, qs, k, ks)
        return q, k

    def bias(self, params, q, q_site, k, k_site):
        return sum(part.bias(p, q, qs, k, ks) for part, p, qs, ks in self._each(params, q_site, k_site))

    def mask(self, q_site, k_site):
        seen = True
        for part, _, qs, ks in self._each(self.parts, q_site, k_site):
            seen = seen & part.mask(qs, ks)
        return seen

    def _each(self, params, *whole_sites):
        """(part, its parameters, its view of each site) for every part."""
        views = [site.state if site.state else (site,) * len(self.parts) for site in whole_sites]
        return zip(self.parts, params, *views, strict=True)


def _parts(encoding: Encoding) -> tuple[Encoding, ...]:
    return encoding.parts if isinstance(encoding, Sum) else (encoding,)


def _joined(site: Site, part_sites: list[Site]) -> Site:
    if all(part_site is site for part_site in part_sites):
        return site
    return site._replace(state=tuple(part_sites))


def stands(site: Site) -> Bool[Array, " T"]:
    """Which tokens stand somewhere, that is, are no class token or register."""
    return jnp.asarray(site.prefix == 0)


def axes(site: Site) -> Shaped[Array, "T A"]:
    """Positions with their axes spelled out: [T] becomes [T, 1]."""
    return site.position[:, None] if site.position.ndim == 1 else site.position
