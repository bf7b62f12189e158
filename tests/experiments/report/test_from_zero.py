"""Each number of docs/from_zero.md is worked out again, in float64 with NumPy and math alone."""

import json
import math
import pathlib
import re
import statistics

import numpy as np
import pytest
from safetensors.numpy import load_file
from scipy.spatial.distance import cdist
from scipy.stats import t as student

from experiments.report import from_zero, languages

REPO = pathlib.Path(__file__).parents[3]
RESULTS = REPO / "results"
W = [10_000 ** (-2 * c / 8) for c in range(4)]  # frequencies of eight channels


@pytest.fixture(scope="module")
def values():
    return from_zero.fields(RESULTS)


def cells(text):
    """Rows of cells, each a list of the numbers in it."""
    rows = [line.strip("| ").split(" | ") for line in text.splitlines()]
    return [[[float(x) for x in re.findall(r"-?\d+\.?\d*(?:e-\d+)?", cell)] for cell in row] for row in rows]


def agree(found, expected, digits):
    np.testing.assert_allclose(found, expected, atol=0.51 * 10**-digits)


def code(p, width):
    pairs = [p * 10_000 ** (-2 * c / width) for c in range(width // 2)]
    return np.array([f(angle) for angle in pairs for f in (math.sin, math.cos)])


def turn(x, p, width=8):
    """RoPE by complex numbers."""
    pairs = np.asarray(x, float).reshape(-1, 2) @ [1, 1j]
    found = pairs * np.exp([1j * p * 10_000 ** (-2 * c / width) for c in range(width // 2)])
    return np.stack([found.real, found.imag], axis=-1).ravel()


def attention(x):
    weights = np.exp(x @ x.T / math.sqrt(2))
    return weights / weights.sum(axis=1, keepdims=True) @ x


def test_the_pages_are_current(values):
    for template, page in languages.pages("from_zero").items():
        assert (REPO / page).read_text() == languages.render(template, values), "run python -m experiments.report"


def test_attention_to_three_words(values):
    words = np.array([[1, 0], [0, 1], [1, 1]], float)
    sines = np.array([code(p, 2) for p in range(3)])
    plain, one, two = attention(words), attention(words + sines), attention(words[::-1] + sines)
    columns = [words, plain, plain, one, two[::-1]]
    agree([row[1:] for row in cells(values["order"])], np.stack(columns, axis=1), 4)
    assert values["none_moved"] == values["none_pooled"] == "0.0000"
    agree(float(values["sinusoidal_moved"]), abs(one - two[::-1]).max(), 4)
    agree(float(values["sinusoidal_pooled"]), abs(one.mean(0) - two.mean(0)).max(), 4)


def test_sines_and_cosines(values):
    agree(np.ravel(cells(values["sines"])), np.ravel([[p, *code(p, 8)] for p in range(4)]), 4)
    agree(
        np.ravel(cells(values["frequencies"])),
        np.ravel([[c + 1, 1 / w, w, 2 * math.pi / w] for c, w in enumerate(W)]),
        1,
    )
    assert (values["second_of_eight"], values["second_of_four"]) == ("10", "100")
    assert values["norms"] == ", ".join(["4.00"] * 4)
    assert (values["shift"], values["largest"]) == ("0.00000", "1.000")
    distances = [int(d) for d in values["distances"].split(" | ")]
    for (width,), (start,), *found in cells(values["alike"]):
        a = code(start, int(width))
        agree(np.ravel(found), [a @ code(start + d, int(width)) / (width / 2) for d in distances], 3)


def test_tables(values):
    content, row, total = np.array(cells(values["patches"]), dtype=object)[:, 1:].T
    agree([*map(np.add, content, row)], [*total], 1)
    assert (values["vit_rows"], values["vit_numbers"]) == (str(14 * 14 + 1), f"{(14 * 14 + 1) * 768:,}")
    small, large = (np.array(cells(values[name]))[:, 0] for name in ("smaller", "larger"))
    half = np.array([[1, 0], [0.5, 0.5], [0, 1]])
    agree(large, half @ small @ half.T, 2)
    rows = load_file(RESULTS / "trained/vit/learned/params.safetensors")["trunk/encoding/rows"].astype(float)
    rows -= rows.mean(axis=0)
    alike = {}
    for i in range(64):
        for j in range(64):
            d = math.dist(divmod(i, 8), divmod(j, 8))
            cosine = rows[i] @ rows[j] / math.sqrt(rows[i] @ rows[i] * (rows[j] @ rows[j]))
            alike.setdefault("far" if d >= 5 else d, []).append(cosine)
    trained = [row[2][0] for row in cells(values["neighbours"])]
    agree(trained, [np.mean(alike[d]) for d in (1, 2, "far")], 3)


def test_collisions(values):
    for row, (words, codes) in zip(values["collisions"].splitlines(), from_zero.sums(RESULTS).values(), strict=True):
        rng = np.random.default_rng(1)
        drawn = np.array([(rng.integers(len(words)), rng.integers(len(codes))) for _ in range(200)])
        gaps = cdist(words[drawn[:, 0]] + codes[drawn[:, 1]], (words[:, None] + codes).reshape(-1, 80))
        gaps = gaps.reshape(200, len(words), len(codes))
        gaps[np.arange(200), *drawn.T] = np.inf
        own = gaps[np.arange(200), drawn[:, 0]].min()
        gaps[np.arange(200), drawn[:, 0]] = np.inf
        size = math.sqrt(np.square(words).sum(1).mean() + np.square(codes).sum(1).mean())
        agree([float(cell) for cell in row.strip("| ").split(" | ")[1:]], [own / size, gaps.min() / size], 3)


def test_rope(values):
    rows = cells(values["turned"])
    agree([row[1][0] for row in rows], [3 * w for w in W], 3)
    agree([row[3] for row in rows], turn([1, 0] * 4, 3).reshape(4, 2), 4)
    assert {row[4][0] for row in rows} == {1.0}
    np.random.seed(42)
    q, k = np.random.randn(8), np.random.randn(8)
    for (m,), (n,), (d,), (before,), (after,) in cells(values["products"]):
        assert d == m - n
        agree([before, after], [q @ k, turn(q, m) @ turn(k, n)], 4)
    exact = {(10, 0): -2.769302, (0, 10): -3.336345}
    for (m, n), value in exact.items():
        agree(turn(q, m) @ turn(k, n), value, 6)
    agree([float(values["ahead"]), float(values["behind"])], [*exact.values()], 4)


def test_decay(values):
    w = 10_000.0 ** (-np.arange(32) / 32)
    same = [np.cos(d * w).mean() for d in range(256)]
    for (d,), (equal,), (random,), (built,) in cells(values["decay"]):
        agree([equal, built], [same[int(d)], same[abs(int(d) - 100)]], 3)
        assert abs(random) < 5 * math.sqrt(math.pi / 2 / 1000)  # of a mean of 1,000 over the mean size
    agree(float(values["rises"]), 100 * np.mean(np.diff(same) > 0), 0)
    assert values["peak"] == "100"


def test_biases(values):
    for (h,), (slope,), *row in cells(values["alibi"]):
        assert slope == round(2 ** (-2 * h), 6)
        agree(np.ravel(row), [-(2 ** (-2 * h)) * (4 - key) for key in range(5)], 4)
    far, buckets = ([int(x) for x in values[name].split(" | ")] for name in ("far", "buckets"))
    log = [min(31, 16 + int(math.log(d / 16) / math.log(8) * 16)) if d >= 16 else d for d in far]
    assert buckets == log


def test_errors_that_circulate(values):
    tenths = [0.4, 0.5, 0.6, 0.7]
    right = [x + f(3 / scale) for x, scale, f in zip(tenths, (1, 1, 100, 100), (math.sin, math.cos) * 2, strict=True)]
    wrong = [x + f(3 / scale) for x, scale, f in zip(tenths, (1, 1, 10, 10), (math.sin, math.cos) * 2, strict=True)]
    for name, expected in (("four_right", right), ("four_wrong", wrong)):
        agree([float(x) for x in values[name].split(", ")], expected, 3)
    assert [math.trunc(1000 * x) for x in wrong] == [541, -489, 895, 1655]  # as printed, with digits cut off
    assert (values["quarter"], values["point_nine"], values["halves"]) == ("0.1", "0.97", "0.50")
    assert [round(float(x), 1) for x in values["rounded"].split(", ")] == [0.9, 0.4]
    # no angle rounds to (.5, .5)
    angles = np.linspace(0, 2 * math.pi, 100_000)
    assert not np.any((abs(np.sin(angles) - 0.5) <= 0.05) & (abs(np.cos(angles) - 0.5) <= 0.05))


def test_properties(values):
    cards = json.loads((RESULTS / "scorecard/scorecard.json").read_text())["cards"]
    names = ("U_gap", "D_cache", "X_takes", "X_mass", "R_decode", "R_linear", "A_swap")
    for line in values["properties"].splitlines():
        label, *row = line.strip("| ").split(" | ")
        measures = cards[label.strip("`") + "()"]["measures"]
        for cell, name in zip(row, names, strict=True):
            measure = measures["R_group" if (label, name) == ("`rope`", "R_linear") else name]
            *number, mark = cell.split()
            assert mark == {"pass": "✓", "fail": "✗", "n/a": "·"}[measure["verdict"]]
            np.testing.assert_allclose([float(x) for x in number], measure["value"] or 0, rtol=0.1)


def interval(sample):
    return statistics.mean(sample), student.ppf(0.975, len(sample) - 1) * statistics.stdev(sample) / len(sample) ** 0.5


def records(folder, study, row):
    lines = map(json.loads, (RESULTS / folder / "results.jsonl").read_text().splitlines())
    return [each["metrics"] for each in lines if (each["study"], each["row"]) == (study, row)]


def test_records(values):
    for line in values["beyond"].splitlines():
        found = [each["loss"] for each in records("quickstart", "pydoc_decoder", re.search(r"`(\w+)`", line)[1])]
        expected = [interval([each[at] for each in found]) for at in ("64", "512")]
        expected.append(interval([each["512"] - each["64"] for each in found]))
        agree([float(x) for x in re.findall(r"-?\d+\.\d+", line)], np.ravel(expected), 3)
    for line in values["extended"].splitlines():
        row, *numbers, keys = line.strip("| ").split(" | ")
        found = records("context_extension", "context_extension", row)
        losses = [interval([each["loss in separate windows"][at] for each in found]) for at in ("256", "1024", "8192")]
        agree([[float(x) for x in cell.split(" ± ")] for cell in numbers], losses, 2)
        exact = interval([100 * each["passkey exact match"]["1024"] for each in found])
        agree([float(x) for x in keys.split(" ± ")], exact, 1)
    assert [row[-1] for row in cells(values["keys"])] == [[4096], [256], [256], [256]]
