"""Position maps that show every PAIR of tokens other positions: how inference-time methods extend a trained context.

`self_extend() >> rope()` computes the logits of `rope` under several views of where the tokens stand, and takes for each
pair the one that its distance selects. Distances stay within what the model was trained on, without any training.
They are made for causal models on a line; their treatment of keys after a query is documented here but not published.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Int32, Shaped

from posjax.encoding import Array, Encoding, Needs, Placed, PositionMap, Site, both_stand, moved_in_order
from posjax.encodings.masks import Sinks
from posjax.mask import Mask, Term, coordinates, offset
from posjax.spec import register


class Views(PositionMap):
    """A position map whose result depends on the other token of a pair; `>>` makes it `Viewed`."""

    dimensions = (1,)

    def views(self, position: Shaped[Array, "*T"]) -> list[tuple[Array, Array]]:
        """For each view, where tokens stand as queries and where they stand as keys."""
        raise NotImplementedError

    def select(self, q: Shaped[Array, "T 1"], k: Shaped[Array, "1 S"]) -> Int32[Array, "T S"] | Bool[Array, "T S"]:
        """The index of each pair's view, for a TILE of pairs, from their positions before any view."""
        raise NotImplementedError

    def __rshift__(self, other: Encoding) -> Encoding:
        return Viewed(self, other) if isinstance(other, Encoding) else NotImplemented


@dataclass(frozen=True)
class Viewed(Placed):
    """`views >> encoding`. Parameters: the pair (views', encoding's).

    Placed tokens keep their own position, by which views are selected. `site.state` holds their sites without a view, then
    for each view their sites as queries and as keys; `encoding` places and observes each of these as if it were alone.
    Codes are added, values transformed and keys weighed as without views. Sums along a document follow the order of the
    tokens' own positions under every view, so `self_extend() >> fox()` is `fox()`. A pair with a token that stands nowhere
    meets under the first view.
    """

    @property
    def hooks(self):
        return super().hooks | ({"product"} if "rotate" in super().hooks else set())

    @property
    def needs(self):
        # Channels of all views lie side by side.
        return super().needs | (Needs.HEAD_DIM if "product" in self.hooks else Needs(0))

    def is_difference(self, site):
        return "bias" not in self.hooks  # under several views it is none

    def __rshift__(self, other):
        return Viewed(self.position_map, self.encoding >> other)

    def place(self, params, site, key=None):
        self.position_map.coordinates(site)

        def placed(position):
            return self.encoding.place(params[1], moved_in_order(site, position), key)

        views = self.position_map.views(site.position)
        return site._replace(state=(placed(site.position), *((placed(q), placed(k)) for q, k in views)))

    def observe(self, params, x, site, past=None):
        pasts = () if past is None else (past.state,)

        def observed(each: Site, *before: Site):
            return self.encoding.observe(params[1], x, each, *before)

        return site._replace(
            state=jax.tree.map(observed, site.state, *pasts, is_leaf=lambda leaf: isinstance(leaf, Site))
        )

    def forward(self, name, *arguments, **named):
        """Calls a hook that reads no pairs: by the tokens without a view."""
        if name not in self.hooks:
            return getattr(Encoding, name)(self, *arguments, **named)
        own = [each.state[0] if isinstance(each, Site) else each for each in arguments]
        return super().forward(name, *own, **{k: v.state[0] if isinstance(v, Site) else v for k, v in named.items()})

    def rotate(self, params, q, q_site, k, k_site):
        if "product" not in self.hooks:
            return q, k
        each = [self.encoding.rotate(params[1], q, qs, k, ks) for qs, ks in _views(q_site, k_site)]
        return tuple(jnp.concatenate(rotated, axis=-1) for rotated in zip(*each, strict=True))

    def product(self, q, q_site, k, k_site):
        if "product" not in self.hooks:
            return Encoding.product(self, q, q_site, k, k_site)
        views = _views(q_site, k_site)
        split_q, split_k = (jnp.split(x, len(views), axis=-1) for x in (q, k))
        each = zip(split_q, split_k, views, strict=True)
        return self._chosen([self.encoding.product(a, qs, b, ks) for a, b, (qs, ks) in each], q_site, k_site)

    def bias(self, params, q, q_site, k, k_site):
        each = [self.encoding.bias(params[1], q, qs, k, ks) for qs, ks in _views(q_site, k_site)]
        return self._chosen(each, q_site, k_site)

    def mask(self):
        return _OfViews(self.position_map, self.encoding.mask())

    def read(self, params, weights, q_site, k_site):
        if "read" not in self.hooks:
            return 0.0
        index = self._index(q_site, k_site)
        return sum(
            self.encoding.read(params[1], jnp.where(index == view, weights, 0.0), qs, ks)
            for view, (qs, ks) in enumerate(_views(q_site, k_site))
        )

    def _index(self, q_site: Site, k_site: Site) -> Int32[Array, "T S"]:
        q, k = (self.position_map.coordinates(site)[:, 0] for site in (q_site, k_site))
        index = jnp.asarray(self.position_map.select(q[:, None], k[None]), jnp.int32)
        return jnp.where(both_stand(q_site, k_site), index, 0)

    def _chosen(self, each: list, q_site: Site, k_site: Site):
        """Selects the value of each pair by its view; values without a shape are one constant under all views."""
        if not any(hasattr(one, "shape") for one in each):
            return each[0]
        index, chosen = self._index(q_site, k_site), each[0]
        for view, one in enumerate(each[1:], start=1):
            chosen = jnp.where(index == view, one, chosen)
        return chosen


