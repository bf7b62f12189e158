"""Encodings whose bias depends on the content of queries and keys and on their relative position."""

import functools
from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int32, Shaped

from posjax.encoding import Array, Encoding, Needs, Site, axes, order_of, stands
from posjax.encodings.angles import angles, axial
from posjax.encodings.offsets import ProductBias, at, at_line, choose, for_all, line_of, sums_at, sums_on_line
from posjax.encodings.pairs import related, whole_offset
from posjax.encodings.placement import standing
from posjax.encodings.resize import resize
from posjax.encodings.tables import numpy_if_known
from posjax.gradients import with_gradient
from posjax.mask import offset
from posjax.spec import register

_FEW_COUNTS = 128  # up to this many counts a scatter is slower on CPUs


@register("shaw")
@dataclass(frozen=True)
class Shaw(ProductBias):
    """Relative position representations: logits q . (k + a^K_r) / sqrt(D) and outputs sum of weight (v + a^V_r).

    r = clip(k's position - q's, -max_relative_position, right). Shaw et al. (2018), arXiv 1803.02155,
    equations 3 and 4 and section 3.2; the vectors a are shared by the heads. values=False leaves a^V out, which costs
    nothing in the paper's ablation; many later models do so. With A position axes there are vectors for each axis and they
    add. A fractional distance counts as the whole distance below it. Nothing is added where a token stands nowhere.

    `read` first sums the weights of a query by offset, of which there are max_relative_position + right + 1. So this term of
    a tile costs no more than its logits. Values must have the head dim D.

    shaw(max_relative_position=None, values=False, scaled=False) is MViTv2's decomposed relative position embedding (Li et
    al. 2021, arXiv 2112.01526, eq. 4), also of ViTDet and SAM, whose rows rel_pos_h and rel_pos_w run the other way. Where
    MViT pools keys by s, its key k stands at s k + s - 1.

    Args:
      max_relative_position: R; None: as far as the grid or the length that the model is made for goes, on each axis its own.
        Then `resized` resizes the vectors of each axis to another grid; MViT and SAM do it by method="torch_bilinear".
      right: R', the clip of later keys; R by default. Wav2Vec2-BERT has 64 earlier keys and 8 later ones.
      scaled: whether q . a^K_r is divided by sqrt(D), as q . k is.

    Parameters: key [A, R + R' + 1, D] and, with values, value of the same shape; with R None, a tuple of an array for each
    axis; rows run from keys far before the query to keys far after it; initialised N(0, 1/D).

    Raises:
      ValueError: for a max_relative_position below 1, a negative right or one beside None; from `init` where
        max_relative_position is None and `dims` gives neither grid nor length.
    """

    family = "learned bias"
    formula = (
        r"\ell_{mn} = \frac{q_m \cdot \left(k_n + a^K_r\right)}{\sqrt D},\quad o_m = \sum_n"
        r" a_{mn}\left(v_n + a^V_r\right),\quad r = \mathrm{clip}(n-m, -R, R')",
    )
    ranges = "max_relative_position >= 1", "right >= 0"

    max_relative_position: int | None = 16
    values: bool = True
    right: int | None = None
    scaled: bool = True

    def __post_init__(self):
        super().__post_init__()
        if self.max_relative_position is None and self.right is not None:
            raise ValueError(f"right={self.right} needs a max_relative_position: with None all offsets are told apart")

    @property
    def hooks(self) -> frozenset[str]:
        return super().hooks if self.values else super().hooks - {"read"}

    def init(self, key, dims):
        num_axes = 1 if dims.grid is None else len(dims.grid)
        names = ("key", "value") if self.values else ("key",)
        keys = jax.random.split(key, len(names))

        def vectors(key, *shape):
            return dims.head_dim**-0.5 * jax.random.normal(key, (*shape, dims.head_dim), jnp.float32)

        if self.max_relative_position is not None:
            rows = self.max_relative_position + (self.max_relative_position if self.right is None else self.right) + 1
            return {n: vectors(k, num_axes, rows) for n, k in zip(names, keys, strict=True)}
        if dims.grid is None and dims.length is None:
            raise ValueError(
                "shaw(max_relative_position=None) needs to know how far positions go: give Dims(grid=...) or "
                "Dims(length=...), or a max_relative_position"
            )
        sides = dims.grid or (dims.length,)
        each = {n: zip(jax.random.split(k, num_axes), sides, strict=True) for n, k in zip(names, keys, strict=True)}
        return {n: tuple(vectors(k, _rows(side)) for k, side in axes) for n, axes in each.items()}

    def resized(self, params, old_grid, new_grid, method="torch_bicubic"):
        if self.max_relative_position is not None or old_grid == new_grid:
            return self, params
        if isinstance(old_grid[0], tuple):
            raise ValueError(
                f"{self} behind raster(...) knows offsets on a line, not on the grid: it cannot be resized"
            )
        return self, {
            n: tuple(resize(x, (_rows(side),), method=method) for x, side in zip(tables, new_grid, strict=True))
            for n, tables in params.items()
        }

    def factors(self, params, q, q_site, k, k_site):
        return q.astype(jnp.float32) * (q.shape[-1] ** -0.5 if self.scaled else 1.0), None

    def of_offset(self, params, offset):
        (table,) = params["key"]
        return table[self._row(table, np.zeros(1, np.int32), offset)[0]][:, None], None

    def on_line(self, params, factors, q_site, k_site, first):
        (table,) = params["key"]  # a key reads one of few rows: cheaper than a product with each
        return at_line(jnp.einsum("thd,rd->htr", factors[0], table), len(k_site.segment), first, *self._far(table))

    def anywhere(self, params, factors, q_site, k_site):
        bias = 0.0
        for table, (start, to) in zip(params["key"], self._axes(params["key"], q_site, k_site), strict=True):
            bias = bias + at(jnp.einsum("thd,rd->htr", factors[0], table), self._row(table, start, to))
        return bias

    def read(self, params, weights, q_site, k_site):
        if not self.values:
            return 0.0
        out, line = 0.0, line_of(q_site, k_site)
        weights = jnp.where(related(q_site, k_site), weights, 0.0)
        for table, (start, to) in zip(params["value"], self._axes(params["value"], q_site, k_site), strict=True):
            by_row = choose(
                line.holds,
                lambda weights, table=table: sums_on_line(weights, line.first, *self._far(table)),
                lambda weights, table=table, start=start, to=to: sums_at(
                    weights, self._row(table, start, to), len(table)
                ),
                weights,
            )
            out = out + jnp.einsum("htr,re->the", by_row, table)
        return out

    def _axes(self, tables: Float[Array, "A R D"] | tuple, q_site: Site, k_site: Site) -> list[tuple[Array, Array]]:
        """The positions of queries and keys on each axis."""
        q_position, k_position = axes(q_site), axes(k_site)
        if q_position.shape[1] != len(tables):
            raise ValueError(f"shaw has vectors for {len(tables)} position axes, got {q_position.shape[1]}")
        return list(zip(q_position.T, k_position.T, strict=True))

    def _far(self, table: Float[Array, "R D"]) -> tuple[int, int]:
        """The farthest offsets that a table tells apart, before and after the query."""
        left = len(table) // 2 if self.max_relative_position is None else self.max_relative_position
        return left, len(table) - 1 - left

    def _row(
        self, table: Float[Array, "R D"], start: Shaped[Array, " T"], to: Shaped[Array, " S"]
    ) -> Int32[Array, "T S"]:
        """The row of each pair in a table."""
        left, right = self._far(table)
        return jnp.clip(jnp.trunc(offset(start[:, None], to[None])), -left, right).astype(jnp.int32) + left


