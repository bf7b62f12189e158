"""Grids fitted to the one of training, beside timm's axial rotary of one image a batch."""

import jax
import numpy as np

import posjax as pj
from goldens.check import Check, load


def fitted(size):
    def arrays():
        file, encoding = load("resize"), pj.parse("fit_grid(height=4, width=5) >> axial_rope()")
        x, params = file["rotary_x"][: np.prod(size)], ((), ())
        site = encoding.place(params, pj.grid(*size))
        ours = jax.jit(lambda x: encoding.rotate(params, x, site, x, site)[0])(x)
        return ours, file[f"fitted_{size[0]}x{size[1]}"]

    return arrays


CHECKS = [
    Check("fit_grid", "timm RotaryEmbeddingCat", f"ref_feat_shape 4 x 5, {h} x {w} patches", fitted((h, w)))
    for h, w in [(4, 5), (3, 9), (2, 2)]
]
