"""Encodings made for inputs larger than the trained ones, beside their authors' code."""

import jax
import numpy as np

import posjax as pj
from goldens.check import Check, load

FILE = "larger_inputs"
PARABOLIC = "DTU-PAS/parabolic-position-encoding"


def parabolas(name, params):
    """Our axes begin with the rows, theirs with the columns; ours have the scale of their logits in them."""

    def arrays():
        file, encoding, site = load(FILE), pj.parse(name), pj.grid(3, 4)
        held, x = params(file), file["pape_x"].astype(np.float32)
        q, site = np.zeros((12, 3, 12), np.float32), jax.jit(lambda held: encoding.observe(held, x, site))(held)
        return jax.jit(lambda held: encoding.bias(held, q, site, q, site))(held), file[f"{encoding.spec_name}_logits"]

    return arrays


def pape(file):
    curve = file["pape_ab.weight"].reshape(2, 3, 5, -1)
    direction = file["pape_position.weight"].reshape(3, 5, 2)[..., ::-1]
    curve[1] *= 12**-0.25
    return {
        "direction": 12**-0.25 * np.moveaxis(direction, 2, 0).astype(np.float32),
        "curve": np.moveaxis(curve, 3, 0).astype(np.float32),
    }


def pape_ri(file):
    return {
        "scale": 12**-0.25 * file["pape_ri_position_scales"].ravel().astype(np.float32),
        "curve": file["pape_ri_a.weight"].T.astype(np.float32),
    }


CHECKS = [
    Check("pape", PARABOLIC, "3 x 4 patches", parabolas("pape(parabolas=5)", pape)),
    Check("pape_ri", PARABOLIC, "3 x 4 patches", parabolas("pape_ri", pape_ri)),
]
