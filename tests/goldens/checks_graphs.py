"""Graphormer beside its authors' code."""

import jax
import numpy as np

import posjax as pj
from goldens.check import Check, load
from posjax.encodings.graphs import graph

FILE, WIDTH, HEADS = "graphs", 24, 3


def codes(spec, params, site):
    """The codes added to tokens."""
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


CHECKS = [
    Check("graphormer", "microsoft/Graphormer", "13 nodes in two parts, a virtual node", graphormer),
    Check("centrality", "microsoft/Graphormer", "13 nodes, degrees 1 to 3", centrality),
]
