"""The contract: places of tokens (`Site`), encodings that tell a model about them (`Encoding`), and compositions.

Methods are written for ONE sequence; `jax.vmap` them over a batch. Shape letters, everywhere in posjax:
`T` query tokens, `S` key tokens, `H` heads, `D` head dim, `M` model width, `A` position axes, `B` batch.

    encoding = parse("rope(base=500000) + alibi()")
    params = encoding.init(key, Dims(width=512, num_heads=8, head_dim=64))
    site = sites(1024)                                  # or grid(14, 14, prefix=1)
    x, hosted = host(encoding, params, x, site, key=None)      # moves tokens, adds codes: posjax/hosting.py
    out = hosted.attend(q, k, v, x=x, causal=True)             # reads the layer's input, attends
"""

import enum
import functools
import math
import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Float32, Int, Int32, Shaped

from posjax.gradients import einsum
from posjax.mask import Array, Mask, Memory, everything

Params = Any  # any pytree of arrays; () where an encoding learns nothing
# The size of a grid on each axis; on one axis that may be that of a grid laid out in raster order.
Grid = tuple[int | tuple[int, ...], ...]


class Relation(NamedTuple):
    """Distances of each token from the nodes of its document's graph. The first axis of every leaf is the tokens.

    A pair of tokens is looked up: the query's row of `distance` at the key's `node`. So tokens keep their relations in any
    order, rows are cut, packed, padded and cached as positions are, and positions stay free for something else. A packed row
    has a column for each node of its largest document; the columns that a smaller document does not use hold -1.
    """

    node: Int32[Array, " T"]  # which node of its document the token is, from 0; of padding and prefix tokens any
    distance: Int32[Array, "T N"]  # steps from the token to each node; -1 where no path leads there


class Camera(NamedTuple):
    """The camera of each token, in `site.relation`. Padding and prefix tokens may have any.

    Attributes:
      view: a rotation and a translation, from homogeneous coordinates of the world to the camera's.
      lens: focal lengths and principal point (f_x, f_y, c_x, c_y) in widths and heights of the image, the point from the
        image's middle; pixels differ by the image's size.
    """

    view: Float32[Array, "T 4 4"]
    lens: Float32[Array, "T 4"]


class _Site(NamedTuple):
    position: Shaped[Array, "T *A"]
    segment: Int32[Array, " T"]
    prefix: Int32[Array, " T"]
    state: Any = ()
    relation: Any = ()
    order: Any = ()


_DEFAULT = object()  # not None: a pytree of sites may hold None


class Site(_Site):
    """The places of the tokens of one sequence. The first axis of every leaf is the tokens.

    By default all tokens are of one document, segment 1, and all stand somewhere, prefix 0. Positions [B, T] of a batch
    need segments beside them: without, they are read as B tokens on T axes.

    Attributes:
      position: [T] or [T, A], int32 or float32. int32 less than 2^31 apart: known positions that are not are refused, traced
        ones would wrap. float32 holds whole numbers up to 2^24, also where a position map makes it of int32. Never a
        half-precision type.
      segment: [T] int32, the document within a packed row; 0 is padding.
      prefix: [T] int32, 0 for a token that stands somewhere, k for the k-th that does not (class token, registers).
      state: what the encoding keeps of each token; it travels into the cache. () until an encoding writes it. Then it is, for
        an encoding: the arrays that its `place` or `observe` sets; for `map >> encoding`: what `encoding` sets; for a sum
        with a part that has `place` or `observe`: one Site for each part, in their order, which that part alone sees.
      relation: relations of pairs that are data: a `Relation`, the `Camera` of each token, or a pytree that an encoding of
        one's own reads.
      order: [T], numbers that rise along each document, where a map moves tokens past each other; see `order_of`.

    >>> import posjax as pj
    >>> pj.Site([3, 5, 8]).segment
    array([1, 1, 1], dtype=int32)
    """

    __slots__ = ()

    def __new__(cls, position, segment=_DEFAULT, prefix=_DEFAULT, state=(), relation=(), order=()):
        if segment is _DEFAULT:
            shape = np.shape(position)
            segment = np.ones(shape[:-1] if len(shape) > 1 else shape, np.int32)
        prefix = np.zeros(np.shape(segment), np.int32) if prefix is _DEFAULT else prefix
        tokens = (np.asarray(x) if isinstance(x, (list, range)) else x for x in (position, segment, prefix))
        return super().__new__(cls, *tokens, state, relation, order)


