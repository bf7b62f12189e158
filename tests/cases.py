"""The cases of every property: each registered encoding in a few variants, on a line and on a grid of tokens."""

import functools
import re

import jax
import numpy as np
import pytest
from members import LINE, MEMBERS, Case, grids, lines, way

import posjax as pj
from posjax.describe.worlds import World, joined, project  # noqa: F401, tests import them from here
from posjax.describe.worlds import layer_output as forward  # noqa: F401
from posjax.describe.worlds import tokens_at as rows
from posjax.encoding import Camera, Needs
from posjax.encodings.graphs import shortest_paths

parsed = functools.cache(pj.parse)
HEADS, HEAD_DIM = 3, 8  # three heads: slopes for a number of heads that is not a power of two
WIDTH = HEADS * HEAD_DIM
COMPOSITIONS: list[Case] = [
    *lines("(interpolate(factor=2) >> rope()) + t5() + sinusoidal()"),
    *lines("rope() + shaw(max_relative_position=3) + value_rotary() + learned_sink(stddev=1) + learned_sink(stddev=2)"),
    *lines("(interpolate(factor=2) >> alibi()) + learned(stddev=1) + fox() + cope(npos=5, stddev=1) + t5()"),
    *grids("(raster(width=7) >> sinusoidal()) + rope()", "raster(width=7) >> (rope() + t5(max_distance=20))"),
]
FIRST: list[Case] = [member.variants[0] for member in MEMBERS.values()] + COMPOSITIONS
# Every way to act, and every trait that changes how attention is computed, in as few programs as hold them.
DEEP: list[Case] = [*COMPOSITIONS[1:3], MEMBERS["self_extend"].variants[0]]
CASES: list[Case] = FIRST + [case for member in MEMBERS.values() for case in member.variants[1:]]


def params_of(keep=lambda case: True):
    """All cases: fast is one encoding of each set of hooks, slow all others and variants on a grid or that act elsewhere."""
    kept = [case for case in CASES if keep(case)]
    return _marked(kept, ways(FIRST, lambda encoding: encoding.hooks), [*FIRST, *ways(CASES, way, names_and_kind)])


def params_of_long(beside=()):
    """All cases, for what takes long: the first of `DEEP` without some names is fast, one of each way to act is slow."""
    fast = [case for case in DEEP if not {*beside} & {*re.findall(r"\w+", case.spec)}][:1]
    alone = [member.variants[0] for member in MEMBERS.values()]
    within = [case for case in ways(alone) if parsed(case.spec).hooks - {"embed", "place", "rotate"}]
    return _marked(CASES, fast, [*DEEP, *within, MEMBERS["peg"].variants[0]])


def _marked(cases, fast, slow):
    def marks(case):
        return [] if case in fast else pytest.mark.slow if case in slow else pytest.mark.thorough

    return [pytest.param(case, marks=marks(case)) for case in cases]


def ways(cases, way=way, beside=lambda case: None) -> list[Case]:
    """The first of the cases that act in one way, and are alike in what `beside` returns."""
    found = {}
    for case in cases:
        found.setdefault((way(parsed(case.spec)), beside(case)), case)
    return list(found.values())


def names_and_kind(case: Case) -> tuple[frozenset, str]:
    """The registered encodings in a case, and where its tokens stand."""
    return frozenset(re.findall(r"\w+", case.spec)) & {*MEMBERS}, case.kind


def each_case(params):
    """Parametrises `case` by what `params_of` or `params_of_long` gives."""
    return pytest.mark.parametrize("case", params, ids=str)


def setting(case: Case) -> tuple[pj.Encoding, pj.Dims, pj.Site]:
    """The encoding of a case, the sizes of its model, and where the tokens stand."""
    encoding = pj.parse(case.spec)
    # As many tokens on a line as on the grid: what JAX has compiled for one case serves the next.
    site = pj.sites(14, start=2) if case.kind == LINE else pj.grid(3, 4, prefix=2)
    grid, prefix = (None, 0) if case.kind == LINE else ((6, 7), 2)
    if case.spec.startswith("raster"):  # the encoding itself stands on a line
        dims = pj.Dims(WIDTH, HEADS, HEAD_DIM, length=42, prefix=2)
    else:
        dims = pj.Dims(WIDTH, HEADS, HEAD_DIM, length=24, grid=grid, prefix=prefix)
    if Needs.RELATION in encoding.needs:
        site = with_relation(site, encoding)
    return encoding, dims, site


@functools.cache
def world(case: Case) -> World:
    encoding, dims, site = setting(case)
    params = encoding.init(jax.random.key(1), dims)
    x = jax.random.normal(jax.random.key(2), (len(site.segment), WIDTH))
    weights = 0.3 * jax.random.normal(jax.random.key(3), (3, WIDTH, HEADS, HEAD_DIM))
    return World(encoding, params, x, site, weights)


def with_relation(site: pj.Site, encoding: pj.Encoding) -> pj.Site:
    """Adds a camera of each token, or a graph in two parts, of which tokens are nodes; all edges but one lead both ways."""
    random, count = np.random.default_rng(0), 16  # the graph's nodes, and more
    if Needs.CAMERAS in encoding.needs:
        if 2 in encoding.dimensions:
            return site._replace(relation=cameras(random, len(site.segment)))
        row, column = site.position.T
        view = np.minimum(row // 2, 1)  # two rows of the grid are one view, the others another
        position = np.stack([view, row - 2 * view, column], axis=1)
        return site._replace(position=position, relation=rows(cameras(random, 2), view))
    adjacency = np.zeros((count, count))
    for part in (np.arange(9), np.arange(9, count)):
        parent = [random.integers(0, n) for n in range(1, len(part))]
        adjacency[part[1:], part[parent]] = adjacency[part[parent], part[1:]] = 1
    adjacency[2, 7] = 1
    node = random.permutation(count)[: len(site.segment)].astype(np.int32)
    return site._replace(relation=pj.Relation(node, shortest_paths(adjacency)[node]))


def cameras(random: np.random.Generator, count: int) -> Camera:
    """Random rigid motions and lenses."""
    turn = np.linalg.qr(random.normal(size=(count, 3, 3)))[0]
    view = np.tile(np.eye(4, dtype=np.float32), (count, 1, 1))
    view[:, :3, :3], view[:, :3, 3] = turn * np.linalg.det(turn)[:, None, None], random.normal(size=(count, 3))
    lens = np.concatenate([random.uniform(0.7, 1.5, (count, 2)), random.uniform(-0.1, 0.1, (count, 2))], axis=1)
    return Camera(view, lens.astype(np.float32))


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
