"""One attention layer on one world, run in the ways that properties compare.

Each run is one compiled program, made when a property first reads it. Rows of its batch are sequences of 14 tokens that
stand elsewhere, come in another order, or share their row: see `sequences`.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from posjax.attention import BEFORE_ATTENTION, attend_cached, empty_cache
from posjax.attention.cache import slots_needed
from posjax.describe.worlds import World, joined, layer_output, moved, project, tokens_at
from posjax.encoding import Needs, Site

COUNT = 14  # tokens of every world
PACKED = 5, 9  # tokens of two documents of a row, or of its padding and its document
PADDING = 7  # the padding in "stacked"
LATER = 8  # the first token whose content differs in "later"
SLOTS = 17  # of a cache: more than there are tokens
SHORT = 3, 8  # numbers of tokens, beside all of them, for an encoding that depends on their number
ORDER = np.random.default_rng(0).permutation(COUNT)
_DOCUMENTS = np.array([2, 2, 1, 1, 1, 0, 1, 1, 1, 1, 1, 1, 1, 1], np.int32)
_BLOCKS = np.array([1, 1, 1, 1, 1, 0, 1, 2, 2, 2, 2, 0, 2, 2], np.int32)
_REMOTE = dict(line=2**30 - 99, grid=(99 - 2**30, 2**24 + 1))


class Sequence(NamedTuple):
    """Tokens [T, M], and the site that a model would give them, not yet placed."""

    x: np.ndarray
    site: Site


class Runs:
    """The runs of a world. Results are NumPy arrays; a pair is (not causal, causal)."""

    def __init__(self, world: World):
        self.world = world
        self.sequences = sequences(world)

    @functools.cached_property
    def batch(self) -> tuple[dict, dict]:
        """Pair of outputs by name, of all sequences under vmap."""

        def run(w, batch):
            return _in_both_orders(lambda **order: jax.vmap(lambda each: layer(w, each, **order))(batch), COUNT)

        outs = self._compute(run, self._stacked(self.sequences))
        return tuple({name: each[index] for index, name in enumerate(self.sequences)} for each in outs)

    @functools.cached_property
    def documents(self) -> np.ndarray:
        """Pair of outputs of "documents" at sites that are known while tracing."""
        return self._known(self.sequences["documents"])

    @functools.cached_property
    def second(self) -> np.ndarray:
        """Pair of outputs of the second document of "packed" alone, at sites that are known while tracing."""
        x, site = self.sequences["plain"]
        return self._known(Sequence(x[PACKED[0] :], tokens_at(site, slice(PACKED[1]))))

    def _known(self, sequence: Sequence) -> np.ndarray:
        return self._compute(lambda w: _in_both_orders(functools.partial(layer, w, sequence), len(sequence.x)))

    @functools.cached_property
    def loop(self) -> dict[str, np.ndarray]:
        """Outputs of the sequences one by one, not causal."""
        run = lambda w, batch: jax.lax.map(functools.partial(layer, w), batch)  # noqa: E731
        outs = self._compute(run, self._stacked(self.sequences))
        return {name: outs[index] for index, name in enumerate(self.sequences)}

    @functools.cached_property
    def gradients(self) -> dict[str, Any]:
        """Outputs of "stacked" and "blocks" and their `Gradients`; every leaf is [causal, ...]."""
        names = "stacked", "blocks"

        def run(w, batch):
            return _in_both_orders(lambda **order: _with_gradients(w, batch, **order), COUNT)

        found = self._compute(run, self._stacked(names))
        return {name: tokens_at(found, (slice(None), index)) for index, name in enumerate(names)}

    @functools.cached_property
    def tiled(self) -> tuple[Any, Any]:
        """`gradients` of "blocks" in tiles of 5 tokens, beside another sequence, and in one; causal on lines only."""
        causal = self.world.site.position.ndim == 1
        run = functools.partial(_with_gradients, causal=causal, tile=5)
        found = self._compute(run, self._stacked(("backwards", "blocks")))
        return tokens_at(found, 1), tokens_at(self.gradients["blocks"], int(causal))

    @functools.cached_property
    def grouped(self) -> dict[str, np.ndarray]:
        """Outputs of "plain" with one key head for all query heads: repeated, shared, and shared in tiles; not causal."""
        heads = self.world.weights.shape[2]

        def run(w, plain):
            return {
                "repeated": layer(w, plain, heads=lambda x: jnp.repeat(x[:, :1], heads, axis=1)),
                "dense": layer(w, plain, heads=lambda x: x[:, :1]),
                "blockwise": layer(w, plain, heads=lambda x: x[:, :1], tile=5),
            }

        return self._compute(run, self.sequences["plain"])

    @functools.cached_property
    def decoded(self) -> tuple[np.ndarray, np.ndarray]:
        """Outputs of "plain" token by token, and the segments in its cache in the end."""
        return self._compute(decoded, self.sequences["plain"])

    @functools.cached_property
    def short(self) -> dict[int, np.ndarray]:
        """Causal outputs of the first tokens of "plain", by their number; they stand where they do in the whole."""

        def run(w, plain):
            whole = plain._replace(site=w.encoding.place(w.params, plain.site))
            return {n: layer(w, tokens_at(whole, slice(n)), placed=True, causal=True) for n in SHORT}

        return self._compute(run, self.sequences["plain"])

    def halves(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Outputs of tokens in bfloat16 at N x T positions, and of the same rounded tokens and projections in float32."""
        low = self.world.x.astype(jnp.bfloat16)

        def run(w, positions):
            exact = w._replace(weights=w.weights.astype(jnp.bfloat16).astype(jnp.float32))
            each = (w, low), (exact, low.astype(jnp.float32))
            place = lambda position: w.site._replace(position=position)  # noqa: E731
            return tuple(jax.vmap(lambda p, w=w, x=x: layer(w, Sequence(x, place(p))))(positions) for w, x in each)

        return self._compute(run, positions)

    def _compute(self, run, *arguments):
        """`run(world, *arguments)` by one program; parameters and projections are arguments too."""
        given = self.world.params, self.world.weights
        program = jax.jit(
            lambda given, *arguments: run(self.world._replace(params=given[0], weights=given[1]), *arguments)
        )
        return jax.device_get(program(given, *arguments))

    def _stacked(self, names):
        return jax.tree.map(lambda *leaves: np.stack(leaves), *(self.sequences[name] for name in names))