class Dims(NamedTuple):
    """The sizes of the model that hosts an encoding; only `init` sees them.

    `length` is the number of positions that a 1-D table must hold, `grid` the (height, width), or more, of one on a grid,
    `prefix` the number of tokens that stand nowhere (class token and registers).

    >>> import posjax as pj
    >>> dims = Dims(width=16, num_heads=2, head_dim=8, grid=(4, 6), prefix=1)
    >>> pj.parse("learned").init(jax.random.key(0), dims).rows.shape    # a row for the class token, one for each patch
    (25, 16)
    """

    width: int
    num_heads: int
    head_dim: int
    length: int | None = None
    grid: tuple[int, ...] | None = None
    prefix: int = 0


def sites(length: int, start: int | np.integer | Int[Array, "*B"] = 0) -> Site:
    """The sites of one unpadded document: positions start, ..., start + length - 1.

    `start` may be traced, and of a batch: [B] gives sites [B, length].

    Raises:
      ValueError: for known positions that int32 does not hold.

    >>> sites(3, start=5).position
    array([5, 6, 7], dtype=int32)
    """
    start = start.astype(np.int32) if isinstance(start, jax.Array) else np.asarray(start).astype(np.int64)
    position = _canonical(start[..., None] + np.arange(length, dtype=start.dtype))
    return Site(position, np.ones(position.shape, np.int32))


def packed(lengths: Sequence[int], length: int | None = None) -> Site:
    """The sites of documents of these lengths in one row. Each document counts from 0; padding fills the row to `length`.

    Raises:
      ValueError: for documents that do not fit into `length`.

    >>> site = packed([3, 2], length=6)
    >>> site.position, site.segment
    (array([0, 1, 2, 0, 1, 0], dtype=int32), array([1, 1, 1, 2, 2, 0], dtype=int32))
    """
    total = sum(lengths)
    if length is not None and total > length:
        raise ValueError(f"documents of {list(lengths)} tokens, {total} together, do not fit into a row of {length}")
    position = np.concatenate([np.zeros(0), *map(np.arange, lengths)])
    segment = np.repeat(np.arange(len(lengths)) + 1, lengths)
    position, segment = (np.pad(x, (0, (length or total) - total)).astype(np.int32) for x in (position, segment))
    return Site(position, segment)


def padded(mask: Shaped[Array, "*B T"]) -> Site:
    """The sites of one document in each row, whose tokens are where `mask` is not 0 and count from 0.

    Padding may stand left, right or between. `mask` is the `attention_mask` of transformers, and may be traced.

    Raises:
      ValueError: for floats other than 0 and 1, as of an additive mask.

    >>> padded(np.array([0, 0, 1, 1])).position
    array([0, 0, 0, 1], dtype=int32)
    """
    where = jnp if isinstance(mask, jax.Array) else np
    mask = where.asarray(mask)
    is_known = jnp.issubdtype(mask.dtype, jnp.floating) and not isinstance(mask, jax.core.Tracer)
    if is_known and (strange := np.setdiff1d(np.asarray(mask, np.float32), [0, 1])).size:
        raise ValueError(f"a mask of tokens holds 0 and 1, got {strange[0]}: of an additive mask give mask == 0")
    segment = (mask != 0).astype(np.int32)
    position = where.maximum(where.cumsum(segment, axis=-1, dtype=np.int32) - 1, 0)
    return Site(position, segment)


def canonical(site: Site) -> Site:
    """Casts the integers of a site to int32 and its floats to float32; NumPy makes int64 and float64.

    Raises:
      ValueError: for anything but a site, positions of a half-precision type, or known ones that int32 does not hold.
    """
    if not isinstance(site, Site):
        raise ValueError(f"site={site!r:.60}: give posjax.sites(length), posjax.grid(height, width) or another Site")
    if site.position.dtype in (jnp.bfloat16, jnp.float16):
        raise ValueError(f"positions of {site.position.dtype} are rounded from 256 or 2048 on: give int32 or float32")
    return jax.tree.map(_canonical, site)


def _canonical(x):
    if jnp.issubdtype(x.dtype, jnp.integer) and x.dtype != np.int32:
        if isinstance(x, np.ndarray) and x.size and max(abs(int(x.min())), abs(int(x.max()))) >= 2**31:
            raise ValueError(f"positions and segments are below 2^31; got {x.min()} to {x.max()}: start nearer to 0")
        return x.astype(np.int32)
    return x.astype(np.float32) if x.dtype == np.float64 else x


