"""Arguments beside timm, transformers and lucidrains' packages, which have them too; make_arguments.py made the vectors."""

import functools

import jax
import numpy as np

import posjax as pj
from goldens.check import Check, line, load
from posjax.attention.dense import shown
from posjax.encodings.tables import Table

FILE = {name: x.astype(np.float32) if x.dtype == np.float16 else x for name, x in load("arguments").items()}
VIDEO = pj.encodings.layouts.multimodal([(2, 2, 3)])
MVIT = "shaw(max_relative_position=None, values=False, scaled=False)"
POOLED = {1: (3, 3), 2: (4, 2)}  # the queries' grid; keys are pooled by so much


def attend(spec, params, qkv, q_site, k_site=None):
    run = jax.jit(lambda q, k, v: pj.attend(pj.parse(spec), params, q, k, v, q_site, k_site or q_site))
    return run(*qkv)


def code(spec, params, site):
    encoding, x = pj.parse(spec), np.zeros((len(site.segment), 6), np.float32)
    return jax.jit(lambda params: encoding.embed(params, x, encoding.place(params, site)))(params)


def axial(combine):
    tables = dict(zip(("time", "row", "column"), np.split(FILE[f"axial_{combine}_tables"], [2, 4]), strict=True))
    return code(f"learned_factorized(combine={combine!r})", tables, VIDEO), FILE[f"axial_{combine}"]


def timesformer():
    """Theirs has the class token, then each patch at every time; its class token has no time."""
    time, patch = np.split(FILE["timesformer_tables"], [3])
    video = [(t, y, x) for y in range(2) for x in range(2) for t in range(3)]
    site = pj.Site(np.int32([(0, 0, 0), *video]), prefix=np.int32([1] + 12 * [0]))
    params = (((), Table(np.pad(time, ((1, 0), (0, 0))), (3,))), ((), Table(patch, (2, 2))))
    return code("(axis(index=0) >> learned()) + (axis(index=(1, 2)) >> learned())", params, site), FILE["timesformer"]


def roformer():
    spec = "rope(layout='interleaved') + value_rotary(layout='interleaved', turned_back=False)"
    return attend(spec, ((), ()), FILE["roformer_qkv"], pj.sites(7)), FILE["roformer_out"]


def pixels(spec, site, golden):
    encoding = pj.parse(spec)
    x, site = FILE["pixel_x"][: len(site.segment), None], jax.jit(lambda: encoding.place((), site))()
    return jax.jit(lambda x: encoding.rotate((), x, site, x, site)[0])(x)[:, 0], FILE[f"pixel_{golden}"]


def vectors(*tables):
    """Their rows begin with the keys far after the query."""
    return {"key": tuple(table[::-1] for table in tables)}


def mvit(pooled):
    f = {name: FILE[f"mvit_{pooled}_{name}"] for name in ("q", "kv", "rel", "out")}
    height, width = POOLED[pooled]
    k_site = pj.grid(height // pooled, width // pooled, prefix=1)
    k_site = k_site._replace(position=pooled * k_site.position + np.int32(pooled - 1))
    params = vectors(*np.split(f["rel"], [2 * height - 1]))
    return attend(MVIT, params, (f["q"], *f["kv"]), pj.grid(height, width, prefix=1), k_site), f["out"]


def sam(*grid):
    params = vectors(*FILE["sam_rel"])
    _, params = pj.parse(MVIT).resized(params, (3, 3), grid, method="torch_bilinear")
    golden = "sam_{}_{}".format(*grid)
    return attend(MVIT, params, FILE[f"{golden}_qkv"], pj.grid(*grid)), FILE[f"{golden}_out"]


def window(number):
    """They count the query on either side, and no side below 0."""
    left, right = FILE["window_sizes"][number].astype(int).tolist()
    return shown(pj.parse(f"window(size={left}, ahead={max(right - 1, 0)})"), line(range(13)), line(range(13))), FILE[
        "window"
    ][number]


def local(number):
    back, forward = FILE["local_looks"][number].astype(int).tolist()
    spec = f"chunked(size=4, before={back}, after={forward})"
    return attend(spec, (), FILE["local_qkv"], pj.sites(16))[:, 0], FILE["local"][number]


CHECKS = [
    *(
        Check("learned_factorized", "axial-positional-embedding", f"a video, {how}", functools.partial(axial, how))
        for how in ("concatenate", "sum")
    ),
    Check("axis", "transformers timesformer", "tables of frames and patches", timesformer),
    Check("value_rotary", "transformers roformer", "rotary_value, not turned back", roformer),
    *(
        Check("pixel_rope", reference, setting, functools.partial(pixels, spec, site, golden))
        for reference, setting, spec, site, golden in (
            *(
                ("timm RotaryEmbeddingCat", f"linear_bands {linear}", spec, pj.grid(3, 5), f"timm_{linear}")
                for linear, spec in (
                    (False, "pixel_rope(max_frequency=10)"),
                    (True, "pixel_rope(max_frequency=10, linear=True, layout='half')"),
                )
            ),
            *(
                ("rotary-embedding-torch", name, "pixel_rope(10, linear=True)", site, f"lucidrains_{name}")
                for name, site in (("image", pj.grid(3, 5)), ("video", VIDEO))
            ),
        )
    ),
    *(
        Check("shaw", "timm mvitv2", f"decomposed, keys pooled by {pooled}", functools.partial(mvit, pooled))
        for pooled in POOLED
    ),
    *(
        Check("shaw", "transformers sam", "decomposed, {} x {} of 3 x 3".format(*grid), functools.partial(sam, *grid))
        for grid in ((3, 3), (2, 4))
    ),
    *(
        Check("window", "transformers moonshine_streaming", f"two sides, {n}", functools.partial(window, n), 0)
        for n in range(3)
    ),
    *(
        Check("chunked", "local-attention", "back {:.0f}, forward {:.0f}".format(*looks), functools.partial(local, n))
        for n, looks in enumerate(FILE["local_looks"])
    ),
]
