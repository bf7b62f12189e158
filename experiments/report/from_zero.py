"""docs/from_zero.md and docs/zh/from_zero.md: the templates beside this file, with posjax's numbers in their braces.

Both languages get the same rows and numbers.
"""

import functools
import math
import pathlib
from collections.abc import Iterable, Sequence
from typing import SupportsFloat

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from matplotlib.figure import Figure
from safetensors.numpy import load_file

import posjax as pj
from experiments.records import StudyRecords, read_study
from experiments.report.languages import DOCS, write
from experiments.report.scorecard import MARKS, value_text
from experiments.report.statistics import difference_of, finite_values, mean_interval, term
from posjax.attention.dense import shown
from posjax.describe.figures import GREY, HUES, INK, SMALL, save
from posjax.describe.scorecard.parts import nearest_sums
from posjax.encodings.angles import geometric
from posjax.encodings.tables import Table
from posjax.jsonl import parse_json

CONTENT = {"cat": (1, 0), "chases": (0, 1), "mouse": (1, 1)}
ORDERS = (("cat", "chases", "mouse"), ("mouse", "chases", "cat"))
# The example of four words that circulates, in tenths.
FOUR = np.add.outer(np.arange(4), np.arange(1, 5)) / 10
PATCHES = np.array([[0, 0, 0, 0], [5, 1, 0, 2], [3, 3, 1, 0], [0, 2, 4, 1], [1, 0, 2, 6]]) / 10
ROWS = np.array([[1, 1, 1, 1], [1, 0, 0, 2], [2, 1, 2, 0], [3, 0, 1, 0], [4, 2, 0, 1]]) / 10
DISTANCES = (0, 1, 2, 5, 10, 20, 50, 100)
PAIRS = ((0, 0), (7, 7), (5, 3), (9, 7), (3, 5), (7, 9), (10, 0), (0, 10))  # positions of a query and a key
# Measures of the scorecard that stand for the five properties, and the encodings of the table.
LINEAR = ("R_linear", "R_group")  # one matrix for a shift: of codes, or of queries and keys
PROPERTIES = (("U_gap",), ("D_cache",), ("X_takes",), ("X_mass",), ("R_decode",), LINEAR, ("A_swap",))
EIGHT = ("none()", "sinusoidal()", "sincos2d_mae()", "learned()", "shaw()", "t5()", "alibi()", "rope()")
ROPE = pj.parse("rope(layout='interleaved')")  # neighbouring channels are a pair, as in examples by hand
_LOSS, _FOUND = "loss in separate windows", "passkey exact match"


def write_pages(directory: pathlib.Path) -> list[pathlib.Path]:
    """Writes the page in both languages, and its pictures, from a folder of results."""
    drawn = {"ways": ways_picture(), "waves": waves_picture(), "decay": decay_picture()}
    pictures = [save(each, DOCS / "pictures" / f"from_zero_{name}.png", 110, 64) for name, each in drawn.items()]
    return [*write("from_zero", fields(directory), directory), *pictures]


def fields(directory: pathlib.Path = pathlib.Path("results")) -> dict[str, str]:
    """Returns the numbers and the rows of tables of the page by name.

    Raises:
      ValueError: a record is missing.
    """
    parts = [order(), waves(), tables(directory), collisions(directory), rotations(), biases(), errors()]
    return {name: text for part in [*parts, properties(directory), lengths(directory)] for name, text in part.items()}


def number(value: SupportsFloat, digits: int) -> str:
    """Returns a number with so many decimals, and no minus before a zero."""
    text = f"{float(value):.{digits}f}"
    return text.removeprefix("-") if not float(text) else text


def lines(rows: Iterable[Iterable]) -> str:
    """Returns rows of a Markdown table, without its head."""
    return "\n".join(f"| {' | '.join(map(str, row))} |" for row in rows)


def vector(values: Iterable[SupportsFloat], digits: int = 4) -> str:
    return ", ".join(number(value, digits) for value in values)


@functools.cache
def sines(width: int) -> Float[np.ndarray, "1000 M"]:
    """Returns the sinusoidal codes of positions 0 to 999."""
    return np.asarray(pj.parse("sinusoidal").embed((), jnp.zeros((1000, width)), pj.sites(1000)), np.float64)


