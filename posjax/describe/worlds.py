"""Small worlds in which encodings are measured: a few tokens, a random content and an encoding's parameters."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from posjax.attention import BEFORE_ATTENTION, attend
from posjax.attention.attend import finish, orders_of, transform
from posjax.attention.blockwise import blockwise
from posjax.encoding import Camera, Dims, Encoding, Needs, Params, Placed, PositionMap, Relation, Site, Sum, axes

_LINE, _GRID, _PREFIX = 24, (6, 7), 2
_AWAKE = 0.3  # standard deviation of parameters that an encoding starts at zero


class HookError(ValueError):
    """A hook returned a value that the contract does not allow."""


class World(NamedTuple):
    """The inputs of one attention layer."""

    encoding: Encoding
    params: Params
    x: jax.Array  # [T, M]
    site: Site  # as a model would give it, not yet placed
    weights: jax.Array  # [3, M, H, D]: the projections to q, k and v

    @property
    def placed(self) -> Site:
        return site_from("place", self.encoding.place(self.params, self.site), len(self.x))


class Part(NamedTuple):
    """One member of a composition, where its tokens stand when it sees them."""

    encoding: Encoding
    params: Params
    site: Site


def default_dims(encoding: Encoding, num_axes: int) -> Dims:
    """3 heads (no power of two) of few channels, and tables with room to move in."""
    if num_axes == 2:
        return Dims(24, 3, 8, grid=(_GRID[0], grid_width(encoding) or _GRID[1]), prefix=_PREFIX)
    if num_axes == 1:
        return Dims(24, 3, 8, length=_LINE)
    return Dims(24 * num_axes, 3, 8 * num_axes, prefix=_PREFIX)


def make_world(encoding: Encoding, dims: Dims, num_axes: int) -> World:
    """14 tokens on a line that begins at 2, or 12 on a grid behind 2 that stand nowhere."""
    extent = (3, 2, 2, *[1] * (num_axes - 3)) if num_axes > 2 else (3, 4)
    site = box((14,), shift=2) if num_axes == 1 else box(extent, prefix=_PREFIX)
    x = normal(2, len(site.segment), dims.width)
    weights = 0.3 * normal(3, 3, dims.width, dims.num_heads, dims.head_dim)
    return World(encoding, awake(encoding.init(jax.random.key(1), dims))[0], x, with_relation(encoding, site), weights)


def shaped(hook: str, value: Any, words: str, *shapes: tuple[int, ...]) -> Any:
    """Returns what a hook returned; a number has the shape ().

    Raises:
      HookError: it has none of the shapes, which `words` describe.
    """
    shape = () if isinstance(value, int | float) else getattr(value, "shape", None)
    if shape not in shapes:
        returned = type(value).__name__ if shape is None else list(shape)
        sizes = f", here {' or '.join(str(list(each)) for each in shapes if each)}"
        raise HookError(f"{hook} returned {returned}, expected {words}{sizes}")
    return value


def site_from(hook: str, value: Any, count: int) -> Site:
    """Returns the site that a hook returned.

    Raises:
      HookError: it has not `count` tokens, or it is another value.
    """
    if not isinstance(value, Site):
        raise HookError(f"{hook} returned {type(value).__name__}, expected the site: site._replace(...)")
    for leaf in jax.tree.leaves(value):
        if np.shape(leaf)[:1] != (count,):
            raise HookError(f"{hook} returned a site with a leaf of {list(np.shape(leaf))}, expected {count} rows")
    return value


def axes_taken(encoding: Encoding) -> tuple[int, ...]:
    """The numbers of position axes that an encoding takes: one at least.

    Raises:
      ValueError: where no number suits all of its parts.
    """
    if encoding.dimensions:
        return encoding.dimensions
    parts = getattr(encoding, "members", ())
    each = "; ".join(f"{part} takes {' or '.join(map(str, part.dimensions)) or 'none'}" for part in parts)
    raise ValueError(f"no number of position axes suits all parts of {encoding}{f' ({each})' * bool(each)}")


def normal(seed: int, *shape: int) -> jax.Array:
    """Independent standard normal numbers; NumPy's, which compile nothing."""
    return jax.device_put(np.random.default_rng(seed).standard_normal(shape).astype(np.float32))


def places(extent: tuple[int, ...]) -> np.ndarray:
    """Coordinates [T, A] of all places of a box of this extent, the last axis running fastest."""
    return np.stack(np.indices(extent), axis=-1).reshape(-1, len(extent))


def box(extent: tuple[int, ...], shift: int | tuple[int, ...] = 0, prefix: int = 0) -> Site:
    """The sites of one document on all places of a box, moved by `shift`, behind `prefix` tokens that stand nowhere."""
    position = np.pad(places(extent) + np.asarray(shift), [(prefix, 0), (0, 0)]).astype(np.int32)
    nowhere = np.pad(np.arange(1, prefix + 1), (0, len(position) - prefix)).astype(np.int32)
    return Site(position[:, 0] if len(extent) == 1 else position, np.ones(len(position), np.int32), nowhere)


def with_relation(encoding: Encoding, site: Site) -> Site:
    """The site, with a relation where the encoding needs one: a camera of each token, of each view where there are views, or
    a graph.

    Of the graph tokens are nodes, and edges lead to the next places.
    """
    if Needs.RELATION not in encoding.needs or jax.tree.leaves(site.relation):
        return site
    position = np.asarray(axes(site))
    if Needs.CAMERAS in encoding.needs:
        index = position[:, 0] - position[:, 0].min() if position.shape[1] == 3 else np.arange(len(position))
        return site._replace(relation=tokens_at(_cameras(1 + index.max()), index))
    distance = np.abs(position[:, None] - position[None]).sum(axis=2).astype(np.int32)
    return site._replace(relation=Relation(np.arange(len(position), dtype=np.int32), distance))


