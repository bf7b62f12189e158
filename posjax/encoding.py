"""The contract: where tokens stand (`Site`), what tells a model about it (`Encoding`), and how encodings are spelled.

Methods are written for ONE sequence; `jax.vmap` them over a batch. Shape letters, everywhere in posjax:
`T` query tokens, `S` key tokens, `H` heads, `D` head dim, `M` model width, `A` position axes, `B` batch.

    encoding = parse("rope(base=500000) + alibi()")
    params = encoding.init(key, Dims(width=512, num_heads=8, head_dim=64))
    site = sites(1024)                                  # or grid(14, 14, prefix=1)
    x, hosted = host(encoding, params, x, site, key=None)      # moves tokens, adds codes: posjax/hosting.py
    out = hosted.attend(q, k, v, x=x, causal=True)             # reads the layer's input, attends
"""

import math
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int32, Shaped

from posjax.mask import Mask, Memory, everything

Array = jax.Array | np.ndarray
Params = Any  # any pytree of arrays; () where an encoding learns nothing
# The size of a grid on each axis; on one axis that may be that of a grid laid out in raster order.
Grid = tuple[int | tuple[int, ...], ...]


class Site(NamedTuple):
    """Where each token of one sequence stands. Every leaf has the tokens as its first axis."""

    position: Shaped[Array, "T *A"]  # int32 or float32, never a half-precision type
    segment: Int32[Array, " T"]  # document within a packed row; 0 is padding
    prefix: Int32[Array, " T"]  # 0 for a token that stands somewhere, k for the k-th that does not (class, registers)
    state: Any = ()  # what the encoding itself knows of each token; travels into the KV cache


class Dims(NamedTuple):
    """The sizes of the model that hosts an encoding; only `init` sees them.

    `length` is the number of positions that a 1-D table must hold, `grid` the (height, width), or more, of one on a grid,
    `prefix` the number of tokens that stand nowhere (class token and registers).
    """

    width: int
    num_heads: int
    head_dim: int
    length: int | None = None
    grid: tuple[int, ...] | None = None
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


# The methods by which an encoding acts.
HOOKS = ("place", "observe", "embed", "rotate", "product", "bias", "mask", "read")


