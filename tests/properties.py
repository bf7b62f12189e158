"""Both sides of the properties of a case, out of one program, and of those that cost more, out of another.

tests/encodings/test_properties.py compares them.

Rows of one batch are sequences of 14 tokens that stand elsewhere, come in another order, or share their row; see `variants`.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from cases import HEAD_DIM, HEADS, World, forward, joined, moved, project, rows, world
from members import LINE, Case

import posjax as pj
from posjax.attention import BEFORE_ATTENTION, attend_cached, empty_cache
from posjax.encoding import Needs

COUNT = 14  # tokens of every case
PACKED = 5, 9  # tokens of two documents of a row, or of its padding and its document
ORDER = np.random.default_rng(0).permutation(COUNT)
DOCUMENTS = np.array([2, 2, 1, 1, 1, 0, 1, 1, 1, 1, 1, 1, 1, 1], np.int32)
BLOCKS = np.array([1, 1, 1, 1, 1, 0, 1, 2, 2, 2, 2, 0, 2, 2], np.int32)
PADDING = 7  # in "stacked"
LATER = 8  # the first of the tokens that are others in "later"
SLOTS = 17  # of a cache: more than there are tokens
SHORT = 3, 8  # how many tokens an encoding that depends on their number is shown beside all of them


class Sequence(NamedTuple):
    x: np.ndarray  # [T, M]
    site: pj.Site


class Sides(NamedTuple):
    """What one attention layer gives, in numpy. A pair is (not causal, causal)."""

    batch: tuple[dict, dict]  # outputs of all variants by vmap, by name
    known: (
        dict  # name: pair of outputs, of sites that are known while tracing; "second": the last of what "packed" packs
    )


class Further(NamedTuple):
    """As `Sides`, of what costs more."""

    batch: tuple[dict, dict]
    gradients: tuple[dict, dict]  # of a wavy sum of each variant, to (params, x, position, weights)
    loop: dict  # outputs one by one, not causal
    half: np.ndarray  # of "far" in bfloat16
    tiled: tuple  # (outputs, gradients) of "blocks" in tiles of 5 tokens, beside another sequence; causal on lines only
    grouped: dict  # of "plain" with one key head for all: "repeated" to as many as queries have, and by implementation
    cached: tuple | None  # "plain" token by token; and the segments in the cache in the end
    short: dict  # causal outputs of the first tokens of "plain", by their number; for those that depend on it


def variants(case: Case) -> dict[str, Sequence]:
    w = world(case)
    x, site, token = np.asarray(w.x), w.site, np.arange(COUNT)
    standing = site._replace(prefix=np.zeros_like(site.prefix))
    first, second = (rows(site, slice(count)) for count in PACKED)
    pad = first._replace(position=first.position - np.int32(9), segment=np.zeros_like(first.segment))
    far = Needs.WHOLE_POSITIONS not in w.encoding.needs and w.encoding.reach > 2**18
    whole = all(np.issubdtype(leaf.dtype, np.integer) for leaf in jax.tree.leaves(w.placed))
    remote = whole and w.encoding.relative and w.encoding.reach > 2**30 and not case.spec.startswith("raster")
    twice, wandering = site.position.copy(), site.position.copy()
    twice[4] = twice[5]
    wandering[:2] = wandering[[8, 10]]
    # Two documents, each with a token that stands nowhere, on lines too; and the first of them elsewhere.
    begun = [part._replace(prefix=np.maximum(part.prefix, token[: len(part.prefix)] == 0)) for part in (first, second)]
    begun[1] = begun[1]._replace(segment=2 * second.segment)
    found = {
        "plain": (x, site),
        "later": (np.where(token[:, None] < LATER, x, -x), site),
        "beside": (x, joined(*begun)),
        "apart": (x, joined(moved(begun[0], case, line=5, grid=(2, 3)), begun[1])),
        "documents": (x, site._replace(segment=DOCUMENTS)),
        "permuted": (x[ORDER], rows(site, ORDER)),
        "backwards": (x[::-1], rows(site._replace(segment=(token > 3).astype(np.int32)), token[::-1])),
        "standing": (x, standing),
        "moved": (x, moved(standing, case, line=5, grid=(2, 3))),
        "remote": (x, moved(standing, case, line=2**30 - 99, grid=(99 - 2**30, 2**24 + 1)) if remote else standing),
        "packed": (x, joined(first, second._replace(segment=2 * second.segment))),
        "first": (x, joined(first, second._replace(segment=0 * second.segment))),
        "padded": (x * np.where(token < 5, np.float32(1e3), 1)[:, None], joined(pad, second)),
        "stacked": (x, site._replace(position=twice, segment=(token != PADDING).astype(np.int32))),
        "blocks": (x, site._replace(segment=BLOCKS)),
        "far": (x, moved(site, case, line=2**17, grid=(2**17, 3)) if far else site),
        "nowhere": (x, site if case.kind == LINE else site._replace(position=wandering)),
    }
    return {name: Sequence(*sequence) for name, sequence in found.items()}


def sides(case: Case) -> Sides:
    """Traced and compiled once. All but the encoding and the sites in `known` are arguments of the program."""
    w, named = world(case), variants(case)
    x, site = named["plain"]
    first, second = PACKED
    known = {
        "documents": named["documents"],
        "second": Sequence(x[first:], rows(site, slice(second))),
    }

    @jax.jit
    def compute(params, weights, batch):
        def layer(sequence, **options):
            return forward(w.encoding, params, *sequence, weights, **options)

        return Sides(
            batch=ordered(lambda **order: jax.vmap(functools.partial(layer, **order))(batch), COUNT),
            known={name: ordered(functools.partial(layer, one), len(one.x)) for name, one in known.items()},
        )

    found = jax.device_get(compute(w.params, w.weights, stacked(named.values())))
    return Sides(
        batch=tuple(by_name(rows(found.batch, causal), named) for causal in (0, 1)),
        known={name: tuple(pair) for name, pair in found.known.items()},
    )


def further(case: Case) -> Further:
    """As `sides`, where positions may be floats, which do not hold those of "remote"."""
    w, named = world(case), variants(case)
    del named["remote"]

    @jax.jit
    def compute(params, weights, batch):
        seen = w._replace(params=params, weights=weights)
        plain, far = (rows(batch, list(named).index(name)) for name in ("plain", "far"))

        def layer(sequence, **options):
            return forward(*seen._replace(**sequence._asdict()), **options)

        outs, gradients = ordered(lambda **order: with_gradients(seen, batch, **order), COUNT)
        two = rows(batch, np.array([list(named).index(name) for name in ("backwards", "blocks")]))
        return Further(
            batch=outs,
            gradients=gradients,
            loop=jax.lax.map(layer, batch),
            half=layer(far._replace(x=far.x.astype(jnp.bfloat16))),
            tiled=rows(with_gradients(seen, two, causal=case.kind == LINE, tile=5), 1),
            grouped={
                "repeated": layer(plain, heads=lambda x: jnp.repeat(x[:, :1], HEADS, axis=1)),
                "dense": layer(plain, heads=lambda x: x[:, :1]),
                "blockwise": layer(plain, heads=lambda x: x[:, :1], implementation="blockwise"),
            },
            cached=None if Needs.BOTH_DIRECTIONS in w.encoding.needs else decoded(seen, plain),
            short=beginnings(seen, plain) if Needs.DOCUMENT_LENGTH in w.encoding.needs else {},
        )

    found = jax.device_get(compute(w.params, w.weights, stacked(named.values())))
    return found._replace(
        batch=tuple(by_name(rows(found.batch, causal), named) for causal in (0, 1)),
        gradients=tuple(by_name(rows(found.gradients, causal), named) for causal in (0, 1)),
        loop=by_name(found.loop, named),
    )


def stacked(sequences):
    return jax.tree.map(lambda *leaves: np.stack(leaves), *sequences)


def by_name(tree, names) -> dict:
    """What stacked sequences gave, one by one."""
    return {name: rows(tree, index) for index, name in enumerate(names)}


def ordered(run, count: int):
    """`run` without and with causality, by one program: in an order in which all tokens come at once, nothing is hidden."""
    orders = np.stack([np.zeros(count, np.int32), np.arange(count, dtype=np.int32)])
    return jax.vmap(lambda order: run(causal=True, q_order=order, k_order=order))(orders)


def with_gradients(w: World, batch: Sequence, **options):
    """Outputs of each sequence, and gradients to (params, x, positions where they may be floats, weights)."""

    def loss(params, x, position, weights, site):
        site = site if Needs.WHOLE_POSITIONS in w.encoding.needs else site._replace(position=position)
        out = forward(w.encoding, params, x, site, weights, **options)
        return jnp.sum(jnp.sin(out)), out

    run = jax.value_and_grad(loss, argnums=(0, 1, 2, 3), has_aux=True)
    position = batch.site.position.astype(jnp.float32)
    run = jax.vmap(run, in_axes=(None, 0, 0, None, 0))
    (_, outs), gradients = run(w.params, batch.x, position, w.weights, batch.site)
    return outs, gradients


def decoded(w: World, sequence: Sequence):
    """The outputs of a layer that is given one token after the other, and the segments of its cache in the end."""
    site = w.encoding.place(w.params, sequence.site)
    observed = jax.eval_shape(lambda: w.encoding.observe(w.params, sequence.x, site))

    def step(cache, token):
        x, site = jax.tree.map(lambda leaf: leaf[None], token)
        q, k, v, site = project(w.encoding, w.params, x, site, w.weights, cache.site)
        out, cache = attend_cached(w.encoding, w.params, q, k, v, site, cache, consumed=BEFORE_ATTENTION)
        return cache, out[0]

    cache, outs = jax.lax.scan(step, empty_cache(SLOTS, HEADS, HEAD_DIM, observed), (sequence.x, site))
    return outs, cache.site.segment


def beginnings(w: World, sequence: Sequence) -> dict:
    """Outputs of the first tokens, by their number, where they stand in the whole."""
    site = w.encoding.place(w.params, sequence.site)
    parts = {count: rows((sequence.x, site), slice(count)) for count in SHORT}
    return {n: forward(w.encoding, w.params, *part, w.weights, placed=True, causal=True) for n, part in parts.items()}
