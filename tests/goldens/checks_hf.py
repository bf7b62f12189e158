"""Whole configurations read by from_hf and from_hf_layers, beside transformers' own rotary modules; make_hf.py made them."""

import functools
import json

import jax
import numpy as np

import posjax as pj
from goldens.check import Check, line, load
from posjax.encoding import parts
from posjax.encodings.rotary import Rotary

FILE = load("hf")


def turned(encoding: pj.Encoding, site: pj.Site):
    params = jax.jit(encoding.init, static_argnums=1)(jax.random.key(0), pj.Dims(48, 2, 24))
    return jax.jit(lambda x: encoding.rotate(params, x, site, x, site)[0])(FILE["x"])


def layers(case: int):
    """The queries of all layers that rotate."""
    encodings = pj.from_hf_layers(json.loads(str(FILE["layers_configs"][case])))
    once = functools.cache(lambda encoding: turned(encoding, line(np.arange(len(FILE["x"])))))
    rotating = [i for i, each in enumerate(encodings) if any(isinstance(part, Rotary) for part in parts(each))]
    return np.stack([once(encodings[i]) for i in rotating]), FILE[f"layers_{case}"][rotating]


# What towers have beside what turns queries: windows and tables, which from_hf refuses.
BESIDE = {"window_size", "num_position_embeddings", "posemb_grid_size"}


def one(kind: str, case: int, positions: str):
    config = json.loads(str(FILE[f"{kind}_configs"][case]))
    config = {name: value for name, value in config.items() if name not in BESIDE}
    site = line(np.arange(len(FILE["x"])))._replace(position=FILE[positions].astype(np.int32))
    return turned(pj.from_hf(config), site), FILE[f"{kind}_{case}"]


CHECKS = [
    Check("rope", f"transformers {name}", f"from_hf_layers of configuration {case}", functools.partial(layers, case))
    for case, name in enumerate(FILE["layers_names"])
]
CHECKS += [
    Check("mrope", f"transformers {name}", "from_hf, half of the head", functools.partial(one, "many", case, "places"))
    for case, name in enumerate(FILE["many_names"])
]
CHECKS += [
    Check("axial_rope", f"transformers {name}", "from_hf, a tower", functools.partial(one, "tower", case, "patches"))
    for case, name in enumerate(FILE["tower_names"])
]
