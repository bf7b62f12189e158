"""Graphormer, Laplacian eigenvectors, random walks and tree positions beside their authors' code."""

import jax
import numpy as np

import posjax as pj
from goldens.check import Check, load
from posjax.encodings.graphs import graph, laplacian_eigenvectors, random_walks, tree_paths

FILE, WIDTH, HEADS = "graphs", 24, 3


def codes(spec, params, site):
    """Returns the codes that are added to tokens."""
    encoding = pj.parse(spec)
    return jax.jit(lambda params, x: encoding.embed(params, x, site))(params, np.zeros((len(site.segment), WIDTH)))


def graphormer():
    """The virtual node first; in their table distances come before no path, and behind both our prefix tokens."""
    file = load(FILE)
    table = np.concatenate([file["near"], file["unreachable"][None], file["virtual"][None]])
    encoding, site = pj.parse(f"graphormer(max_distance={len(file['near']) - 1})"), graph(file["adjacency"], prefix=1)
    q = np.zeros((len(site.segment), HEADS, 8), np.float32)
    return jax.jit(lambda table: encoding.bias({"table": table}, q, site, q, site))(table), file["bias"]


def centrality():
    file = load(FILE)
    return codes("centrality(max_degree=4)", {"table": file["degrees"]}, graph(file["adjacency"])), file["codes"]


def mapped(spec, features):
    """Returns the features by an identity map, for tokens in the order of their nodes."""
    file = load(FILE)
    site = graph(file["adjacency"][: len(features), : len(features)], position=features)
    params = {"kernel": np.eye(features.shape[1], WIDTH, dtype=np.float32), "bias": np.zeros(WIDTH, np.float32)}
    return np.asarray(codes(spec, params, site))[:, : features.shape[1]]


def laplacian():
    """Signs are anyone's choice."""
    file = load(FILE)
    ours, theirs = laplacian_eigenvectors(file["alone"], 6), file["laplacian"]
    return mapped("laplacian(pos_enc_dim=6)", ours) * np.sign((ours * theirs).sum(axis=0)), theirs


def random_walk():
    file = load(FILE)
    return mapped("random_walk(pos_enc_dim=9)", random_walks(file["adjacency"], 9)), file["walks"]


def tree():
    file = load(FILE)
    paths = tree_paths(file["parents"], 4)
    site = pj.sites(len(paths))._replace(position=paths)
    return codes("tree(depth=4, degree=3)", {"rate": file["tree_rate"]}, site), file["tree_codes"]


CHECKS = [
    Check("graphormer", "microsoft/Graphormer", "13 nodes in two parts, a virtual node", graphormer),
    Check("centrality", "microsoft/Graphormer", "13 nodes, degrees 1 to 3", centrality),
    Check("laplacian", "graphdeeplearning/graphtransformer, transcribed", "6 eigenvectors of 11 nodes", laplacian),
    Check("random_walk", "vijaydwivedi75/gnn-lspe, transcribed", "9 steps, 13 nodes in two parts", random_walk),
    Check("tree", "microsoft/icecaps, transcribed", "11 nodes, one below the depth", tree),
]
