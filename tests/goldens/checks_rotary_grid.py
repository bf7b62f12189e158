"""Rotary encodings on grids, beside timm and transformers."""

import jax
import jax.numpy as jnp
import numpy as np

import posjax as pj
from goldens.check import Check, line, load
from posjax.attention import BEFORE_ATTENTION
from posjax.encodings.tables import Table

GRIDS = [(3, 5), (7, 2), (1, 4)]
FILE = "rotary_grid"


def turned(spec, params, x, site):
    encoding = pj.parse(spec)
    return jax.jit(lambda params, x: encoding.rotate(params, x, site, x, site)[0])(params, x)


def on_grid(spec, golden, shape, params=()):
    """() -> (ours, theirs) of a golden that was made of the first tokens x."""

    def arrays():
        file, encoding = load(FILE), pj.parse(spec)
        site = encoding.place(params, pj.grid(*shape))
        at = params(file) if callable(params) else params
        return turned(spec, at, file["x"][: np.prod(shape)], site), file[f"{golden}_{shape[0]}x{shape[1]}"]

    return arrays


def on_grids(encoding, reference, setting, spec, golden, params=()):
    return [
        Check(encoding, reference, f"{setting}, {h} x {w} patches", on_grid(spec, golden, (h, w), params))
        for h, w in GRIDS
    ]


def axial():
    for layout in ("half", "interleaved"):
        for indexing in ("ij", "xy"):
            spec = f"axial_rope(layout='{layout}', indexing='{indexing}')"
            yield from on_grids(
                "axial_rope", "timm RotaryEmbeddingCat", f"{layout}, {indexing}", spec, f"axial_{layout}_{indexing}"
            )
    spec = "axial_rope(base=10000, frequencies='split')"
    yield from on_grids("axial_rope", "transformers pixtral", "split frequencies", spec, "pixtral")


def normalised():
    for normalize in ("separate", "max", "min"):
        spec = f"dinov3(normalize_coords='{normalize}')"
        yield from on_grids("dinov3", "timm RotaryEmbeddingDinoV3", normalize, spec, f"dinov3_{normalize}")
    yield from on_grids("dinov3", "transformers dinov3_vit", "separate", "dinov3()", "dinov3_hf")


def mixed():
    """timm's first frequency is that of the columns with "xy", which is its default and the authors' order."""
    for indexing, order in (("xy", slice(None, None, -1)), ("ij", slice(None))):

        def params(file, indexing=indexing, order=order):
            return {"wave": jnp.asarray(file[f"mixed_{indexing}_wave"][order])}

        setting, golden = f"trained frequencies, {indexing}", f"mixed_{indexing}"
        yield from on_grids("rope_mixed", "timm RotaryEmbeddingMixed", setting, "rope_mixed()", golden, params)


def multimodal():
    for sections in ((2, 5, 5), (6, 3, 3), (4, 4, 4)):
        for name, interleaved in (("qwen2", False), ("qwen3", True)):

            def arrays(sections=sections, name=name, interleaved=interleaved):
                file = load(FILE)
                spec = f"mrope(base=10000, sections={sections}, interleaved={interleaved})"
                site = line(file["mrope_position"][:, 0])._replace(position=file["mrope_position"].astype(np.int32))
                theirs = file[f"mrope_{name}_{'_'.join(map(str, sections))}"]
                return turned(spec, (), file["x"][: len(theirs)], site), theirs

            setting = f"sections {sections}, text and images"
            yield Check("mrope", f"transformers {name}_vl", setting, arrays)
    spec = "mrope(base=100, sections=(2, 5, 5), interleaved=True)"
    yield from on_grids("mrope", "timm RotaryEmbeddingMRope", "still images", spec, "mrope_timm")


def fope_noise():
    """The deviation of the matrices' noise: 50 frequencies mixed into 30 pairs, 40 heads."""
    dims = pj.Dims(40 * 120, 40, 120)
    encoding = pj.parse("fope(original_length=12500)")  # drops the last 10 of 60 frequencies
    matrix = np.asarray(encoding.init(jax.random.key(0), dims)["cos"])
    assert matrix.shape == (40, 50, 30)
    return np.std(matrix[:, np.arange(50) % 2 == 1]), load(FILE)["fope_deviation"]


def layer(name, spec, params, x, site):
    """A whole attention layer, codes to output projection."""
    file, encoding = load(FILE), pj.parse(spec)
    x = encoding.embed(params, x, site)
    qkv = x @ file[f"attention_{name}_qkv"].T + file[f"attention_{name}_qkv_bias"]
    q, k, v = qkv.reshape(len(x), 3, 2, -1).transpose(1, 0, 2, 3)
    out = jax.jit(lambda params, *qkv: pj.attend(encoding, params, *qkv, site, site, consumed=BEFORE_ATTENTION))(
        params, q, k, v
    ).reshape(x.shape)
    return out @ file[f"attention_{name}_proj"].T + file[f"attention_{name}_proj_bias"]


def vit_layer():
    file = load(FILE)
    table = Table(file["attention_table"], (3, 5))
    ours = layer("vit", "learned()", table, file["attention_x"][1:], pj.grid(3, 5, prefix=1))
    return ours, file["attention_vit_out"]


def eva_layer():
    file = load(FILE)
    spec = "axial_rope(layout='interleaved')"
    return layer("eva", spec, (), file["attention_x"], pj.grid(3, 5, prefix=2)), file["attention_eva_out"]


def vit5_layer():
    """The authors have registers last."""
    file, encoding = load("vit5"), pj.parse("axial_rope(base=10000, layout='interleaved') + register_rope()")
    site, order = pj.grid(3, 3, prefix=5), [0, *range(10, 14), *range(1, 10)]
    q, k, v = (file["layer_x"][order] @ file["layer_qkv"].T).reshape(14, 3, 2, -1).transpose(1, 0, 2, 3)
    out = jax.jit(lambda *qkv: pj.attend(encoding, ((), ()), *qkv, site, site))(q, k, v).reshape(14, -1)
    return out @ file["layer_proj"].T, file["layer_out"][order]


CHECKS = [
    *axial(),
    *normalised(),
    *mixed(),
    *multimodal(),
    Check("fope", "torch xavier_normal_ of [40, 50, 30]", "deviation of the noise", fope_noise, atol=1e-4),
    Check("learned", "timm Attention", "a whole layer, class token and table", vit_layer),
    Check("axial_rope", "timm EvaAttention", "a whole layer, two prefix tokens", eva_layer),
    Check("register_rope", "wangf3014/ViT-5", "a whole layer, class token, patches and registers", vit5_layer),
]
