"""An encoding as numbers: its codes, the angles by which it turns, its biases and its logits.

`posjax explain`, figures and the scorecard read them here. Everything is read off the values of hooks, for any
encoding. First the parts of a composition, each by itself, with its tokens where the maps before it
put them (`worlds.placed_parts`). Then a whole encoding as its logit operator:

    L[c, h, i, j]: the logit of query content c at token i's place and key content c at token j's place, in head h

A content is one vector for all queries and one for all keys, drawn N(0, 1), so that nothing but places differs between
the entries of L[c, h]. Projections to q, k and v are the identity. All of the contract takes part: place, embed, observe
(of the key contents, which gates read), rotate, product, bias and mask. An encoding with `weigh` is read as
the logs of its weights: their softmax gives the weights back, normalised.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float

from posjax.attention.dense import shown, tile_logits, visible
from posjax.describe.worlds import Part, box, layer_output, normal, shaped, with_relation
from posjax.encoding import Dims, Encoding, Params, Site, axes

_SAME = 1e-4  # of a matrix entry, relative to its block
CONTENTS = 8  # of the logit operator


class Transform(NamedTuple):
    """A linear `rotate`: a matrix for queries and one for keys, of every token and head."""

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
    """Logits of one word that stands everywhere; `plain` is without any encoding.

    `encoded` and `seen` as in `weighed_logits`.
    """

    plain: Float[np.ndarray, "H T S"]
    encoded: Float[np.ndarray, "H T S"]
    seen: Bool[np.ndarray, "T S"]


def content(dims: Dims, count: int, seed: int = 0) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Random tokens [T, M], queries and keys [T, H, D]."""
    shape = (count, dims.num_heads, dims.head_dim)
    return normal(seed, count, dims.width), normal(seed + 100, *shape), normal(seed + 200, *shape)


def observed(part: Part, dims: Dims, seed: int = 0) -> Site:
    """The part's site, with the state that it reads off random tokens."""
    x, _, _ = content(dims, len(part.site.segment), seed)
    return call(part.encoding, "observe", part.params, x, part.site)


@functools.partial(jax.jit, static_argnums=(0, 1))
def call(encoding: Encoding, hook: str, *arguments: Any) -> Any:
    """Calls a hook as one program; its operations one by one would each be compiled."""
    return getattr(encoding, hook)(*arguments)


def codes(part: Part, dims: Dims) -> tuple[Float[np.ndarray, "T M"], bool]:
    """The code that `embed` adds to tokens, and whether it depends on their content (then: of random tokens)."""
    x, _, _ = content(dims, len(part.site.segment))
    to_nothing, to_something = map(np.asarray, _codes(*part, x))
    room = 1e-5 * (np.abs(to_nothing).max() + np.abs(x).max())
    depends = bool(np.abs(to_something - to_nothing).max() > room)
    return to_something if depends else to_nothing, depends


@functools.partial(jax.jit, static_argnums=0)
def _codes(encoding, params, site, x):
    """Codes that `embed` adds to tokens of zeros, and to tokens [T, M]."""
    return encoding.embed(params, jnp.zeros_like(x), site), encoding.embed(params, x, site) - x


def linear_rotation(part: Part, dims: Dims, seed: int = 0) -> Transform | None:
    """The matrices of `rotate`; None where it is not linear in q and k."""
    site = observed(part, dims, seed)
    _, q, k = content(dims, len(site.segment), seed)
    query, key, error = _matrices(part.encoding, part.params, q, k, site)
    return Transform(np.asarray(query, np.float64), np.asarray(key, np.float64)) if error < 1e-4 else None