@dataclass(frozen=True)
class _OfViews(Mask):
    """The mask of the views, by the tokens' own positions, and the encoding's mask, under the view of each pair."""

    position_map: Views
    mask: Mask

    @property
    def tile(self):
        return self.position_map.mask().tile

    @property
    def memory(self):
        return self.position_map.mask().memory  # of placed tokens too: they keep their positions

    def terms(self, q_site, k_site):
        of_views = zip(*(self.mask.terms(qs, ks) for qs, ks in _views(q_site, k_site)), strict=True)
        chosen = [_chosen_term(self.position_map, views, q_site, k_site) for views in of_views]
        return self.position_map.mask().terms(q_site, k_site) + chosen


def _chosen_term(position_map: Views, views: tuple[Term, ...], q_site: Site, k_site: Site) -> Term:
    """One mask of the encoding; the coordinates of all views follow those by which a view is selected."""
    q, k = coordinates(q_site), coordinates(k_site)
    for view in views:
        q, k = q + view.q, k + view.k
    return Term(_Chosen(position_map, views[0].mask, len(views)), q, k)


@dataclass(frozen=True)
class _Chosen(Mask):
    position_map: Views
    mask: Mask
    views: int

    def shows(self, q, k):
        q_own, k_own, q, k = q[0], k[0], q[1:], k[1:]
        index, axes = jnp.asarray(self.position_map.select(q_own, k_own), jnp.int32), len(q) // self.views
        shown = self.mask.shows(q[:axes], k[:axes])
        for view in range(1, self.views):
            here = slice(view * axes, (view + 1) * axes)
            shown = jnp.where(index == view, self.mask.shows(q[here], k[here]), shown)
        return shown


def _views(q_site: Site, k_site: Site) -> list[tuple[Site, Site]]:
    pairs = zip(q_site.state[1:], k_site.state[1:], strict=True)
    return [(as_query, as_key) for (as_query, _), (_, as_key) in pairs]