def sequences(w: World) -> dict[str, Sequence]:
    """The tokens of a world in other orders, at other places, with other documents."""
    x, site, token = np.asarray(w.x), w.site, np.arange(COUNT)
    standing = site._replace(prefix=np.zeros_like(site.prefix))
    first, second = (tokens_at(site, slice(count)) for count in PACKED)
    pad = first._replace(position=first.position - np.int32(9), segment=np.zeros_like(first.segment))
    twice, wandering = site.position.copy(), site.position.copy()
    twice[4] = twice[5]
    wandering[:2] = np.where((site.prefix[:2] > 0).reshape(-1, *[1] * (twice.ndim - 1)), twice[[8, 10]], twice[:2])
    # Two documents, each with a token that stands nowhere, on lines too; and the first of them elsewhere.
    begun = [part._replace(prefix=np.maximum(part.prefix, token[: len(part.prefix)] == 0)) for part in (first, second)]
    begun[1] = begun[1]._replace(segment=2 * second.segment)
    found = {
        "plain": (x, site),
        "later": (np.where(token[:, None] < LATER, x, -x), site),
        "beside": (x, joined(*begun)),
        "apart": (x, joined(moved(begun[0]), begun[1])),
        "documents": (x, site._replace(segment=_DOCUMENTS)),
        "permuted": (x[ORDER], tokens_at(site, ORDER)),
        "backwards": (x[::-1], tokens_at(site._replace(segment=(token > 3).astype(np.int32)), token[::-1])),
        "standing": (x, standing),
        "moved": (x, moved(standing)),
        "remote": (x, _remote(w, standing)),
        "packed": (x, joined(first, second._replace(segment=2 * second.segment))),
        "first": (x, joined(first, second._replace(segment=0 * second.segment))),
        "padded": (x * np.where(token < PACKED[0], np.float32(1e3), 1)[:, None], joined(pad, second)),
        "stacked": (x, site._replace(position=twice, segment=(token != PADDING).astype(np.int32))),
        "blocks": (x, site._replace(segment=_BLOCKS)),
        "nowhere": (x, site._replace(position=wandering)),
    }
    return {name: Sequence(*sequence) for name, sequence in found.items()}


def _remote(w: World, standing: Site) -> Site:
    """All tokens moved to where float32 holds every 64th whole number; not moved if the encoding takes no such positions."""
    whole = all(np.issubdtype(leaf.dtype, np.integer) for leaf in jax.tree.leaves(jax.eval_shape(lambda: w.placed)))
    if not (whole and w.encoding.relative and w.encoding.reach > 2**30):
        return standing
    there = moved(standing, **_REMOTE)
    try:
        jax.eval_shape(lambda: w.encoding.place(w.params, there))
    except ValueError:
        return standing
    return there


def layer(w: World, sequence: Sequence, **options):
    """`layer_output` of a sequence in place of the world's own."""
    return layer_output(w.encoding, w.params, *sequence, w.weights, **options)


def decoded(w: World, sequence: Sequence):
    """Outputs of a layer that reads one token after the other, and the segments of its cache in the end."""
    site = w.encoding.place(w.params, sequence.site)
    observed = jax.eval_shape(lambda: w.encoding.observe(w.params, sequence.x, site))
    slots = slots_needed(w.encoding, site, SLOTS)  # as few as `memory` promises to need

    def step(cache, token):
        x, site = jax.tree.map(lambda leaf: leaf[None], token)
        q, k, v, site = project(w.encoding, w.params, x, site, w.weights, cache.site)
        out, cache = attend_cached(w.encoding, w.params, q, k, v, site, cache, consumed=BEFORE_ATTENTION)
        return cache, out[0]

    cache, outs = jax.lax.scan(step, empty_cache(slots, *w.weights.shape[2:], observed), (sequence.x, site))
    return outs, cache.site.segment


def _in_both_orders(run, count: int):
    """`run` without and with causality, by one program: in an order in which all tokens come at once, nothing is hidden."""
    orders = jnp.stack([jnp.zeros(count, jnp.int32), jnp.arange(count, dtype=jnp.int32)])
    return jax.vmap(lambda order: run(causal=True, q_order=order, k_order=order))(orders)


def _with_gradients(w: World, batch: Sequence, **options):
    """Outputs of each sequence, and gradients to (params, x, positions where they may be floats, weights)."""

    def loss(params, x, position, weights, site):
        site = site if Needs.WHOLE_POSITIONS in w.encoding.needs else site._replace(position=position)
        out = layer_output(w.encoding, params, x, site, weights, **options)
        return jnp.sum(jnp.sin(out)), out

    run = jax.value_and_grad(loss, argnums=(0, 1, 2, 3), has_aux=True)
    position = batch.site.position.astype(jnp.float32)
    run = jax.vmap(run, in_axes=(None, 0, 0, None, 0))
    (_, outs), gradients = run(w.params, batch.x, position, w.weights, batch.site)
    return outs, gradients