@functools.partial(jax.jit, static_argnums=0)
def _matrices(encoding, params, q, k, site):
    """Matrices [T, H, C, D] by which `rotate` would act on queries and keys if it was linear, and its distance from that."""

    def rotate(q, k):
        return encoding.rotate(params, q, site, k, site)

    found = jax.lax.map(lambda unit: rotate(*(jnp.broadcast_to(unit, x.shape) for x in (q, k))), jnp.eye(q.shape[-1]))
    found = [jnp.moveaxis(matrix, 0, -1) for matrix in found]
    errors = [
        jnp.abs(jnp.einsum("thcd,thd->thc", matrix, x) - turned).max()
        for matrix, x, turned in zip(found, (q, k), rotate(q, k), strict=True)
    ]
    return *found, jnp.maximum(*errors) / jnp.abs(q).max()


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
    """The bias of random queries and keys, and whether it depends on their content."""
    site = observed(part, dims)
    count = len(site.segment)
    _, q, k = content(dims, count)
    whole = (dims.num_heads, count, count)
    found = call(part.encoding, "bias", part.params, q, site, k, site)
    found = shaped("bias", found, "[H, T, S], [1, T, S] or a number", whole, (1, *whole[1:]), ())
    found = np.broadcast_to(found, whole)
    other_site = observed(part, dims, seed=1) if jax.tree.leaves(site.state) else site
    other = np.broadcast_to(call(part.encoding, "bias", part.params, k, other_site, q, other_site), whole)
    return found, bool(np.abs(found - other).max() > 1e-6)


def mask(part: Part) -> Bool[np.ndarray, "T S"]:
    """Marks the keys (columns) that each query (row) may see."""
    count = len(part.site.segment)
    return np.broadcast_to(shown(part.encoding, part.site, part.site), (count, count))


def weighed(part: Part, dims: Dims) -> Float[np.ndarray, "T S"]:
    """The weights that the first head makes of logits of 0."""
    site = observed(part, dims)
    seen = visible(part.encoding, site, site)
    logits = np.zeros((dims.num_heads, *seen.shape), np.float32)
    return np.asarray(call(part.encoding, "weigh", part.params, logits, seen, site, site))[0]


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
    """Distances, query less key along the first axis, that a position map shows to an encoding behind it."""
    measured = part.encoding >> Ruler()
    site = measured.place((part.params, ()), part.site)
    _, q, k = content(dims, len(site.segment))
    return np.asarray(measured.bias((part.params, ()), q, site, k, site))[0]


def outputs_beside(part: Part, dims: Dims, query: int) -> Float[np.ndarray, "S H E"]:
    """The output of one query beside the value of each key, if it looked at that key alone."""
    count = len(part.site.segment)
    site = observed(part, dims)
    weights = np.zeros((count, dims.num_heads, count, count), np.float32)  # by the key that the query looks at
    weights[np.arange(count), :, query, np.arange(count)] = 1
    return np.stack([call(part.encoding, "read", part.params, each, site, site)[query] for each in weights])


def carried(part: Part, dims: Dims, query: int) -> Float[np.ndarray, "S H E"]:
    """The output of one query for the first unit vector as the value of each key, if it looked at that key alone."""
    site = observed(part, dims)
    unit = np.zeros((len(part.site.segment), dims.num_heads, dims.head_dim), np.float32)
    unit[:, :, 0] = 1
    here = jax.tree.map(lambda leaf: np.broadcast_to(leaf[query], leaf.shape), site)
    values = call(part.encoding, "value", part.params, unit, site)
    return np.asarray(call(part.encoding, "output", part.params, values, here))


def same_word(encoding: Encoding, params: Params, dims: Dims, site: Site) -> Logits:
    """Logits between copies of one word, for a random one and random projections to queries and keys."""
    word = content(dims, 1)[0][0]
    weights = normal(5, 2, dims.width, dims.num_heads, dims.head_dim) * dims.width**-0.5
    return Logits(*map(np.asarray, word_logits(encoding, params, word, weights, site)))


@functools.partial(jax.jit, static_argnums=0)
def word_logits(encoding: Encoding, params: Params, word: jax.Array, weights: jax.Array, site: Site) -> Logits:
    """Logits between copies of a word [M] at all places, under projections [2, M, H, D] to queries and keys."""
    x = jnp.broadcast_to(word, (len(site.segment), len(word)))
    plain = weights.shape[-1] ** -0.5 * jnp.einsum("thd,shd->hts", *jnp.einsum("tm,nmhd->nthd", x, weights))
    return Logits(plain, *layer_logits(encoding, params, x, weights, site))