def grid(height: int, width: int, prefix: int = 0) -> Site:
    """The sites of an image's patches in raster order, (row, column) each, behind `prefix` tokens that stand nowhere.

    >>> grid(1, 2, prefix=1).position.tolist()
    [[0, 0], [0, 0], [0, 1]]
    """
    patches = np.stack(np.mgrid[:height, :width], axis=-1).reshape(height * width, 2)
    position = np.concatenate([np.zeros((prefix, 2)), patches]).astype(np.int32)
    count = prefix + height * width
    nowhere = np.concatenate([np.arange(1, prefix + 1), np.zeros(height * width)]).astype(np.int32)
    return Site(position, np.ones(count, np.int32), nowhere)


class Hook(NamedTuple):
    """A method by which encodings act, as compositions and backends see it.

    Attributes:
      arguments: their names, behind the parameters. A name that ends in "site" is the Site of some tokens.
      of_parts: how the parts of a sum act together, each at its own sites. "own": each keeps a Site of its own; "chained",
        "reversed": each transforms what the one before, or behind it, returned; "summed", "joined": their results are put
        together; "one": the only part that has the hook acts.
      when: "before" attention; "around" it, on queries, keys, values and outputs; "within" it, where a backend computes it.
      does: what an encoding with this hook does, behind its name.
      parameters: whether the parameters of the encoding come first.
    """

    arguments: str
    of_parts: str
    when: str
    does: str
    parameters: bool = True


# In the order in which they are called. Compositions and decoupled encodings forward by this table.
HOOKS = {
    "place": Hook("site key", "own", "before", "moves tokens"),
    "embed": Hook("x site", "chained", "before", "adds a code to tokens"),
    "observe": Hook("x site past", "own", "before", "reads the input of the layer"),
    "rotate": Hook("q q_site k k_site", "chained", "around", "transforms queries and keys"),
    "value": Hook("v k_site", "chained", "around", "transforms values"),
    "product": Hook("q q_site k k_site", "one", "within", "multiplies queries and keys", parameters=False),
    "bias": Hook("q q_site k k_site", "summed", "within", "adds to logits"),
    "mask": Hook("", "joined", "within", "hides keys", parameters=False),
    "sink": Hook("q_site num_heads", "joined", "within", "adds a sink to the softmax"),
    "weigh": Hook("logits seen q_site k_site", "one", "within", "replaces the softmax"),
    "read": Hook("weights q_site k_site", "summed", "within", "reads beside values"),
    "output": Hook("out q_site", "reversed", "around", "transforms outputs"),
}
WITHIN_ATTENTION = frozenset(name for name, hook in HOOKS.items() if hook.when == "within")


_SIGNS = {">=": operator.ge, ">": operator.gt, "<=": operator.le}  # of `Encoding.ranges`
_WORDS = {">=": "at least", ">": "above", "<=": "at most"}


def refuse_unhashable(cls: type, name: str, value: object) -> None:
    """Raises a ValueError for an array, a list, a dict or a set as an argument of a class."""
    if isinstance(value, (jax.Array, np.ndarray, list, dict, set)) and not isinstance(value, jax.core.Tracer):
        raise ValueError(
            f"{getattr(cls, 'spec_name', '') or cls.__name__}({name}=...) is of the type {type(value).__name__}, which has "
            f"no hash: give a number or a tuple, and write jnp.asarray(self.{name}) where it is used"
        )


def check_ranges(value: Any) -> None:
    """Refuses an argument of a dataclass that is outside the bounds which its class, or a base of it, names in `ranges`.

    Raises:
      ValueError: names the argument, the bound and the value.
    """
    for text in (text for cls in type(value).__mro__ for text in vars(cls).get("ranges", ())):
        name, sign, bound = text.split()
        given = getattr(value, name)
        if given is not None and not all(_SIGNS[sign](each, float(bound)) for each in np.ravel(given)):
            must = "positive" if f"{sign} {bound}" == "> 0" else f"{_WORDS[sign]} {bound}"
            raise ValueError(f"{value.spec_name or type(value).__name__}({name}=...) must be {must}, got {given}")


