"""PRoPE, GTA and RayRoPE beside their authors' code: whole attention over three views."""

import jax
import numpy as np

import posjax as pj
from goldens.check import Check, load
from posjax.encodings.cameras import scene


def attention(spec, name, params=(), file="cameras"):
    file = load(file)
    encoding = pj.parse(spec)
    site = scene(file["views"], file["lenses"], image_size=(20, 36), patches=(2, 4))
    site = site._replace(state=file["depths"]) if "observe" in encoding.hooks else site
    options = dict(implementation="dense", consumed=("observe",))
    run = jax.jit(lambda q, k, v: pj.attend(encoding, params, q, k, v, site, site, **options))
    return run(*file["qkv"].astype(np.float32)), file[name]


AUTHORS = "liruilong940607/prope"
CHECKS = [
    Check("prope", AUTHORS, "3 views of 2 x 4 patches", lambda: attention("prope()", "prope"), 1e-6),
    Check(
        "prope",
        AUTHORS,
        "without intrinsics",
        lambda: attention("prope(intrinsics=False)", "without intrinsics"),
        1e-6,
    ),
    Check(
        "gta",
        "autonomousvision/gta",
        "SE(3) and SO(2), translations times 0.3",
        lambda: attention("gta(height=2, width=4)", "gta", {"translation": np.float32([0.3])}),
        1e-6,
    ),
    *(
        Check(
            "rayrope",
            "Lucas-707/RayRoPE",
            f"3 views of 2 x 4 patches, {name}",
            lambda name=name: attention("rayrope(views=3, height=2, width=4)", name, file="rayrope"),
            most,
        )
        for name, most in (("as it is", 5e-4), ("means", 1e-6))
    ),
]
