"""Stick-breaking attention beside the authors' reference; make_sticks.py made the vectors."""

import functools

import jax
import numpy as np

import posjax as pj
from goldens.check import Check, load

FILE = "sticks"


def broken(name, spec, what):
    file, encoding = load(FILE), pj.parse(spec)
    site = pj.sites(len(file["q"]), start=3)

    @jax.jit
    def run(*qkv):
        return pj.attend(encoding, (), *qkv, site, site, causal=True, return_weights=True)

    out, weights = run(*(file[each].astype(np.float32) for each in "qkv"))
    return {"out": out, "left": 1 - weights.sum(axis=-1)}[what], file[f"{what}_{name}"]


SETTINGS = {"before": "stick_breaking()", "current": "stick_breaking(attend_current=True)"}
CHECKS: list[Check] = [
    Check(
        "stick_breaking",
        "shawntan/stickbreaking-attention",
        f"{spec}, {told}",
        functools.partial(broken, name, spec, what),
    )
    for name, spec in SETTINGS.items()
    for what, told in (("out", "causal attention"), ("left", "what is left of the stick"))
]