def _rows(side: int) -> int:
    """The number of offsets between places on an axis of this many, at least -1 to 1."""
    return 2 * max(side - 1, 1) + 1


@register("transformer_xl")
@dataclass(frozen=True)
class TransformerXL(ProductBias):
    """Logits ((q + u) . k + (q + v) . W r_d) / sqrt(D), with r_d the sines and cosines of the distance d, query minus key.

    Dai et al. (2019), arXiv 1901.02860, section 3.3. r_d holds all M/2 sines sin(d base^(-2c/M)) before all cosines, as
    in the authors' code and XLNet's. clamp_len > 0 lets d go no further than that on either side; -1 has no limit.
    With A position axes each axis has M/A channels of r_d, the sines of all axes first. u . k needs no position, so every
    token has it; the other term is zero where a token stands nowhere.

    By the addition theorem of sines, (q + v) . W r_d is the product of a term of the query and the sines of the key's own
    position. So no distances are gathered or shifted: it is exact for any positions and takes M multiplications a logit.

    Parameters: u and v [H, D], position (W) [M, H, D]; all initialised N(0, 0.02^2) as by the authors. XLNet adds a term
    for a token's segment, which is not position.

    Raises:
      ValueError: for a base that is not positive, a clamp_len of 0 or below -1, or a width not divisible by 2 A.
    """

    family = "learned bias"
    formula = (
        r"\ell_{mn} = \frac{(q_m+u)\cdot k_n + (q_m+v)\cdot W r_{m-n}}{\sqrt D}",
        r"r_d = \left[\sin d\,\beta^{-2c/M} \,\middle|\, \cos d\,\beta^{-2c/M}\right]",
    )
    ranges = ("base > 0",)

    base: float = 10_000.0
    clamp_len: int = -1

    def __post_init__(self):
        super().__post_init__()
        if self.clamp_len < -1 or self.clamp_len == 0:
            raise ValueError(f"transformer_xl(clamp_len=...) must be at least 1, or -1 for none; got {self.clamp_len}")

    def init(self, key, dims):
        head = (dims.num_heads, dims.head_dim)
        if dims.width % 2:
            raise ValueError(f"transformer_xl pairs a sine with a cosine: the width must be even, got {dims.width}")
        shapes = {"u": head, "v": head, "position": (dims.width, *head)}
        keys = jax.random.split(key, len(shapes))
        return {n: 0.02 * jax.random.normal(k, shapes[n], jnp.float32) for n, k in zip(shapes, keys, strict=True)}

    def of_keys(self, params, k):
        return jnp.einsum("hd,shd->sh", params["u"], k.astype(jnp.float32)) * k.shape[-1] ** -0.5

    def factors(self, params, q, q_site, k, k_site):
        return (q.astype(jnp.float32) + params["v"]) * q.shape[-1] ** -0.5, None

    def of_offset(self, params, offset):
        wave = axial(self.base, 1, len(params["position"]) // 2, "transformer_xl: a width")
        distance = -offset if self.clamp_len < 0 else jnp.clip(-offset, -self.clamp_len, self.clamp_len)
        angle = angles(distance[:, None], wave)
        waves = jnp.concatenate([jnp.sin(angle), jnp.cos(angle)], axis=1)
        return jnp.einsum("lm,mhd->lhd", waves, params["position"], precision="highest"), None

    def anywhere(self, params, factors, q_site, k_site):
        q_position, k_position, width = axes(q_site), axes(k_site), params["position"].shape[0]
        num_axes, bias = q_position.shape[1], 0.0
        wave = axial(self.base, num_axes, width // 2, "transformer_xl: a width")
        asked = jnp.einsum("thd,mhd->htm", factors[0], params["position"])
        # [H, T, sine or cosine, A, M / 2A]
        asked = asked.reshape(*asked.shape[:2], 2, num_axes, -1)
        for a in range(num_axes):
            frequency = wave[a, a * asked.shape[-1] : (a + 1) * asked.shape[-1]][None]
            bias = bias + self._by_distance(asked[:, :, :, a], q_position[:, a], k_position[:, a], frequency)
        return bias

    def _by_distance(
        self,
        asked: Float[Array, "H T 2 C"],
        q_position: Shaped[Array, " T"],
        k_position: Shaped[Array, " S"],
        frequency: Float[np.ndarray, "1 C"],
    ) -> Float[Array, "H T S"]:
        of_q, of_k = (angles(p[:, None], frequency) for p in (q_position, k_position))
        sine, cosine = asked[:, :, 0], asked[:, :, 1]
        # sin(q - k) = sin q cos k - cos q sin k, cos(q - k) = cos q cos k + sin q sin k
        query = [sine * jnp.sin(of_q) + cosine * jnp.cos(of_q), cosine * jnp.sin(of_q) - sine * jnp.cos(of_q)]
        key = [jnp.cos(of_k), jnp.sin(of_k)]
        # Terms of size 1 may cancel here, so factors must not be rounded to 10 bits, as GPUs do by default.
        exact = dict(precision=jax.lax.Precision.HIGHEST)
        near = jnp.einsum("htc,sc->hts", jnp.concatenate(query, -1), jnp.concatenate(key, -1), **exact)
        if self.clamp_len < 0:
            return near
        distance = q_position[:, None] - k_position[None]
        edge = self.clamp_len * frequency[0]
        rise, level = np.float32(np.sin(edge)), np.float32(np.cos(edge))
        before, behind = (sine @ (sign * rise) + cosine @ level for sign in (1.0, -1.0))
        far = jnp.where(distance > 0, before[..., None], behind[..., None])
        return jnp.where(jnp.abs(distance) > self.clamp_len, far, near)


@register("inkling")
@dataclass(frozen=True)
class Inkling(ProductBias):
    """Relative bias read off the query's token: (x_q R_h) . P[:, d] at the distance d, query minus key; 0 from `extent` on.

    Of the model Inkling (2026) by Thinking Machines, which has no other positions. There is no paper: the source is
    `InklingAttention` of transformers 5.24. x is the layer's input. R gives each head `rank` numbers, which mix the profiles
    of P over the distance; all heads share P. A later key has a bias of 0. Inkling's window layers have their window as
    extent. The bias is not scaled; Inkling's products are, by 1/D where queries and keys are normed. A fractional distance
    counts as the whole distance nearer to 0. Nothing is added where a token stands nowhere.

    With A position axes the biases of the axes add up, and the sum is 0 unless the distance on every axis has a column, as
    vit-pytorch's `RelativeProjPositionalBias` has it.

    Args:
      n_floor: full layers multiply queries and biases by 1 + alpha ln max(1, (p + 1) / n_floor), with the query's position
        p on its one axis; None, for window layers, has no such temperature.
      clip: Inkling 2 multiplies x_q R_h by a learned scale, then shortens it to this length; it takes 8. None does neither.
      bidirectional: P has columns for distances from 1 - extent on, as in vit-pytorch.

    Parameters: project (R) [A, M, H, rank] and profiles (P) [A, rank, columns], with extent or 2 extent - 1 columns, both
    initialised N(0, stddev^2) as in transformers; with `clip`, scale [A, H, rank], at 1.

    Raises:
      ValueError: for a rank, extent or n_floor below 1, a negative alpha or stddev, a clip that is not positive; for
        positions of another number of axes than the parameters, or of several with n_floor.
    """

    family = "contextual"
    formula = (
        r"b^{(h)}_{mn} = \tau_m \left(x_m R_h\right)\cdot P_{:,\,m-n}\quad\text{for}\quad 0 \le m-n < N,\quad"
        r" 0\ \text{else}",
        r"q'_m = \tau_m q_m,\quad \tau_m = 1 + \alpha \ln\max\left(1, \frac{m+1}{n_0}\right)",
    )
    observes = 0
    ranges = "rank >= 1", "extent >= 1", "n_floor >= 1", "alpha >= 0", "clip > 0", "stddev >= 0"

    rank: int = 16
    extent: int = 1024
    n_floor: int | None = None
    alpha: float = 0.1
    clip: float | None = None
    bidirectional: bool = False
    stddev: float = 0.02

    @property
    def hooks(self) -> frozenset[str]:
        return super().hooks - {"rotate"} if self.n_floor is None else super().hooks

    @property
    def relative(self) -> bool:
        return self.n_floor is None

    @property
    def dimensions(self) -> tuple[int, ...]:
        return (1, 2, 3) if self.n_floor is None else (1,)

    @property
    def needs(self) -> Needs:
        return Needs(0) if self.n_floor is None else Needs.WHOLE_HEAD

    def init(self, key, dims):
        num_axes = 1 if dims.grid is None else len(dims.grid)
        states, columns = (dims.num_heads, self.rank), self.extent - self._least
        shapes = {"project": (num_axes, dims.width, *states), "profiles": (num_axes, self.rank, columns)}
        keys = jax.random.split(key, len(shapes))
        params = {
            n: self.stddev * jax.random.normal(k, shapes[n], jnp.float32) for n, k in zip(shapes, keys, strict=True)
        }
        return params if self.clip is None else params | {"scale": jnp.ones((num_axes, *states), jnp.float32)}

    def observe(self, params, x, site, past=None):
        states = jnp.einsum("tm,amhr->tahr", x.astype(jnp.float32), params["project"], precision="highest")
        if self.clip is not None:
            states = states * params["scale"]
            # The least square gives zeros a gradient; the authors add 1e-6 to the length.
            norm = jnp.sqrt(jnp.maximum(jnp.sum(jnp.square(states), axis=-1, keepdims=True), 1e-30))
            states = states * jnp.minimum(self.clip / (norm + 1e-6), 1.0)
        return site._replace(state=states)

    def rotate(self, params, q, q_site, k, k_site):
        if self.n_floor is None:
            return q, k
        return (q * self._temperature(q_site)[:, None, None]).astype(q.dtype), k

    def factors(self, params, q, q_site, k, k_site):
        if (num_axes := self.coordinates(q_site).shape[1]) != len(params["profiles"]):
            raise ValueError(
                f"inkling has profiles for {len(params['profiles'])} position axes, got {num_axes}: initialise it with "
                "the grid of the model"
            )
        states = jnp.concatenate([q_site.state[:, axis] for axis in range(num_axes)], axis=-1)
        return states if self.n_floor is None else states * self._temperature(q_site)[:, None, None], None

    def of_offset(self, params, offset):
        column, within = self._columns(-offset[:, None])
        return jnp.where(within[:, None], params["profiles"][0].T[column[:, 0]], 0.0)[:, None], None

    def anywhere(self, params, factors, q_site, k_site):
        start, to = self.coordinates(q_site), self.coordinates(k_site)
        column, within = self._columns(offset(to[None], start[:, None]))
        states = jnp.split(factors[0], len(params["profiles"]), axis=-1)
        each = (jnp.einsum("thr,rn->htn", *pair) for pair in zip(states, params["profiles"], strict=True))
        return jnp.where(within, sum(at(by, column[..., axis]) for axis, by in enumerate(each)), 0.0)

    def _columns(self, distance: Shaped[Array, "*N A"]) -> tuple[Int32[Array, "*N A"], Bool[Array, "*N"]]:
        """The column of each distance, query minus key, and whether there is one on every axis."""
        distance = whole_offset(distance, self.extent)
        within = jnp.all((distance >= self._least) & (distance < self.extent), axis=-1)
        return jnp.clip(distance, self._least, self.extent - 1) - self._least, within

    @property
    def _least(self) -> int:
        """The distance of the first column."""
        return 1 - self.extent if self.bidirectional else 0

    def _temperature(self, site: Site) -> Float[Array, " T"]:
        count = jnp.asarray(self.coordinates(site)[:, 0], jnp.float32) + 1
        factor = 1 + self.alpha * jnp.log(jnp.maximum(count / self.n_floor, 1.0))
        return jnp.where(stands(site), factor, 1.0)


@register("cope")
@dataclass(frozen=True)
class CoPE(Encoding):
    """Contextual position: how much a query has counted since a key, by gates sigmoid(q . k / sqrt(D)) that it opens.

    p(i, j) = sum of the gates of query i over the keys from j to i, at most npos - 1; the bias is q_i . e[p(i, j)], e being
    interpolated between whole positions. Golovneva et al. (2024), arXiv 2405.18719, and the authors' code
    (facebookresearch/RAM), whose default divides the bias by sqrt(D) like the logits; scaled=False does not, as its
    --cope-nodiv and the listing in the paper's appendix.

    The keys from j to i are keys of i's own document that stand no later than i and no earlier than j, by position,
    wherever they lie in the arrays; windows and other masks do not change gates. A key that stands later than the query has
    position 0, as the query has counted nothing. CoPE was made for causal attention: without a causal mask all later keys
    look alike. Tokens that stand nowhere are not counted and get no bias.

    Parameters: [npos, D], shared by the heads, initialised N(0, stddev^2); the authors start at zero.

    Raises:
      ValueError: for npos below 2 or a negative stddev; for positions of more than one axis.
    """

    family = "contextual"
    formula = (
        r"b_{mn} = \frac{q_m \cdot e\left[P_{mn}\right]}{\sqrt D},\quad P_{mn} ="
        r" \min\left(P_{\max},\ \sum_{l=n}^{m} \sigma\left(\frac{q_m\cdot k_l}{\sqrt D}\right)\right)",
    )

    dimensions = (1,)
    needs = Needs.WHOLE_ROWS
    ranges = "npos >= 2", "stddev >= 0"

    npos: int = 64
    scaled: bool = True
    stddev: float = 0.0

    def init(self, key, dims):
        return self.stddev * jax.random.normal(key, (self.npos, dims.head_dim), jnp.float32)

    def bias(self, params, q, q_site, k, k_site):
        self.coordinates(q_site), self.coordinates(k_site)
        q_order, k_order = (jnp.asarray(order_of(site)) for site in (q_site, k_site))
        open_to = (k_site.segment[None] == q_site.segment[:, None]) & (k_order[None] <= q_order[:, None])
        open_to &= stands(k_site)[None]
        bias = choose(
            for_all(in_order(k_site)),
            lambda *content: self._bias(*content, open_to, _sums_from),
            lambda *content: self._bias(*content, open_to, lambda gates: _sums_by_position(gates, k_order)),
            params,
            q,
            k,
        )
        return jnp.where(related(q_site, k_site), bias, 0.0)

    def _bias(self, params, q, k, open_to: Bool[Array, "T S"], sums: Callable) -> Float[Array, "H T S"]:
        scale = q.shape[-1] ** -0.5
        logits = jnp.einsum("thd,shd->hts", q, k, preferred_element_type=jnp.float32)
        gates = jnp.where(open_to, jax.nn.sigmoid(scale * logits), 0.0)
        by_count = jnp.einsum("thd,nd->htn", q.astype(jnp.float32), params) * (scale if self.scaled else 1.0)
        return interpolated_codes(by_count, jnp.minimum(sums(gates), self.npos - 1))


def in_order(site: Site) -> Bool[Array, ""] | np.bool_:
    """Whether the counted tokens lie in order: by document, and within a document by strictly rising position."""
    where = numpy_if_known(order_of(site), site.segment, site.prefix)
    site = site._replace(segment=where.asarray(site.segment), prefix=where.asarray(site.prefix))
    position, counted, index = where.asarray(order_of(site)), standing(site), np.arange(len(site.segment))
    last = (np.maximum.accumulate if where is np else jax.lax.cummax)(where.where(counted, index, -1))
    before = where.concatenate([where.full(1, -1), last[:-1]])
    later = (site.segment > site.segment[before]) | (
        (site.segment == site.segment[before]) & (position > position[before])
    )
    return where.all(later | (before < 0) | ~counted)


def _sums_from(gates: Float[Array, "H T S"]) -> Float[jax.Array, "H T S"]:
    return jax.lax.cumsum(gates, axis=2, reverse=True)


def _sums_by_position(gates: Float[Array, "H T S"], position: Shaped[Array, " S"]) -> Float[jax.Array, "H T S"]:
    order = jnp.argsort(position)
    # Keys that share a position count together: each reads the sum at the first of them.
    return _sums_from(gates[:, :, order])[:, :, jnp.searchsorted(position[order], position)]


def between_codes(by_count: Float[Array, "H T N"], counted: Float[Array, "H T S"]) -> Float[jax.Array, "H T S"]:
    """by_count at fractional counts from 0 to N - 1, by linear interpolation."""
    below = jnp.floor(counted).astype(jnp.int32)
    share = counted - below.astype(jnp.float32)
    return (1 - share) * at(by_count, below) + share * at(by_count, _above(below, by_count))


def interpolated_codes(by_count: Float[Array, "H T N"], counted: Float[Array, "H T S"]) -> Float[jax.Array, "H T S"]:
    """`between_codes`, whose gradient needs no scatter."""
    return _interpolated((), (by_count, counted))


def _between_backward(_, x, out, d_out):
    by_count, counted = x
    below = jnp.floor(counted).astype(jnp.int32)
    slope = at(by_count, _above(below, by_count)) - at(by_count, below)
    return _shares(counted, d_out, by_count.shape[2]), d_out * slope


def _shares(counted: Float[Array, "H T S"], x: Float[Array, "H T S"], num_counts: int) -> Float[jax.Array, "H T N"]:
    """Splits x between the two whole counts around `counted`, in proportion, and sums over the keys."""
    if num_counts > _FEW_COUNTS:  # fewer need no scatter
        nothing = jnp.zeros((*x.shape[:2], num_counts), jnp.float32)
        return jax.linear_transpose(lambda by_count: between_codes(by_count, counted), nothing)(x)[0]
    forms = {"tpu": shares_by_count, "default": shares_by_key}
    forms = {platform: functools.partial(form, num_counts) for platform, form in forms.items()}
    return jax.lax.platform_dependent(counted, x, **forms)


def shares_by_key(
    num_counts: int, counted: Float[Array, "H T S"], x: Float[Array, "H T S"]
) -> Float[jax.Array, "H T N"]:
    """Returns the shares, summed over one key after the other: a CPU keeps the sums of all counts in its cache."""
    whole = np.arange(num_counts, dtype=np.float32)

    def add_key(total, key):
        counted, x = (leaf[..., None] for leaf in key)
        return total + x * _near(counted, whole), None

    nothing = jnp.zeros((*x.shape[:2], num_counts), jnp.float32)
    return jax.lax.scan(add_key, nothing, (jnp.moveaxis(counted, 2, 0), jnp.moveaxis(x, 2, 0)))[0]


def shares_by_count(
    num_counts: int, counted: Float[Array, "H T S"], x: Float[Array, "H T S"]
) -> Float[jax.Array, "H T N"]:
    """Returns the same as one sum over the keys for each count: a twelfth of the cycles on a TPU."""
    return jnp.stack([jnp.sum(x * _near(counted, whole), axis=2) for whole in range(num_counts)], axis=2)


def _near(counted: Float[Array, "..."], whole: Array | int) -> Float[jax.Array, "..."]:
    """The share that a whole count has of a count: 1 at it, 0 from the next ones on."""
    return jnp.maximum(0.0, 1.0 - jnp.abs(counted - whole))


_interpolated = with_gradient(lambda _, x: between_codes(*x), _between_backward)


def _above(below: Int32[Array, "H T S"], by_count: Float[Array, "H T N"]) -> Int32[Array, "H T S"]:
    return jnp.minimum(below + 1, by_count.shape[2] - 1)