def attended(words: Sequence[str], spec: str) -> Float[np.ndarray, "T 2"]:
    """Returns the outputs of one layer of attention whose queries, keys and values are the words themselves."""
    x = jnp.array([CONTENT[word] for word in words], jnp.float32)
    x, hosted = pj.host(pj.parse(spec), (), x, pj.sites(len(words)), key=None)
    return np.asarray(hosted.attend(x[:, None], x[:, None], x[:, None], x=x)[:, 0], np.float64)


def order() -> dict[str, str]:
    """Section 1: attention without positions, and with them, on both orders of three words."""
    outputs = {spec: [attended(words, spec) for words in ORDERS] for spec in ("none", "sinusoidal")}

    def row(word: str) -> list[str]:
        found = [
            vector(each[words.index(word)]) for two in outputs.values() for each, words in zip(two, ORDERS, strict=True)
        ]
        return [word, vector(CONTENT[word], 0), *found]

    def moved(one, other) -> str:
        return number(np.abs(one - other).max(), 4)

    back = {f"{spec}_moved": moved(one, other[::-1]) for spec, (one, other) in outputs.items()}
    means = {f"{spec}_pooled": moved(one.mean(axis=0), other.mean(axis=0)) for spec, (one, other) in outputs.items()}
    return {"order": lines(map(row, CONTENT)), **back, **means}


def waves() -> dict[str, str]:
    """Section 3: the sines and cosines of eight channels, what a shift does, and their likeness by distance."""
    far, frequency = sines(8), geometric(10_000, 4)
    code, turn = far[:4], 5 * frequency
    sine, cosine = far[:-5, ::2], far[:-5, 1::2]
    shifted = np.stack([sine * np.cos(turn) + cosine * np.sin(turn), cosine * np.cos(turn) - sine * np.sin(turn)], -1)
    wide = {width: sines(width) for width in (8, 128)}
    alike = [
        [width, start, *(number(_cosine(code[start], code[start + d]), 3) for d in DISTANCES)]
        for width, code in wide.items()
        for start in (0, 200)
    ]
    return {
        "sines": lines([p, *(number(value, 4) for value in row)] for p, row in enumerate(code)),
        "frequencies": lines(
            [c + 1, number(1 / w, 0), number(w, 3), number(2 * math.pi / w, 1)] for c, w in enumerate(frequency)
        ),
        "second_of_eight": number(1 / frequency[1], 0),
        "second_of_four": number(1 / geometric(10_000, 2)[1], 0),
        "norms": vector(np.sum(code**2, axis=1), 2),
        "shift": number(np.abs(shifted.reshape(-1, 8) - far[5:]).max(), 5),
        "largest": number(np.abs(far).max(), 3),
        "alike": lines(alike),
        "distances": " | ".join(map(str, DISTANCES)),
    }


def _cosine(a: np.ndarray, b: np.ndarray) -> SupportsFloat:
    return a @ b / np.linalg.norm(a) / np.linalg.norm(b)


def tables(directory: pathlib.Path) -> dict[str, str]:
    """Section 4: a learned table added by hand, the sizes of ViT-B/16's, and what training makes of one."""
    learned, table = pj.parse("learned"), Table(jnp.asarray(ROWS, jnp.float32), (2, 2))
    total = np.asarray(learned.embed(table, jnp.asarray(PATCHES, jnp.float32), pj.grid(2, 2, prefix=1)))
    dims = pj.Dims(width=768, num_heads=12, head_dim=64, grid=(14, 14), prefix=1)
    rows, width = jax.eval_shape(lambda: learned.init(jax.random.key(0), dims)).rows.shape
    try:
        learned.embed(table, jnp.zeros((9, 4)), pj.grid(3, 3))
    except ValueError as error:
        refusal = str(error)
    larger = np.asarray(learned.resized(table, (2, 2), (3, 3), method="torch_bilinear")[1].rows)[1:, 0].reshape(3, 3)
    trained = load_file(directory / "trained" / "vit" / "learned" / "params.safetensors")["trunk/encoding/rows"]
    start = learned.init(jax.random.key(0), pj.Dims(width=64, num_heads=4, head_dim=16, grid=(8, 8)))
    return {
        "patches": lines([n, *(vector(x[n], 1) for x in (PATCHES, ROWS, total))] for n in range(5)),
        "vit_rows": f"{rows}",
        "vit_numbers": f"{rows * width:,}",
        "refusal": refusal,
        "smaller": lines([vector(row, 1)] for row in ROWS[1:, 0].reshape(2, 2)),
        "larger": lines([vector(row, 2)] for row in larger),
        "neighbours": lines(
            zip(("1", "2", "≥ 5"), grid_likeness(np.asarray(start.rows)), grid_likeness(trained), strict=True)
        ),
    }


