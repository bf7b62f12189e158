"""The test entry of a registered encoding: specs to try, its formula in float64, ranges of its arguments."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

LINE, GRID = "line", "grid"


class Case(NamedTuple):
    spec: str
    kind: str = LINE

    def __str__(self):
        return f"{self.kind}: {self.spec}"


def both(*specs: str) -> list[Case]:
    return [Case(spec, kind) for spec in specs for kind in (LINE, GRID)]


def grids(*specs: str) -> list[Case]:
    return [Case(spec, GRID) for spec in specs]


def lines(*specs: str) -> list[Case]:
    return [Case(spec, LINE) for spec in specs]


class Row(NamedTuple):
    """One sequence as an oracle sees it, in float64. Positions are arrays of A axes, None where a token stands nowhere."""

    position: list
    prefix: np.ndarray  # [T]
    segment: np.ndarray  # [T]
    x: np.ndarray  # [T, M], the layer's input, codes added
    q: np.ndarray  # [T, H, D], untransformed
    k: np.ndarray
    relation: tuple = ()  # of the site, as it is given

    @property
    def num_heads(self):
        return self.q.shape[1]


class Oracle:
    """NoPE. A member's oracle overrides what the member does, from the paper's formula, one token or one pair at a time.

    It shares no code with posjax: it reads the encoding's hyper-parameters `e` and `params` and nothing else.
    """

    def __init__(self, e, params):
        self.e, self.params = e, params

    def place(self, positions, prefix, segment):
        """The positions of a row's tokens after a position map; by default each is moved by `move`."""
        return [None if p is None else self.move(p) for p in positions]

    def move(self, p):
        return p

    def codes(self, x, row):
        """[T, M] to add to x; by default of each token by itself. Of `row`, q and k are not known yet."""
        return np.array([self.code(p, n, x.shape[1]) for p, n in zip(row.position, row.prefix, strict=True)])

    def code(self, p, prefix, width):
        return np.zeros(width)

    def observe(self, row):
        """Keeps in `self` what the encoding reads off the content."""

    def transform(self, row, head, i, j, q, k):
        """Query i and key j as this pair of tokens sees them; by default each is turned by `rotate`."""
        return self.rotate(q, row.position[i], head), self.rotate(k, row.position[j], head)

    def rotate(self, vector, p, head):
        return vector

    def logit(self, row, head, i, j):
        """The addition to the logit; by default `bias` of the two positions, 0 where a token stands nowhere."""
        if row.position[i] is None or row.position[j] is None:
            return 0.0
        return self.bias(head, row.num_heads, row.position[i], row.position[j])

    def bias(self, head, num_heads, p_query, p_key):
        return 0.0

    def sees(self, row, i, j):
        return True

    def sink(self, row, head, i):
        """The logit of nothing that is in the softmax of a head and query i; None for none."""
        return None

    def weights(self, row, i, seen, logits):
        """The weights of the keys that query i sees, in place of the softmax of their logits; None for that."""
        return None

    def carried(self, row, head, i, j, v):
        """The value of key j as query i reads it."""
        return v

    def value(self, row, head, i, j, dim):
        """The output of query i from key j beside its value."""
        return np.zeros(dim)


class Member(NamedTuple):
    """All that the tests of every encoding need of one registered name. The first variant is run by `make test`, the
    others where time is no matter."""

    variants: list[Case]  # arguments away from their defaults, and small
    oracle: type[Oracle] = Oracle
    arguments: Mapping = MappingProxyType({})  # hypothesis strategies by argument
    vit: str | None = None  # how a ViT with 2 x 3 patches and 1 register hosts it; None: the first grid variant
    decoder: str | None = None  # how a decoder of 8 positions does; None: the first line variant, "" where it cannot

    def on(self, kind: str) -> str:
        """The spec for a model whose tokens stand on a line or a grid; "" if there is none."""
        given = self.vit if kind == GRID else self.decoder
        return given if given is not None else next((case.spec for case in self.variants if case.kind == kind), "")
