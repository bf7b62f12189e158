"""Live bugs of other codebases, each as two pictures: the result of posjax, and the same with the bug.

A bug is a few lines that repeat the other codebase's mistake: they give posjax the wrong positions, or change numbers on the
way. docs/errata.md names the codebases, and the tests that keep posjax free of the bug.
"""

import inspect
import pathlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from experiments.atlas.sources import Erratum, errata
from posjax.attention.dense import shown, tile_logits, visible
from posjax.encoding import Dims, Encoding, Params, Site, grid, sites
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
_LEVELS = 250  # of a quantised picture


class Picture(NamedTuple):
    """The same numbers without and with the bug; NaN if posjax has no number.

    [T, S] by query and key, [height, width] as one patch sees its image, or [N] along a line.
    """

    right: np.ndarray
    wrong: np.ndarray
    refusal: str = ""  # posjax's message if it refuses to compute


@dataclass(frozen=True)
class Break:
    """One bug.

    Attributes:
      group: its heading on the page.
      switch: the effect of the bug, as the label of the switch that turns it on.
      row: the first cell of its row in docs/errata.md.
      kind: "matrix", "grid" or "lines".
      right, wrong: the picture in a sentence, without and with the bug.
      what: the numbers.
      across, down: the axes.
      marked: the patch that looks, (row, column) of a grid.
      first: the number at the first place of a line.
    """

    name: str
    group: str
    title: str
    switch: str
    row: str
    spec: str
    show: Callable[[], Picture]
    about: str
    right: str
    wrong: str
    kind: str = "matrix"
    what: str = "attention weight"
    across: str = "key"
    down: str = "query"
    marked: tuple[int, int] | None = None
    first: int = 0


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
    site = encoding.place(params, site)
    count, width = len(site.segment), len(words[0])
    q, k = (encoding.embed(params, jnp.broadcast_to(word, (count, width)), site) for word in words)
    q, k = (x.reshape(count, heads, -1) for x in (q, k))
    rotated = encoding.rotate(params, q, site, k, site)
    found = tile_logits(encoding, q.shape[-1] ** -0.5, params, q, k, *rotated, site, site)
    return np.where(np.asarray(visible(encoding, site, site)), np.asarray(found)[0], np.nan)


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
    position = np.concatenate([np.arange(n, dtype=np.int32) for n in lengths])
    segment = np.repeat(np.arange(1, len(lengths) + 1, dtype=np.int32), lengths)
    return Site(position, segment, np.zeros_like(segment))


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


def draws_are_block_zero() -> Picture:
    site, spec = sites(PLACES), "bigbird(block_size=4, num_random={}, num_global=1)"
    seen = [np.asarray(shown(parse(spec.format(n)), site, site)) & np.tri(PLACES, dtype=bool) for n in (2, 0)]
    return Picture(*(each.astype(np.float64) for each in seen))


def ramp_turned_round() -> Picture:
    specs = "yarn(factor=4, original_length=4096, attention_factor=1)", "linear(factor=4)"
    found = [logits(parse(f"rope(base=10, scaling={each})"), (), sites(PLACES))[-1] for each in specs]
    return Picture(*(each[::-1] for each in found))


