"""docs/diffusion.md: the rotary encodings of twelve diffusion transformers, as specs and positions, beside diffusers.

`tests/goldens/make_diffusion.py` stored diffusers' logits; `tests/goldens/checks_diffusion.py` holds ours to them.
"""

import functools
import inspect
import pathlib
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Float, Shaped
from matplotlib.figure import Figure

import posjax as pj
from experiments.report.languages import DOCS
from posjax.describe.figures import GREY, HUES, INK, SMALL, save
from posjax.describe.markdown import grid
from posjax.encodings.layouts import lattice, standing_at
from posjax.files import replace_file

GOLDENS = pathlib.Path(__file__).parents[2] / "tests" / "goldens" / "diffusion.npz"
TEMPLATE = pathlib.Path(__file__).with_suffix(".md")
PICTURE = "pictures/diffusion.png"
STYLES = {2: {"linewidth": 5, "alpha": 0.35, "solid_capstyle": "butt"}, 1: {"linewidth": 1.5}}  # by length of the grid
TEXT = 3  # tokens of a prompt that is rotated


class Model(NamedTuple):
    """A model's rotary encoding; of `rope_mixed` the parameters are {"wave": waves(name)}."""

    spec: str
    size: tuple[int, int, int]  # frames, rows and columns in tokens, by default in diffusers' pipeline
    head_dim: int = 128
    heads: int = 1
    bound: float = 1e-5  # of the largest difference of logits from diffusers


_FLUX = "axial_rope(base=10000, layout='interleaved', axes_dims=(16, 56, 56))"
_WAN = "axial_rope(base=10000, layout='interleaved', axes_dims=(44, 42, 42))"
_COSMOS = f"axial_rope(base=({1e4 * 2 ** (44 / 42)}, 10000, 10000), axes_dims=(44, 42, 42))"
MODELS = {
    "FLUX.1": Model(_FLUX, (1, 64, 64)),
    "Qwen-Image 2.1": Model(_FLUX, (1, 64, 64)),
    "Z-Image": Model("axial_rope(base=256, layout='interleaved', axes_dims=(32, 48, 48))", (1, 64, 64)),
    "Ideogram 4": Model("mrope(base=5000000, sections=(88, 20, 20), interleaved=True)", (1, 128, 128), 256, bound=1e-3),
    "Wan 2.1": Model(_WAN, (21, 30, 52)),
    "HunyuanVideo": Model("axial_rope(base=256, layout='interleaved', axes_dims=(16, 56, 56))", (33, 45, 80)),
    "CogVideoX": Model("axial_rope(base=10000, layout='interleaved', axes_dims=(16, 24, 24))", (13, 30, 45), 64),
    "Mochi 1": Model("rope_mixed", (4, 30, 53), heads=24),
    "LTX-2": Model("rope_mixed", (16, 16, 24), heads=32, bound=1e-3),
    "Cosmos 1": Model(_COSMOS, (16, 44, 80)),
    "MiniMax-H3": Model("rope(fraction=0.75)", (37, 24, 42)),
    "AnyFlow": Model(_WAN, (21, 30, 52)),
}


