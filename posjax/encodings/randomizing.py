"""Position maps that draw positions at random: in training, and two of them in evaluation too.

Each row of the batch has one draw, which the documents packed into it share: what a document sees depends on the draw and
on itself, not on its neighbours in the row. Padding and tokens that stand nowhere are never counted or moved.
"""

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Int32, Shaped

from posjax.encoding import Array, Needs, PositionMap, Site, moved_in_order
from posjax.encodings.placement import documents, each_axis, first_and_last, standing
from posjax.spec import nearest, register

_EVALUATIONS = ["random", "keep"]


class _Drawn(PositionMap):
    """Replaces the n positions of a document by n sorted draws from [0, length); only their order is kept."""

    relative = True

    length: int
    evaluate: str
    seed: int

    def __post_init__(self):
        if self.evaluate not in _EVALUATIONS:
            raise ValueError(
                f"{self.spec_name} has no evaluate={self.evaluate!r}; {nearest(self.evaluate, _EVALUATIONS)}"
            )
        if self.length < 1:
            raise ValueError(f"{self.spec_name} needs a length of at least 1, got {self.length}")

    @property
    def needs(self):
        return Needs.WHOLE_DOCUMENT if self.evaluate == "random" else Needs(0)

    def stream(self, key: jax.Array, count: int) -> Shaped[jax.Array, " N"]:
        """Returns `count` draws or more; a document of n positions takes the first n."""
        raise NotImplementedError

    def place(self, params, site, key=None):
        if key is None and self.evaluate == "keep":
            return site
        key = jax.random.key(self.seed) if key is None else key

        def drawn(axis, position):
            stream = self.stream(jax.random.fold_in(key, axis), len(position))
            moved = _sorted_draws(documents(site), position, stream)
            return jnp.where(standing(site), moved, jnp.asarray(position, moved.dtype))

        return site._replace(position=each_axis(drawn, site.position))


@register("randomized")
@dataclass(frozen=True)
class Randomized(_Drawn):
    """Randomized positions: n of the whole numbers in [0, length), drawn without replacement and sorted.

    Ruoss et al. (2023), arXiv 2305.16843, section 3.1: length = 2048 there, longer than any document to come. n is the
    number of different positions in a document, not the length of a padded row: drawing for the row and taking the
    first n would crowd short documents into the front of the range. Tokens at equal positions stay together; on grids each
    axis draws for itself.

    evaluate="random", the default, draws in evaluation too, as the paper does, from `seed`: the same positions for all rows
    and calls. It needs the whole document, so there is no cached decoding. evaluate="keep" draws in training only.
    A document of more than `length` positions is refused where its positions are known at tracing time; where they are not,
    it fills the range and runs on behind it.

    Raises:
      ValueError: for a length below 1, another `evaluate`, or a document of more than `length` known positions.
    """

    family = "position maps"
    formula = (r"p_1 < \dots < p_T\quad\text{drawn from}\quad \{0, \dots, L-1\}\ \text{without replacement}",)

    length: int = 2048
    evaluate: str = "random"
    seed: int = 0

    def dims(self, dims):
        return room(dims, length=self.length)

    def stream(self, key, count):
        behind = jnp.arange(self.length, max(self.length, count), dtype=jnp.int32)
        return jnp.concatenate([jax.random.permutation(key, self.length).astype(jnp.int32), behind])

    def place(self, params, site, key=None):
        if key is not None or self.evaluate == "random":
            self._refuse_long(site)
        return super().place(params, site, key)

    def _refuse_long(self, site: Site) -> None:
        if not all(isinstance(leaf, np.ndarray) for leaf in (site.position, site.segment, site.prefix)):
            return
        for axis in np.reshape(site.position, (len(site.segment), -1)).T:
            places = np.unique(np.stack([site.segment, axis])[:, standing(site)], axis=1)
            counts = np.unique(places[0], return_counts=True)[1]
            if counts.max(initial=0) > self.length:
                raise ValueError(
                    f"randomized(length={self.length}) cannot place a document of {counts.max()} positions: "
                    "raise length"
                )