BREAKS = (
    Break(
        "document-mask",
        "Packing",
        "Documents of one row that see each other",
        "Forget which document a token belongs to",
        "documents of a packed row: the mask",
        "rope",
        no_document_mask,
        "Three documents of 12, 12 and 8 tokens share a row. Their positions start at 0 each; that alone keeps no document "
        "from the others.",
        "Three triangles: each token sees its own document only.",
        "One triangle: later documents read the earlier ones, and tokens of equal position are mistaken for neighbours.",
    ),
    Break(
        "packed-positions",
        "Packing",
        "Positions that run through a packed row",
        "Count positions through the row",
        "documents of a packed row: positions",
        "sinusoidal",
        positions_run_on,
        "The same three documents, with the document mask in place. An absolute encoding must restart with each document.",
        "Every document is attended as if it were alone: the triangles begin alike.",
        "The second and the third document are attended as no document of a test is: their first token stands at 12 or 24.",
    ),
    Break(
        "longest-row",
        "Packing",
        "The longest document decides for all",
        "Take the frequencies of the longest document",
        "the length in dynamic scalings",
        "rope(scaling=dynamic_ntk(factor=4, original_length=8))",
        longest_document_decides,
        "A document of 8 tokens, the trained length, shares a batch with one of 24. Dynamic NTK lowers frequencies for "
        "documents that are longer than the trained length.",
        "The short document keeps the frequencies of its training.",
        "The short document is rotated as if it were 24 tokens long: its logits depend on who is beside it.",
        kind="lines",
        what="logit",
        across="distance to the key",
    ),
    Break(
        "left-padding",
        "Packing",
        "Left padding that counts",
        "Count padding as positions",
        "left padding",
        "sinusoidal",
        padding_counts,
        "Ten tokens of padding stand before a document of 22, as in a batch of prompts that end together.",
        "The document starts at position 0, and nobody sees padding.",
        "Nobody sees padding, but the document starts at position 10: its attention is another than alone.",
    ),
    Break(
        "cache-offset",
        "Cache",
        "A decoded token that starts at 0 again",
        "Start every call at position 0",
        "positions in cached decoding",
        "rope",
        every_call_starts_at_zero,
        "A prompt of 12 tokens, then one token a call. A rotary layer that takes no positions numbers the tokens of each "
        "call from 0.",
        "Each new token attends by its distance to the keys in the cache.",
        "From the prompt's end on, all new tokens stand at position 0, beside the first one.",
    ),
    Break(
        "cached-keys",
        "Cache",
        "Cached keys of another length",
        "Keep keys rotated as they were when they came",
        "decoding under dynamic NTK",
        "rope(scaling=dynamic_ntk(factor=8, original_length=8))",
        keys_stay_as_they_came,
        "Dynamic NTK changes all frequencies whenever a token is added beyond the trained length, here 8. A cache of "
        "rotated keys holds each key at the frequencies of its own step.",
        "All keys are rotated anew for each query, as in a full pass over the text so far.",
        "Queries and keys turn at different frequencies: what was near may look far.",
    ),
    Break(
        "cached-tables",
        "Cache",
        "Two RoPEs, one hidden table",
        "Keep tables by size alone",
        "rotary tables kept between calls",
        "rope(base=1000000)",
        tables_by_size_alone,
        "A program makes a RoPE of base 10,000 and then one of base 1,000,000, with heads of the same size.",
        "The second RoPE has the slow channels that its base asks for.",
        "The second RoPE computes with the first one's cosines: its base has no effect.",
        kind="lines",
        what="logit",
        across="distance to the key",
    ),
    Break(
        "axis-order",
        "Order",
        "Rows for columns",
        "Exchange rows and columns",
        "order of the axes on a grid",
        "axial_rope",
        axes_exchanged,
        "Weights were trained with the row in the first half of the channels, and are run with the column there.",
        "What the marked patch sees of an image of 8 by 8 patches.",
        "The picture lies on its side: what was above is now to the left.",
        kind="grid",
        what="logit",
        across="column",
        down="row",
        marked=(2, 5),
    ),
    Break(
        "pair-order",
        "Order",
        "Halves for neighbours",
        "Pair neighbouring channels",
        "rotary pairs",
        "rope",
        pairs_exchanged,
        "Weights were trained with channel c paired with c + D/2, and are run with 2c paired with 2c + 1. No shape and no "
        "configuration of transformers tells the two apart.",
        "Logits of one query and one key content by distance.",
        "Each channel turns at another frequency than in training: another function of distance.",
        kind="lines",
        what="logit",
        across="distance to the key",
    ),
    Break(
        "bias-on-its-side",
        "Order",
        "A bias table read on its side",
        "Exchange the table's height and width",
        "BEiT's table on windows that are not square",
        "beit",
        bias_on_its_side,
        "A head that looks along its row, in a window of 4 by 16 patches. On square windows nothing goes wrong.",
        "The bias falls slowly along the row and fast across rows.",
        "The table is folded at the wrong places and then resized: the bias hardly changes along the row.",
        kind="grid",
        what="logit",
        across="column",
        down="row",
        marked=(1, 7),
    ),
    Break(
        "bf16-positions",
        "Precision",
        "Positions in bfloat16",
        "Round positions to bfloat16",
        "positions in bfloat16",
        "rope",
        positions_in_bfloat16,
        "Tokens 496 to 527 of a text. bfloat16 has 8 bits: whole numbers above 256 are rounded to 2, above 512 to 4. "
        "posjax refuses positions in half precision.",
        "Logits depend on the distance alone.",
        "Neighbours share a position: blocks of 2, then of 4 tokens that cannot be told apart.",
        what="logit",
    ),
    Break(
        "bf16-bias",
        "Precision",
        "ALiBi multiplied in bfloat16",
        "Multiply in bfloat16",
        "Falcon's ALiBi from position 256 on",
        "alibi",
        bias_in_bfloat16,
        "What the token at position 543 adds to the logits of keys 480 to 543, in the first of 8 heads.",
        "A straight line down from the query.",
        "Stairs: keys that share a step cannot be told apart.",
        kind="lines",
        what="bias",
        across="position of the key",
        first=480,
    ),
    Break(
        "table-end",
        "Clamps",
        "A table read past its end",
        "Let the look-up clamp",
        "a table read past its end",
        "learned(stddev=1)",
        tables_clamp,
        "A learned table of 16 rows meets a text of 32 tokens: dot products of the codes of any two tokens. JAX's look-up "
        "gives the last row for every index past the end, without a word.",
        "posjax computes what the table knows and refuses the rest.",
        "Tokens 15 to 31 share one code: a block without any order.",
        what="dot product of codes",
        across="token",
        down="token",
    ),
    Break(
        "right-side",
        "Clamps",
        "All offsets to the right share one code",
        "Make the table half as long as its offsets",
        "noisy relative encodings: the right side",
        "transformer_xl",
        right_side_clamps,
        "Sines of the offset, as in Transformer-XL, for a model that reads in both directions. The table has rows for the "
        "left side only.",
        "Every offset, left or right, has a logit of its own.",
        "The query itself and all keys after it get the code of the key one to the left.",
        what="logit",
    ),
    Break(
        "equal-counts-table",
        "Grids",
        "A table taken for another of as many rows",
        "Compare counts, not grids",
        "grids of equal count",
        "learned",
        counts_of_a_table,
        "A table of codes for 8 by 8 patches is to serve an image of 4 by 16. Both have 64, so a test by count finds nothing "
        "to resize. The picture: dot products of the marked patch's code with all codes.",
        "The resized codes are near where patches are near.",
        "The codes of two rows lie side by side in one: the image is seen twice.",
        kind="grid",
        what="dot product of codes",
        across="column",
        down="row",
        marked=(2, 6),
    ),
    Break(
        "equal-counts-angles",
        "Grids",
        "Angles of another image of as many patches",
        "Reuse angles where the count is the same",
        "grids of equal count",
        "axial_rope",
        counts_of_angles,
        "An image of 4 by 16 patches has as many of them as the one of 8 by 8 before it.",
        "What the marked patch sees of its own image.",
        "The patch sees as if the image were 8 by 8: two of its rows lie side by side.",
        kind="grid",
        what="logit",
        across="column",
        down="row",
        marked=(2, 6),
    ),
    Break(
        "batch-mates",
        "Grids",
        "An image that depends on its batch",
        "Take the batch's largest grid",
        "extent of an image in a batch of several grids",
        "fit_grid(height=16, width=16) >> axial_rope",
        angles_of_the_largest,
        "An image of 8 by 8 patches, stretched to a training grid of 16 by 16, is in a batch with one of 16 by 16.",
        "The image is stretched by its own size, as if it were alone.",
        "The image is not stretched: its neighbours are half as far away.",
        kind="grid",
        what="logit",
        across="column",
        down="row",
        marked=(3, 3),
    ),
    Break(
        "slopes",
        "Biases and masks",
        "ALiBi slopes of 12 heads",
        "Take 2^(-8h/H) for every H",
        "ALiBi slopes where the number of heads H is no power of two",
        "alibi",
        slopes_by_the_head,
        "The authors define slopes for powers of two, and for 12 heads take 8 of them and 4 between.",
        "8 slopes that fall by halves, then 4 that lie between them.",
        "12 slopes that fall evenly: no head has the slope that it was trained with, but heads 3, 6 and so on by chance.",
        kind="lines",
        what="slope",
        across="head",
        first=1,
    ),
    Break(
        "bias-twice",
        "Biases and masks",
        "ALiBi added twice",
        "Add the bias with the mask and to the logits",
        "Falcon's ALiBi",
        "alibi",
        bias_added_twice,
        "Attention of the last of 64 tokens in the first of 8 heads.",
        "The weight falls by one slope.",
        "The weight falls twice as fast: the head sees half as far.",
        kind="lines",
        across="position of the key",
        first=PLACES - 24,
    ),
    Break(
        "bigbird-draws",
        "Biases and masks",
        "Random blocks that are not drawn",
        "Draw block 0 every time",
        "BigBird's random blocks",
        "bigbird(block_size=4, num_random=2, num_global=1)",
        draws_are_block_zero,
        "Which keys a causal query sees: a global block, a window of blocks, and two random blocks.",
        "Two blocks off the diagonal for each block of queries, the same in training and evaluation.",
        "In evaluation every draw is block 0, which is global anyway: the random blocks are gone.",
        what="visible",
    ),
    Break(
        "yarn-ramp",
        "Biases and masks",
        "YaRN's ramp, turned round",
        "Let the ends of the ramp cross",
        "ends of YaRN's ramp",
        "rope(base=10, scaling=yarn(factor=4, original_length=4096, attention_factor=1))",
        ramp_turned_round,
        "Every channel of this RoPE turns more than 32 times within the trained length, so YaRN has nothing to slow down.",
        "All frequencies stay as they were trained.",
        "All frequencies are divided by the factor.",
        kind="lines",
        what="logit",
        across="distance to the key",
    ),
)


