"""Positions of nodes in graphs and trees: biases of shortest paths; codes of degrees, eigenvectors, walks and branches.

They read data that is made beforehand in NumPy by the functions at the end of this file:

    site = graph(adjacency, prefix=1)                                          # for graphormer and centrality
    site = graph(adjacency, position=laplacian_eigenvectors(adjacency, 8))     # and for laplacian, beside them
"""

from collections.abc import Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float32, Int, Int32, Shaped

from posjax.encoding import Array, Encoding, Needs, Relation, Site, stands
from posjax.encodings.pairs import linear, linear_init, related
from posjax.encodings.placement import standing
from posjax.encodings.tables import added, numpy_if_known, whole_inside
from posjax.spec import register

_NO_NODE = -2  # the distance to a node without a column in `Relation.distance`


@register("graphormer")
@dataclass(frozen=True)
class Graphormer(Encoding):
    """A learned bias per head and shortest-path distance from query to key, one for no path, one beside prefix tokens.

    Ying et al. (2021), arXiv 2106.05234, eq. 6; all pairs with the paper's virtual node share a scalar of their own.
    Authors' code: microsoft/Graphormer, graphormer/modules/graphormer_layers.py. Virtual nodes are tokens with
    `site.prefix`. Distances beyond max_distance share the last bucket; the default has the rows of the code's tables of 512,
    less the one for padding. The code can hide pairs that no path joins; in the paper they have their bucket, as here.
    The paper's model is `graphormer() + centrality()` with the edges of a path (eq. 7) besides, which are not positions.

    It reads `site.relation`, a `posjax.Relation`, and no positions: these may be anything. Of a directed graph the distance
    is that from the query to the key. A node that has no column is refused: ValueError where sites are known at tracing time,
    NaN where they are not. Of weighted graphs give whole distances.

    Parameters: {"table": [max_distance + 3, H]}, the last two rows for no path and for prefix tokens; initialised
    N(0, stddev^2), 0.02 as in the code.

    Raises:
      ValueError: for a max_distance below 1, a negative stddev; for a site without a relation, or one that is not whole.
    """

    family = "learned bias"
    formula = (
        r"b^{(h)}_{ij} = B_{h,\,\phi(i,j)}",
        r"\phi(i,j)\ \text{the edges on the shortest path from node}\ i\ \text{to node}\ j",
    )

    needs = Needs.RELATION
    ranges = "max_distance >= 1", "stddev >= 0"

    max_distance: int = 509
    stddev: float = 0.02

    def init(self, key, dims):
        return {"table": self.stddev * jax.random.normal(key, (self.max_distance + 3, dims.num_heads), jnp.float32)}

    def bias(self, params, q, q_site, k, k_site):
        distance = _distances(self, q_site, k_site)
        no_path, beside_prefix = self.max_distance + 1, self.max_distance + 2
        row = jnp.where(distance < 0, no_path, jnp.minimum(distance, self.max_distance))
        row = jnp.where(distance == _NO_NODE, self.max_distance + 3, row)  # behind the table: NaN
        row = jnp.where(related(q_site, k_site), row, beside_prefix)  # other documents are hidden
        return jnp.take(params["table"].astype(jnp.float32).T, row, axis=1, mode="fill", fill_value=jnp.nan)


@register("centrality")
@dataclass(frozen=True)
class Centrality(Encoding):
    """A learned code of a node's degree, added to tokens.

    Ying et al. (2021), arXiv 2106.05234, eq. 5, of undirected graphs, where the tables of both degrees are
    one; the authors' code adds two that it reads at one row. The degree is the number of nodes at distance 1 in
    `site.relation`: of a directed graph, the ends of its edges. Degrees above max_degree share its row; the default has
    the rows of the code's table of 512, less the one for padding. Nothing is added to tokens that stand nowhere.

    Parameters: {"table": [max_degree + 1, M]}, initialised N(0, stddev^2), 0.02 as in the code.

    Raises:
      ValueError: for a max_degree below 0, a negative stddev; for a site without a relation, or one that is not whole.
    """

    family = "tables"
    formula = (r"x_i \leftarrow x_i + z_{\deg(i)}",)

    needs = Needs.RELATION
    ranges = "max_degree >= 0", "stddev >= 0"

    max_degree: int = 510
    stddev: float = 0.02

    def init(self, key, dims):
        return {"table": self.stddev * jax.random.normal(key, (self.max_degree + 1, dims.width), jnp.float32)}

    def embed(self, params, x, site):
        degree = (_relation(self, site).distance == 1).sum(axis=1)
        code = jnp.asarray(params["table"])[numpy_if_known(degree).minimum(degree, self.max_degree)]
        return added(x, jnp.where(stands(site)[:, None], code, 0.0), site)


