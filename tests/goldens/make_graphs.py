"""Golden vectors of encodings on graphs, from code of authors that is in no package:

    git clone https://github.com/microsoft/Graphormer /tmp/Graphormer       # ac154fe when last run
    /tmp/goldens/bin/pip install scipy
    /tmp/goldens/bin/python tests/goldens/make_graphs.py /tmp/Graphormer

in the environment of tests/goldens/maker.py; the result is graphs.npz. Graphormer's layers are run as they are, on
distances by scipy (their own are in Cython).
"""

import importlib.util
import sys
from pathlib import Path

import numpy as np
import torch
from maker import save
from scipy.sparse.csgraph import shortest_path

NODES, HEADS, WIDTH = 13, 3, 24
UNREACHABLE = 510


def authors_layers(path):
    file = Path(path) / "graphormer" / "modules" / "graphormer_layers.py"
    spec = importlib.util.spec_from_file_location("graphormer_layers", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def a_graph():
    """A ring of 5 nodes with a tail of 6, and an edge apart from both."""
    pairs = [(n, (n + 1) % 5) for n in range(5)] + [(2, 5), (5, 6), (6, 7), (7, 8), (8, 9), (5, 10), (11, 12)]
    adjacency = np.zeros((NODES, NODES), int)
    for a, b in pairs:
        adjacency[a, b] = adjacency[b, a] = 1
    return adjacency


def graphormer(layers, adjacency):
    """The bias of all pairs and the degree codes, behind a virtual node; no edges' features are left in it."""
    distance = shortest_path(adjacency, unweighted=True)
    spatial = torch.tensor(np.where(np.isfinite(distance), distance, UNREACHABLE)).long()[None] + 1  # 0 is padding
    sizes = dict(num_edges=4, num_spatial=512, num_edge_dis=8, edge_type="multi_hop", multi_hop_max_dist=5)
    bias = layers.GraphAttnBias(num_heads=HEADS, num_atoms=4, hidden_dim=WIDTH, n_layers=2, **sizes)
    node = layers.GraphNodeFeature(HEADS, 4, 512, 512, WIDTH, n_layers=2)
    bias.edge_encoder.weight.data.zero_()
    node.atom_encoder.weight.data.zero_()
    tables = (
        bias.spatial_pos_encoder,
        bias.graph_token_virtual_distance,
        node.in_degree_encoder,
        node.out_degree_encoder,
    )
    for table in tables:
        table.weight.data.normal_()
    degree = torch.tensor(adjacency.sum(1))[None] + 1
    batch = dict(
        x=torch.zeros(1, NODES, 1).long(),
        in_degree=degree,
        out_degree=degree,
        spatial_pos=spatial,
        attn_bias=torch.zeros(1, NODES + 1, NODES + 1),
        edge_input=torch.zeros(1, NODES, NODES, 5, 1).long(),
        attn_edge_type=torch.zeros(1, NODES, NODES, 1).long(),
    )
    used = int(spatial[spatial <= UNREACHABLE].max()) + 1
    return {
        "bias": bias(batch)[0],
        "codes": node(batch)[0, 1:],
        "near": tables[0].weight[1:used],  # of the distances that there are
        "unreachable": tables[0].weight[UNREACHABLE + 1],
        "virtual": tables[1].weight[0],
        "degrees": (tables[2].weight + tables[3].weight)[1:6],  # of 0 to 4
    }


if __name__ == "__main__":
    torch.manual_seed(0)
    graph = a_graph()
    arrays = graphormer(authors_layers(sys.argv[1]), graph) | {"adjacency": graph}
    arrays = {name: y.detach().numpy() if torch.is_tensor(y) else y for name, y in arrays.items()}
    arrays = {name: y.astype(np.int8 if y.dtype.kind == "i" else np.float32) for name, y in arrays.items()}
    save("graphs", arrays, packages=["torch"])
