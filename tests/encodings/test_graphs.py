"""Graphs and trees as data: relations from an adjacency matrix, which follow their tokens."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import HEAD_DIM, HEADS, joined, rows

import posjax as pj
from posjax.encodings.graphs import graph, laplacian_eigenvectors, random_walks, shortest_paths, tree_paths

DIMS = pj.Dims(HEADS * HEAD_DIM, HEADS, HEAD_DIM)
DIRECTED = np.array([[0, 1, 0, 0], [0, 0, 1, 0], [1, 0, 0, 0], [0, 0, 0, 0]])  # a ring one way, and a node alone
RING = np.roll(np.eye(6, dtype=int), 1, axis=0) + np.roll(np.eye(6, dtype=int), -1, axis=0)
PATH = np.eye(4, k=1, dtype=int) + np.eye(4, k=-1, dtype=int)
BIAS = pj.parse("graphormer(max_distance=2, stddev=1)")
PARAMS = {"table": 10.0 ** np.arange(5)[:, None] * np.ones(HEADS, np.float32)}  # distances 0, 1, 2; no path; prefix


def bias(q_site, k_site):
    q, k = (jnp.zeros((len(site.segment), HEADS, HEAD_DIM)) for site in (q_site, k_site))
    return np.asarray(BIAS.bias(PARAMS, q, q_site, k, k_site))[0]


def test_shortest_paths_follow_edges():
    np.testing.assert_array_equal(
        shortest_paths(DIRECTED), [[0, 1, 2, -1], [2, 0, 1, -1], [1, 2, 0, -1], [-1, -1, -1, 0]]
    )
    assert shortest_paths(RING)[0].tolist() == [0, 1, 2, 3, 2, 1]
    assert shortest_paths(0.5 * PATH)[0].tolist() == [0, 1, 2, 3]  # edges are edges, whatever their weight


def test_eigenvectors_solve_the_laplacian():
    found = laplacian_eigenvectors(PATH, 5).astype(np.float64)
    scale = np.diag(PATH.sum(1) ** -0.5)
    values = 1 - np.cos(np.pi * np.arange(1, 4) / 3)  # of a path of 4 nodes: 1 - cos(pi j / 3)
    np.testing.assert_allclose((np.eye(4) - scale @ PATH @ scale) @ found[:, :3], values * found[:, :3], atol=1e-6)
    np.testing.assert_allclose(found.T @ found, np.diag([1, 1, 1, 0, 0]), atol=1e-6)  # there are no more than three


def test_walks_return_as_dgl_says():
    """The example of dgl.random_walk_pe, whose second node has an edge to itself."""
    np.testing.assert_array_equal(random_walks(np.array([[0, 1], [1, 1]]), 2), [[0, 0.5], [0.5, 0.75]])
    np.testing.assert_array_equal(random_walks(DIRECTED, 3)[:, 2], [1, 1, 1, 0])


def test_paths_in_trees_begin_at_the_node():
    assert tree_paths([-1, 0, 0, 2, 2, 4], 3).tolist() == [
        [0, 0, 0],
        [1, 0, 0],
        [2, 0, 0],
        [1, 2, 0],
        [2, 2, 0],
        [1, 2, 2],
    ]
    assert tree_paths([-1, 0, 1], 1).tolist() == [[0], [1], [1]]


def test_graph_pads_tokens_and_columns():
    site = graph(PATH, prefix=2, length=9)
    assert (site.segment.tolist(), site.prefix.tolist()) == ([1] * 6 + [0] * 3, [1, 2] + [0] * 7)
    assert (site.position.tolist(), site.relation.distance.shape) == ([0, 0, 0, 1, 2, 3, 0, 0, 0], (9, 7))
    np.testing.assert_array_equal(site.relation.distance[2:6, :4], shortest_paths(PATH))
    assert (site.relation.distance[:, 4:] == -1).all()


def test_pairs_get_the_bias_of_their_distance():
    site = graph(PATH, prefix=1)
    expected = [[1e4] * 5, [1e4, 1, 10, 100, 100], [1e4, 10, 1, 10, 100], [1e4, 100, 10, 1, 10], [1e4, 100, 100, 10, 1]]
    np.testing.assert_array_equal(bias(site, site), expected)
    site = graph(DIRECTED)
    np.testing.assert_array_equal(bias(site, site)[0], [1, 10, 100, 1e3])
    np.testing.assert_array_equal(bias(site, site)[:, 0], [1, 100, 10, 1e3])


@pytest.mark.parametrize("implementation", ["dense", "blockwise"])
def test_graphs_of_other_sizes_are_alone_in_a_row(implementation):
    """Packed, padded and shuffled: a relation goes where its token goes."""
    ring, path = graph(RING, prefix=1), graph(PATH, length=6)
    row = joined(path, ring)._replace(segment=np.repeat([1, 0, 2], [4, 2, 7]).astype(np.int32))
    order = np.random.default_rng(1).permutation(13)
    q, k, v = np.random.default_rng(0).normal(size=(3, 13, HEADS, HEAD_DIM)).astype(np.float32)

    @jax.jit
    def attended_rows(q, k, v, site):
        return pj.attend(BIAS, PARAMS, q, k, v, site, site, implementation=implementation)

    def run(index, site):
        return np.asarray(attended_rows(q[index], k[index], v[index], site))

    together = np.zeros_like(v)
    together[order] = run(order, rows(row, order))
    np.testing.assert_allclose(together[6:], run(np.arange(6, 13), ring), atol=1e-5)
    np.testing.assert_allclose(together[:4], run(np.arange(4), graph(PATH)), atol=1e-5)
    assert not together[4:6].any()


def test_signs_are_drawn_for_each_document():
    encoding, position = pj.parse("laplacian(pos_enc_dim=16)"), np.ones((6, 16), np.float32)
    site = pj.sites(6)._replace(position=position, segment=np.int32([1, 1, 2, 2, 2, 0]))
    assert encoding.place((), site) is site
    found = np.asarray(jax.jit(lambda key: encoding.place((), site, key).position)(jax.random.key(0)))
    assert {*np.unique(found)} == {-1, 1}
    assert (found[0] == found[1]).all()
    assert (found[2:4] == found[4]).all()
    assert (found[0] != found[2]).any()
    line = pj.parse("laplacian(pos_enc_dim=1)").place((), pj.sites(4), jax.random.key(0))
    assert line.position.shape == (4,)


def test_positions_are_free_beside_a_relation():
    """Features of nodes, or an order of words."""
    encoding, site = pj.parse("graphormer + laplacian(pos_enc_dim=4)"), graph(RING)
    params = encoding.init(jax.random.key(0), DIMS)

    @jax.jit
    def run(position):
        x, hosted = pj.host(encoding, params, jnp.ones((6, DIMS.width)), site._replace(position=position), key=None)
        q = x.reshape(6, HEADS, HEAD_DIM)
        return hosted.attend(q, q, q, x=x, implementation="dense")

    waves = laplacian_eigenvectors(RING, 4)
    assert np.abs(run(waves) - run(0 * waves)).max() > 1e-2


def test_a_node_without_a_column_is_refused_or_nan():
    site = graph(PATH)
    far = site._replace(relation=site.relation._replace(node=np.int32([0, 1, 2, 4])))
    with pytest.raises(ValueError, match="node 4 has no column among the 4"):
        bias(far, far)
    traced = np.asarray(jax.jit(lambda k_site: BIAS.bias(PARAMS, jnp.zeros((4, HEADS, 2)), site, None, k_site))(far))[0]
    assert np.isnan(traced[:, 3]).all()
    np.testing.assert_array_equal(traced[:, :3], bias(site, site)[:, :3])
    padding = far._replace(segment=np.int32([1, 1, 1, 0]))
    assert np.isfinite(bias(padding, padding)).all()


def test_a_branch_beyond_the_degree_is_refused_or_nan():
    encoding, x = pj.parse("tree(depth=2, degree=2)"), jnp.zeros((4, 8))
    site = pj.sites(4)._replace(position=np.int32([[0, 0], [1, 0], [2, 1], [3, 1]]))
    params = {"rate": jnp.ones(2)}
    with pytest.raises(ValueError, match=r"branches from 1 to 2, .* got \[3, 1\]: set degree"):
        encoding.embed(params, x, site)
    traced = np.asarray(jax.jit(lambda site: encoding.embed(params, x, site))(site))
    assert np.isnan(traced[3]).all()
    assert np.isfinite(traced[:3]).all()


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda: shortest_paths(np.zeros((2, 3))), r"\[N, N\]; got \(2, 3\)"),
        (lambda: laplacian_eigenvectors(DIRECTED, 2), r"adjacency \| adjacency\.T"),
        (lambda: tree_paths([1, 0], 2), "node 0 is an ancestor of its own"),
        (lambda: tree_paths([3, 0], 2), "from 0 to 1, -1 for a root"),
        (lambda: tree_paths([-1], 0), "a depth of at least 1"),
        (lambda: random_walks(PATH, 0), "k must be at least 1, got 0"),
        (lambda: graph(PATH, prefix=1, length=4), "a length of at least 5; got 4 and 4"),
        (lambda: pj.parse("tree(depth=4, degree=8)").init(jax.random.key(0), DIMS), "level, 32; the width is 24"),
        (lambda: BIAS.bias(PARAMS, np.ones((4, HEADS, 2)), pj.sites(4), np.ones((4, HEADS, 2)), pj.sites(4)), "graph"),
    ],
)
def test_mistakes_name_their_mend(made, message, unchecked_shapes):
    with pytest.raises(ValueError, match=message):
        made()