@register("random_float")
@dataclass(frozen=True)
class RandomFloat(_Drawn):
    """Random float sampling: n real numbers drawn uniformly from [0, length) and sorted.

    Shimizu et al. (2026), arXiv 2602.14050. As `randomized` with float32 positions, so that a document may have more
    positions than `length`. `evaluate` and `seed` are as in `randomized`: the paper draws in training and in evaluation.

    Raises:
      ValueError: for a length below 1 or another `evaluate`.
    """

    family = "position maps"
    formula = (r"p_1 \le \dots \le p_T\quad\text{drawn from}\quad U[0, L)",)

    length: float
    evaluate: str = "random"
    seed: int = 0

    def stream(self, key, count):
        # One key for each draw: the first n must not depend on how many are drawn.
        keys = jax.vmap(lambda index: jax.random.fold_in(key, index))(jnp.arange(count, dtype=jnp.int32))
        return self.length * jax.vmap(lambda key: jax.random.uniform(key, (), jnp.float32))(keys)


@register("pose")
@dataclass(frozen=True)
class Pose(PositionMap):
    """PoSE: in training, the tokens behind a random cut skip ahead, so that a short window meets positions below `length`.

    Zhu et al. (2023), arXiv 2309.10400, with two chunks. In a document of n positions the first c ~ U{1, ..., ceil(n / 2)}
    stay, the others move by u ~ U{0, ..., length - n} (by 0 where n exceeds `length`). Without a key nothing moves.

    As in the code of October 2023, the first chunk does not move (earlier it had a skip of its own) and is the shorter one.
    That code also reads the second chunk from further on in the text; here the tokens stay as they are.

    Raises:
      ValueError: for a length below 1.
    """

    family = "position maps"
    formula = (
        r"p \mapsto \begin{cases} p & p < c \\ p + u & p \ge c \end{cases}",
        r"c \sim U\{1, \dots, \lceil T/2 \rceil\},\quad u \sim U\{0, \dots, L - T\},\quad"
        r" T\ \text{tokens in the document}",
    )

    dimensions = (1,)

    length: int

    def __post_init__(self):
        if self.length < 1:
            raise ValueError(f"pose needs a length of at least 1, got {self.length}")

    def dims(self, dims):
        return room(dims, length=self.length)

    def place(self, params, site, key=None):
        self.coordinates(site)
        if key is None:
            return site
        cut_key, skip_key = jax.random.split(key)
        first, last = first_and_last(site)
        index, count = site.position - first, (last - first).astype(jnp.int32) + 1
        cut = 1 + below(cut_key, (count + 1) // 2)
        skip = jnp.where(index >= cut, below(skip_key, jnp.maximum(self.length - count, 0) + 1), 0)
        return site._replace(position=site.position + jnp.where(standing(site), skip, 0))


@register("shape")
@dataclass(frozen=True)
class Shape(PositionMap):
    """Shifted absolute positions: in training, p + k with one k ~ U{0, ..., max_offset} for all tokens of a row.

    Kiyono et al. (2021), arXiv 2109.05644. It teaches absolute codes to be shift-invariant; relative encodings are not
    affected. On grids each axis has its k. Without a key nothing moves.

    Raises:
      ValueError: for a negative max_offset.
    """

    family = "position maps"
    formula = (r"p \mapsto p + k,\quad k \sim U\{0, \dots, k_{\max}\}\ \text{for a row}",)
    ranges = ("max_offset >= 0",)

    max_offset: int

    def dims(self, dims):
        return room(dims, more=self.max_offset)

    def place(self, params, site, key=None):
        if key is None:
            return site
        offset = jax.random.randint(key, site.position.shape[1:], 0, self.max_offset + 1, jnp.int32)
        return site._replace(position=site.position + offset)


@register("cape")
@dataclass(frozen=True)
class Cape(PositionMap):
    """CAPE: in training, (p + shift + jitter of the token) * scale, in float32.

    Likhomanenko et al. (2021), arXiv 2106.03143, section 3.2: shift ~ U(-max_global_shift, max_global_shift) for the row,
    jitter ~ U(-max_local_shift, max_local_shift) for each token, log scale ~ U(-ln max_global_scaling, ln max_global_scaling)
    for the row. Beyond a max_local_shift of half the distance between tokens they may pass each other; sums along a
    document keep their order. On grids each axis has its shift and jitter; the scale is one. Without a key nothing moves.
    The defaults are those that the PyTorch port gcambara/cape names for text. Positions are in tokens or patches. The
    paper's are seconds in sound and run from -1 to 1 across an image, so convert its shifts to patches.

    Raises:
      ValueError: for a negative shift or a scaling below 1.
    """

    family = "position maps"
    formula = (
        r"p_i \mapsto \left(p_i + \Delta + \epsilon_i\right)\lambda",
        r"\Delta \sim U(-\Delta_{\max}, \Delta_{\max}),\quad \epsilon_i \sim U(-\epsilon_{\max},"
        r" \epsilon_{\max}),\quad \ln\lambda \sim U(-\ln\lambda_{\max}, \ln\lambda_{\max})",
    )

    max_global_shift: float = 5.0
    max_local_shift: float = 0.5
    max_global_scaling: float = 1.03

    def __post_init__(self):
        if min(self.max_global_shift, self.max_local_shift) < 0:
            raise ValueError(
                f"cape's shifts must not be negative, got {self.max_global_shift} and {self.max_local_shift}"
            )
        if not self.max_global_scaling >= 1:
            raise ValueError(f"cape scales by at least 1 each way, got max_global_scaling={self.max_global_scaling}")

    def place(self, params, site, key=None):
        if key is None:
            return site
        shift_key, jitter_key, scale_key = jax.random.split(key, 3)
        position = jnp.asarray(site.position, jnp.float32)
        shift = self.max_global_shift * jax.random.uniform(shift_key, position.shape[1:], jnp.float32, minval=-1.0)
        jitter = self.max_local_shift * jax.random.uniform(jitter_key, position.shape, jnp.float32, minval=-1.0)
        log_scale = math.log(self.max_global_scaling) * jax.random.uniform(scale_key, (), jnp.float32, minval=-1.0)
        return moved_in_order(site, (position + shift + jitter) * jnp.exp(log_scale))


def room(dims, length: int = 0, more: int = 0):
    """Dims with room for positions below `length`, or `more` than there were, on every axis."""
    grid = None if dims.grid is None else tuple(max(size, length) + more for size in dims.grid)
    line = max(dims.length or 0, length) + more
    return dims._replace(grid=grid, length=line or None)


def below(key: jax.Array, bound: Int32[Array, " T"]) -> Int32[jax.Array, " T"]:
    """Uniform in {0, ..., bound - 1}: one draw, so that tokens with one bound get one number."""
    return jax.vmap(lambda high: jax.random.randint(key, (), 0, high, jnp.int32))(jnp.asarray(bound))


def _sorted_draws(
    document: Int32[Array, " T"], position: Shaped[Array, " T"], stream: Shaped[Array, " N"]
) -> Shaped[jax.Array, " T"]:
    """Moves the r-th of a document's n different positions to the r-th smallest of the first n draws in `stream`."""
    length = len(position)
    order = jnp.lexsort((position, document))
    by_document, by_position = jnp.asarray(document)[order], jnp.asarray(position)[order]
    opens = jnp.concatenate([jnp.ones(1, bool), by_document[1:] != by_document[:-1]])
    new = opens | jnp.concatenate([jnp.ones(1, bool), by_position[1:] != by_position[:-1]])
    place = jnp.cumsum(new, dtype=jnp.int32) - 1  # places are numbered by document, then by position
    rank = place - jax.lax.cummax(jnp.where(opens, place, 0))
    # One entry for each place; entries without a place sort behind all others.
    of_place = jnp.full(length, jnp.iinfo(jnp.int32).max, jnp.int32).at[place].set(by_document)
    draw = jnp.zeros(length, stream.dtype).at[place].set(stream[rank])
    draws = draw[jnp.lexsort((draw, of_place))]
    return jnp.zeros(length, stream.dtype).at[order].set(draws[place])