class _Features(Encoding):
    """A linear map of `pos_enc_dim` features, the axes of `site.position`, added to tokens that stand somewhere."""

    relative = False
    reach = 1.0  # as components of unit vectors, and probabilities
    ranges = ("pos_enc_dim >= 1",)

    @property
    def dimensions(self):
        return (self.pos_enc_dim,)

    def init(self, key, dims):
        return linear_init(key, self.pos_enc_dim, dims.width)

    def embed(self, params, x, site):
        code = linear(params, jnp.asarray(self.coordinates(site), jnp.float32))
        return added(x, jnp.where(stands(site)[:, None], code, 0.0), site)


@register("laplacian")
@dataclass(frozen=True)
class Laplacian(_Features):
    """Adds a linear map of a node's entries in the first non-trivial eigenvectors of the graph's Laplacian.

    Dwivedi and Bresson (2020), arXiv 2012.09699: C p + c, where the axes of a position p are the `pos_enc_dim`
    features that `laplacian_eigenvectors` makes. Their signs mean nothing, so with a key (in training) each document draws a
    sign for each eigenvector; the authors' code draws one for a whole batch. 8 as in their configuration for ZINC.

    Parameters: {"kernel": C [pos_enc_dim, M], "bias": c [M]}, uniform within pos_enc_dim^(-1/2) of 0, as torch.nn.Linear.

    Raises:
      ValueError: for a pos_enc_dim below 1; for positions of another number of axes.
    """

    family = "waves"
    formula = (
        r"x_i \leftarrow x_i + C\,\left(u_{1,i}, \dots, u_{k,i}\right) + c",
        r"\left(I - D^{-1/2} A\,D^{-1/2}\right) u_j = \lambda_j u_j,\quad 0 = \lambda_0 \le \lambda_1"
        r" \le \dots",
    )

    pos_enc_dim: int = 8

    def place(self, params, site, key=None):
        if key is None:
            return site
        sign = jax.vmap(lambda document: self._signs(jax.random.fold_in(key, document)))(jnp.asarray(site.segment))
        position = jnp.asarray(self.coordinates(site), jnp.float32) * sign
        return site._replace(position=position.reshape(site.position.shape))

    def _signs(self, key: jax.Array) -> Float32[jax.Array, " A"]:
        positive = jax.random.bernoulli(key, np.float32(0.5), (self.pos_enc_dim,))
        return jnp.where(positive, jnp.float32(1), -1.0)


@register("random_walk")
@dataclass(frozen=True)
class RandomWalk(_Features):
    """Adds a linear map of the probabilities that a random walk from a node is back there after 1, 2, ... steps (RWSE).

    Dwivedi et al. (2021), arXiv 2110.07875: C p + c, where the axes of a position p are the `pos_enc_dim` features that
    `random_walks` makes. The paper carries these codes through the layers beside the tokens, as a stream of their own that is
    updated there; here they are added at the start. 16 as in its configuration for ZINC with SAN.

    Parameters: {"kernel": C [pos_enc_dim, M], "bias": c [M]}, uniform within pos_enc_dim^(-1/2) of 0, as torch.nn.Linear.

    Raises:
      ValueError: for a pos_enc_dim below 1; for positions of another number of axes.
    """

    family = "other"
    formula = (
        r"x_i \leftarrow x_i + C\,\left(R_{ii}, \left(R^2\right)_{ii}, \dots,"
        r" \left(R^k\right)_{ii}\right) + c,\quad R = D^{-1} A",
    )

    pos_enc_dim: int = 16


