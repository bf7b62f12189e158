"""Findings in an embedding model, and their page: its table, and embeddings when words or positions move.

Rows are changes of one model, metrics have a value for each text. Facts of the table are single numbers, beside those of
random walks of the same size.
"""

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure

from experiments.analysis import embedding, heads, page, tables
from experiments.analysis.decoder import FIRST, SINKS, both_sinks
from experiments.analysis.layers import look
from experiments.analysis.measured import Findings, Group, Rows, mean_of, mean_text, rows_with, table
from experiments.analysis.page import Section
from experiments.analysis.subject import OWN, Subject, Texts
from experiments.progress import bar, caption
from experiments.records import StudyRecords
from posjax.describe.figures import HUES
from posjax.describe.markdown import grid
from posjax.encoding import sites

MOVED, FOUND = "cosine distance to the original", "pass key retrieved"
COMPONENTS, WAVES, LIKENESS = "components for 90 %", "variance in 4 sinusoids", "cosine of neighbouring rows"
RADIUS = "spread of the helix's radius"  # of its first pair of components, over the mean radius
TABLE, WALK = "the table", "a random walk"
SHARE = 0.25  # of a text, inserted and removed
_SHIFTS = (1, 16, 64, 192)
LENGTHS = (256, 512, 1024, 2048, 4096)


def measure_encoder(subject: Subject, texts: Texts) -> Findings:
    """Returns the findings by text, the facts of the table and of random walks, and the arrays of figures.

    Args:
      texts: pieces of at most half the rows of the table.
    """
    model, params, ends = subject.model, subject.params[0], embedding.special_ends(subject.tokenizer)
    own = [text[len(subject.tokenizer.bos) : -1] for text in texts.tokens]
    learned = [*tables.learned_tables(params).values()]
    readings = embedding.READINGS if learned else ("truncated", "windows")
    with bar(len(own) * (2 + len(_SHIFTS) + len(LENGTHS) * len(readings)), "text") as progress:
        caption(progress, "words moved")
        words, embed = subject.tokenizer.encode([embedding.GRASS])[0], embedding.text_embedder(model, params, ends)
        moved = embedding.moved_embeddings(embed, own, words, SHARE)
        rows: Rows = {row: {MOVED: distance} for row, distance in moved.items()}
        progress.update(2 * len(own))
        caption(progress, "positions moved")
        before, taken = embed(own), max(map(len, own)) + sum(map(len, ends))
        longest = min(map(len, learned), default=math.inf) - taken
        for shift in (shift for shift in _SHIFTS if shift <= longest):
            after = embedding.text_embedder(model, params, ends, shift=shift)(own)
            rows[f"positions + {shift}"] = {MOVED: embedding.cosine_distance(before, after)}
            progress.update(len(own))
        caption(progress, "pass keys")
        options = dict(lengths=LENGTHS, readings=readings, count=len(own))
        for reading, length, rank in embedding.passkey_ranks(model, params, subject.tokenizer, **options):
            rows.setdefault(reading, {}).setdefault(FOUND, {})[length] = (rank == 0).astype(float)
            progress.update(len(own))
    layers = [look(model, params, text[None, :-1], sites(len(text) - 1), both_sinks).weights for text in texts.tokens]
    share = np.array(layers)[:, :, 0, :, 0]  # [N, L, H]
    rows[OWN] = {SINKS: (share > heads.SINK).mean((1, 2)), f"{FIRST}, all layers": share.mean((1, 2))}
    groups = [Group("text", texts.titles, rows)]
    if not learned:
        return Findings(groups, {})
    rng = np.random.default_rng(0)
    walks = [rng.standard_normal(learned[0].shape).cumsum(axis=0) for _ in own]
    groups.append(Group("table", [""], {TABLE: _facts(learned[:1])}))
    groups.append(Group("random walk", [""] * len(own), {WALK: _facts(walks)}))
    return Findings(groups, {"table": learned[0], "walk": walks[0]})