def _cameras(count: int) -> Camera:
    """Cameras that turn about the vertical, step aside and zoom from token to token."""
    turn = np.linspace(-1, 1, count)
    view = np.tile(np.eye(4), (count, 1, 1))
    view[:, 0, 0] = view[:, 2, 2] = np.cos(turn)
    view[:, 0, 2], view[:, 2, 0] = np.sin(turn), -np.sin(turn)
    view[:, :3, 3] = np.stack([turn, turn**2, 0.5 * turn], axis=1)
    return Camera(
        view.astype(np.float32), np.stack([1.5 + turn / 2, 1.2 - turn / 4, turn / 9, 0 * turn], 1, dtype=np.float32)
    )


def awake(params: Params) -> tuple[Params, list[str]]:
    """Parameters with random numbers in place of leaves that are all zero, which show nothing; and those leaves' names.

    Raises:
      HookError: a leaf is another value than an array of numbers.
    """
    leaves, structure = jax.tree_util.tree_flatten_with_path(params)
    found, asleep = [], []
    for index, (path, leaf) in enumerate(leaves):
        if not isinstance(leaf, jax.Array | np.ndarray | np.generic) or leaf.dtype.kind in "OSU":
            raise HookError(f"init returned {leaf!r:.60}, expected arrays of numbers: jnp.asarray(...)")
        if leaf.size and not np.any(np.asarray(leaf)) and jnp.issubdtype(leaf.dtype, jnp.inexact):
            asleep.append(jax.tree_util.keystr(path, simple=True, separator="."))
            leaf = (_AWAKE * normal(4 + index, *leaf.shape)).astype(leaf.dtype)
        found.append(leaf)
    return jax.tree_util.tree_unflatten(structure, found), asleep


def placed_parts(encoding: Encoding, params: Params, site: Site) -> Iterator[Part]:
    """The members of a composition, each as a part; a position map comes before the encodings behind it."""
    if isinstance(encoding, Sum):
        for part, part_params in zip(encoding.parts, params, strict=True):
            yield from placed_parts(part, part_params, site)
    elif isinstance(encoding, Placed):
        yield Part(encoding.position_map, params[0], site)
        yield from placed_parts(encoding.encoding, params[1], encoding.position_map.place(params[0], site))
    else:
        yield Part(encoding, params, site)


def grid_width(encoding: Encoding) -> int | None:
    """The width of the grid that a position map of the encoding is made for."""
    for part in getattr(encoding, "members", (encoding,)):
        if part is not encoding and (width := grid_width(part)):
            return width
        if isinstance(part, PositionMap) and isinstance(getattr(part, "width", None), int):
            return part.width
    return None


def evenly(count: int, most: int) -> list[int]:
    """`most` of `count` indices, evenly apart with both ends; all of them if they are no more."""
    return sorted({round(x) for x in np.linspace(0, count - 1, min(most, count))})


def tokens_at(site: Site, index: Any) -> Site:
    """The sites of some tokens."""
    return jax.tree.map(lambda leaf: leaf[index], site)


def joined(*some: Site) -> Site:
    """One row after the other."""
    return jax.tree.map(lambda *leaves: np.concatenate(leaves), *some)


def moved(site: Site, line: int = 5, grid: Sequence[int] = (2, 3, 4)) -> Site:
    """All tokens moved by `line` on a line, or by `grid` along each axis; further axes repeat it."""
    by = (line,) if site.position.ndim == 1 else grid
    return site._replace(position=site.position + np.resize(np.int32(by), site.position.shape[1:]))


def project(encoding: Encoding, params: Params, x, site: Site, weights, past: Site | None = None):
    """Codes added, state observed, and q, k and v: the part of a layer before attention. `site` is placed."""
    x = encoding.embed(params, x, site)
    site = encoding.observe(params, x, site, past)
    q, k, v = jnp.einsum("tm,nmhd->nthd", x, weights.astype(x.dtype))
    return q, k, v, site


def layer_output(
    encoding: Encoding,
    params: Params,
    x: jax.Array,
    site: Site,
    weights: jax.Array,
    *,
    placed: bool = False,
    tile: int | None = None,
    heads: Callable = lambda x: x,
    **options: Any,
) -> jax.Array:
    """One attention layer on tokens that stand at `site`.

    Args:
      placed: whether `site` has been placed.
      tile: the size of tiles of blockwise attention; dense attention where None.
      heads: changes the heads of keys and of values.
      options: of `attend`.
    """
    site = site if placed else encoding.place(params, site)
    q, k, v, site = project(encoding, params, x, site, weights)
    k, v = heads(k), heads(v)
    if tile is None:
        options = {"implementation": "dense", "consumed": BEFORE_ATTENTION} | options
        return attend(encoding, params, q, k, v, site, site, **options)
    orders = orders_of(q, k, options.pop("causal", False), options.pop("q_order", None), options.pop("k_order", None))
    operands = transform(encoding, params, q, k, v, site, site, *orders)
    return finish(
        encoding, params, blockwise(encoding, operands, scale=q.shape[-1] ** -0.5, tile=tile, **options), site
    )
