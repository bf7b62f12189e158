"""Encodings for arithmetic: a position is the place of a digit within its number.

Positions are data, so they are computed from the tokens beforehand, by `digit_places` or `coupled_positions`.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Int32

from posjax.encoding import Array, Encoding, Needs, PositionMap, members, reads_rows, stands
from posjax.encodings.placement import first_and_last, standing
from posjax.encodings.randomizing import below, room
from posjax.encodings.tables import Table, added, numpy_if_known, refuse_outside, rows_at, whole_inside
from posjax.spec import register


@register("abacus")
@dataclass(frozen=True)
class Abacus(Encoding):
    """Abacus: a learned row for the place of a digit within its number, counted from 1; row 0 is for all other tokens.

    McLeish et al. (2024), arXiv 2405.17399. Positions are the places, as `digit_places` computes them from tokens:
    `site._replace(position=digit_places(tokens, digits))`. Places count from the first written digit, so write numbers
    least significant digit first: then digits of equal significance share a row. In training all places in a row of the
    batch are moved by one offset k ~ U{0, ..., max_offset}, so that longer numbers than in training find trained rows;
    non-digits stay in row 0. `length` rows start at N(0, stddev^2): a number may have length - 1 - max_offset digits in
    training and length - 1 later.

    With an encoding of the tokens' order beside it, give positions of two axes and let each part read its own:
    `(axis(index=0) >> rope()) + (axis(index=1) >> abacus())`.

    As in the official code, whose k is random.randint(0, max_k) with max_k = 99, one for a batch; ours is one for a row.
    That code's rows start at N(0, 1), torch's default, ours at the scale of other tables. Nothing is added to tokens that
    stand nowhere.

    Raises:
      ValueError: for a length that leaves no place beside max_offset; for positions that are not whole or outside the table
        (NaN where they are not known at tracing time).
    """

    family = "tables"
    formula = (
        r"x_t \leftarrow x_t + E_{\mathrm{place}(t) + k}",
        r"k \sim U\{0, \dots, k_{\max}\}\ \text{in training, else}\ 0",
    )

    relative = False
    needs = Needs.WHOLE_POSITIONS
    dimensions = (1,)

    length: int = 1024
    max_offset: int = 99
    stddev: float = 0.02

    def __post_init__(self):
        if self.max_offset < 0 or self.length < self.max_offset + 2:
            raise ValueError(
                f"abacus needs max_offset >= 0 and length > max_offset + 1, "
                f"got max_offset={self.max_offset} and length={self.length}"
            )

    def init(self, key, dims):
        return Table(self.stddev * jax.random.normal(key, (self.length, dims.width), jnp.float32), (self.length,))

    def place(self, params, site, key=None):
        if key is None:
            return site
        offset = jax.random.randint(key, (), 0, self.max_offset + 1, jnp.int32)
        return site._replace(position=jnp.where(site.position > 0, site.position + offset, site.position))

    def embed(self, params, x, site):
        position, inside = whole_inside(self, self.coordinates(site), params.extent)
        where, (length,) = numpy_if_known(position, site.prefix), params.extent
        outside = ~inside & (site.prefix == 0)
        refuse_outside(self, outside, site, params.extent, 0, "make the table larger (length)")
        code = rows_at(params.rows, where.where(inside, position[:, 0], length))
        return added(x, jnp.where(stands(site)[:, None], code, 0.0), site)


def _goes_by_order(encoding: Encoding) -> bool:
    """Whether an encoding sums along the document; one that reads its length alone does not."""
    return reads_rows(encoding) or bool(encoding.observes and Needs.DOCUMENT_LENGTH not in encoding.needs)


@register("position_coupling")
@dataclass(frozen=True)
class PositionCoupling(PositionMap):
    """Position coupling: tokens that belong together share a position, and in training all start at a random one.

    Cho et al. (2024), arXiv 2405.20671. The ids are the positions that the model is given, 1 and up, as `coupled_positions`
    makes them for an addition; 0 marks tokens that are coupled with none; it never changes. In training all other ids move
    by one k ~ U{0, ..., max_position - the largest id in the document}. Without a key nothing moves, as in the official
    code, which then starts at 1.

    Raises:
      ValueError: for a max_position below 1; left of an encoding that sums along the document, whose order the ids hide.
    """

    family = "position maps"
    formula = (
        r"p \mapsto p + k\ \text{for}\ p > 0,\quad k \sim U\{0, \dots, P - \max p\}\ \text{in"
        " training}",
    )

    dimensions = (1,)

    max_position: int

    def __post_init__(self):
        if self.max_position < 1:
            raise ValueError(f"position_coupling needs a max_position of at least 1, got {self.max_position}")

    def dims(self, dims):
        return room(dims, length=self.max_position + 1)

    def __rshift__(self, other):
        if isinstance(other, Encoding) and any(map(_goes_by_order, members(other))):
            raise ValueError(
                f"{other} sums along the document, and {self} does not tell which token comes first: causal queries would "
                f"read later ones; give positions of two axes, (axis(index=0) >> {other}) + (axis(index=1) >> {self} >> ...)"
            )
        return super().__rshift__(other)

    def place(self, params, site, key=None):
        self.coordinates(site)
        if key is None:
            return site
        _, largest = first_and_last(site)
        offset = below(key, jnp.maximum(self.max_position - largest.astype(jnp.int32), 0) + 1)
        moves = standing(site) & (site.position > 0)
        return site._replace(position=site.position + jnp.where(moves, offset, 0))


def digit_places(tokens: Int32[Array, " T"], digits: tuple[int, ...]) -> Int32[np.ndarray, " T"]:
    """The place of each digit within its number, from 1 on in the order of writing; 0 for other tokens.

    A number is a run of neighbouring digits. `digits` are the token ids of digits.

    >>> digit_places(np.array([*b"12+345="], np.int32), tuple(b"0123456789")).tolist()
    [1, 2, 0, 1, 2, 3, 0]
    """
    is_digit = np.isin(tokens, digits)
    index = np.arange(len(is_digit), dtype=np.int32)
    last_other = np.maximum.accumulate(np.where(is_digit, np.int32(-1), index))
    return np.where(is_digit, index - last_other, 0).astype(np.int32)


def coupled_positions(tokens: Int32[Array, " T"], digits: tuple[int, ...], equals: int) -> Int32[np.ndarray, " T"]:
    """Ids of an addition such as "653+49=207": digits of equal significance share one, 2 for the ones, 3 for the tens ...

    Cho et al. (2024), figure 1, and `AdditionDatasetWithCoupledPositions` of their code with its defaults: operands are
    written most significant digit first, the sum, behind the token `equals`, least significant digit first. "+", "="
    and all else between digits have id 1; tokens before the first digit or behind the last have 0.

    >>> coupled_positions(np.array([*b"653+49=207"], np.int32), tuple(b"0123456789"), ord("=")).tolist()
    [4, 3, 2, 1, 3, 2, 1, 2, 3, 4]
    """
    tokens = np.asarray(tokens)
    ascending = digit_places(tokens, digits)
    descending = digit_places(tokens[::-1], digits)[::-1]
    of_sum = np.maximum.accumulate(tokens == equals)
    ids = 1 + np.where(of_sum, ascending, descending)
    is_digit = ascending > 0
    between = np.maximum.accumulate(is_digit) & np.maximum.accumulate(is_digit[::-1])[::-1]
    return np.where(between, ids, 0).astype(np.int32)
