"""Encodings made for inputs larger than the trained ones, beside their authors' code and its transcriptions."""

import math

import jax
import numpy as np

import posjax as pj
from goldens.check import Check, line, load
from posjax.attention import BEFORE_ATTENTION

FILE = "larger_inputs"
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


CHECKS = [
    Check("golden_rope", GOLDEN, "4 x 4 patches", golden_image(4, 4)),
    Check("golden_rope", GOLDEN, "3 x 5 patches", golden_image(3, 5)),
    Check("golden_rope", GOLDEN, "three axes", golden_space),
    Check("shifted", "HKUNLP/STRING, transcribed", "decoding of a row", shifted),
]