class Needs(enum.Flag):
    """Demands of an encoding on its caller, beyond calling the hooks. A composition has the needs of all its members."""

    WHOLE_POSITIONS = enum.auto()  # positions are integers: they are looked up
    WHOLE_DOCUMENT = enum.auto()  # `place` needs all tokens of a document at once: no cached decoding
    BOTH_DIRECTIONS = enum.auto()  # `embed` reads other tokens, later ones too: no causal models
    DOCUMENT_LENGTH = enum.auto()  # the transform of a key depends on all keys: caches keep all, untransformed
    WHOLE_ROWS = enum.auto()  # `bias` or `product` needs all the keys of a query in one tile, as `weigh` always does
    SINK_OF_QUERIES = enum.auto()  # `sink` returns a logit of each query and head
    EVERY_HEAD = enum.auto()  # `rotate` or `value` treats heads differently: shared keys are repeated before it
    HEAD_DIM = enum.auto()  # `rotate` returns another head dim than it was given; with DOCUMENT_LENGTH `value` may too
    WHOLE_HEAD = enum.auto()  # `rotate` scales queries or appends channels: it is never given a part of a head
    RELATION = enum.auto()  # `site.relation` says how pairs of tokens are related: a graph, or with CAMERAS the cameras
    CAMERAS = enum.auto()  # `site.relation` is a `posjax.encoding.Camera` of each token
    CONSTANT_PARAMS = enum.auto()  # some parameters are drawn once and never trained: their gradient is 0