def blocks(name, frames, rows, columns):
    """Returns the positions of the prompt, where it is rotated, and of a grid of so many tokens."""
    t, h, w = np.arange(frames), np.arange(rows), np.arange(columns)
    text = lattice(range(TEXT)) + np.zeros(3)  # counts on each axis
    match name:
        case "FLUX.1":
            return 0 * text, lattice([0], h, w)
        case "Qwen-Image 2.1":
            return text, lattice([TEXT], h - (rows - rows // 2), w - (columns - columns // 2))
        case "Z-Image":
            return lattice(range(1, TEXT + 1), [0], [0]), lattice([TEXT + 1], h, w)
        case "Ideogram 4":
            return text, 65_536 + lattice([0], h, w)
        case "CogVideoX":
            step = min(30 / rows, 45 / columns)
            spans = [(round(step * n), whole, n) for n, whole in ((rows, 30), (columns, 45))]
            spans = [(round((whole - size) / 2), size, n) for size, whole, n in spans]
            return (lattice(t, *(np.linspace(begin, (begin + size) * (n - 1) / n, n) for begin, size, n in spans)),)
        case "Mochi 1":
            step = 192 / (rows * columns) ** 0.5
            return (lattice(t, step * (h + 0.5 - rows / 2), step * (w + 0.5 - columns / 2)),)
        case "LTX-2":  # a latent holds 8 frames, the first latent one; 24 frames a second
            middle = (np.maximum(8 * t - 7, 0) + 8 * t + 1) / 2
            return (lattice(middle - 240, 32 * h + 16 - 1024, 32 * w + 16 - 1024),)
        case "Cosmos 1":  # at 30 frames a second
            return (lattice(t * 24 / 30, h, w),)
        case "MiniMax-H3":
            step, spans = 32 / (rows * columns) ** 0.5, 5 / 3 * np.where(t % 5, 4, 1)
            time, down, right = np.cumsum(spans) - spans, step * (h - rows / 2), step * (w - columns / 2)
            return lattice(range(TEXT), [0], [0]), lattice(TEXT + time, 16 + down, 16 + right)
        case "AnyFlow":  # the last 3 frames in full, those before by 2 x 2
            pooled = lattice(t[:-3], 2 * h[: rows // 2] + 0.5, 2 * w[: columns // 2] + 0.5)
            return pooled, lattice(t[-3:], h, w)
    return (lattice(t, h, w),)


def waves(name: str) -> Float[np.ndarray, "3 H C"]:
    """Returns radians by which each pair of channels turns per unit of each axis; one head where all are alike.

    LTX-2: 682 frequencies from pi/2 to 10000 pi/2 for each axis, which take turns along all 4096 channels of a layer, the
    first two pairs left over. Mochi: the frequencies of the golden, a formula, in place of learned ones.
    """
    model = MODELS[name]
    if name == "Mochi 1":
        return whole(3, 24, 64) / 8
    if name == "LTX-2":
        dealt = np.kron(np.pi / 2 * 10_000 ** (np.arange(682) / 681), np.eye(3))
        units = np.reshape([2 / 480, 2 / 2048, 2 / 2048], (3, 1, 1))  # frames and pixels of an extent of 2
        return units * np.concatenate([np.zeros((3, 2)), dealt], axis=1).reshape(3, 32, 64)
    encoding = pj.parse(model.spec)
    return encoding.wave(3, int(encoding.fraction * model.head_dim) // 2)[:, None]


def whole(*shape: int) -> Float[np.ndarray, "..."]:
    """Returns numbers in [-1, 1) by the formula of the golden's maker."""
    return (np.arange(np.prod(shape)) * 40503 % 65536 / 32768 - 1).reshape(shape)


@functools.cache
def logits(name: str) -> Float[np.ndarray, "3 5 5"]:
    """Returns the logits of five tokens by posjax, by diffusers, and by the formula in float64.

    The first token is not rotated. The others are spread over a grid of 3 rows more than the model's own.
    """
    model = MODELS[name]
    frames, rows, columns = model.size
    placed, encoding, wave = blocks(name, frames, rows + 3, columns), pj.parse(model.spec), waves(name)
    at = np.concatenate([[0], 1 + np.linspace(1, sum(map(len, placed)) - 1, 4).astype(int)])
    site = jax.tree.map(lambda leaf: leaf[at], standing_at(*placed, prefix=1))
    q, k = whole(2, 5, model.heads, model.head_dim)
    turned = encoding.rotate({"wave": wave}, np.float32(q), site, np.float32(k), site)
    with np.load(GOLDENS) as file:
        theirs = file["logits"][str(file["models"]).split(", ").index(name)]
    angle = np.einsum("ta,ahc->thc", np.concatenate([np.zeros((1, 3)), *placed])[at], wave)
    pairs = [_pairs(each, encoding.layout, angle) for each in (q, k)]
    ours, exact = (np.einsum("thd,shd->ts", *(np.asarray(x, np.float64) for x in each)) for each in (turned, pairs))
    size = (model.heads * model.head_dim) ** 0.5
    return np.stack([ours / size, theirs, exact / size])


def write_page() -> list[pathlib.Path]:
    """Writes docs/diffusion.md and its picture; returns the paths."""
    replace_file(DOCS / "diffusion.md", page().encode())
    return [DOCS / "diffusion.md", save(picture(), DOCS / PICTURE, 100, 64)]


def page() -> str:
    """Returns the page in Markdown."""
    columns = "model|grid|reach|reach on twice the grid|diffusers - posjax|posjax - float64|diffusers - float64"
    return TEMPLATE.read_text().format(
        picture=PICTURE,
        specs={name: f"`{model.spec}`" for name, model in MODELS.items()},
        recipes=inspect.getsource(blocks).strip(),
        numbers=grid(columns.split("|"), [*map(_numbers, MODELS)]),
    )


def _numbers(name: str) -> list[str]:
    ours, theirs, exact = logits(name)
    reaches = [", ".join(f"{x:.1f}".removesuffix(".0") for x in reach_of(name, times)) for times in (1, 2)]
    errors = [f"{np.abs(one - other).max():.0e}" for one, other in ((theirs, ours), (ours, exact), (theirs, exact))]
    return [name, " x ".join(map(str, MODELS[name].size)), *reaches, *errors]


def reach_of(name: str, times: int) -> Shaped[np.ndarray, "3"]:
    """Returns the largest distance of two tokens on each axis, on a grid `times` as long on each axis; images stay one."""
    size = [length * times if length > 1 else 1 for length in MODELS[name].size]
    return np.ptp(np.concatenate(blocks(name, *size)), axis=0)


def picture() -> Figure:
    """Draws how far each pair of channels turns between the two tokens that are farthest apart."""
    figure = Figure(figsize=(10, 6.6), layout="constrained")
    panels = figure.subplots(3, 4, sharey=True)
    for panel, name in zip(panels.flat, MODELS, strict=True):
        learned = name == "Mochi 1"
        wave = np.ones((3, 64)) if learned else waves(name).reshape(3, -1)
        for times, style in STYLES.items():
            turns = np.abs(wave) * reach_of(name, times)[:, None] / (2 * np.pi)
            for turn, hue in zip(turns, HUES, strict=False):
                pair = np.flatnonzero(turn)
                panel.plot(pair, turn[pair], color=hue, **style)
        panel.axhline(1, color=GREY, linewidth=0.8, zorder=0)
        panel.set_title(f"{name}*" if learned else name, fontsize=SMALL + 2, color=INK)
        panel.set_yscale("log")
        panel.set(xlim=(0, wave.shape[1]), ylim=(3e-5, 3e4))
        panel.tick_params(labelsize=SMALL)
    figure.supxlabel("pair of channels", fontsize=SMALL + 2)
    figure.supylabel("turns between the farthest two tokens", fontsize=SMALL + 2)
    pale, _, _, *axes = panels[1, 0].lines[:6]
    names = "time", "rows", "columns", "twice the grid"
    figure.legend([*axes, pale], names, loc="outside upper center", ncols=4, frameon=False, fontsize=SMALL + 1)
    return figure


def _pairs(x: Float[np.ndarray, "T H D"], layout: str, angle: Float[np.ndarray, "T H C"]) -> Float[np.ndarray, "T H D"]:
    """Rotates pairs of channels in float64; the channels of the result are in another order."""
    turning = 2 * angle.shape[-1]
    first, second = np.split(x[..., :turning], 2, -1) if layout == "half" else (x[..., ::2], x[..., 1::2])
    number = (first + 1j * second) * np.exp(1j * angle)
    return np.concatenate([number.real, number.imag, x[..., turning:]], axis=-1)
