"""What an encoding does, as numbers: its codes, the angles by which it turns, its biases and what attention sees of it.

Everything is read off the hooks by what they return, so that it holds for any encoding. A part of a composition is
looked at by itself, with its tokens where the maps before it put them (`worlds.parts`).
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float

from posjax.attention.dense import shown, tile_logits, visible
from posjax.describe.worlds import Part, normal
from posjax.encoding import Dims, Encoding, Params, Site, axes

_SAME = 1e-4  # of a matrix entry, relative to its block


class Transform(NamedTuple):
    """What `rotate` does to queries and to keys, where that is linear: a matrix for every token and head."""

    query: Float[np.ndarray, "T H C D"]
    key: Float[np.ndarray, "T H C D"]


class Turns(NamedTuple):
    """A transform that turns pairs of channels and stretches them; channels in no pair are only stretched."""

    pairs: list[tuple[int, int]]
    angle: Float[np.ndarray, "T H P"]  # radians, within a half turn
    gain: Float[np.ndarray, "T H P"]
    single: list[int]
    single_gain: Float[np.ndarray, "T H F"]


class Logits(NamedTuple):
    """What attention sees of one word that stands everywhere; `plain` is without any encoding.

    `encoded` and `seen` are those of `weighed_logits`.
    """

    plain: Float[np.ndarray, "H T S"]
    encoded: Float[np.ndarray, "H T S"]
    seen: Bool[np.ndarray, "T S"]


def content(dims: Dims, count: int, seed: int = 0) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Random tokens [T, M], queries and keys [T, H, D]."""
    shape = (count, dims.num_heads, dims.head_dim)
    return normal(seed, count, dims.width), normal(seed + 100, *shape), normal(seed + 200, *shape)


def observed(part: Part, dims: Dims) -> Site:
    """The part's site, with what it reads off random tokens."""
    x, _, _ = content(dims, len(part.site.segment))
    return part.encoding.observe(part.params, x, part.site)


def codes(part: Part, dims: Dims) -> tuple[Float[np.ndarray, "T M"], bool]:
    """What `embed` adds to tokens, and whether that depends on what the tokens hold (then: random tokens)."""
    x, _, _ = content(dims, len(part.site.segment))
    to_nothing = np.asarray(part.encoding.embed(part.params, jnp.zeros_like(x), part.site))
    to_something = np.asarray(part.encoding.embed(part.params, x, part.site) - x)
    depends = np.abs(to_something - to_nothing).max() > 1e-5
    return (to_something if depends else to_nothing), bool(depends)


def transform(part: Part, dims: Dims) -> Transform | None:
    """The matrices of `rotate`; None where it is not linear in q and k."""
    site = observed(part, dims)
    count = len(site.segment)
    columns = []
    for unit in np.eye(dims.head_dim, dtype=np.float32):
        unit = jnp.asarray(np.broadcast_to(unit, (count, dims.num_heads, dims.head_dim)))
        columns.append(part.encoding.rotate(part.params, unit, site, unit, site))
    found = Transform(*(np.stack(each, axis=-1).astype(np.float64) for each in zip(*columns, strict=True)))
    _, q, k = content(dims, count)
    turned = part.encoding.rotate(part.params, q, site, k, site)
    expected = [np.einsum("thcd,thd->thc", m, np.asarray(x, np.float64)) for m, x in zip(found, (q, k), strict=True)]
    linear = all(np.allclose(a, b, atol=1e-4) for a, b in zip(turned, expected, strict=True))
    return found if linear else None


