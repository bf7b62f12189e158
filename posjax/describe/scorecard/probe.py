"""What the scorecard measures on: an encoding as its logit operator.

    L[c, h, i, j]: the logit of query content c at the place of token i and key content c at that of token j, in head h

A content is one vector for all queries and one for all keys, drawn N(0, 1), so that nothing but places differs between
the entries of L[c, h]. Projections to q, k and v are the identity. All of the contract takes part: place, embed, observe
(of the key contents: gates read what is remembered), rotate, product, bias and mask. What stands for the softmax (weigh)
is read as the logs of its weights: their softmax gives the weights back, normalised.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from posjax.attention import BEFORE_ATTENTION, attend
from posjax.attention.dense import visible
from posjax.describe.probes import weighed_logits
from posjax.describe.worlds import with_relation
from posjax.encoding import Dims, Encoding, Params, Site

CONTENTS = 8


class Logits(NamedTuple):
    """A tile of the operator, on the host."""

    value: np.ndarray  # [C, H, R, T] float32
    seen: np.ndarray  # [R, T] bool, what the encoding and the documents let a query see
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


def box(extent: tuple[int, ...], shift: int | tuple[int, ...] = 0) -> Site:
    """The sites of one document on all places of a box, the last axis running fastest, moved by `shift`."""
    position = np.stack(np.indices(extent), axis=-1).reshape(-1, len(extent)) + np.asarray(shift)
    position = position.astype(np.int32)
    ones = np.ones(len(position), np.int32)
    return Site(position[:, 0] if len(extent) == 1 else position, ones, np.zeros_like(ones))


def places(extent: tuple[int, ...]) -> np.ndarray:
    """[T, A] coordinates of the tokens of `box(extent)`."""
    return np.stack(np.indices(extent), axis=-1).reshape(-1, len(extent))


def logits(
    probe: Probe, site: Site, rows: np.ndarray | None = None, *, params: Any = None, aligned: bool = False
) -> Logits:
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
    value, seen = _operator(probe.encoding, probe.dims.num_heads, params, q, probe.k, site, rows)
    value, seen = np.asarray(value), np.asarray(seen)
    return Logits(value, seen, float(value[:, :, seen].std()))


@functools.partial(jax.jit, static_argnums=(0, 1))
def _operator(encoding, num_heads, params, q, k, site, rows):
    every = jnp.ones((site.segment.shape[0], 1))
    return operator(encoding, num_heads, params, q[:, None] * every, k[:, None] * every, site, rows)


def operator(encoding, num_heads, params, q_tokens, k_tokens, site, rows):
    """([C, H, R, T] logits, [R, T] visibility) of contents [C, T, M]."""

    def one(contents):
        return content_logits(encoding, num_heads, params, *contents, site, rows)

    value, seen = jax.lax.map(one, (q_tokens, k_tokens))  # one content at a time: n x n x hidden is large enough
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
    site = with_relation(probe.encoding, site)
    return np.asarray(_attention(probe.encoding, probe.dims.num_heads, probe.params, x, site))


@functools.partial(jax.jit, static_argnums=(0, 1))
def _attention(encoding, num_heads, params, x, site):
    placed = encoding.place(params, site)
    x = encoding.embed(params, x, placed)
    observed = encoding.observe(params, x, placed)
    q = x.reshape(x.shape[0], num_heads, -1)
    told = dict(implementation="dense", consumed=BEFORE_ATTENTION)
    return attend(encoding, params, q, q, q, observed, observed, **told)


def codes(encoding: Encoding, params: Params, width: int, site: Site, seed: int = 0) -> np.ndarray | None:
    """[T, M] in float64: what `embed` adds to any tokens; None if that is nothing, or depends on the tokens."""
    x = np.random.default_rng(seed).normal(size=(site.segment.shape[0], width)).astype(np.float32)
    code, added = _codes(encoding, params, x, with_relation(encoding, site))
    scale = np.abs(code).max()
    if scale == 0 or np.abs(added - code).max() > 1e-5 * (scale + np.abs(x).max()):
        return None
    return np.asarray(code, np.float64)


@functools.partial(jax.jit, static_argnums=0)
def _codes(encoding, params, x, site):
    placed = encoding.place(params, site)
    return encoding.embed(params, jnp.zeros_like(x), placed), encoding.embed(params, x, placed) - x


def transforms(probe: Probe, other_content: bool = False) -> tuple[np.ndarray, np.ndarray] | None:
    """[T, H, C, D] matrices by which `rotate` acts on queries and on keys at each place; None if it is not linear."""
    x = np.random.default_rng(1 + other_content).normal(size=(probe.num_tokens, probe.dims.width)).astype(np.float32)
    site = with_relation(probe.encoding, box(probe.extent))
    q_matrix, k_matrix, error = _transforms(probe.encoding, probe.dims.num_heads, probe.params, x, site)
    if not error < 1e-4:
        return None
    return np.asarray(q_matrix, np.float64), np.asarray(k_matrix, np.float64)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _transforms(encoding, num_heads, params, x, site):
    observed = encoding.observe(params, x, encoding.place(params, site))
    q = x.reshape(x.shape[0], num_heads, -1)

    def rotate(q):
        return encoding.rotate(params, q, observed, q, observed)

    q_matrix, k_matrix = jax.lax.map(lambda e: rotate(jnp.broadcast_to(e, q.shape)), jnp.eye(q.shape[-1]))
    q_matrix, k_matrix = (jnp.moveaxis(m, 0, -1) for m in (q_matrix, k_matrix))
    errors = [
        jnp.abs(jnp.einsum("thcd,thd->thc", m, q) - y).max()
        for m, y in zip((q_matrix, k_matrix), rotate(q), strict=True)
    ]
    return q_matrix, k_matrix, jnp.maximum(*errors) / jnp.abs(q).max()
