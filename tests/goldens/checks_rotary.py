"""Partial and interleaved rotary embeddings beside GPT-NeoX and GPT-J; make_rotary.py made the vectors."""

import functools

import jax
import numpy as np

import posjax as pj
from goldens.check import Check, line, load


@functools.cache
def _file():
    return load("rotary_layers")


def layer(encoding: pj.Encoding, x, weights, site: pj.Site, heads: int):
    """(q and k as they are rotated, the output) of a causal attention layer with torch's weights, [out, in]."""
    x, weights = np.asarray(x, np.float32), np.asarray(weights, np.float32)
    q, k, v = ((x @ w.T).reshape(len(x), heads, -1) for w in weights[:3])

    @jax.jit
    def run(q, k, v):
        return encoding.rotate((), q, site, k, site), pj.attend(encoding, (), q, k, v, site, site, causal=True)

    rotated, out = run(q, k, v)
    return np.stack(rotated), np.asarray(out).reshape(x.shape) @ weights[3].T


@functools.cache
def _layer(name: str, encoding: pj.Encoding):
    file = _file()
    x, weights = file[f"{name}_x"], file[f"{name}_weights"]
    return layer(encoding, x, weights, line(np.arange(len(x)) + file["start"]), int(file["heads"]))


def _arrays(name: str, encoding: pj.Encoding, what: int):
    return _layer(name, encoding)[what], _file()[f"{name}_{('rotated', 'out')[what]}"]


def _checks(name: str, encoding: pj.Encoding, reference: str, setting: str) -> list[Check]:
    return [
        Check("rope", reference, f"{setting}, {part}", functools.partial(_arrays, name, encoding, what))
        for what, part in enumerate(["rotated q and k", "whole attention"])
    ]


CHECKS: list[Check] = []
for n, (head_dim, fraction, base) in enumerate(_file()["neox"].tolist()):
    CHECKS += _checks(
        f"neox_{n}",
        pj.encodings.rope(base=base, fraction=fraction),
        "transformers gpt_neox",
        f"head dim {head_dim:.0f}, fraction {fraction}, base {base:.0f}",
    )
for n, (head_dim, rotary_dim) in enumerate(_file()["gptj"].tolist()):
    CHECKS += _checks(
        f"gptj_{n}",
        pj.encodings.rope(layout="interleaved", fraction=rotary_dim / head_dim),
        "transformers gptj",
        f"head dim {head_dim}, rotary dim {rotary_dim}",
    )