def layer_logits(encoding: Encoding, params: Params, x: jax.Array, weights: jax.Array, site: Site):
    """`weighed_logits` of tokens [T, M] at all places, under projections [2, M, H, D] to queries and keys."""
    placed = encoding.place(params, site)
    x = encoding.embed(params, x, placed)
    placed = encoding.observe(params, x, placed)
    q, k = jnp.einsum("tm,nmhd->nthd", x, weights)
    rotated = encoding.rotate(params, q, placed, k, placed)
    return weighed_logits(encoding, weights.shape[-1] ** -0.5, params, q, k, *rotated, placed, placed)


def offsets(site: Site) -> np.ndarray:
    """[T, S, A] query's position less the key's."""
    position = np.asarray(axes(site), np.float64)
    return position[:, None] - position[None]


def spread_at_equal_offsets(values: Float[np.ndarray, "H T S"], site: Site, seen=True) -> float:
    """Largest difference of values between pairs of tokens that are equally far apart: 0 for a relative encoding."""
    stand = np.asarray(site.prefix) == 0
    keep = np.broadcast_to(seen, values.shape[1:]) & stand[:, None] & stand[None]
    _, group = np.unique(np.round(offsets(site)[keep], 6), axis=0, return_inverse=True)
    kept = values[:, keep]
    high, low = np.full((len(kept), group.max() + 1), -np.inf), np.full((len(kept), group.max() + 1), np.inf)
    for head in range(len(kept)):
        np.maximum.at(high[head], group.ravel(), kept[head])
        np.minimum.at(low[head], group.ravel(), kept[head])
    return float((high - low).max())


class Operator(NamedTuple):
    """A tile of the logit operator, on the host."""

    value: np.ndarray  # [C, H, R, T] float32
    seen: np.ndarray  # [R, T] bool, True for keys that the encoding and the documents let a query see
    scale: float = 1.0  # the standard deviation of the visible logits, over contents, heads and places

    @property
    def masked(self) -> np.ndarray:
        return np.where(self.seen, self.value, -np.inf)


class Probe(NamedTuple):
    """An encoding in a model of given sizes, with tokens on all places of a box of some extent."""

    encoding: Encoding
    params: Params
    dims: Dims
    extent: tuple[int, ...]  # (tokens,) on a line, (height, width) on a grid, three of them in a volume
    q: np.ndarray  # [C, M], contents of the queries
    k: np.ndarray

    @property
    def num_tokens(self) -> int:
        return int(np.prod(self.extent))

    @property
    def num_axes(self) -> int:
        return len(self.extent)


def make_probe(encoding: Encoding, params: Params, dims: Dims, extent: tuple[int, ...], seed: int) -> Probe:
    q, k = np.random.default_rng(seed).normal(size=(2, CONTENTS, dims.width)).astype(np.float32)
    return Probe(encoding, params, dims, extent, q, k)


def logits(
    probe: Probe, site: Site, rows: np.ndarray | None = None, *, params: Any = None, aligned: bool = False
) -> Operator:
    """The operator on tokens at `site`, for the queries of `rows` (all by default).

    The sites are traced: a table hands out NaN for a place that it does not have.

    Raises:
      ValueError: for places that a position map refuses.
    """
    site = with_relation(probe.encoding, site)
    probe.encoding.place(probe.params, site)  # with places that are known
    rows = np.arange(site.segment.shape[0]) if rows is None else rows
    params = probe.params if params is None else params
    q = probe.k if aligned else probe.q
    value, seen = map(np.asarray, _operator(probe.encoding, probe.dims.num_heads, params, q, probe.k, site, rows))
    return Operator(value, seen, float(value[:, :, seen].std()))


@functools.partial(jax.jit, static_argnums=(0, 1))
def _operator(encoding, num_heads, params, q, k, site, rows):
    """([C, H, R, T] logits, [R, T] visibility) of contents [C, M]."""

    def one(contents):  # at a time: n x n x hidden is large enough
        tokens = (jnp.broadcast_to(x, (site.segment.shape[0], *x.shape)) for x in contents)
        return content_logits(encoding, num_heads, params, *tokens, site, rows)

    value, seen = jax.lax.map(one, (q, k))
    return value, seen[0]