def turns(matrix: Float[np.ndarray, "T H C D"]) -> Turns | None:
    """Reads the pairs and their angles off a transform; None where it mixes more than two channels or shears them."""
    if matrix.shape[2] != matrix.shape[3]:
        return None
    mixed = (np.abs(matrix) > 0).any(axis=(0, 1))
    mixed |= mixed.T
    np.fill_diagonal(mixed, False)
    if mixed.sum(axis=1).max(initial=0) > 1:
        return None
    pairs = [(a, int(np.flatnonzero(mixed[a])[0])) for a in range(len(mixed)) if mixed[a].any()]
    pairs = [(a, b) for a, b in pairs if a < b]
    a, b = (np.array([pair[side] for pair in pairs], int) for side in (0, 1))
    twice_cos, twice_sin = matrix[..., a, a] + matrix[..., b, b], matrix[..., b, a] - matrix[..., a, b]
    gain = np.hypot(twice_cos, twice_sin) / 2
    shear = np.abs(matrix[..., a, a] - matrix[..., b, b]) + np.abs(matrix[..., b, a] + matrix[..., a, b])
    if (shear > _SAME * gain + 1e-12).any():
        return None
    single = [c for c in range(len(mixed)) if not mixed[c].any()]
    return Turns(pairs, np.arctan2(twice_sin, twice_cos), gain, single, matrix[..., single, single])


def frequencies(found: Turns, origin: Site, placed: Site) -> Float[np.ndarray, "A H P"] | None:
    """Radians per unit of position along each axis, from neighbours at the origin; None where none are to be seen.

    Args:
      origin: where the model put the tokens, `placed`: where the encoding sees them.
    """
    before, after = np.asarray(axes(origin)), np.asarray(axes(placed), np.float64)
    found_at = {tuple(p): t for t, (p, n) in enumerate(zip(before.tolist(), origin.prefix, strict=True)) if not n}
    start = found_at.get((0,) * before.shape[1])
    rates = []
    for axis in range(after.shape[1]):
        step = tuple(int(other == axis) for other in range(before.shape[1]))
        unit = found_at.get(step if after.shape[1] == before.shape[1] else (0,) * (before.shape[1] - 1) + (1,))
        if start is None or unit is None or (distance := after[unit, axis] - after[start, axis]) == 0:
            return None
        difference = found.angle[unit] - found.angle[start]
        rates.append((np.mod(difference + np.pi, 2 * np.pi) - np.pi) / distance)
    return np.stack(rates)


def bias(part: Part, dims: Dims) -> tuple[Float[np.ndarray, "H T S"], bool]:
    """The bias of random queries and keys, and whether it depends on what they hold."""
    site = observed(part, dims)
    count = len(site.segment)
    _, q, k = content(dims, count)
    whole = (dims.num_heads, count, count)
    found = np.broadcast_to(part.encoding.bias(part.params, q, site, k, site), whole)
    other_site = site
    if jax.tree.leaves(site.state):
        x, _, _ = content(dims, count, seed=1)
        other_site = part.encoding.observe(part.params, x, part.site)
    other = np.broadcast_to(part.encoding.bias(part.params, k, other_site, q, other_site), whole)
    return found, bool(np.abs(found - other).max() > 1e-6)


def mask(part: Part) -> Bool[np.ndarray, "T S"]:
    """Which key (column) each query (row) may see."""
    count = len(part.site.segment)
    return np.broadcast_to(shown(part.encoding, part.site, part.site), (count, count))


def weighed(part: Part, dims: Dims) -> Float[np.ndarray, "T S"]:
    """The weights that the first head makes of logits of 0."""
    site = observed(part, dims)
    seen = visible(part.encoding, site, site)
    return np.asarray(part.encoding.weigh(part.params, jnp.zeros((dims.num_heads, *seen.shape)), seen, site, site))[0]


def weighed_logits(
    encoding: Encoding, scale: float, params: Params, q, k, rotated_q, rotated_k, q_site: Site, k_site: Site
) -> tuple[Float[jax.Array, "H T S"], Bool[jax.Array, "T S"]]:
    """Logits whose softmax gives the weights of attention, normalised, and which keys have any weight.

    They are attention's own. Of an encoding that weighs without a softmax (`weigh`) they are the logs of its weights; a
    weight of 0 has the log of the smallest normal number, and a key of weight 0 in all heads is not seen.
    """
    logits = tile_logits(encoding, scale, params, q, k, rotated_q, rotated_k, q_site, k_site)
    logits = jnp.broadcast_to(logits, (q.shape[1], *logits.shape[1:]))
    seen = jnp.broadcast_to(visible(encoding, q_site, k_site), logits.shape[1:])
    if "weigh" not in encoding.hooks:
        return logits, seen
    weights = encoding.weigh(params, logits, seen, q_site, k_site)
    return jnp.log(jnp.maximum(weights, jnp.finfo(jnp.float32).tiny)), seen & (weights > 0).any(axis=0)