@dataclass(frozen=True, eq=False)  # so that a subclass which is no dataclass equals nothing but itself
class Encoding:
    """A positional encoding: a value with pure methods. Every hook defaults to "knows nothing of position".

    An encoding knows no array sizes, framework or model: it reads the head dim and the number of heads off its arguments.
    The first part below is all that most encodings use; the second is for those that the interpreters must treat specially.

    >>> @dataclass(frozen=True)
    ... class Nearer(Encoding):
    ...     slope: float = 0.5
    ...     def bias(self, params, q, q_site, k, k_site):
    ...         return -self.slope * jnp.abs(q_site.position[:, None] - k_site.position)[None]
    >>> q = jnp.zeros((3, 1, 8))
    >>> Nearer().bias((), q, sites(3), q, sites(3))[0, 2].tolist()
    [-1.0, -0.5, -0.0]
    """

    spec_name: ClassVar[str] = ""
    family: ClassVar[str] = "other"  # by which tables and figures group encodings: posjax/describe/families.py
    formula: ClassVar[tuple[str, ...]] = ()  # in LaTeX
    # Facts, which the tests hold every encoding to.
    relative: ClassVar[bool] = True  # logits of tokens that stand somewhere see only differences of positions
    dimensions: ClassVar[tuple[int, ...]] = (1, 2, 3)  # numbers of position axes that it takes
    reach: ClassVar[float] = math.inf  # largest distance from 0 at which a token may stand
    ranges: ClassVar[
        tuple[str, ...]
    ] = ()  # bounds of arguments that are not None: "size >= 1"; base classes add theirs

    def __post_init__(self):
        for name, value in ((field.name, getattr(self, field.name)) for field in fields(self)):
            refuse_unhashable(type(self), name, value)
        check_ranges(self)

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
        """Transforms queries and keys. Where C is not D, it needs `HEAD_DIM`.

        Keys have K heads, as many as queries or a divisor of it; H where it needs `EVERY_HEAD`.
        """
        return q, k

    def bias(
        self, params: Params, q: Float[Array, "T H D"], q_site: Site, k: Float[Array, "S H D"], k_site: Site
    ) -> Float[Array, "#H T S"] | float:
        """The term added to a TILE of scaled logits; q and k come untransformed."""
        return 0.0

    def mask(self) -> Mask:
        """The mask of keys that a query sees, beyond causality and documents: a value, see posjax/mask.py."""
        return everything()

    def sink(self, params: Params, q_site: Site, num_heads: int) -> Float[Array, "*#T H"] | None:
        """A logit of each head, or of each query and head, that takes a share of the softmax and reads nothing.

        None for no such logit. It may depend on the query's site and on the state that `observe` has written; an encoding
        whose sink is [T, H] needs `SINK_OF_QUERIES`.
        """
        return None

    def value(self, params: Params, v: Float[Array, "S K E"], k_site: Site) -> Float[Array, "S K C"]:
        """Transforms values, each by its own site, before they are summed. The heads are the key heads of `rotate`.

        C may differ from E if it needs `HEAD_DIM` and `DOCUMENT_LENGTH`, and `output` returns E channels.
        """
        return v

    def output(self, params: Params, out: Float[Array, "T H C"], q_site: Site) -> Float[Array, "T H E"]:
        """Transforms the weighted sums of values, each by its query's site; linear in them."""
        return out

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

        >>> import posjax as pj
        >>> encoding, dims = pj.parse("learned"), Dims(width=16, num_heads=2, head_dim=8, grid=(4, 6))
        >>> params = encoding.init(jax.random.key(0), dims)
        >>> encoding, params = encoding.resized(params, (4, 6), (8, 12))
        >>> params.rows.shape
        (96, 16)
        """
        return self, params

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

    def __add__(self, other: "Encoding") -> "Encoding":
        return Sum(parts(self) + parts(other)) if isinstance(other, Encoding) else NotImplemented

    def __rshift__(self, other: "Encoding") -> "Encoding":
        raise TypeError(f"only a position map can stand left of >>; {self} is not one")

    def __str__(self) -> str:
        return spec_text(self)

    # Second part: what interpreters ask, and the hooks that few encodings have.

    needs: ClassVar[Needs] = Needs(0)

    @property
    def hooks(self) -> frozenset[str]:
        """The hooks by which the encoding acts: those that its class overrides."""
        return frozenset(name for name in HOOKS if getattr(type(self), name) is not getattr(Encoding, name))

    def product(
        self, q: Float[Array, "T H C"], q_site: Site, k: Float[Array, "S K C"], k_site: Site
    ) -> Float[Array, "H T S"]:
        """The logits, in float32 and before scaling, of a TILE of transformed queries and keys.

        Each of K key heads serves H / K query heads in a row. An encoding that overrides this needs `HEAD_DIM`.
        """
        grouped = q.reshape(q.shape[0], k.shape[1], -1, q.shape[2])
        logits = einsum("skc,tkgc->kgts", k, grouped)
        return logits.reshape(-1, *logits.shape[2:])

    def is_difference(self, site: Site) -> bool:
        """Whether the `bias` of a key that is no later than the query is known to be u[key] - u[query], of a `potential` u.

        Kernels without a bias take u as channels of the keys, since a term of the query alone changes no softmax.
        """
        return "bias" not in self.hooks

    def potential(self, params: Params, site: Site, num_heads: int) -> Float[Array, "T H"] | float:
        """The numbers u of `is_difference`."""
        return 0.0

    def weigh(
        self, params: Params, logits: Float[Array, "H T S"], seen: Bool[Array, "T S"], q_site: Site, k_site: Site
    ) -> Float[Array, "H T S"]:
        """The weights of values, in float32, from the logits of whole rows; by default their softmax, with the `sink`.

        Of a hidden key the weight is 0, and its logit means nothing. Keys may come in any order: go by their sites. An
        encoding that overrides this needs `WHOLE_ROWS`, and has no sink.
        """
        logits = jnp.where(seen, logits, jnp.finfo(jnp.float32).min)  # finite: -inf never meets arithmetic
        peak = jax.lax.stop_gradient(jnp.max(logits, axis=-1, keepdims=True))
        sink = self.sink(params, q_site, logits.shape[0])
        if sink is not None:
            sink = of_queries(sink)[..., None]
            peak = jnp.maximum(peak, jax.lax.stop_gradient(sink))
        weights = jnp.where(seen, jnp.exp(logits - peak), 0.0)
        total = jnp.sum(weights, axis=-1, keepdims=True)
        total = total if sink is None else total + jnp.exp(sink - peak)
        return weights / jnp.where(total > 0, total, 1.0)

    def read(
        self, params: Params, weights: Float[Array, "H T S"], q_site: Site, k_site: Site
    ) -> Float[Array, "T H E"] | float:
        """The term that a TILE of attention weights adds to the weighted values; linear in the weights."""
        return 0.0

    @property
    def observes(self) -> float:
        """The number of tokens, just before its own in their order, that `observe` needs as its `past`."""
        return math.inf if "observe" in self.hooks else 0

    def in_layer(
        self,
        params: Params,
        project: Callable[[Float[Array, "R M"]], tuple[Float[Array, "R H D"], Float[Array, "R K D"]]],
    ) -> Params:
        """The parameters with which attention of one layer calls the hooks.

        They differ where codes of positions pass through the layer's own projections, as tokens do.

        Args:
          project: maps rows of the layer's width to queries and keys by the layer's own matrices.
        """
        return params


class PositionMap(Encoding):
    """An encoding that only moves tokens, by `place`: `position_map >> encoding` shows `encoding` the moved tokens."""

    @property
    def hooks(self) -> frozenset[str]:
        return super().hooks | {"place"}

    def dims(self, dims: Dims) -> Dims:
        """Returns the Dims that the mapped encoding is initialised with."""
        return dims

    def axes_after(self, num_axes: int) -> int:
        """The number of position axes of the moved tokens."""
        return num_axes

    def grid_after(self, grid: Grid) -> Grid:
        """The grid of the moved tokens, as `Encoding.resized` takes it, where the model's tokens stand on `grid`."""
        line = math.prod(np.ravel(grid[0]).tolist()) if len(grid) == 1 else None
        dims = self.dims(Dims(0, 0, 0, length=line, grid=None if line else grid))
        return grid if line and dims.length == line else dims.grid or (dims.length,)

    def before(self, memory: Memory) -> Memory:
        """Converts a `Memory` of moved positions to one of original positions."""
        return Memory()

    def __rshift__(self, other: Encoding) -> Encoding:
        return Placed(self, other) if isinstance(other, Encoding) else NotImplemented


