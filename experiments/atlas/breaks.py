"""Live bugs of other codebases, each as two pictures: the result of posjax, and the same with the bug.

A bug is a few lines that repeat the other codebase's mistake: they give posjax the wrong positions, or change numbers on the
way. breaks.toml holds the texts, by the names of the functions. docs/errata.md names the codebases, and the tests that keep
posjax free of the bug.
"""

import inspect
import pathlib
import re
import tomllib
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from experiments.atlas.sources import Erratum, errata
from posjax.attention.dense import shown
from posjax.describe.probes import content_logits
from posjax.encoding import Dims, Encoding, Params, Site, grid, sites
from posjax.encoding import packed as packed_row
from posjax.encodings.bias import alibi_slopes
from posjax.encodings.bias_grid import OffsetTable
from posjax.encodings.resize import resize
from posjax.encodings.tables import Table
from posjax.spec import parse

CHANNELS = 32  # of the one head in most pictures
TOKENS = 32  # of pictures by query and key
PLACES = 64  # of lines and images: JAX compiles each shape
PROMPT = 12  # tokens before the first decoded one
_ONES = np.ones(CHANNELS, np.float32)
_content_logits = jax.jit(content_logits, static_argnums=(0, 1))
_LEVELS = 250  # of a quantised picture
TEXTS = tomllib.loads(pathlib.Path(__file__).with_name("breaks.toml").read_text())  # {function: texts of its bug}
_KINDS = {  # the numbers and the axes of each kind of picture
    "matrix": {"kind": "matrix", "what": "attention weight", "across": "key", "down": "query"},
    "grid": {"kind": "grid", "what": "logit", "across": "column", "down": "row"},
    "lines": {"kind": "lines", "what": "logit", "across": "distance to the key", "down": "query"},
}


class Picture(NamedTuple):
    """The same numbers without and with the bug; NaN if posjax has no number.

    [T, S] by query and key, [height, width] as one patch sees its image, or [N] along a line.
    """

    right: np.ndarray
    wrong: np.ndarray
    refusal: str = ""  # posjax's message if it refuses to compute


def logits(
    encoding: Encoding,
    params: Params,
    site: Site,
    *,
    words: tuple[np.ndarray, np.ndarray] = (_ONES, _ONES),
    heads: int = 1,
) -> np.ndarray:
    """Returns [T, S] logits of the first head, NaN if a query does not see a key; all tokens are the same word.

    Args:
      site: the site of the tokens, not yet placed.
      words: [M] the content of queries and of keys, to which codes are added.
    """
    rows = np.arange(len(site.segment))
    tokens = (np.broadcast_to(word, (len(rows), len(word))) for word in words)
    found, seen = _content_logits(encoding, heads, params, *tokens, site, rows)
    return np.where(seen, found[0], np.nan)


def attention(found: np.ndarray) -> np.ndarray:
    """Returns causal attention weights of [T, S] logits, 0 if a query does not see a key."""
    found = np.where(np.tri(len(found), dtype=bool) & ~np.isnan(found), found, -np.inf)
    peak = found.max(axis=1, keepdims=True)
    weights = np.exp(found - np.where(np.isfinite(peak), peak, 0))
    return weights / np.maximum(weights.sum(axis=1, keepdims=True), 1e-30)


def random_words() -> tuple[np.ndarray, np.ndarray]:
    """Returns the content of queries and keys with different channels, so the pairing of channels matters."""
    q, k = np.random.default_rng(1).normal(size=(2, CHANNELS)).astype(np.float32)
    return q, k


def packed(*lengths: int) -> Site:
    """One row of several documents; each starts at position 0."""
    return packed_row(lengths)


def counted_through(site: Site) -> Site:
    """Returns the site with positions counted along the row, regardless of documents."""
    return site._replace(position=np.arange(len(site.segment), dtype=np.int32))


def no_document_mask() -> Picture:
    encoding, site = parse("rope"), packed(12, 12, 8)
    one_document = site._replace(segment=np.ones_like(site.segment))
    return Picture(*(attention(logits(encoding, (), each)) for each in (site, one_document)))


def positions_run_on() -> Picture:
    encoding, site = parse("sinusoidal"), packed(12, 12, 8)
    return Picture(*(attention(logits(encoding, (), each)) for each in (site, counted_through(site))))