@register("tree")
@dataclass(frozen=True)
class Tree(Encoding):
    """Adds the branches that lead to a node of a tree as a stack of one-hot vectors that fade with learned rates.

    Shiv and Quirk (2019), NeurIPS, "Novel positional encodings to enable tree-based transformers", and the authors' code
    (microsoft/icecaps, estimators/abstract_transformer_estimator.py and util/trees.py). A position has `depth` axes: the
    branch by which the node hangs on its parent, then the parent's, and so on, from 1; 0 above the root. Nodes further down
    lose the branches next to the root. `tree_paths` makes them. Channel (a, b, f) of depth x degree x F is

        [position_a = b] p_f^a sqrt((1 - p_f^2) M / 2),  p_f = tanh(w_f),  a = 0, 1, ...

    F is the largest with depth degree F <= M; channels that are left get nothing, where the code has a projection to M.
    Nothing is added to tokens that stand nowhere. A branch beyond `degree` is refused: ValueError where positions are known
    at tracing time, NaN where they are not.

    Parameters: {"rate": w [F]}, uniform within (3 / F)^(1/2) of 0: Glorot's start, as the code's framework has by default.

    Raises:
      ValueError: for a depth or degree below 1; for a width below depth x degree, positions of another number of axes, or
        that are not whole.
    """

    family = "other"
    formula = (
        r"x_i \leftarrow x_i + \left[\,\left[i_a = b\right] p_f^a \sqrt{\left(1 - p_f^2\right)"
        r" M/2}\,\right]_{a,b,f}",
        r"i_a\ \text{the branch}\ a\ \text{levels above node}\ i,\quad p_f = \tanh w_f",
    )

    relative = False
    needs = Needs.WHOLE_POSITIONS
    ranges = "depth >= 1", "degree >= 1"

    depth: int
    degree: int

    @property
    def dimensions(self):
        return (self.depth,)

    def init(self, key, dims):
        features = dims.width // (self.depth * self.degree)
        if not features:
            raise ValueError(
                f"{self} needs a channel for each branch of each level, {self.depth * self.degree}; the width is {dims.width}"
            )
        bound = (3 / features) ** 0.5
        return {"rate": jax.random.uniform(key, (features,), jnp.float32, minval=-bound, maxval=bound)}

    def embed(self, params, x, site):
        branch, inside = whole_inside(self, self.coordinates(site), (self.degree + 1,) * self.depth)
        self._refuse(branch, ~inside & standing(site))
        level = np.arange(self.depth, dtype=np.float32)[:, None]
        # 1 / cosh is sqrt(1 - tanh^2), with a gradient where tanh rounds to 1.
        fading = jnp.tanh(params["rate"]) ** level * (x.shape[-1] / 2) ** 0.5 / jnp.cosh(params["rate"])
        taken = branch[:, :, None] == np.arange(1, self.degree + 1, dtype=np.int32)
        code = jnp.where(taken[..., None], fading[:, None], 0.0).reshape(len(x), -1)
        code = jnp.pad(code, [(0, 0), (0, x.shape[-1] - code.shape[1])])
        return added(x, jnp.where(standing(site)[:, None], jnp.where(inside[:, None], code, jnp.nan), 0.0), site)

    def _refuse(self, branch: Array, outside: Array) -> None:
        if not isinstance(outside, jax.core.Tracer) and np.any(outside):
            found = np.asarray(branch)[np.flatnonzero(np.asarray(outside))[0]]
            raise ValueError(
                f"{self} has branches from 1 to {self.degree}, and 0 above the root; got {found.tolist()}: set degree"
            )