class Ruler(Encoding):
    """Its bias is the first axis of query's position less key's."""

    def bias(self, params, q, q_site, k, k_site):
        first = [jnp.asarray(axes(site)[:, 0], jnp.float32) for site in (q_site, k_site)]
        return jnp.broadcast_to(first[0][:, None] - first[1][None], (q.shape[1], q.shape[0], k.shape[0]))


def apparent_distance(part: Part, dims: Dims) -> Float[np.ndarray, "T S"]:
    """How far apart, query less key along the first axis, a position map makes tokens seem to an encoding behind it."""
    measured = part.encoding >> Ruler()
    site = measured.place((part.params, ()), part.site)
    _, q, k = content(dims, len(site.segment))
    return np.asarray(measured.bias((part.params, ()), q, site, k, site))[0]


def read_beside(part: Part, dims: Dims, query: int) -> Float[np.ndarray, "S H E"]:
    """What one query reads beside the value of each key, if it looked at that key alone."""
    count = len(part.site.segment)
    site = observed(part, dims)

    def look(key):
        weights = jnp.zeros((dims.num_heads, count, count)).at[:, query, key].set(1.0)
        return part.encoding.read(part.params, weights, site, site)[query]

    return np.stack([look(key) for key in range(count)])


def carried(part: Part, dims: Dims, query: int) -> Float[np.ndarray, "S H E"]:
    """What one query reads of the first unit vector, as the value of each key, if it looked at that key alone."""
    site = observed(part, dims)
    unit = jnp.zeros((len(part.site.segment), dims.num_heads, dims.head_dim)).at[:, :, 0].set(1.0)
    here = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf[query], leaf.shape), site)
    return np.asarray(part.encoding.output(part.params, part.encoding.value(part.params, unit, site), here))


def same_word(encoding: Encoding, params: Params, dims: Dims, site: Site) -> Logits:
    """Logits between copies of one word, for a random one and random projections to queries and keys."""
    x, _, _ = content(dims, 1)
    x = jnp.broadcast_to(x, (len(site.segment), dims.width))
    weights = normal(5, 2, dims.width, dims.num_heads, dims.head_dim) * dims.width**-0.5
    scale = dims.head_dim**-0.5
    q, k = jnp.einsum("tm,nmhd->nthd", x, weights)
    plain = scale * jnp.einsum("thd,shd->hts", q, k)
    placed = encoding.place(params, site)
    x = encoding.embed(params, x, placed)
    placed = encoding.observe(params, x, placed)
    q, k = jnp.einsum("tm,nmhd->nthd", x, weights)
    rotated = encoding.rotate(params, q, placed, k, placed)
    return Logits(*map(np.asarray, (plain, *weighed_logits(encoding, scale, params, q, k, *rotated, placed, placed))))


def offsets(site: Site) -> np.ndarray:
    """[T, S, A] query's position less the key's."""
    position = np.asarray(axes(site), np.float64)
    return position[:, None] - position[None]


def spread_at_equal_offsets(values: Float[np.ndarray, "H T S"], site: Site, seen=True) -> float:
    """How much values differ between pairs of tokens that are equally far apart: 0 for what is relative."""
    stand = np.asarray(site.prefix) == 0
    keep = np.broadcast_to(seen, values.shape[1:]) & stand[:, None] & stand[None]
    _, group = np.unique(np.round(offsets(site)[keep], 6), axis=0, return_inverse=True)
    kept = values[:, keep]
    high, low = np.full((len(kept), group.max() + 1), -np.inf), np.full((len(kept), group.max() + 1), np.inf)
    for head in range(len(kept)):
        np.maximum.at(high[head], group.ravel(), kept[head])
        np.minimum.at(low[head], group.ravel(), kept[head])
    return float((high - low).max())
