"""Encodings made for inputs larger than the trained ones, beside their authors' code and its transcriptions."""

import math

import jax
import numpy as np

import posjax as pj
from goldens.check import Check, line, load
from posjax.attention import BEFORE_ATTENTION

FILE = "larger_inputs"
PARABOLIC = "DTU-PAS/parabolic-position-encoding"
GOLDEN = "jerryxio.ng/posts/nd-rope, transcribed"


def turned(spec, x, site):
    encoding = pj.parse(spec)
    return jax.jit(lambda x: encoding.rotate((), x, site, x, site)[0])(x)


def golden_image(height, width):
    """The author's image reaches as far as its sides allow at an area of 2 x 2, from its middle."""

    def arrays():
        file, far = load(FILE), math.sqrt(width / height)
        rows, columns = np.linspace(-1 / far, 1 / far, height), np.linspace(-far, far, width)
        position = np.stack(np.meshgrid(rows, columns, indexing="ij"), -1).reshape(-1, 2).astype(np.float32)
        site = pj.grid(height, width)._replace(position=position)
        spec = "golden_rope(min_frequency=0.2, max_frequency=20, zero_share=0.3)"
        return turned(spec, file[f"golden_x_{height}x{width}"], site), file[f"golden_{height}x{width}"]

    return arrays


def golden_space():
    file = load(FILE)
    site = line(np.arange(9))._replace(position=file["golden_place_3d"].astype(np.int32))
    spec = "golden_rope(min_frequency=0.2, max_frequency=20, zero_share=0.3)"
    return turned(spec, file["golden_x_3d"], site), file["golden_3d"]


def shifted():
    file, encoding = load(FILE), pj.parse("shifted(offset=5, local=2) >> rope()")
    site = encoding.place(((), ()), pj.sites(14))

    @jax.jit
    def run(q, k, v):
        return pj.attend(encoding, ((), ()), q, k, v, site, site, causal=True, consumed=BEFORE_ATTENTION)

    return run(*(file[f"shifted_{name}"] for name in "qkv")), file["shifted_out"]


def parabolas(name, params):
    """Our axes begin with the rows, theirs with the columns; ours have the scale of their logits in them."""

    def arrays():
        file, encoding, site = load(FILE), pj.parse(name), pj.grid(3, 4)
        held, x = params(file), file["pape_x"].astype(np.float32)
        site, q = encoding.observe(held, x, site), np.zeros((12, 3, 12), np.float32)
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
    Check("golden_rope", GOLDEN, "4 x 4 patches", golden_image(4, 4)),
    Check("golden_rope", GOLDEN, "3 x 5 patches", golden_image(3, 5)),
    Check("golden_rope", GOLDEN, "three axes", golden_space),
    Check("shifted", "HKUNLP/STRING, transcribed", "decoding of a row", shifted),
    Check("pape", PARABOLIC, "3 x 4 patches", parabolas("pape(parabolas=5)", pape)),
    Check("pape_ri", PARABOLIC, "3 x 4 patches", parabolas("pape_ri", pape_ri)),
]