@register("self_extend")
@dataclass(frozen=True)
class SelfExtend(Views):
    """Keys within `window` are seen where they stand; those beyond it by groups of `group` positions.

    Jin et al. (2024), arXiv 2401.01325, section 3: for i - j < w the distance is i - j; otherwise query i stands at
    floor(i / g) + w - floor(w / g) and key j at floor(j / g). LongLM's eager code (self_extend_patch/Llama.py) leaves w / g
    unfloored, its flash decoding floors it as the paper does and as we do; where g divides w they agree. The log-n
    scaling of its queries (scale_base) is a temperature, not part of this. Keys after a query are seen where they stand.
    Not exactly relative: where a group begins depends on the position. Defaults are LongLM's.

    Raises:
      ValueError: for a group or window below 1.
    """

    family = "windows and views"
    formula = (
        r"m - n \mapsto \begin{cases} m-n & m-n < w \\ \lfloor m/g \rfloor + w - \lfloor w/g \rfloor"
        r" - \lfloor n/g \rfloor & \text{else} \end{cases}",
    )

    relative = False
    ranges = "group >= 1", "window >= 1"

    group: int = 8
    window: int = 1024

    def views(self, position):
        grouped = position // self.group
        return [(position, position), (grouped + self.window - self.window // self.group, grouped)]

    def select(self, q, k):
        return offset(k, q) >= self.window


@register("rerope")
@dataclass(frozen=True)
class ReRope(Views):
    """Rectified distances: delta within `window`, and window + step (delta - window) beyond it.

    Su (2023), https://kexue.fm/archives/9708, and bojone/rerope. step=0 is ReRoPE, where all keys beyond the window are
    seen at distance `window`; step=1/16 is its Leaky ReRoPE with scaling_factor=16. The log-n scaling of queries that
    comes with both there is a temperature, not part of this. Beyond the window, query i stands at step i + (1 - step) window
    and key j at step j, as there: keys that far after a query are moved behind it by the same amount.

    Raises:
      ValueError: for a window below 1, or a step below 0 or above 1.

    >>> import posjax as pj
    >>> encoding, q = pj.parse("rerope(window=2) >> alibi"), jnp.zeros((5, 1, 8))
    >>> site = encoding.place(((), ()), pj.sites(5))
    >>> (-256 * encoding.bias(((), ()), q, site, q, site)[0, 4]).tolist()    # distances of keys from the last query
    [2.0, 2.0, 2.0, 1.0, 0.0]
    """

    family = "windows and views"
    formula = (r"m - n \mapsto \begin{cases} m-n & m-n < w \\ w + \lambda\,(m-n-w) & \text{else} \end{cases}",)
    ranges = ("window >= 1",)

    window: int = 512
    step: float = 0.0

    def __post_init__(self):
        super().__post_init__()
        if not 0 <= self.step <= 1:
            raise ValueError(f"rerope(step=...) is between 0 (ReRoPE) and 1 (no change), got {self.step}")

    def views(self, position):
        scaled = jnp.asarray(position, jnp.float32) * self.step
        return [(position, position), (scaled + (1 - self.step) * self.window, scaled)]

    def select(self, q, k):
        return jnp.abs(offset(q, k)) >= self.window


@register("shifted")
@dataclass(frozen=True)
class Shifted(Views):
    """Distances from `offset` on are counted from `local` again, within the trained length: delta - offset + local.

    An et al. (2024), "Why Does the Effective Context Length of LLMs Fall Short?", arXiv 2410.18745, whose STRING ("shifted
    rotary position embedding") is not the STRING of `cayley_string`. Large distances are rare in training, so far keys are
    seen at smaller ones. A query is moved by the same amount for all far keys, so that they keep their order and the
    distances between them. Keys after a query are seen where they stand. The factor 1 + 0.1 ln 2 of the authors' Llama code
    (HKUNLP/STRING), on rotated queries and on keys, is a temperature, not part of this.

    Args:
      offset: 0.33 L in the authors' code, for a trained length L; they advise 0.25 L to 0.4 L. The default is for the
        131072 tokens of Llama 3.1.
      local: 128, 256 or 512 there.

    Raises:
      ValueError: for an offset below 1, or a local below 0 or above the offset.
    """

    family = "windows and views"
    formula = (r"m - n \mapsto \begin{cases} m-n & m-n < S \\ m-n-S+W & \text{else} \end{cases}",)
    ranges = "offset >= 1", "local >= 0"

    offset: int = 43_253
    local: int = 128

    def __post_init__(self):
        super().__post_init__()
        if self.local > self.offset:
            raise ValueError(f"shifted(local=...) must be at most offset={self.offset}, got {self.local}")

    def views(self, position):
        return [(position, position), (position - self.offset + self.local, position)]

    def select(self, q, k):
        return offset(k, q) >= self.offset


@register("dual_chunk")
@dataclass(frozen=True)
class DualChunk(Views):
    """Positions count within chunks of s = `chunk`; queries are moved behind the keys of earlier chunks.

    An et al. (2024), Dual Chunk Attention, arXiv 2402.17463, section 3 and figure 2, with w = `local` and c = s + w, the
    trained context or less: key j stands at j mod s; query i at i mod s for keys of its own chunk, at
    min(i mod s + s, c - 1) for keys of the chunk before (so that distances below w are exact), and at c - 1 for all
    others. ChunkLlama's code stops at c, not c - 1, and calls c its chunk_size; for a trained context of 4096 it takes
    chunk=2816, local=256. Chunks are counted from position 0 of a document: not exactly relative. Keys of later chunks
    are treated like those far before.

    Raises:
      ValueError: for a chunk below 1, or a local below 1 or above the chunk.
    """

    family = "windows and views"
    formula = (
        r"n' = n \bmod s,\quad m' = \begin{cases} m \bmod s & n \text{ in the chunk of } m"
        r" \\ \min\left(m \bmod s + s,\ s + w - 1\right) & n \text{ in the chunk before} \\ s + w - 1"
        r" & \text{else} \end{cases}",
    )

    relative = False
    ranges = "chunk >= 1", "local >= 1"

    chunk: int
    local: int

    def __post_init__(self):
        super().__post_init__()
        if self.local > self.chunk:
            raise ValueError(f"dual_chunk(local=...) must be at most chunk={self.chunk}, got {self.local}")

    def views(self, position):
        within, last = position % self.chunk, self.chunk + self.local - 1
        successive = jnp.minimum(within + self.chunk, last)
        return [(within, within), (successive, within), (jnp.full_like(successive, last), within)]

    def select(self, q, k):
        chunks_before = q // self.chunk - k // self.chunk
        return jnp.where(chunks_before == 0, 0, jnp.where(chunks_before == 1, 1, 2))


@register("streaming")
@dataclass(frozen=True)
class Streaming(Views):
    """Attention sinks with positions within the cache: the first `num_sinks` keys and the last `window`, no gap between.

    Xiao et al. (2023), StreamingLLM, arXiv 2309.17453, section 3.2. Keys less than `window` before a query are seen where
    they stand; those at positions 0 to num_sinks - 1 from min(i, num_sinks + window - 1), the last slot of the cache; no
    others are seen (the mask of `sinks`). `window` counts the query's own key, as the authors' recent_size does, whose
    default it is. Nothing is evicted here: the encoding only determines what a query sees, and where.

    Raises:
      ValueError: for fewer than 0 sinks or a window below 1.
    """

    family = "windows and views"
    formula = (
        r"m' = \begin{cases} m & m-n < w \\ \min\left(m,\ n_{\mathrm{sinks}} + w - 1\right) & n <"
        r" n_{\mathrm{sinks}} \end{cases},\quad n' = n,\quad a_{mn} = 0\ \text{else}",
    )
    ranges = "num_sinks >= 0", "window >= 1"

    num_sinks: int = 4
    window: int = 512

    @property
    def relative(self):
        return self.num_sinks == 0

    def views(self, position):
        return [(position, position), (jnp.minimum(position, self.num_sinks + self.window - 1), position)]

    def select(self, q, k):
        return jnp.broadcast_to(k < self.num_sinks, (q.shape[0], k.shape[1]))

    def mask(self):
        return Sinks(self.num_sinks, self.window).mask()