@dataclass(frozen=True, eq=False)  # so that a subclass which is no dataclass equals nothing but itself
class Encoding:
    """A positional encoding: a value with pure methods. Every hook defaults to "knows nothing of position".

    An encoding knows no array sizes, framework or model: it reads the head dim and the number of heads off its arguments.
    """

    spec_name: ClassVar[str] = ""
    # What holds for it. Tests hold every encoding to what it declares; a composition inherits from its members.
    relative: ClassVar[bool] = True  # logits of tokens that stand somewhere see only differences of positions
    dimensions: ClassVar[tuple[int, ...]] = (1, 2, 3)  # numbers of position axes that it takes
    reach: ClassVar[float] = math.inf  # largest distance from 0 at which a token may stand
    whole_positions: ClassVar[bool] = False  # looks positions up: they must be integers
    length_dependent: ClassVar[bool] = False  # the transform of a key depends on tokens to come: caches keep raw keys
    reads_keys: ClassVar[bool] = False  # `bias` depends on what k holds, not on its shape alone: caches keep raw keys
    widens: ClassVar[bool] = False  # `rotate` returns another head dim than it was given: caches keep raw keys
    reads_weights: ClassVar[bool] = False  # has a `read`
    whole_rows: ClassVar[bool] = False  # `bias` needs all the keys of a query in one tile
    heads_differ: ClassVar[bool] = False  # `rotate` treats heads differently: grouped keys are repeated before it
    mixes_tokens: ClassVar[bool] = False  # `embed` reads other tokens, later ones too: never in a causal model
    constant_params: ClassVar[bool] = False  # some parameters are drawn once and never trained: their gradient is 0
    places_whole: ClassVar[bool] = False  # `place` needs all the tokens of a document at once: no cached decoding

    def init(self, key: jax.Array, dims: Dims) -> Params:
        """Parameters of this encoding in a model of these sizes."""
        return ()

    def place(self, params: Params, site: Site, key: jax.Array | None = None) -> Site:
        """Moves tokens (randomise, interpolate, jitter). `key` is given in training only."""
        return site

    def observe(self, params: Params, x: Float[Array, "T M"], site: Site, past: Site | None = None) -> Site:
        """Reads per-token state (cumulative gates) off a layer's input into `site.state`.

        In cached decoding `past` holds the sites, with their states, of the tokens before; free slots have segment 0.
        """
        return site

    def embed(self, params: Params, x: Float[Array, "T M"], site: Site) -> Float[Array, "T M"]:
        """Adds a code to the tokens."""
        return x

    def rotate(
        self, params: Params, q: Float[Array, "T H D"], q_site: Site, k: Float[Array, "S K D"], k_site: Site
    ) -> tuple[Float[Array, "T H C"], Float[Array, "S K C"]]:
        """Transforms queries and keys; where C is not D, the encoding `widens`.

        Keys have K heads, as many as queries or a divisor of it; H where `heads_differ`.
        """
        return q, k

    def product(
        self, q: Float[Array, "T H C"], q_site: Site, k: Float[Array, "S K C"], k_site: Site
    ) -> Float[Array, "H T S"]:
        """The logits, in float32 and before scaling, of a TILE of transformed queries and keys.

        Each of K key heads serves H / K query heads in a row. Whoever overrides this `widens`.
        """
        grouped = q.reshape(q.shape[0], k.shape[1], -1, q.shape[2])
        logits = jnp.einsum("tkgc,skc->kgts", grouped, k, preferred_element_type=jnp.float32)
        return logits.reshape(-1, *logits.shape[2:])

    def bias(
        self, params: Params, q: Float[Array, "T H D"], q_site: Site, k: Float[Array, "S H D"], k_site: Site
    ) -> Float[Array, "#H T S"] | float:
        """What is added to a TILE of scaled logits; q and k come untransformed."""
        return 0.0

    def mask(self) -> Mask:
        """Which keys a query sees, beyond causality and documents: a value, see posjax/mask.py."""
        return everything()

    def read(
        self, params: Params, weights: Float[Array, "H T S"], q_site: Site, k_site: Site
    ) -> Float[Array, "T H E"] | float:
        """What a TILE of attention weights reads beside the values; linear in the weights. Needs `reads_weights`."""
        return 0.0

    def coordinates(self, site: Site) -> Shaped[Array, "T A"]:
        """Positions with their axes spelled out: [T] becomes [T, 1].

        Raises:
          ValueError: for a number of axes that the encoding does not take.
        """
        position = axes(site)
        if position.shape[1] not in self.dimensions:
            mend = f": lay a grid out on a line with raster(width=...) >> {self}" if self.dimensions == (1,) else ""
            raise ValueError(
                f"{self.spec_name or self} takes positions of {' or '.join(map(str, self.dimensions))} axes, "
                f"got {position.shape[1]}{mend}"
            )
        return position

    def resized(
        self, params: Params, old_grid: Grid, new_grid: Grid, method: Any = "torch_bicubic"
    ) -> tuple["Encoding", Params]:
        """This encoding and its parameters for a model of another grid: tables resized, the sizes among arguments replaced.

        By default both are returned as they are: an encoding that computes its codes, angles or biases extrapolates.
        The other ones say so in their docstrings. Differentiable in the parameters; a grid that stays changes nothing.

        Args:
          old_grid, new_grid: (height, width), or (length,) on a line; ((height, width),) is a grid that `raster` has laid
            out on a line.
          method: a name in `posjax.encodings.resize.METHODS`, or a `Resampling` of one's own.

        Raises:
          ValueError: for parameters that are not of old_grid, or an unknown method.
        """
        return self, params

    @property
    def hooks(self) -> frozenset[str]:
        """The hooks by which the encoding acts: those that its class overrides."""
        return overridden(type(self))

    @property
    def observes(self) -> float:
        """How many tokens before its own, in their order, `observe` asks `past` for."""
        return 0 if type(self).observe is Encoding.observe else math.inf

    @property
    def keeps_raw_keys(self) -> bool:
        """Whether a cache must hold keys as they were before `rotate`."""
        return self.length_dependent or self.reads_keys or self.widens

    def __add__(self, other: "Encoding") -> "Encoding":
        if not isinstance(other, Encoding):
            return NotImplemented
        from posjax.composition import Sum, parts

        return Sum(parts(self) + parts(other))

    def __rshift__(self, other: "Encoding") -> "Encoding":
        raise TypeError(f"only a position map can stand left of >>; {self} is not one")

    def __str__(self) -> str:
        from posjax.spec import spec_text  # the grammar knows the values, the values need not know the grammar

        return spec_text(self)


def overridden(cls: type[Encoding]) -> frozenset[str]:
    """The hooks that a class, or one from which it derives, writes anew."""
    return frozenset(name for name in HOOKS if getattr(cls, name) is not getattr(Encoding, name))


class PositionMap(Encoding):
    """An encoding that only moves tokens, by `place`: `position_map >> encoding` shows `encoding` the moved tokens."""

    @property
    def hooks(self) -> frozenset[str]:
        return super().hooks | {"place"}

    def dims(self, dims: Dims) -> Dims:
        """The dims in which the moved tokens stand."""
        return dims

    def axes_after(self, num_axes: int) -> int:
        """On how many axes the moved tokens stand."""
        return num_axes

    def grid_after(self, grid: Grid) -> Grid:
        """The grid on which the moved tokens of such a grid stand, as `Encoding.resized` has them."""
        line = math.prod(np.ravel(grid[0]).tolist()) if len(grid) == 1 else None
        dims = self.dims(Dims(0, 0, 0, length=line, grid=None if line else grid))
        return grid if line and dims.length == line else dims.grid or (dims.length,)

    def before(self, memory: Memory) -> Memory:
        """Converts what is remembered of moved positions to the original ones."""
        return Memory()

    def __rshift__(self, other: Encoding) -> Encoding:
        if not isinstance(other, Encoding):
            return NotImplemented
        from posjax.composition import Placed

        return Placed(self, other)


def stands(site: Site) -> Bool[Array, " T"]:
    """Which tokens stand somewhere, that is, are no class token or register."""
    return jnp.asarray(site.prefix == 0)


def both_stand(q_site: Site, k_site: Site) -> Bool[Array, "T S"]:
    """Of which pairs neither token is a class token or a register."""
    return (q_site.prefix == 0)[:, None] & (k_site.prefix == 0)[None]


def axes(site: Site) -> Shaped[Array, "T A"]:
    """Positions with their axes spelled out: [T] becomes [T, 1]."""
    return site.position[:, None] if site.position.ndim == 1 else site.position