STOPPED = (
    "Defects of vision codebases"  # the heading of docs/errata.md with bugs that stop a program, or have no picture
)


def page(docs: pathlib.Path) -> dict[str, Any]:
    """Returns the bugs, and the names of the rows of docs/errata.md that have no picture.

    Args:
      docs: the folder of documents.

    Raises:
      ValueError: a bug's row is not in docs/errata.md.
    """
    rows = {row.what: row for row in errata(docs)}
    if missing := [each.row for each in BREAKS if each.row not in rows]:
        raise ValueError(f"errata.md has no row named {missing[0]!r}, which the atlas shows: name the row that it has")
    others = [slug(row) for row in rows.values() if row.section == STOPPED]
    return {"breaks": [_as_data(each, rows[each.row]) for each in BREAKS], "others": others}


def rows(docs: pathlib.Path) -> dict[str, dict[str, str]]:
    """Returns the rows of docs/errata.md, by the name of each row in an address."""
    return {slug(row): row._asdict() for row in errata(docs)}


def slug(row: Erratum) -> str:
    """Returns a row's name in an address."""
    return "-".join(re.findall(r"[a-z0-9]+", row.what.lower()))


def _as_data(each: Break, row: Erratum) -> dict[str, Any]:
    picture = each.show()
    texts = ("name", "group", "title", "switch", "spec", "about", "right", "wrong", "kind", "what", "across", "down")
    return {name: getattr(each, name) for name in texts} | {
        "marked": each.marked,
        "first": each.first,
        "refusal": picture.refusal,
        "row": slug(row),
        "code": inspect.getsource(each.show).rstrip(),
        "difference": difference(picture),
        "cells": cells(picture, share=0.95 if each.what == "attention weight" else 1.0),
    }


def difference(picture: Picture) -> float | None:
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
    both = [np.atleast_2d(np.asarray(each, np.float64)) for each in picture[:2]]
    low, high = (float(f(np.stack(both))) for f in (np.nanmin, np.nanmax))
    numbers = np.stack(both)
    full = high if share == 1 else float(np.quantile(numbers[numbers > 0], share))
    step = (high - low) / _LEVELS or 1.0
    levels = [
        [[None if np.isnan(x) else round((x - low) / step) for x in row] for row in each.tolist()] for each in both
    ]
    return {"low": low, "high": high, "levels": _LEVELS, "full": full, "right": levels[0], "wrong": levels[1]}