def _facts(codes: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
    likeness = [tables.similarity_by_offset(rows) for rows in codes]
    return {
        COMPONENTS: np.array([np.searchsorted(np.cumsum(tables.spectrum(rows)), 0.9 - 1e-12) + 1.0 for rows in codes]),
        WAVES: np.array([tables.sinusoid_share(rows) for rows in codes]),
        RADIUS: np.array([tables.radius_spread(rows) for rows in codes]),
        LIKENESS: np.array([cosines[len(cosines) // 2 + 1] for cosines in likeness]),
    }


def sections(study: StudyRecords, arrays: Mapping[str, np.ndarray]) -> Iterator[Section]:
    """Yields the sections of the page of an encoder."""
    if "table" in arrays:
        yield _of_table(study, **arrays)
    text = (
        f"Cosine distance of the embedding when unrelated sentences are inserted, or words removed, {SHARE:.0%} of the "
        "text (Lee et al. 2024, arXiv 2412.15241), and when all positions are shifted: 0 for relative encodings. What is "
        "inserted at the start shifts all words behind it. Heads that are sinks (more than "
        f"{heads.SINK:g} of the attention of the first 64 tokens on the first one): {mean_text(study, OWN, SINKS, 1, 100)} %."
    )
    moves = table(study, rows_with(study, MOVED), {MOVED: (4, 1)}, "change")
    yield Section("Words and positions moved", text, table=moves)
    yield _of_pass_keys(study)


def _of_table(study: StudyRecords, table: np.ndarray, walk: np.ndarray) -> Section:
    unit = table / np.linalg.norm(table, axis=1, keepdims=True)
    figure = Figure(figsize=(8.0, 3.6))
    left, right = figure.subplots(1, 2)
    image = left.imshow(unit @ unit.T, cmap="viridis", vmin=-1, vmax=1)
    left.set(title="cosine of rows", xlabel="position", ylabel="position")
    figure.colorbar(image, ax=left, shrink=0.8)
    for index, (name, codes) in enumerate(((TABLE, table), (WALK, walk))):
        held = 100 * np.cumsum(tables.spectrum(codes))[:40]
        right.plot(range(1, len(held) + 1), held, color=HUES[index], label=name)
    right.set(xlabel="components", ylabel="per cent", ylim=(0, 100))
    page.finish(right, "variance in principal components")
    metrics = {COMPONENTS: 1, WAVES: 3, RADIUS: 3, LIKENESS: 3}
    cells = [[row, *(mean_text(study, row, *each) for each in metrics.items())] for row in (TABLE, WALK)]
    text = (
        f"The learned table, {len(table)} rows, and random walks of the same size: components of any smooth table look like "
        f"waves. {tables.untrained_rows(table).sum()} rows look untrained (no likelier than chance to resemble their "
        "neighbours, and no longer than at initialisation)."
    )
    return Section("The table of positions", text, {"table": figure}, grid(("rows", *metrics), cells))


def _of_pass_keys(study: StudyRecords) -> Section:
    figure = Figure(figsize=(6.4, 3.0))
    axes, rows = figure.add_subplot(), rows_with(study, FOUND, LENGTHS[0])
    for index, row in enumerate(rows):
        means = [mean_of(study, row, FOUND, at).scaled(100) for at in LENGTHS]
        page.line(axes, np.array(LENGTHS) * 1.015**index, means, index, row)
    axes.set(xscale="log", ylabel="pass keys retrieved (%)", xlabel="tokens of a document", ylim=(-4, 104))
    axes.set_xticks(LENGTHS, [f"{at:,}" for at in LENGTHS])
    axes.minorticks_off()
    page.finish(axes)
    cells = [(row, *(mean_text(study, row, FOUND, 0, 100, at) for at in LENGTHS)) for row in rows]
    text = (
        "Documents that differ by somebody's pass key at a random depth, each asked for by name: the share whose embedding "
        "is nearest to its question's (Zhu et al. 2024, LongEmbed, arXiv 2404.12096). Beyond the table: truncated; rows "
        "interpolated; positions grouped; rows read again from the first; windows averaged. Means and 95 % intervals."
    )
    return Section("Beyond the table", text, {"pass_keys": figure}, grid(("read", *map(str, LENGTHS)), cells))
