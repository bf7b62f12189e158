"""Additive codes, tables, PEG and temperatures beside transformers and timm."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

import posjax as pj
from goldens.check import Check, line, load
from posjax.encodings.tables import Table

load = functools.cache(load)
NUM_GRIDS = 3


def embedded(spec: str, x, site, params=()):
    return jax.jit(lambda params, x: pj.parse(spec).embed(params, x, site))(params, jnp.asarray(x))


def code_on_grid(name: str, number: int, reference: str, prefix: int = 0):
    def arrays():
        file = load("additive")
        height, width, channels, base = file["grids"][number]
        site = pj.grid(int(height), int(width), prefix=prefix)
        zeros = jnp.zeros((len(site.segment), int(channels)))
        spec = f"sinusoidal(layout='concatenated', base={base})" if name == "sinusoidal" else f"{name}(base={base})"
        return embedded(spec, zeros, site), file[f"{reference}_{number}"]

    return arrays


def sines_on_grids():
    for number in range(NUM_GRIDS):
        for name, source, key, prefix in (
            ("sinusoidal", "timm build_sincos2d_pos_embed", "timm", 0),
            ("sinusoidal", "transformers ViTMAE", "vit_mae", 1),
            ("sincos2d_mae", "timm build_sincos2d_pos_embed, reverse_coord", "timm_reversed", 0),
        ):
            yield Check(name, source, f"grid {number}", code_on_grid(name, number, key, prefix), 1e-6)


def vit_table():
    file = load("additive")
    return embedded("learned", file["vit_tokens"], pj.grid(3, 5, prefix=1), Table(file["vit_table"], (3, 5))), file[
        "vit_out"
    ]


def peg(height: int, width: int, order: str):
    def arrays():
        file = load("additive")
        params = {"kernel": file["peg_kernel"], "bias": file["peg_bias"]}
        x, out = (file[f"peg_{what}_{height}_{width}"] for what in ("x", "out"))
        site = pj.grid(height, width)
        if order == "raster":
            return embedded("peg", x, site, params), out
        shuffle = np.random.default_rng(0).permutation(len(x))
        site = jax.tree.map(lambda leaf: leaf[shuffle], site)
        return jax.jit(lambda x, site: embedded("peg", x, site, params))(x[shuffle], site), out[shuffle]

    return arrays


def llama4():
    file = load("additive")
    q, k = file["llama4_q"], file["llama4_k"]
    site, encoding = pj.sites(len(q)), pj.parse("llama4_temperature(attn_scale=0.7, floor_scale=4)")
    run = jax.jit(lambda q, k: pj.attend(encoding, (), q, k, k, site, site, causal=True, return_weights=True)[1])
    return run(q, k), file["llama4_weights"]


def ministral3():
    """The factor one position on: theirs counts from 1."""
    file = load("additive")
    ones, site = jnp.ones((len(file["far"]), 1, 1)), line(file["far"] - 1)
    return pj.parse("llama4_temperature").rotate((), ones, site, ones, site)[0][:, 0, 0], file["ministral3_factor"]


CHECKS: list[Check] = [
    *sines_on_grids(),
    Check("learned", "transformers ViTEmbeddings", "3 x 5 patches and a class token", vit_table, 1e-6),
    *(
        Check("peg", "timm Twins PosConv", f"{height} x {width} patches, {order}", peg(height, width, order), 2e-6)
        for height, width in ((3, 5), (1, 7), (4, 4), (6, 2))
        for order in ("raster", "shuffled")
    ),
    Check("llama4_temperature", "transformers Llama4TextAttention", "weights of a layer, floor_scale 4", llama4, 3e-6),
    Check("llama4_temperature", "transformers Ministral3", "one position on, to 2^20", ministral3, 1e-6),
]