def content_logits(encoding, num_heads, params, q_tokens, k_tokens, site, rows):
    """([H, R, T] logits, [R, T] visibility) of the tokens [T, M] of queries and of keys."""
    q, rotated_q, k, rotated_k, observed = projected(encoding, num_heads, params, q_tokens, k_tokens, site)
    row_site = jax.tree.map(lambda leaf: jnp.asarray(leaf)[rows], observed)
    return _tile(encoding, params, q[rows], k, rotated_q[rows], rotated_k, row_site, observed)


def _tile(encoding, params, q, k, rotated_q, rotated_k, q_site, k_site):
    scale = q.shape[-1] ** -0.5
    value, _ = weighed_logits(encoding, scale, params, q, k, rotated_q, rotated_k, q_site, k_site)
    return value, visible(encoding, q_site, k_site)


def projected(encoding, num_heads, params, q_tokens, k_tokens, site):
    """(q, q', k, k', site with its state) of the tokens [T, M] of queries and keys."""
    placed = encoding.place(params, site)
    q_tokens, k_tokens = (encoding.embed(params, x, placed) for x in (q_tokens, k_tokens))
    observed = encoding.observe(params, k_tokens, placed)
    q, k = (x.reshape(x.shape[0], num_heads, -1) for x in (q_tokens, k_tokens))
    rotated_q, rotated_k = encoding.rotate(params, q, observed, k, observed)
    return q, rotated_q, k, rotated_k, observed


def cached_logits(probe: Probe, long: tuple[int, ...], rows: np.ndarray) -> np.ndarray:
    """[C, H, R, n]: the queries of `rows` in the box `long`, on keys that were transformed while only `extent` was there.

    With all of `long` at hand from the start it is `logits`.
    """
    short, long = (with_relation(probe.encoding, box(extent)) for extent in (probe.extent, long))
    arguments = (probe.params, probe.q, probe.k, short, long, rows)
    return np.asarray(_cached_operator(probe.encoding, probe.dims.num_heads, *arguments))


@functools.partial(jax.jit, static_argnums=(0, 1))
def _cached_operator(encoding, num_heads, params, q, k, short, long, rows):
    def one(contents):
        before, now = (
            [jnp.broadcast_to(x, (site.segment.shape[0], *x.shape)) for x in contents] for site in (short, long)
        )
        _, _, k, rotated_k, k_site = projected(encoding, num_heads, params, *before, short)
        q, rotated_q, _, _, q_site = projected(encoding, num_heads, params, *now, long)
        q_site = jax.tree.map(lambda leaf: jnp.asarray(leaf)[rows], q_site)
        return _tile(encoding, params, q[rows], k, rotated_q[rows], rotated_k, q_site, k_site)[0]

    return jax.lax.map(one, (q, k))


def attention(probe: Probe, x: np.ndarray, site: Site) -> np.ndarray:
    """[T, H, D]: one bidirectional attention layer on tokens [T, M], with identity projections."""
    dims = probe.dims
    weights = np.broadcast_to(np.eye(dims.width, dtype=np.float32), (3, dims.width, dims.width))
    weights = weights.reshape(3, dims.width, dims.num_heads, -1)
    site = with_relation(probe.encoding, site)
    return np.asarray(_layer(probe.encoding, probe.params, x, site, weights))


_layer = jax.jit(layer_output, static_argnums=0)


def whole(probe: Probe, extent: tuple[int, ...]) -> Part:
    """The whole encoding as one part, on a box.

    Its sites are traced: a table hands out NaN for a place that it does not have.
    """
    site = with_relation(probe.encoding, box(extent))
    return Part(probe.encoding, probe.params, jax.jit(probe.encoding.place)(probe.params, site))


def whole_codes(probe: Probe, extent: tuple[int, ...]) -> np.ndarray | None:
    """Codes [T, M] in float64 that `embed` adds to any tokens; None if that is nothing, or depends on the tokens."""
    code, depends = codes(whole(probe, extent), probe.dims)
    return None if depends or not code.any() else np.asarray(code, np.float64)
