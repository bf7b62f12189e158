"""Positions of text with images, beside transformers and their authors' formulas (make_multimodal.py)."""

import numpy as np

import posjax as pj
from goldens.check import Check, line, load
from posjax.encodings.layouts import Circle, Diagonal, Offset, multimodal

PARTS = [3, (1, 4, 6), 2, (3, 3, 2), 1, (1, 1, 5), 2]  # as in make_multimodal.py


def placed(golden, layout, parts=PARTS):
    def arrays():
        return multimodal(parts, layout).position, load("multimodal")[f"place_{golden}"]

    return arrays


def circle(golden, layout):
    """An image behind 3 tokens of text, and the token after it."""

    def arrays():
        theirs = load("multimodal")[f"place_{golden}"]
        return multimodal([3, (1, 4, 6), 1], layout).position[3:], theirs

    return arrays


def turned(golden, tokens, spec):
    def arrays():
        file, encoding = load("multimodal"), pj.parse(spec)
        position, x = file["position"].astype(np.int32), file[tokens]
        site = line(position[:, 0])._replace(position=position)
        return encoding.rotate((), x, site, x, site)[0], file[golden]

    return arrays


QWEN = "mrope(base=1e7, sections=(11, 11, 10), interleaved=True, fraction=0.25)"
RESET, FLAT = Offset(stride=2, spatial_reset=True), Circle(alpha=1.0, radius=10.0, flat=0.25, positive=True)
CHECKS = [
    Check(
        "mrope",
        "transformers qwen3_5",
        "sections (11, 11, 10) of a quarter of the head",
        turned("qwen3_5", "wide", QWEN),
    ),
    Check("mrope", "transformers qwen2_vl", "positions of text with images", placed("offset", Offset())),
    Check("mrope", "JJJYmmm/Multimodal-RoPEs, transcribed", "positions with spatial reset", placed("reset", RESET)),
    Check("mrope", "Wiselnn570/VideoRoPE, transcribed", "diagonal positions", placed("diagonal", Diagonal())),
    Check("mrope", "lose4578/CircleRoPE, transcribed", "positions on a circle", circle("circle", Circle(alpha=0.3))),
    Check("mrope", "lose4578/CircleRoPE, transcribed", "positions, a quarter flat", circle("flat", FLAT)),
]
