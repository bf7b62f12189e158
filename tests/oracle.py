"""Attention in float64 numpy, one head, one query and one key at a time, from the oracles of an encoding's members."""

import math

import numpy as np
from members import MEMBERS, Row

from posjax.encoding import Placed, Sum


def leaves(encoding, params, maps=()):
    """(position maps to apply, oracle) of each member of a composition."""
    if isinstance(encoding, Sum):
        for part, part_params in zip(encoding.parts, params, strict=True):
            yield from leaves(part, part_params, maps)
    elif isinstance(encoding, Placed):
        position_map = MEMBERS[encoding.position_map.spec_name].oracle(encoding.position_map, params[0])
        if hasattr(position_map, "around"):  # it shows each pair of tokens its own positions
            yield maps, position_map.around([oracle for _, oracle in leaves(encoding.encoding, params[1])])
        else:
            yield from leaves(encoding.encoding, params[1], (*maps, position_map))
    else:
        yield maps, MEMBERS[encoding.spec_name].oracle(encoding, params)


def attention(encoding, params, x, site, weights, *, causal=False):
    """[T, H, D] in float64; `site` as the model gives it, `weights` [3, M, H, D] project to q, k and v."""
    x, weights = np.asarray(x, np.float64).copy(), np.asarray(weights, np.float64)
    prefix, segment = np.asarray(site.prefix), np.asarray(site.segment)
    members = []
    for maps, oracle in leaves(encoding, params):
        position = [
            None if n else np.atleast_1d(np.asarray(p, np.float64)) for p, n in zip(site.position, prefix, strict=True)
        ]
        for position_map in maps:
            position = position_map.place(position, prefix, segment)
        members.append((oracle, Row(position, prefix, segment, x, None, None, site.relation)))
    for oracle, row in members:
        x = x + oracle.codes(x, row)
    q, k, v = (np.tensordot(x, w, axes=1) for w in weights)
    members = [(oracle, row._replace(x=x, q=q, k=k)) for oracle, row in members]
    for oracle, row in members:
        oracle.observe(row)
    out = np.zeros_like(v)
    for head in range(q.shape[1]):
        for i in range(len(x)):
            seen = [j for j in range(len(x)) if (j <= i or not causal) and segment[j] == segment[i] > 0]
            seen = [j for j in seen if all(oracle.sees(row, i, j) for oracle, row in members)]
            if not seen:
                continue
            logits = [_logit(members, q[i, head], k[j, head], i, j, head) for j in seen]
            weight = _weights(members, i, head, seen, logits)
            beside = [sum(o.value(row, head, i, j, v.shape[-1]) for o, row in members) for j in seen]
            carried = [_carried(members, v[j, head], i, j, head) for j in seen]
            out[i, head] = weight @ (np.array(carried) + np.array(beside))
    return out


def _weights(members, i, head, seen, logits):
    own = [found for oracle, row in members if (found := oracle.weights(row, i, seen, logits)) is not None]
    if own:
        return own[0]
    sinks = [sink for oracle, row in members if (sink := oracle.sink(row, head, i)) is not None]
    weight = np.exp(np.array(logits + sinks) - max(logits + sinks))
    return weight[: len(seen)] / weight.sum()


def _carried(members, v, i, j, head):
    for oracle, row in members:
        v = oracle.carried(row, head, i, j, v)
    return v


def _logit(members, q, k, i, j, head):
    added, scale = 0.0, 1 / math.sqrt(len(q))
    for oracle, row in members:
        q, k = oracle.transform(row, head, i, j, q, k)
        added += oracle.logit(row, head, i, j)
    return q @ k * scale + added
