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
FAR = (0, 1, 2, 5, 10, 20, 50, 100)


@pytest.fixture(scope="module")
def values():
    return from_zero.fields(RESULTS)


def agree(text, expected, digits):
    """All numbers of a text, in their order, are those expected, rounded to so many digits."""
    found = [float(x) for x in re.findall(r"-?\d+\.?\d*", text)]
    np.testing.assert_allclose(found, np.hstack([*map(np.ravel, expected)]), atol=0.51 * 10**-digits)


def code(p, width):
    pairs = [p * 10_000 ** (-2 * c / width) for c in range(width // 2)]
    return np.array([f(angle) for angle in pairs for f in (math.sin, math.cos)])


def turn(x, p):
    """RoPE of eight channels by complex numbers."""
    pairs = np.reshape(x, (-1, 2)) @ [1, 1j] * np.exp([1j * p * 10_000 ** (-2 * c / 8) for c in range(4)])
    return np.stack([pairs.real, pairs.imag], axis=-1).ravel()


def attention(x):
    weights = np.exp(x @ x.T / math.sqrt(2))
    return weights / weights.sum(axis=1, keepdims=True) @ x


def test_the_pages_are_current(values):
    for template, page in languages.pages("from_zero").items():
        assert (REPO / page).read_text() == languages.render(template, values), "run python -m experiments.report"


def test_attention_and_waves(values):
    words, sines = np.array([[1, 0], [0, 1], [1, 1]], float), np.array([code(p, 2) for p in range(3)])
    plain, one, two = attention(words), attention(words + sines), attention(words[::-1] + sines)
    agree(values["order"], [np.stack([words, plain, plain, one, two[::-1]], axis=1)], 4)
    agree(values["none_moved"] + " " + values["none_pooled"], [0, 0], 4)
    agree(values["sinusoidal_moved"], [abs(one - two[::-1]).max()], 4)
    agree(values["sinusoidal_pooled"], [abs(one.mean(0) - two.mean(0)).max()], 4)
    agree(values["sines"], [[p, *code(p, 8)] for p in range(4)], 4)
    agree(values["frequencies"], [[c + 1, 10**c, 10**-c, 2 * math.pi * 10**c] for c in range(4)], 1)
    agree(" ".join(values[f"second_of_{n}"] for n in ("eight", "four")), [10_000 ** (2 / 8), 10_000 ** (2 / 4)], 0)
    agree(" ".join(values[name] for name in ("norms", "shift", "largest")), [4, 4, 4, 4, 0, 1], 5)
    alike = [[w, p, *(code(p, w) @ code(p + d, w) / (w / 2) for d in FAR)] for w in (8, 128) for p in (0, 200)]
    agree(values["alike"], alike, 3)


def test_tables(values):
    patches = np.array([[0, 0, 0, 0], [5, 1, 0, 2], [3, 3, 1, 0], [0, 2, 4, 1], [1, 0, 2, 6]]) / 10
    rows = np.array([[1, 1, 1, 1], [1, 0, 0, 2], [2, 1, 2, 0], [3, 0, 1, 0], [4, 2, 0, 1]]) / 10
    agree(values["patches"], np.hstack([np.arange(5)[:, None], patches, rows, patches + rows]), 1)
    assert (values["vit_rows"], values["vit_numbers"]) == (str(14 * 14 + 1), f"{(14 * 14 + 1) * 768:,}")
    small, half = rows[1:, 0].reshape(2, 2), np.array([[1, 0], [0.5, 0.5], [0, 1]])
    agree(values["smaller"] + values["larger"], [small, half @ small @ half.T], 2)
    table = load_file(RESULTS / "trained/vit/learned/params.safetensors")["trunk/encoding/rows"].astype(float)
    table, alike = table - table.mean(axis=0), {}
    for i, j in np.ndindex(64, 64):
        d = math.dist(divmod(i, 8), divmod(j, 8))
        cosine = table[i] @ table[j] / math.sqrt(table[i] @ table[i] * (table[j] @ table[j]))
        alike.setdefault("far" if d >= 5 else d, []).append(cosine)
    trained = " ".join(line.split(" | ")[-1] for line in values["neighbours"].splitlines())
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
        agree(row.split(" | ", 1)[1], [own / size, gaps.min() / size], 3)


def test_rope(values):
    pairs = turn([1, 0] * 4, 3).reshape(4, 2)
    agree(values["turned"], [[c + 1, 3 * 10**-c, 1, 0, *pairs[c], 1] for c in range(4)], 4)
    np.random.seed(42)
    q, k = np.random.randn(8), np.random.randn(8)
    ahead, behind = turn(q, 10) @ turn(k, 0), turn(q, 0) @ turn(k, 10)
    np.testing.assert_allclose([ahead, behind], [-2.769302, -3.336345], atol=1e-6)
    agree(values["ahead"] + " " + values["behind"], [ahead, behind], 4)
    places = [(0, 0), (7, 7), (5, 3), (9, 7), (3, 5), (7, 9), (10, 0), (0, 10)]
    agree(values["products"], [[m, n, m - n, q @ k, turn(q, m) @ turn(k, n)] for m, n in places], 4)
    same = [np.cos(d * 10_000.0 ** (-np.arange(32) / 32)).mean() for d in range(256)]
    rows = [line.strip("| ").split(" | ") for line in values["decay"].splitlines()]
    agree(
        " ".join(f"{d} {equal} {built}" for d, equal, _, built in rows),
        [[d, same[d], same[abs(d - 100)]] for d in (*FAR, 200)],
        3,
    )
    assert max(abs(float(row[2])) for row in rows) < 5 * math.sqrt(
        math.pi / 2 / 1000
    )  # a mean of 1,000, over the mean size
    agree(values["rises"] + " " + values["peak"], [100 * np.mean(np.diff(same) > 0), 100], 0)


def test_biases_and_errors(values):
    agree(values["alibi"], [[h, 4.0**-h, *(-(4.0**-h) * d for d in (4, 3, 2, 1, 0))] for h in (1, 2, 3, 4)], 4)
    far = [int(d) for d in values["far"].split(" | ")]
    agree(values["buckets"], [d if d < 16 else min(31, 16 + int(math.log(d / 16, 8) * 16)) for d in far], 0)
    right, wrong = (
        [0.4 + math.sin(3), 0.5 + math.cos(3), 0.6 + math.sin(3 / s), 0.7 + math.cos(3 / s)] for s in (100, 10)
    )
    agree(values["four_right"] + " " + values["four_wrong"], [right, wrong], 3)
    assert [math.trunc(1000 * x) for x in wrong] == [541, -489, 895, 1655]  # as printed, with digits cut off
    agree(" ".join(values[name] for name in ("quarter", "point_nine", "halves")), [1 / 10, 0.97, 0.5], 2)
    assert [round(float(x), 1) for x in values["rounded"].split(", ")] == [0.9, 0.4]
    angles = np.linspace(0, 2 * math.pi, 100_000)  # none rounds to (.5, .5)
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
            for text in number:  # 0.02, or 5e-04
                digits = int(text.partition("e-")[2] or len(text.partition(".")[2]))
                assert abs(float(text) - measure["value"]) < 0.51 * 10**-digits


def interval(sample):
    return statistics.mean(sample), student.ppf(0.975, len(sample) - 1) * statistics.stdev(sample) / len(sample) ** 0.5


def records(folder, study, row):
    lines = map(json.loads, (RESULTS / folder / "results.jsonl").read_text().splitlines())
    return [each["metrics"] for each in lines if (each["study"], each["row"]) == (study, row)]


def test_records(values):
    for line in values["beyond"].splitlines():
        _, row, cells = line.split("`")
        found = [(each["loss"]["64"], each["loss"]["512"]) for each in records("quickstart", "pydoc_decoder", row)]
        agree(cells, [*map(interval, zip(*found, strict=True)), interval([b - a for a, b in found])], 3)
    for line in values["extended"].splitlines():
        row, cells = line.strip("| ").split(" | ", 1)
        found = records("context_extension", "context_extension", row)
        losses = [interval([x["loss in separate windows"][at] for x in found]) for at in ("256", "1024", "8192")]
        agree(cells.rpartition(" | ")[0], losses, 2)
        agree(cells.rpartition(" | ")[2], interval([100 * each["passkey exact match"]["1024"] for each in found]), 1)
    keys = [line.split(" | ")[1].strip(" |") for line in values["keys"].splitlines()]
    assert keys == ["4096", "256", "256", "256"]