def _relation(encoding: Encoding, site: Site) -> Relation:
    """The relation that an encoding needs, checked."""
    if not isinstance(site.relation, Relation):
        raise ValueError(
            f"{encoding} reads how far apart the nodes of a graph are, and site.relation does not say it: make the site by "
            "posjax.encodings.graphs.graph(adjacency), or site._replace(relation=posjax.Relation(node, distance))"
        )
    if not jnp.issubdtype(site.relation.distance.dtype, jnp.integer):
        raise ValueError(f"{encoding} looks up whole distances, got {site.relation.distance.dtype}: round them")
    return site.relation


def _distances(encoding: Encoding, q_site: Site, k_site: Site) -> Int32[Array, "T S"]:
    """The distance from each query to each key; -1 where no path leads there, _NO_NODE where the key has no column."""
    distance, node = _relation(encoding, q_site).distance, _relation(encoding, k_site).node
    count = distance.shape[1]
    outside = (node < 0) | (node >= count)
    refused = outside & standing(k_site)
    if not isinstance(refused, jax.core.Tracer) and np.any(refused):
        raise ValueError(
            f"{encoding}: node {np.asarray(node)[np.asarray(refused)][0]} has no column among the {count} of "
            "relation.distance: nodes are numbered from 0 in each document, and there is a column for each"
        )
    where = numpy_if_known(distance, node)
    found = where.take(where.asarray(distance), where.where(outside, 0, node), axis=1)
    return where.where(outside[None], np.int32(_NO_NODE), found)


def graph(
    adjacency: Shaped[np.ndarray, "N N"],
    prefix: int = 0,
    *,
    position: Shaped[np.ndarray, "T *A"] | None = None,
    length: int | None = None,
) -> Site:
    """The sites of a graph's nodes, behind `prefix` tokens that stand nowhere, with the shortest paths as their relation.

    Args:
      adjacency: not 0 at [i, j] where an edge leads from node i to node j.
      position: of the nodes: features, coordinates, times; by default their numbers.
      length: pads the row with tokens of segment 0, and the relation with columns, so that graphs can share a batch.

    Raises:
      ValueError: for an adjacency that is not square, positions of another number of nodes, a length that is too short.

    >>> graph(np.array([[0, 1, 0], [1, 0, 1], [0, 1, 0]])).relation.distance.tolist()    # a path of three nodes
    [[0, 1, 2], [1, 0, 1], [2, 1, 0]]
    """
    distance = shortest_paths(adjacency)
    count = len(distance)
    position = np.arange(count, dtype=np.int32) if position is None else np.asarray(position)
    length = prefix + count if length is None else length
    if len(position) != count or length < prefix + count:
        raise ValueError(
            f"a graph of {count} nodes behind {prefix} prefix tokens takes {count} positions and a length of at least "
            f"{prefix + count}; got {len(position)} and {length}"
        )
    behind = length - prefix - count

    def row(of_nodes, columns: int = 0, fill: int = 0):
        widths = [(prefix, behind)] + [(0, columns)] * (of_nodes.ndim - 1)
        return np.pad(of_nodes, widths, constant_values=fill)

    nowhere = np.arange(1, length + 1, dtype=np.int32) * (np.arange(length) < prefix)
    segment = (np.arange(length) < prefix + count).astype(np.int32)
    relation = Relation(row(np.arange(count, dtype=np.int32)), row(distance, behind, fill=-1))
    whole = np.issubdtype(position.dtype, np.integer)
    return Site(row(position).astype(np.int32 if whole else np.float32), segment, nowhere, relation=relation)


def shortest_paths(adjacency: Shaped[np.ndarray, "N N"]) -> Int32[np.ndarray, "N N"]:
    """The number of edges on the shortest path from each node (row) to each (column); -1 where there is none."""
    edges = (_square(adjacency) != 0).astype(np.float32)
    distance = np.where(np.eye(len(edges), dtype=bool), 0, -1).astype(np.int32)
    reached, steps = distance == 0, 0
    while reached.any():
        steps += 1
        reached = (reached.astype(np.float32) @ edges > 0) & (distance < 0)
        distance[reached] = steps
    return distance