class Composition(Encoding):
    """An encoding made of others. It is relative if all of them are, and needs what one of them needs.

    A subclass that has `forward(self, name, *arguments, **named)` computes by it every hook `name` that it does not define.
    """

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        if "forward" in vars(cls):
            for name in HOOKS.keys() - vars(cls).keys():
                setattr(cls, name, _forwarded(name))

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

    @property
    def needs(self) -> Needs:
        return functools.reduce(operator.or_, (member.needs for member in self.members), Needs(0))


def _forwarded(name: str) -> Callable:
    @functools.wraps(getattr(Encoding, name))
    def hook(self, *arguments, **named):
        return self.forward(name, *arguments, **named)

    return hook


@dataclass(frozen=True)
class Placed(Composition):
    """`position_map >> encoding`. Parameters: the pair (map's, encoding's).

    >>> import posjax as pj
    >>> encoding = pj.encodings.interpolate(factor=2) >> pj.encodings.alibi()
    >>> print(encoding)
    interpolate(factor=2) >> alibi()
    >>> encoding.place(((), ()), sites(4)).position.tolist()
    [0.0, 0.5, 1.0, 1.5]
    """

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

    def forward(self, name, *arguments, **named):
        if HOOKS[name].parameters:
            (_, params), *arguments = arguments
            arguments = (params, *arguments)
        return getattr(self.encoding, name)(*arguments, **named)

    def in_layer(self, params, project):
        return params[0], self.encoding.in_layer(params[1], project)

    def is_difference(self, site):
        return self.encoding.is_difference(site)

    def potential(self, params, site, num_heads):
        return self.encoding.potential(params[1], site, num_heads)

    def mask(self):
        return _Moved(self.position_map, self.encoding.mask())

    def __str__(self) -> str:
        inner = f"({self.encoding})" if isinstance(self.encoding, Sum) else str(self.encoding)
        return f"{self.position_map} >> {inner}"

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
    """`a + b + ...`: codes, biases and exponentials of sinks add up, transforms chain, masks intersect, one part may weigh.

    Parameters: a tuple, one per part. A part may move its own tokens or keep its own state, which the others do not see.

    >>> import posjax as pj
    >>> encoding = pj.encodings.learned() + pj.encodings.alibi() + pj.encodings.window(4)
    >>> print(encoding)
    learned() + alibi() + window(size=4)
    >>> params = encoding.init(jax.random.key(0), Dims(width=16, num_heads=2, head_dim=8, length=32))
    >>> jax.tree.map(jnp.shape, params)    # of each part; alibi and window learn nothing
    (Table(rows=(32, 16), extent=(32,)), (), ())
    """

    parts: tuple[Encoding, ...]

    def __post_init__(self):
        if sum(Needs.HEAD_DIM in part.needs for part in self.parts) > 1:
            raise ValueError(f"only one part of a sum can turn queries and keys into another head dim: {self}")
        wide = [part for part in self.parts if Needs.HEAD_DIM in part.needs and "value" in part.hooks]
        if wide and "read" in self.hooks:
            raise ValueError(f"{wide[0]} makes other channels of values, and a part of {self} reads beside them")
        weighing = [part for part in self.parts if "weigh" in part.hooks]
        if len(weighing) > 1:
            raise ValueError(f"only one part of a sum can stand for the softmax: {self}; leave {weighing[1]} out")
        if weighing and "sink" in self.hooks:
            raise ValueError(f"{weighing[0]} stands for the softmax, in which a sink has its share: leave one out")

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
        if not self._has_sites:
            return site
        keys = [None] * len(self.parts) if key is None else jax.random.split(key, len(self.parts))
        each = zip(self._each(params, site), keys, strict=True)
        return site._replace(state=tuple(part.place(p, s, part_key) for (part, p, s), part_key in each))

    def observe(self, params, x, site, past=None):
        if not self._has_sites:
            return site
        each = self._each(params, site) if past is None else self._each(params, site, past)
        return site._replace(state=tuple(part.observe(p, x, *sites) for part, p, *sites in each))

    def forward(self, name, *arguments, **named):
        hook = HOOKS[name]
        params, *rest = arguments if hook.parameters else ((None,) * len(self.parts), *arguments)
        named |= dict(zip(hook.arguments.split(), rest, strict=False))
        sites = {argument: value for argument, value in named.items() if argument.endswith("site")}
        content = {argument: value for argument, value in named.items() if argument not in sites}
        calls = [
            functools.partial(getattr(part, name), *[p] * hook.parameters, **dict(zip(sites, own, strict=True)))
            for part, p, *own in self._each(params, *sites.values())
        ]
        if hook.of_parts == "summed":
            return sum(call(**content) for call in calls)
        if hook.of_parts == "one":
            acting = [call for part, call in zip(self.parts, calls, strict=True) if name in part.hooks]
            if acting:
                return acting[0](**content)
            return getattr(Encoding, name)(self, *[params] * hook.parameters, **named)
        if hook.when == "around":
            # The part that leaves another head dim goes last: the others transform the one that the model has.
            wide = [Needs.HEAD_DIM in part.needs for part in self.parts]
            calls = [call for last in (False, True) for call, each in zip(calls, wide, strict=True) if each == last]
        for call in reversed(calls) if hook.of_parts == "reversed" else calls:
            result = call(**content)
            content = dict(zip(content, result if isinstance(result, tuple) else (result,), strict=True))
        return result

    def in_layer(self, params, project):
        return tuple(part.in_layer(p, project) for part, p in zip(self.parts, params, strict=True))

    def is_difference(self, site):
        return all(
            part.is_difference(own)
            for part, own in zip(self.parts, _sites_of_parts(site, len(self.parts)), strict=True)
        )

    def potential(self, params, site, num_heads):
        return sum(part.potential(p, own, num_heads) for part, p, own in self._each(params, site))

    def mask(self):
        return _OfParts(tuple(part.mask() for part in self.parts))

    def sink(self, params, q_site, num_heads):
        each = (part.sink(p, site, num_heads) for part, p, site in self._each(params, q_site))
        sinks = [sink for sink in each if sink is not None]
        return functools.reduce(jnp.logaddexp, sinks) if sinks else None

    def resized(self, params, old_grid, new_grid, method="torch_bicubic"):
        each = [part.resized(p, old_grid, new_grid, method) for part, p in zip(self.parts, params, strict=True)]
        return Sum(tuple(part for part, _ in each)), tuple(p for _, p in each)

    def __str__(self) -> str:
        return " + ".join(f"({part})" if isinstance(part, Placed) else str(part) for part in self.parts)

    @property
    def _has_sites(self) -> bool:
        return not self.hooks.isdisjoint({"place", "observe"})

    def _each(self, params, *whole_sites):
        """(part, its parameters, its own sites) for every part."""
        return zip(self.parts, params, *(_sites_of_parts(site, len(self.parts)) for site in whole_sites), strict=True)


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
        views = (_sites_of_parts(site, len(self.masks)) for site in (q_site, k_site))
        return [term for mask, q, k in zip(self.masks, *views, strict=True) for term in mask.terms(q, k)]


