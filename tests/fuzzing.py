"""Damage, drawn by hypothesis: to bytes, to JSON, to text. A reader of it answers or refuses; anything else is a bug.

    @counts(20, 2000)
    def test_archives(count, tmp_path):
        fuzz(count, damaged(ARCHIVE), lambda content: read(written(tmp_path, content)))

The first count is for the fast tests, the second for the slow ones. The draws are the same each time.
"""

import collections
import copy
import json
import os
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

SECONDS = 20  # that any one reading may take
ODD = [
    None,
    True,
    False,
    0,
    -1,
    1,
    3,
    7,
    64,
    2.5,
    -0.5,
    1e-300,
    2**31 - 1,
    2**40,
    10**30,
    "",
    "x",
    "1",
    "none",
    [],
    [1],
]
ODD += [
    [0, 0],
    [3, 4],
    [-1],
    ["a"],
    {},
    {"a": 1},
    {"0": "b"},
    [[]],
    [[1, 2]],
    float("nan"),
    float("inf"),
    "\ud800",
    [None] * 3,
]


def counts(fast: int, slow: int):
    """A test that is run with `count` = fast, and among the slow ones with `count` = slow, $POSJAX_FUZZ times as many."""
    slow *= int(os.environ.get("POSJAX_FUZZ", "1"))
    return pytest.mark.parametrize("count", [fast, pytest.param(slow, marks=pytest.mark.slow)])


def fuzz(
    count: int, strategy, read: Callable, refusals: tuple[type[Exception], ...] = (ValueError,)
) -> collections.Counter:
    """Reads `count` draws; returns how many were read and how many refused."""
    found: collections.Counter = collections.Counter()

    @settings(
        max_examples=count,
        derandomize=True,
        database=None,
        deadline=SECONDS * 1000,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def once(drawn):
        try:
            read(drawn)
        except refusals as error:
            found["refused" if str(error) else "silent"] += 1
        else:
            found["read"] += 1

    once()
    assert not found["silent"], "something was refused without a word"
    assert found["refused"], "nothing of it was refused: the damage is none"
    return found


@st.composite
def damaged(draw, content: bytes, most: int = 4) -> bytes:
    """Bytes with 1 to `most` changes: a flipped bit, other bytes, bytes cut out or off, repeated, put in."""
    content = bytearray(content)
    for _ in range(draw(st.integers(1, most))):
        at = draw(st.integers(0, max(0, len(content) - 1)))
        size = draw(st.sampled_from([1, 1, 2, 4, 8, 64]))
        match draw(st.sampled_from(["flip", "flip", "other", "ones", "zeros", "out", "off", "again", "in"])):
            case "flip" if content:
                content[at] ^= 1 << draw(st.integers(0, 7))
            case "other":
                content[at : at + size] = draw(st.binary(min_size=size, max_size=size))
            case "ones":
                content[at : at + size] = b"\xff" * size
            case "zeros":
                content[at : at + size] = b"\0" * size
            case "out":
                del content[at : at + size]
            case "off":
                del content[at:]
            case "again":
                content[at:at] = content[at : at + size]
            case "in":
                content[at:at] = draw(st.binary(min_size=1, max_size=size))
    return bytes(content)


@st.composite
def damaged_json(draw, value, most: int = 3):
    """A tree of JSON with 1 to `most` changes: a value that is another, a key or item that is gone, renamed or twice."""
    value = copy.deepcopy(value)
    for _ in range(draw(st.integers(1, most))):
        holder, key = draw(st.sampled_from(_places(value)))
        match draw(st.sampled_from(["odd", "odd", "odd", "gone", "renamed", "wrapped", "text"])):
            case "odd":
                holder[key] = copy.deepcopy(draw(st.sampled_from(ODD)))
            case "gone":
                del holder[key]
            case "renamed" if isinstance(holder, dict):
                holder[draw(st.sampled_from([f"{key}x", key[:-1], key.upper()]))] = holder.pop(key)
            case "wrapped":
                holder[key] = [holder[key]]
            case "text":
                holder[key] = json.dumps(holder[key], default=str)
        if not _places(value):
            break
    return value


def _places(value) -> list[tuple[dict | list, str | int]]:
    """Returns (container, key) of every node of a JSON tree."""
    keys = value.keys() if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    return [(value, key) for key in keys] + [place for key in keys for place in _places(value[key])]


@st.composite
def damaged_text(draw, texts: list[str], most: int = 3) -> str:
    """One of these texts with 1 to `most` changes to its characters, or with a part of another one."""
    text = draw(st.sampled_from(texts))
    for _ in range(draw(st.integers(1, most))):
        at = draw(st.integers(0, len(text)))
        size = draw(st.integers(0, 5))
        put = draw(
            st.sampled_from(
                [
                    "",
                    "(",
                    ")",
                    ",",
                    "=",
                    ">>",
                    "+",
                    "-",
                    "0",
                    "9" * 5,
                    "1e999",
                    "'",
                    '"',
                    ".",
                    "\\",
                    "\0",
                    "é",
                    "[",
                    "*",
                ]
            )
            | st.sampled_from(texts)
            | st.text(max_size=3)
        )
        text = text[:at] + put + text[at + size :]
    return text