def grid_likeness(rows: Float[np.ndarray, "64 M"]) -> list[str]:
    """Returns the mean cosine of rows of an 8 x 8 grid at distance 1, at 2, and from 5 on, less the mean row."""
    away = np.asarray(rows, np.float64) - np.mean(rows, axis=0)
    away /= np.linalg.norm(away, axis=1, keepdims=True)
    y, x = np.divmod(np.arange(64), 8)
    distance = np.hypot(np.subtract.outer(y, y), np.subtract.outer(x, x))
    return [number((away @ away.T)[where].mean(), 3) for where in (distance == 1, distance == 2, distance >= 5)]


def sums(directory: pathlib.Path) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Returns words [N, 80] and codes [128, 80] by the name of a case of section 5."""
    rng, folder = np.random.default_rng(0), directory / "trained" / "decoder"
    normal, small, code = rng.normal(size=(256, 80)), 0.02 * rng.normal(size=(128, 80)), sines(80)[:128]
    weights = {name: load_file(folder / name / "params.safetensors") for name in ("learned", "sinusoidal")}
    # The decoder multiplies its embeddings by the root of its width.
    words = {n: 80**0.5 * each["token_embedding/embedding"].astype(np.float64) for n, each in weights.items()}
    table = weights["learned"]["trunk/encoding/rows"][:128].astype(np.float64)
    return {
        "N(0, 0.02²) + sinusoidal": (0.02 * normal, code),
        "N(0, 0.02²) + N(0, 0.02²)": (0.02 * normal, small),
        "N(0, 1) + sinusoidal": (normal, code),
        "results/trained/decoder/sinusoidal": (words["sinusoidal"], code),
        "results/trained/decoder/learned": (words["learned"], table),
    }


def collisions(directory: pathlib.Path) -> dict[str, str]:
    """Section 5: the nearest other sums of a word and a position."""
    rows = []
    for name, (words, code) in sums(directory).items():
        own, other = np.sqrt(nearest_sums(words, code, np.random.default_rng(1)))
        size = np.sqrt(np.mean(words**2) + np.mean(code**2)) * math.sqrt(words.shape[1])
        rows.append([name, *(number(each.min() / size, 3) for each in (own, other))])
    return {"collisions": lines(rows)}


def turned(q: np.ndarray, k: np.ndarray, m: np.ndarray, n: np.ndarray) -> list[np.ndarray]:
    """Returns queries and keys, [N, D], as RoPE turns them at the positions m and n, [T]: two arrays [T, N, D]."""
    rows = [jnp.broadcast_to(jnp.asarray(x, jnp.float32), (len(m), *x.shape)) for x in (q, k)]
    places = [pj.Site(each.astype(np.int32)[:, None]) for each in (m, n)]
    return [np.asarray(x, np.float64) for x in ROPE.rotate((), rows[0], places[0], rows[1], places[1])]


def products(q: np.ndarray, k: np.ndarray, m: np.ndarray, n: np.ndarray) -> Float[np.ndarray, "T N"]:
    return np.multiply(*turned(q, k, m, n)).sum(axis=-1)


def rotations() -> dict[str, str]:
    """Section 6: a vector turned by hand, products by distance, and what decays."""
    plain = np.tile([[1.0, 0.0]], 4)
    state = np.random.RandomState(42)  # NumPy's old seed, as in the example that circulates
    q, k = state.randn(1, 8), state.randn(1, 8)
    product = dict(zip(PAIRS, products(q, k, *np.transpose(PAIRS))[:, 0], strict=True))
    curves, after = decay(), turned(plain, plain, np.array([3]), np.array([3]))[0].reshape(4, 2)
    return {
        "turned": lines(
            [c + 1, number(3 * w, 3), "1, 0", vector(pair), number(np.linalg.norm(pair), 4)]
            for c, (w, pair) in enumerate(zip(geometric(10_000, 4), after, strict=True))
        ),
        "products": lines([m, n, m - n, number(np.sum(q * k), 4), number(x, 4)] for (m, n), x in product.items()),
        "ahead": number(product[10, 0], 4),
        "behind": number(product[0, 10], 4),
        "decay": lines([d, *(number(curve[d], 3) for curve in curves.values())] for d in (*DISTANCES, 200)),
        "rises": number(100 * np.mean(np.diff(curves["q = k"]) > 0), 0),
        "peak": f"{np.argmax(curves['k made for distance 100'])}",
    }


@functools.cache
def decay() -> dict[str, np.ndarray]:
    """Returns products of queries and keys of 64 channels over their product unturned, by distance 0 to 255.

    Both are ones; the mean of 1,000 independent pairs, over the mean size of a product; a key that is the query turned.
    """
    ones, far, here = np.ones((1, 64)), np.arange(256), np.zeros(256, int)
    random = products(*np.random.default_rng(0).normal(size=(2, 1000, 64)), far, here)
    key = turned(ones, ones, far[100:101], far[100:101])[1][0]
    return {
        "q = k": products(ones, ones, far, here)[:, 0] / 64,
        "random q, k": random.mean(axis=1) / np.abs(random).mean(),
        "k made for distance 100": products(ones, key, far, here)[:, 0] / 64,
    }


def biases() -> dict[str, str]:
    """Section 7: ALiBi's biases of the last of five queries, and T5's buckets."""
    q, where = jnp.zeros((5, 4, 8)), pj.sites(5)
    bias = np.asarray(pj.parse("alibi").bias((), q, where, q, where))[:, -1]
    far = (0, 1, 2, 7, 15, 16, 20, 32, 64, 127, 128, 1000)
    one = jnp.zeros((1, 1, 8))
    t5, table = pj.parse("t5(bidirectional=False)"), {"table": jnp.arange(32.0)[:, None]}
    buckets = [int(t5.bias(table, one, pj.sites(1, d), one, pj.sites(1))[0, 0, 0]) for d in far]
    return {
        "alibi": lines([h + 1, number(-row[-2], 6), *(number(each, 4) for each in row)] for h, row in enumerate(bias)),
        "far": " | ".join(map(str, far)),
        "buckets": " | ".join(map(str, buckets)),
    }


def errors() -> dict[str, str]:
    """Section 11: the right numbers of examples that circulate with wrong ones."""
    last = (FOUR + sines(4)[:4])[3]
    wrong = [last[0], last[1], FOUR[3, 2] + math.sin(3 / 10), FOUR[3, 3] + math.cos(3 / 10)]
    return {
        "four_right": vector(last, 3),
        "four_wrong": vector(wrong, 3),
        "quarter": number(10_000**-0.25, 1),
        "point_nine": number(0.9**2 + 0.4**2, 2),
        "rounded": f"{number(math.sin(1.13), 2)}, {number(math.cos(1.13), 2)}",
        "halves": number(0.5**2 + 0.5**2, 2),
    }


def properties(directory: pathlib.Path) -> dict[str, str]:
    """Section 8: eight encodings by five properties, from the scorecard."""
    path = directory / "scorecard" / "scorecard.json"
    cards = parse_json(path.read_bytes(), path)["cards"]

    def cell(label: str, names: Sequence[str]) -> str:
        found = [x for name in names if (x := cards[label]["measures"][name])["value"] is not None]
        return " ".join(f"{value_text(x)}\N{NO-BREAK SPACE}{MARKS[x['verdict']]}" for x in found) or MARKS["n/a"]

    rows = [[f"`{label[:-2]}`", *(cell(label, names) for names in PROPERTIES)] for label in EIGHT]
    return {"properties": lines(rows)}


def lengths(directory: pathlib.Path) -> dict[str, str]:
    """Section 9: losses beyond the trained length, from the records; and how many keys a query sees."""
    study = read_study(directory / "quickstart").studies["pydoc_decoder"]
    books = read_study(directory / "context_extension").studies["context_extension"]

    def mean(cells: StudyRecords, *address, factor: float = 1, digits: int = 2) -> str:
        return mean_interval(finite_values(cells.values(*address))).scaled(factor).text(digits)

    def losses(row: str) -> list[str]:
        rise = difference_of(term(study, row, "loss", 512), term(study, row, "loss", 64)).interval()
        return [*(mean(study, row, "loss", at, digits=3) for at in (64, 512)), rise.text(3, signed=True)]

    def extended(row: str) -> list[str]:
        found = mean(books, row, _FOUND, 1024, factor=100, digits=1)
        return [*(mean(books, row, _LOSS, at) for at in (256, 1024, 8192)), found]

    rows = ("rope", "PI", "NTK", "YaRN", "SelfExtend", "window", "streaming")
    specs = ("none", "window(256)", "sinks(4, 252)", "dilated(256)")
    where, last = pj.sites(4096), pj.sites(1, 4095)
    return {
        "beyond": lines([f"`{row}`", *losses(row)] for row in study.rows),
        "extended": lines([row, *extended(row)] for row in rows),
        "keys": lines(
            [f"`{spec}`", np.broadcast_to(shown(pj.parse(spec), last, where), (1, 4096)).sum()] for spec in specs
        ),
    }


def ways_picture() -> Figure:
    """Draws the three ways in: where a position meets the words."""
    figure = Figure(figsize=(8, 1.7), layout="constrained")
    panel = figure.add_subplot()
    panel.set(xlim=(-0.3, 4.4), ylim=(0.3, 2.1))
    panel.set_axis_off()
    for x, text in enumerate(("words", "x", "q, k", "q · k", "softmax")):
        panel.text(x, 0.6, text, ha="center", va="center", color=INK, bbox=dict(boxstyle="round", fc="white", ec=GREY))
        if x:
            panel.annotate("", (x - 0.27, 0.6), (x - 0.73, 0.6), arrowprops=dict(arrowstyle="->", color=GREY))
    ways = ("1  x + code(p)\nsinusoidal, learned", "2  turn q by m, k by n\nRoPE", "3  + bias(m - n)\nALiBi, T5")
    for x, (text, hue) in enumerate(zip(ways, HUES, strict=False), start=1):
        panel.annotate("", (x, 0.85), (x, 1.35), arrowprops=dict(arrowstyle="-|>", color=hue, linewidth=2))
        panel.text(x, 1.75, text, ha="center", va="center", fontsize=SMALL + 2, color=hue)
    return figure


def waves_picture() -> Figure:
    """Draws the codes of 64 positions, and their likeness by distance."""
    figure = Figure(figsize=(9, 2.8), layout="constrained")
    left, right = figure.subplots(1, 2)
    left.imshow(sines(32)[:64].T, cmap="RdBu_r", vmin=-1, vmax=1, aspect="auto")
    left.set(xlabel="position", ylabel="channel", title="sinusoidal, width 32")
    for width, hue in zip((8, 128), HUES, strict=False):
        code = sines(width)[:101]
        right.plot([_cosine(code[0], each) for each in code], color=hue, label=f"width {width}")
    right.set(xlabel="distance", ylabel="cosine", title="PE(p) · PE(p + distance)", ylim=(-0.1, 1.05))
    return _tidy(figure, right)


def decay_picture() -> Figure:
    """Draws what RoPE makes of products by distance."""
    figure = Figure(figsize=(9, 2.8), layout="constrained")
    panel = figure.add_subplot()
    for (name, curve), hue in zip(decay().items(), HUES, strict=False):
        panel.plot(curve, color=hue, linewidth=1.2, label=name)
    panel.axhline(0, color=GREY, linewidth=0.6)
    panel.set(xlabel="distance m - n", ylabel="q · k, turned / unturned")
    return _tidy(figure, panel)


def _tidy(figure: Figure, panel) -> Figure:
    panel.legend(frameon=False, fontsize=SMALL)
    panel.spines[["top", "right"]].set_visible(False)
    return figure
