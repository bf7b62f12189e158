"""Measures of an embedding model, and their page: its table, and embeddings when words or positions move.

Rows are changes of one model, metrics have a value for each text. Facts of the table are single numbers, beside those of
random walks of the same size.
"""

import math
import pathlib
from collections.abc import Iterator, Mapping, Sequence

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from experiments.analysis import embedding, tables
from experiments.analysis.language import heads
from experiments.analysis.language.findings import FIRST, SINKS
from experiments.analysis.language.subject import OWN, TextModel, Texts
from experiments.analysis.measured import Rows, mean_text
from experiments.analysis.page import Section, write_sections
from experiments.analysis.vision import plots
from experiments.progress import bar, caption
from experiments.records import Record, StudyRecords
from experiments.report.statistics import is_whole, mean_interval
from posjax.describe.figures import HUES, MARKERS
from posjax.describe.markdown import escape_markdown, grid
from posjax.encoding import sites

MOVED, FOUND = "cosine distance to the original", "pass key retrieved"
COMPONENTS, WAVES, LIKENESS = "components for 90 %", "variance in 4 sinusoids", "cosine of neighbouring rows"
RADIUS = "spread of the helix's radius"  # of its first pair of components, over the mean radius
TABLE, WALK = "the table", "a random walk"
SHARE = 0.25  # of a text, inserted and removed
_SHIFTS = (1, 16, 64, 192)
LENGTHS = (256, 512, 1024, 2048, 4096)
_PLACES = {"start": 0.0, "middle": 0.5, "end": 1.0}


def measure_encoder(subject: TextModel, texts: Texts) -> tuple[Rows, Rows, Rows, dict[str, np.ndarray]]:
    """Returns the rows by text, the facts of the table, those of random walks, and the arrays of figures.

    Args:
      texts: pieces of at most half the rows of the table.
    """
    words = subject.tokenizer.encode([embedding.GRASS])[0]
    own = [text[len(subject.tokenizer.bos) : -1] for text in texts.tokens]
    ends, params = embedding.special_ends(subject.tokenizer), {"params": subject.params}
    rows: Rows = {}
    readings = embedding.READINGS if tables.learned_tables(params) else ("truncated", "windows")
    with bar(len(own) * (2 + len(_SHIFTS) + len(LENGTHS) * len(readings)), "text") as progress:
        caption(progress, "words moved")
        embed = embedding.text_embedder(subject.model, params, ends)
        far = embedding.moved_embeddings(embed, own, words, SHARE, tuple(_PLACES.values()))
        for index, place in enumerate(_PLACES):
            rows[f"words inserted at the {place}"] = {MOVED: far.inserted[index]}
            rows[f"words removed at the {place}"] = {MOVED: far.removed[index]}
        progress.update(2 * len(own))
        caption(progress, "positions moved")
        before = embed(own)
        taken = max(map(len, own)) + sum(map(len, ends))
        longest = min((len(table) for table in tables.learned_tables(params).values()), default=math.inf) - taken
        for shift in (shift for shift in _SHIFTS if shift <= longest):
            after = embedding.text_embedder(subject.model, params, ends, shift=shift)(own)
            rows[f"positions + {shift}"] = {MOVED: embedding.cosine_distance(before, after)}
            progress.update(len(own))
        caption(progress, "pass keys")
        asked = dict(lengths=LENGTHS, readings=readings, count=len(own))
        for reading, length, rank in embedding.passkey_ranks(subject.model, params, subject.tokenizer, **asked):
            rows.setdefault(reading, {}).setdefault(FOUND, {})[length] = (rank == 0).astype(float)
            progress.update(len(own))
    look = heads.look_into(subject.model, lambda layer, weights: heads.sink(weights))
    first = [
        [layer.weights for layer in look(subject.params, text[:-1], sites(len(text) - 1))] for text in texts.tokens
    ]
    share = np.array(first)  # [N, L, H]
    rows[OWN] = {SINKS: (share > heads.SINK).mean((1, 2)), f"{FIRST}, all layers": share.mean((1, 2))}
    return rows, *_table(subject, len(own))


def _table(subject: TextModel, draws: int) -> tuple[Rows, Rows, dict[str, np.ndarray]]:
    """Returns the facts of the first learned table, and of random walks, and the tables."""
    found = tables.learned_tables(subject.params)
    if not found:
        return {}, {}, {}
    table, rng = next(iter(found.values())), np.random.default_rng(0)
    walks = [rng.standard_normal(table.shape).cumsum(axis=0) for _ in range(draws)]
    return {TABLE: _facts([table])}, {WALK: _facts(walks)}, {"table": table, "walk": walks[0]}