class Acting(NamedTuple):
    """One of a composition's `members`, with its parameters and its own view of where tokens stand."""

    encoding: Encoding
    params: Params
    q_site: Site
    k_site: Site


def acting(encoding: Encoding, params: Params, q_site: Site, k_site: Site) -> list[Acting]:
    """The `members` of a composition, each as it sees the tokens; `params` may be None if only the sites are read."""
    if type(encoding) is Placed:
        return acting(encoding.encoding, None if params is None else params[1], q_site, k_site)
    if type(encoding) is Sum:
        count = len(encoding.parts)
        views = (_sites_of_parts(site, count) for site in (q_site, k_site))
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
    """The parts of a sum; of anything else, itself alone."""
    return encoding.parts if isinstance(encoding, Sum) else (encoding,)


def _sites_of_parts(site: Site, count: int) -> tuple[Site, ...]:
    """The site of each part of a sum: all have the same one before `place` and `observe`."""
    return site.state if site.state else (site,) * count


def spec_text(value: object) -> str:
    """The text that `posjax.parse` reads back, without the arguments that are at their defaults.

    For an encoding that is no composition, or a registered value that encodings take; otherwise the repr.
    """
    if not getattr(value, "spec_name", ""):
        return repr(value)
    given = [
        f"{field.name}={_value_text(argument)}"
        for field in fields(value)
        if (argument := getattr(value, field.name)) != field.default
    ]
    return f"{value.spec_name}({', '.join(given)})"