def longest_document_decides() -> Picture:
    encoding, site = parse("rope(scaling=dynamic_ntk(factor=4, original_length=8))"), packed(24, 8)
    right = logits(encoding, (), site)
    # The long document's first tokens get the rotation of a short document beside it.
    return Picture(right[-1, : 24 - 1 : -1], right[7, 7::-1])


def padding_counts() -> Picture:
    encoding, pad = parse("sinusoidal"), 10
    right = packed(pad, TOKENS - pad)
    right = right._replace(segment=np.where(right.segment == 1, 0, 1).astype(np.int32))
    return Picture(*(attention(logits(encoding, (), each)) for each in (right, counted_through(right))))


def every_call_starts_at_zero() -> Picture:
    encoding, site = parse("rope"), sites(TOKENS)
    new_token = np.where(site.position < PROMPT, site.position, 0).astype(np.int32)
    return Picture(*(attention(logits(encoding, (), each)) for each in (site, site._replace(position=new_token))))


def keys_stay_as_they_came() -> Picture:
    encoding = parse("rope(scaling=dynamic_ntk(factor=8, original_length=8))")
    x, steps = jnp.ones((TOKENS, 1, CHANNELS)), np.arange(TOKENS)
    sites_of_steps = [sites(TOKENS)._replace(segment=(steps <= step).astype(np.int32)) for step in steps]
    rotated = [encoding.rotate((), x, site, x, site) for site in sites_of_steps]  # all tokens of a text of step + 1
    q, k = (np.stack([np.asarray(each[n])[:, 0] for each in rotated]) for n in (0, 1))  # [step, T, D]
    query, cached = q[steps, steps] * CHANNELS**-0.5, k[steps, steps]
    return Picture(attention(np.einsum("td,tsd->ts", query, k)), attention(query @ cached.T))


def tables_by_size_alone() -> Picture:
    first, second = (logits(parse(f"rope(base={base})"), (), sites(PLACES))[-1] for base in (10_000, 1_000_000))
    return Picture(second[::-1], first[::-1])


def axes_exchanged() -> Picture:
    encoding, size = parse("axial_rope"), (8, 8)
    site, words, patch = grid(*size), random_words(), 2 * 8 + 5
    exchanged = site._replace(position=site.position[:, ::-1])
    return Picture(*(logits(encoding, (), s, words=words)[patch].reshape(size) for s in (site, exchanged)))


def pairs_exchanged() -> Picture:
    layouts = ("half", "interleaved")
    found = [logits(parse(f"rope(layout='{each}')"), (), sites(PLACES), words=random_words())[-1] for each in layouts]
    return Picture(*(each[::-1] for each in found))


def pairs_of_a_prefix() -> Picture:
    # As many channels at the same frequencies, base^(-2c/D) for c < D/8: paired within the first quarter of the channels.
    specs = "p_rope(base=1000000, proportion=0.25)", f"rope(base={1_000_000**0.25}, fraction=0.25)"
    found = [logits(parse(each), (), sites(PLACES), words=random_words())[-1] for each in specs]
    return Picture(*(each[::-1] for each in found))