def laplacian_eigenvectors(adjacency: Shaped[np.ndarray, "N N"], k: int) -> Float32[np.ndarray, "N k"]:
    """The entries of each node in k eigenvectors of I - D^(-1/2) A D^(-1/2), of the smallest eigenvalues but the first.

    Dwivedi and Bresson (2020), arXiv 2012.09699. Of a graph in c parts c eigenvalues are 0; the paper calls such
    eigenvectors trivial, the authors' code leaves out the first alone, as here: the others tell the parts apart. A graph of
    k nodes or fewer gets zeros behind its own. Signs, and the vectors of equal eigenvalues, are LAPACK's choice.

    Raises:
      ValueError: for an adjacency that is not symmetric, or a k below 1.
    """
    edges = _square(adjacency).astype(np.float64)
    if (edges != edges.T).any():
        raise ValueError("the Laplacian's eigenvectors are of undirected graphs: give adjacency | adjacency.T")
    _check_count(k)
    degree = edges.sum(axis=1)
    scale = np.where(degree > 0, degree, 1) ** -0.5
    _, vectors = np.linalg.eigh(np.eye(len(edges)) - scale[:, None] * edges * scale)
    found = vectors[:, 1 : k + 1]
    return np.pad(found, [(0, 0), (0, k - found.shape[1])]).astype(np.float32)


def random_walks(adjacency: Shaped[np.ndarray, "N N"], k: int) -> Float32[np.ndarray, "N k"]:
    """The diagonals of the first k powers of D^(-1) A: how probably a walk is back where it began after 1, ..., k steps.

    Dwivedi et al. (2021), arXiv 2110.07875, whose A D^(-1) has the same diagonals, of undirected graphs. Of a directed graph
    the walk follows the edges. An adjacency that is not 0 or 1 weighs them.

    Raises:
      ValueError: for an adjacency that is not square, or a k below 1.
    """
    edges = _square(adjacency).astype(np.float64)
    _check_count(k)
    total = edges.sum(axis=1, keepdims=True)
    walk = edges / np.where(total > 0, total, 1)
    power, found = walk, [np.diagonal(walk)]
    for _ in range(k - 1):
        power = power @ walk
        found.append(np.diagonal(power))
    return np.stack(found, axis=1).astype(np.float32)


def tree_paths(parents: Sequence[int] | Int[np.ndarray, " N"], depth: int) -> Int32[np.ndarray, "N D"]:
    """The branches from each node up to the root, as `tree` reads them: from 1, its own first, 0 above the root.

    Children of a node are counted in the order of their numbers. Of a longer path the `depth` branches next to the node
    are kept.

    Args:
      parents: the number of each node's parent; -1 for a root.

    Raises:
      ValueError: for a parent that is no node, nodes that are their own ancestors, or a depth below 1.
    """
    parents = np.asarray(parents)
    count = len(parents)
    if depth < 1 or not count:
        raise ValueError(f"tree_paths needs a node and a depth of at least 1, got {count} nodes and {depth}")
    if ((parents < -1) | (parents >= count)).any():
        raise ValueError(f"parents of {count} nodes are from 0 to {count - 1}, -1 for a root; got {parents.tolist()}")
    siblings = np.tri(count, dtype=bool) & (parents[:, None] == parents)
    branch = np.where(parents < 0, 0, siblings.sum(axis=1))
    paths, node = [], np.arange(count)
    for _ in range(max(depth, count)):
        paths.append(np.where(node < 0, 0, branch[node]))
        node = np.where(node < 0, -1, parents[node])
    if (node >= 0).any():
        raise ValueError(f"node {np.flatnonzero(node >= 0)[0]} is an ancestor of its own: parents are of trees")
    return np.stack(paths[:depth], axis=1).astype(np.int32)


def _square(adjacency: Shaped[np.ndarray, "N N"]) -> Shaped[np.ndarray, "N N"]:
    adjacency = np.asarray(adjacency)
    if adjacency.ndim != 2 or adjacency.shape[0] != adjacency.shape[1]:
        raise ValueError(f"an adjacency has a row and a column for each node, [N, N]; got {adjacency.shape}")
    return adjacency


def _check_count(k: int) -> None:
    if k < 1:
        raise ValueError(f"k must be at least 1, got {k}")