def _facts(given: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
    likeness = [tables.similarity_by_offset(each) for each in given]
    return {
        COMPONENTS: np.array([float(tables.spectrum(each).for_90) for each in given]),
        WAVES: np.array([tables.sinusoid_share(each) for each in given]),
        RADIUS: np.array([tables.radius_spread(each) for each in given]),
        LIKENESS: np.array([each[len(each) // 2 + 1] for each in likeness]),
    }


def write_encoder_page(
    directory: pathlib.Path,
    records: Sequence[Record],
    arrays: Mapping[str, np.ndarray],
    title: str,
    facts: Mapping[str, str],
    command: str,
) -> list[pathlib.Path]:
    """Writes README.md and a PNG per figure into a folder; returns their paths."""
    study = StudyRecords(records[0].study, records)
    with matplotlib.rc_context(plots.STYLE):
        sections = [*_of_table(study, arrays), _of_moves(study), _of_pass_keys(study)]
        return write_sections(directory, title, sections, facts, command)


def _of_table(study: StudyRecords, arrays: Mapping[str, np.ndarray]) -> Iterator[Section]:
    if "table" not in arrays:
        return
    table = arrays["table"]
    unit = table / np.linalg.norm(table, axis=1, keepdims=True)
    figure = Figure(figsize=(8.0, 3.6))
    left, right = figure.subplots(1, 2)
    image = left.imshow(unit @ unit.T, cmap="viridis", vmin=-1, vmax=1)
    left.set(title="cosine of rows", xlabel="position", ylabel="position")
    figure.colorbar(image, ax=left, shrink=0.8)
    untrained = tables.untrained_rows(table)
    for index, (name, given) in enumerate((("the table", table), ("a random walk", arrays["walk"]))):
        held = 100 * np.cumsum(tables.spectrum(given).share)[:40]
        right.plot(range(1, len(held) + 1), held, color=HUES[index], label=name)
    right.set(title="variance in principal components", xlabel="components", ylabel="per cent", ylim=(0, 100))
    right.spines[["top", "right"]].set_visible(False)
    right.grid(axis="y")
    right.legend()
    metrics = {COMPONENTS: 1, WAVES: 3, RADIUS: 3, LIKENESS: 3}
    cells = [
        (row, *(mean_text(study, row, metric, digits) for metric, digits in metrics.items())) for row in (TABLE, WALK)
    ]
    text = (
        f"The learned table, {len(table)} rows, and random walks of the same size: components of any smooth table look like "
        f"waves. {untrained.sum()} rows look untrained (no likelier than chance to resemble their neighbours, and no longer "
        "than at initialisation)."
    )
    yield Section("The table of positions", text, {"table": figure}, grid(("rows", *metrics), cells))


def _of_moves(study: StudyRecords) -> Section:
    rows = [row for row in study.rows if is_whole(study.values(row, MOVED))]
    cells = [(escape_markdown(row), mean_text(study, row, MOVED, 4)) for row in rows]
    text = (
        f"Cosine distance of the embedding when unrelated sentences are inserted, or words removed, {SHARE:.0%} of the "
        "text (Lee et al. 2024, arXiv 2412.15241), and when all positions are shifted: 0 for relative encodings. What is "
        "inserted at the start shifts all words behind it. Heads that are sinks (more than "
        f"{heads.SINK:g} of the attention of the first 64 tokens on the first one): {mean_text(study, OWN, SINKS, 1, 100)} %."
    )
    return Section("Words and positions moved", text, table=grid(("change", MOVED), cells))


def _of_pass_keys(study: StudyRecords) -> Section:
    figure = Figure(figsize=(6.4, 3.0))
    axes = figure.add_subplot()
    rows = [row for row in study.rows if study.values(row, FOUND, LENGTHS[0])]
    for index, row in enumerate(rows):
        found = np.array([mean_interval(list(study.values(row, FOUND, at).values())) for at in LENGTHS])
        look = dict(color=HUES[index], marker=MARKERS[index], markersize=4, label=row)
        axes.errorbar(np.array(LENGTHS) * 1.015**index, 100 * found[:, 0], yerr=100 * found[:, 1], **look)
    axes.set(xscale="log", ylabel="pass keys retrieved (%)", xlabel="tokens of a document", ylim=(-4, 104))
    axes.set_xticks(LENGTHS, [f"{at:,}" for at in LENGTHS])
    axes.minorticks_off()
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend()
    cells = [(row, *(mean_text(study, row, FOUND, 0, 100, at) for at in LENGTHS)) for row in rows]
    text = (
        "Documents that differ by somebody's pass key at a random depth, each asked for by name: the share whose embedding "
        "is nearest to its question's (Zhu et al. 2024, LongEmbed, arXiv 2404.12096). Beyond the table: truncated; rows "
        "interpolated; positions grouped; rows read again from the first; windows averaged. Means and 95 % intervals."
    )
    return Section("Beyond the table", text, {"pass_keys": figure}, grid(("read", *map(str, LENGTHS)), cells))