def _value_text(value: object) -> str:
    if isinstance(value, Encoding):
        return str(value)
    if "spec_name" in vars(type(value)):
        return spec_text(value)
    if isinstance(value, tuple):
        return f"({', '.join(map(_value_text, value))}{',' if len(value) == 1 else ''})"
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    return repr(value)


def stands(site: Site) -> Bool[Array, " T"]:
    """True for tokens that stand somewhere, that is, are no class token or register."""
    return jnp.asarray(site.prefix == 0)


def of_queries(sink: Float[Array, "*#T H"]) -> Float[jax.Array, "H R"]:
    """A sink in float32 with its heads first and queries behind them: R is T, or 1 where all queries have the same."""
    return jnp.atleast_2d(sink.astype(jnp.float32)).T


def without_padding(x: Shaped[Array, "T ..."], site: Site) -> Shaped[Array, "T ..."]:
    """Sets padding to zero, since a weight of 0 hides neither NaN nor infinity."""
    real = site.segment > 0
    if isinstance(real, np.ndarray) and real.all():
        return x
    return jnp.where(real.reshape(-1, *[1] * (x.ndim - 1)), x, jnp.zeros((), x.dtype))


def reads_rows(encoding: Encoding) -> bool:
    """Whether all keys of a query must be in one tile: the encoding needs whole rows, or weighs them."""
    return Needs.WHOLE_ROWS in encoding.needs or "weigh" in encoding.hooks


def rises(site: Site) -> bool:
    """Whether all tokens are known to stand on a line, at positions that never fall, when a program is traced."""
    position, prefix = site.position, site.prefix
    if not (isinstance(position, np.ndarray) and isinstance(prefix, np.ndarray)) or prefix.any():
        return False
    return position.reshape(len(position), -1).shape[1] == 1 and bool((np.diff(position, axis=0) >= 0).all())


def side_by_side(site: Site) -> bool:
    """Whether all tokens are known, when a program is traced, to be one document's, each right behind the token before it."""
    position, segment = site.position, site.segment
    known = rises(site) and np.issubdtype(position.dtype, np.integer) and isinstance(segment, np.ndarray)
    return known and bool((np.diff(position, axis=0) == 1).all() and (segment == segment[:1]).all() and segment[0])


def both_stand(q_site: Site, k_site: Site) -> Bool[Array, "T S"]:
    """True for pairs in which neither token is a class token or a register."""
    return (q_site.prefix == 0)[:, None] & (k_site.prefix == 0)[None]


def axes(site: Site) -> Shaped[Array, "T A"]:
    """Positions with their axes spelled out: [T] becomes [T, 1]."""
    return site.position[:, None] if site.position.ndim == 1 else site.position


def order_of(site: Site) -> Shaped[Array, " T"]:
    """The numbers by which the tokens of a document come one after the other: `site.order`, or else their positions.

    Sums over the tokens between two go by it, so that no causal query counts a later token, wherever a map shows it.
    """
    return axes(site)[:, 0] if isinstance(site.order, tuple) else site.order


def moved_in_order(site: Site, position: Shaped[Array, "T *A"]) -> Site:
    """Moves tokens to other positions and keeps their present order; on several axes they have no order."""
    one_axis = axes(site).shape[1] == 1
    return site._replace(position=position, order=order_of(site) if one_axis else site.order)