def rows_of_keys() -> Picture:
    q, k = random_words()
    stored = k.reshape(2, CHANNELS // 2).T.ravel()  # one head of keys, interleaved as by llama.cpp
    undone = [stored.reshape(heads, -1, 2).swapaxes(1, 2).ravel() for heads in (1, 2)]  # with heads of keys, of queries
    return Picture(*(logits(parse("rope"), (), sites(PLACES), words=(q, each))[-1, ::-1] for each in undone))


def bias_on_its_side() -> Picture:
    encoding, window, patch = parse("beit"), (4, 16), 1 * 16 + 7
    sides = tuple(2 * n - 1 for n in window)
    down, across = np.abs(np.mgrid[: sides[0], : sides[1]] - np.reshape(sides, (2, 1, 1)) // 2)
    table = -(0.2 * across + down).astype(np.float32)  # looks along its row
    mistaken = resize(table.reshape(*sides[::-1], 1), sides, method="torch_bilinear")
    rows = [np.asarray(each).reshape(-1, 1) for each in (table, mistaken)]
    return Picture(*(logits(encoding, OffsetTable(r, window, 0), grid(*window))[patch].reshape(window) for r in rows))


def positions_in_bfloat16() -> Picture:
    encoding, site = parse("rope"), sites(TOKENS, start=496)
    rounded = site.position.astype(jnp.bfloat16).astype(np.int32)
    return Picture(*(logits(encoding, (), each) for each in (site, site._replace(position=rounded))))


def bias_in_bfloat16() -> Picture:
    site, slope = sites(PLACES, start=480), alibi_slopes(8)[:1]
    right = logits(parse("alibi"), (), site, words=(np.zeros(8 * 4, np.float32),) * 2, heads=8)[-1]
    product = slope.astype(jnp.bfloat16) * site.position.astype(jnp.bfloat16)
    wrong = product.astype(np.float64) - float(product[-1])  # the query's share is the same for all keys
    return Picture(right, wrong)


def angles_in_fast_math() -> Picture:
    site, x = sites(PLACES, start=131_072 - PLACES), np.zeros((PLACES, 1, CHANNELS), np.float32)
    x[:, :, 0] = 1  # the pair whose angle is the position itself
    exact = np.cos(site.position.astype(np.float64))
    # A fast cosine makes turns of its argument first.
    turns = site.position.astype(np.float32) * np.float32(1 / (2 * np.pi))
    rotated, _ = parse("rope").rotate((), x, site, x, site)
    return Picture(np.asarray(rotated)[:, 0, 0] - exact, np.cos(2 * np.pi * turns.astype(np.float64)) - exact)


def bias_added_twice() -> Picture:
    site, words = sites(PLACES), (np.ones(8 * 4, np.float32),) * 2
    once = logits(parse("alibi"), (), site, words=words, heads=8)
    none = logits(parse("none"), (), site, words=words, heads=8)
    return Picture(*(attention(each)[-1, -24:] for each in (once, once + (once - none))))


def tables_clamp() -> Picture:
    encoding, trained = parse("learned(stddev=1)"), 16
    params = encoding.init(jax.random.key(0), Dims(CHANNELS, 1, CHANNELS, length=trained))
    try:
        encoding.embed(params, jnp.zeros((TOKENS, CHANNELS)), sites(TOKENS))
    except ValueError as error:
        refusal = str(error)
    codes = params.rows[jnp.arange(TOKENS)]  # like JAX's look-up: past the end it returns the last row
    wrong = np.asarray(codes @ codes.T) * CHANNELS**-0.5
    inside = np.arange(TOKENS) < trained
    return Picture(np.where(inside[:, None] & inside, wrong, np.nan), wrong, refusal)


def right_side_clamps() -> Picture:
    encoding, site = parse("transformer_xl"), sites(TOKENS)
    params = {"u": np.zeros((1, CHANNELS)), "v": np.ones((1, CHANNELS)), "position": np.eye(CHANNELS)[:, None]}
    right = logits(encoding, params, site, words=(0 * _ONES, 0 * _ONES))
    offset = site.position[:, None] - site.position[None]  # query minus key: the right side is negative
    left = right[-1, ::-1]  # by offset
    return Picture(right, np.where(offset > 0, right, left[1]))


def counts_of_a_table() -> Picture:
    encoding, old, new = parse("learned"), (8, 8), (4, 16)
    codes = parse("sinusoidal(base=100)").embed((), np.zeros((PLACES, CHANNELS), np.float32), grid(*old))
    table = Table(codes, old)
    _, right = encoding.resized(table, old, new)
    seen = []
    for rows in (right.rows, table.rows):
        code = np.asarray(rows)
        seen.append((code @ code[2 * 16 + 6] * CHANNELS**-0.5).reshape(new))
    return Picture(*seen)


def counts_of_angles() -> Picture:
    encoding, size, patch = parse("axial_rope"), (4, 16), 2 * 16 + 6
    square = grid(8, 8)  # as many patches
    return Picture(*(logits(encoding, (), site)[patch].reshape(size) for site in (grid(*size), square)))


def angles_of_the_largest() -> Picture:
    stretch, encoding, size, patch = parse("fit_grid(height=16, width=16)"), parse("axial_rope"), (8, 8), 3 * 8 + 3
    alone = stretch.place((), grid(*size))
    batch = stretch.place((), grid(16, 16)).position.reshape(16, 16, 2)[:8, :8].reshape(PLACES, 2)
    return Picture(*(logits(encoding, (), s)[patch].reshape(size) for s in (alone, alone._replace(position=batch))))


def slopes_by_the_head() -> Picture:
    return Picture(alibi_slopes(12), 2.0 ** (-8 * np.arange(1, 13) / 12))


def slopes_of_each_rank() -> Picture:
    return Picture(alibi_slopes(16), np.tile(alibi_slopes(8), 2))


def draws_are_block_zero() -> Picture:
    site, spec = sites(PLACES), "bigbird(block_size=4, num_random={}, num_global=1)"
    seen = [np.asarray(shown(parse(spec.format(n)), site, site)) & np.tri(PLACES, dtype=bool) for n in (2, 0)]
    return Picture(*(each.astype(np.float64) for each in seen))


def ramp_turned_round() -> Picture:
    specs = "yarn(factor=4, original_length=4096, attention_factor=1)", "linear(factor=4)"
    found = [logits(parse(f"rope(base=10, scaling={each})"), (), sites(PLACES))[-1] for each in specs]
    return Picture(*(each[::-1] for each in found))


# The heading of docs/errata.md with bugs that stop a program, or have no picture.
STOPPED = "Defects of vision codebases"


def all_bugs(docs: pathlib.Path) -> dict[str, Any]:
    """Returns the bugs, and the names of the rows of docs/errata.md that have no picture.

    Args:
      docs: the folder of documents.

    Raises:
      ValueError: a bug's row is not in docs/errata.md.
    """
    rows = {row.what: row for row in errata(docs)}
    if missing := [texts["row"] for texts in TEXTS.values() if texts["row"] not in rows]:
        raise ValueError(f"errata.md has no row named {missing[0]!r}, which the atlas shows: name the row that it has")
    others = [slug(row) for row in rows.values() if row.section == STOPPED]
    return {"breaks": [_as_data(name, rows[texts["row"]]) for name, texts in TEXTS.items()], "others": others}


def errata_rows(docs: pathlib.Path) -> dict[str, dict[str, str]]:
    """Returns the rows of docs/errata.md, by the name of each row in an address."""
    return {slug(row): row._asdict() for row in errata(docs)}


def slug(row: Erratum) -> str:
    """Returns a row's name in an address."""
    return "-".join(re.findall(r"[a-z0-9]+", row.what.lower()))


def _as_data(name: str, row: Erratum) -> dict[str, Any]:
    """Returns the texts of a bug, its code and its pictures."""
    show = globals()[name]
    picture, texts = show(), _KINDS[TEXTS[name].get("kind", "matrix")] | TEXTS[name]
    fields = ("name", "group", "title", "switch", "spec", "about", "right", "wrong", "kind", "what", "across", "down")
    return {field: texts[field] for field in fields} | {
        "marked": texts.get("marked"),
        "audit": texts.get("audit"),
        "finds": texts.get("finds"),
        "first": texts.get("first", 0),
        "refusal": picture.refusal,
        "row": slug(row),
        "code": inspect.getsource(show).rstrip(),
        "difference": largest_difference(picture),
        "cells": cells(picture, share=0.95 if texts["what"] == "attention weight" else 1.0),
    }


def largest_difference(picture: Picture) -> float | None:
    """Returns the largest absolute difference of numbers that both have; None if posjax refuses."""
    if picture.refusal:
        return None
    return float(np.nanmax(np.abs(np.asarray(picture.right, np.float64) - np.asarray(picture.wrong, np.float64))))


def cells(picture: Picture, share: float = 1.0) -> dict[str, Any]:
    """Returns both pictures by rows, in whole levels from the least to the greatest number of both; None without a number.

    Args:
      share: share of the numbers above 0 that get their own colour. The first token attends only to itself, with weight 1;
        other weights are far smaller.
    """
    both = np.stack([np.atleast_2d(np.asarray(each, np.float64)) for each in picture[:2]])
    low, high = float(np.nanmin(both)), float(np.nanmax(both))
    full = high if share == 1 else float(np.quantile(both[both > 0], share))
    step = (high - low) / _LEVELS or 1.0
    right, wrong = [
        [[None if np.isnan(x) else round((x - low) / step) for x in row] for row in each] for each in both.tolist()
    ]
    return {"low": low, "high": high, "levels": _LEVELS, "full": full, "right": right, "wrong": wrong}
