"""The cases of every property: each registered encoding in a few variants, on a line and on a grid of tokens."""

import functools
import re

import jax
import numpy as np
import pytest
from members import LINE, MEMBERS, Case, grids, lines

import posjax as pj
from posjax.describe.worlds import World, joined, project  # noqa: F401, tests import them from here
from posjax.describe.worlds import layer_output as forward  # noqa: F401
from posjax.describe.worlds import tokens_at as rows  # noqa: F401
from posjax.encoding import Needs
from posjax.encodings.graphs import shortest_paths

HEADS, HEAD_DIM = 3, 8  # three heads: slopes for a number of heads that is not a power of two
WIDTH = HEADS * HEAD_DIM
COMPOSITIONS: list[Case] = [
    *lines("(interpolate(factor=2) >> rope()) + t5() + sinusoidal()"),
    *lines("rope() + shaw(max_relative_position=3) + value_rotary() + learned_sink(stddev=1) + learned_sink(stddev=2)"),
    *grids("(raster(width=7) >> sinusoidal()) + rope()", "raster(width=7) >> (rope() + t5(max_distance=20))"),
]
# One of every way to act that COMPOSITIONS[0] has not, and of every trait that changes how attention is computed.
SAMPLE = ["learned", "peg", "alibi", "shaw", "cope", "fox", "self_extend", "learned_sink", "value_rotary"]
FIRST: list[Case] = [member.variants[0] for member in MEMBERS.values()] + COMPOSITIONS
CASES: list[Case] = FIRST + [case for member in MEMBERS.values() for case in member.variants[1:]]


def params_of(keep=lambda case: True):
    """All cases: fast is one encoding of each way to act, slow all others, and variants on a grid or that act elsewhere."""
    kept = [case for case in CASES if keep(case)]
    return _marked(kept, [*ways(FIRST, named=False), *COMPOSITIONS], [*FIRST, *ways(CASES, lambda case: case.kind)])


def params_of_long(beside=()):
    """All cases, for what takes long: those in SAMPLE are fast, but for some; slow is the first variant of each encoding."""
    return _marked(
        CASES, [MEMBERS[name].variants[0] for name in SAMPLE if name not in beside] + COMPOSITIONS[:1], FIRST
    )


def _marked(cases, fast, slow):
    def marks(case):
        return [] if case in fast else pytest.mark.slow if case in slow else pytest.mark.thorough

    return [pytest.param(case, marks=marks(case)) for case in cases]


def ways(cases, beside=lambda case: None, *, named=True) -> list[Case]:
    """The first of the cases that act in the same places and, if `named`, join the same encodings."""
    found = {}
    for case in cases:
        encoding = pj.parse(case.spec)
        names = frozenset(re.findall(r"\w+", case.spec)) & {*MEMBERS} if named else None
        found.setdefault((names, encoding.hooks, encoding.needs, beside(case)), case)
    return list(found.values())


def each_case(params):
    """Parametrises `case` by what `params_of` or `params_of_long` gives."""
    return pytest.mark.parametrize("case", params, ids=str)


@functools.cache
def world(case: Case) -> World:
    encoding = pj.parse(case.spec)
    # As many tokens on a line as on the grid: what JAX has compiled for one case serves the next.
    site = pj.sites(14, start=2) if case.kind == LINE else pj.grid(3, 4, prefix=2)
    grid, prefix = (None, 0) if case.kind == LINE else ((6, 7), 2)
    if case.spec.startswith("raster"):  # the encoding itself stands on a line
        dims = pj.Dims(WIDTH, HEADS, HEAD_DIM, length=42, prefix=2)
    else:
        dims = pj.Dims(WIDTH, HEADS, HEAD_DIM, length=24, grid=grid, prefix=prefix)
    if Needs.RELATION in encoding.needs:
        site = with_relation(site)
    params = encoding.init(jax.random.key(1), dims)
    x = jax.random.normal(jax.random.key(2), (len(site.segment), WIDTH))
    weights = 0.3 * jax.random.normal(jax.random.key(3), (3, WIDTH, HEADS, HEAD_DIM))
    return World(encoding, params, x, site, weights)


def with_relation(site: pj.Site) -> pj.Site:
    """Adds a graph in two parts to the site: unordered tokens are its nodes, and all edges but one lead both ways."""
    random, count = np.random.default_rng(0), 16  # the graph's nodes, and more
    adjacency = np.zeros((count, count))
    for part in (np.arange(9), np.arange(9, count)):
        parent = [random.integers(0, n) for n in range(1, len(part))]
        adjacency[part[1:], part[parent]] = adjacency[part[parent], part[1:]] = 1
    adjacency[2, 7] = 1
    node = random.permutation(count)[: len(site.segment)].astype(np.int32)
    return site._replace(relation=pj.Relation(node, shortest_paths(adjacency)[node]))


def inner_jaxprs(closed_jaxpr):
    """(jaxpr, the constants it closes over) of a jaxpr and of every one within it, of scans, branches, calls."""
    pending = [(closed_jaxpr.jaxpr, closed_jaxpr.consts)]
    while pending:
        jaxpr, consts = pending.pop()
        yield jaxpr, consts
        for eqn in jaxpr.eqns:
            for value in jax.tree.leaves(list(eqn.params.values()), is_leaf=lambda x: hasattr(x, "eqns")):
                if hasattr(value, "consts"):
                    pending.append((value.jaxpr, value.consts))
                elif hasattr(value, "eqns"):
                    pending.append((value, ()))
