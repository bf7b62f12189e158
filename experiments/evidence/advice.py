"""Which encoding to take, by situation: sentences whose names and numbers come from records, each with its doubt.

A `Field` is a column of results with a reference row. Who leads it, who cannot be told from the leader and who is behind the
reference is computed, after Holm's correction over all comparisons of the field and the claims of its study.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from experiments.evidence.contrast import Cell, Table, evaluate, unit_of
from experiments.evidence.inventory import Folder, Regime, regime_of
from experiments.evidence.numbers import ink
from experiments.evidence.verdicts import FAILS, HOLDS, NOT_RUN, UNCLEAR, Judged, judge_beside
from experiments.report.lengths import CHUNKED, SLIDING
from experiments.report.statistics import Verdict

_SHOWN = 6  # rows of a list before the rest is counted


class Field(NamedTuple):
    """Rows of a table at a length or resolution, compared with each other and with a reference row."""

    table: Table
    at: int | None
    reference: str
    what: str  # e.g. "accuracy on Fashion-MNIST"
    others: tuple[str, ...] = ()  # rows of the table that were trained for something else


class Situation(NamedTuple):
    """What somebody has, the fields that tell what to take (each from the first that has records), claims, and doubts.

    Attributes:
      fields: alternatives, by which is asked first.
      claims: ids of those that bear on it.
      doubt: what the evidence leaves out, beside its regime.
    """

    title: str
    fields: tuple[tuple[Field, ...], ...]
    claims: tuple[str, ...]
    doubt: str


class Standing(NamedTuple):
    """Who leads a field."""

    leader: str
    lead: Verdict | None  # over the reference; None where the reference leads
    tied: tuple[str, ...]  # not separable from the leader
    behind: tuple[str, ...]  # behind the reference


def standing(field: Field, folders: Mapping[str, Folder], judged: Sequence[Judged] = ()) -> Standing | None:
    """None where there are no records of the reference and of another row."""
    tables = {name: folder.tables for name, folder in folders.items()}
    rows = tables.get(field.table.folder, {}).get(field.table.table, {})
    unit = unit_of(field.table.metric)
    known = {row: evaluate(field.table(row, field.at), tables) for row in rows if row not in field.others}
    best_first = {max: -1.0, min: 1.0}[unit.best]
    values = {row: found.value for row, found in known.items() if found is not None}
    values = dict(sorted(values.items(), key=lambda each: best_first * each[1]))
    if field.reference not in values or len(values) < 2:
        return None
    leader = next(iter(values))
    pairs = [(row, field.reference) for row in values if row != field.reference]
    # A reference that leads has been compared with all others already.
    pairs += [(leader, row) for row in values if leader != field.reference and row not in (leader, field.reference)]
    family = {(a, b): evaluate(field.table(a, field.at) - field.table(b, field.at), tables) for a, b in pairs}
    found = judge_beside({pair: each for pair, each in family.items() if each is not None}, judged, field.table.folder)
    beside = {row: found.get((leader, row), found.get((row, leader))) for row in values}
    tied = tuple(row for row, verdict in beside.items() if verdict is not None and not verdict.separated)
    against = {row: found[row, field.reference] for row in values if (row, field.reference) in found}
    worse = -1.0 if unit.best is max else 1.0
    behind = tuple(row for row, v in against.items() if v.separated and worse * v.estimate.value > 0)
    return Standing(leader, against.get(leader), tied, behind)


_SPARSE = Table("contextual_counting", "flip_flop", "accuracy by length, flip_flop_sparse")
_AT_1X, _LONG = "loss at the training length", ("sinusoidal, trained at 512",)
SITUATIONS = (
    Situation(
        "Images of one size",
        (
            (Field(Table("fashion_vit", "fashion_vit", "accuracy"), None, "none", "accuracy on Fashion-MNIST"),),
            (Field(Table("vit_table8", "stem", "accuracy"), None, "none", "accuracy on CIFAR-10"),),
        ),
        (
            "vit-learned-beats-none",
            "vit-2d-beats-none",
            "vit-alibi-beats-none",
            "vit-direction-helps",
            "vit-direction-beats-learned-decay",
        ),
        "Small images and short trainings: what leads here by little may not lead elsewhere.",
    ),
    Situation(
        "Images of several sizes",
        (
            (
                Field(
                    Table("resolutions", "caltech101", "accuracy"),
                    256,
                    "none",
                    "accuracy at twice the resolution, Caltech-101",
                ),
            ),
        ),
        ("rescaled-beats-extrapolated", "relative-coordinates-keep-more", "mixed-keeps-more-than-learned"),
        "Short trainings on small images; the order of RoPE-ViT needs trainings that were not run here.",
    ),
    Situation(
        "Text at the trained length",
        ((Field(Table("train_short_test_long", CHUNKED, "loss"), 128, "none", _AT_1X, _LONG),),),
        ("rope-learns-faster", "none-competitive", "fox-ahead-of-rope", "heads-confound-alibi"),
        "Bytes and small models early in training.",
    ),
    Situation(
        "Text longer than in training, nothing tuned",
        (
            (
                Field(
                    Table("train_short_test_long", CHUNKED, "loss"),
                    4096,
                    "none",
                    "loss far beyond the training length",
                    _LONG,
                ),
            ),
        ),
        ("alibi-extrapolates", "rope-fails-beyond", "t5-reads-twice", "fire-beyond-rope-and-alibi"),
        "A flat loss is no proof that what stands far away is used: see pass keys in the matrix, which FoX has not "
        "learned to find at any length.",
    ),
    Situation(
        "A trained RoPE to be read further",
        (
            (
                Field(
                    Table("context_extension", SLIDING, "loss"), 1024, "rope", "loss at four times the trained length"
                ),
            ),
            (
                Field(
                    Table("context_extension", "passkey", "exact match"),
                    1024,
                    "rope",
                    "pass keys at four times the trained length",
                ),
            ),
        ),
        (
            "yarn-beats-ntk-untuned",
            "longrope-search-wins",
            "self-extend-reads-on",
            "pi-tuned-keeps-loss",
            "windows-need-sinks",
        ),
        "A window keeps the loss because it forgets: what lies beyond it cannot be retrieved.",
    ),
    Situation(
        "Digits and algorithms",
        (
            (Field(Table("length_generalization", "addition", "accuracy"), None, "none", "longer additions"),),
            (Field(Table("randomized_positions", "bucket_sort", "accuracy"), None, "none", "longer sorting"),),
        ),
        (
            "abacus-adds",
            "coupled-positions-add",
            "randomized-sinusoidal-sorts",
            "randomized-rope-sorts",
            "none-generalises-best",
        ),
        "Short problems of few symbols, scored by their tokens: hardly a sum is right as a whole. Abacus and coupled "
        "positions are told where the digits stand.",
    ),
    Situation(
        "Counting",
        ((Field(_SPARSE, 128, "none", "flip-flop out of distribution"),),),
        ("cope-ahead-on-flip-flop", "fox-ahead-on-flip-flop", "cope-in-distribution"),
        "One made-up task.",
    ),
)


class Answer(NamedTuple):
    """What the records say of a situation.

    Attributes:
      told: of each field that has records, who leads it.
      claims: those that bear on it.
      regime: of the rows that are named; None where nothing has been run.
    """

    situation: Situation
    told: tuple[tuple[Field, Standing], ...]
    claims: tuple[Judged, ...]
    regime: Regime | None


def answer(situation: Situation, folders: Mapping[str, Folder], judged: Mapping[str, Judged]) -> Answer:
    """The first field of each alternative that has records."""
    told, cells = [], []
    for alternatives in situation.fields:
        for field in alternatives:
            if (found := standing(field, folders, tuple(judged.values()))) is not None:
                told.append((field, found))
                rows = (found.leader, field.reference, *found.tied)
                cells += [
                    Cell(field.table.folder, field.table.table, row, field.table.metric, field.at) for row in rows
                ]
                break
    claims = tuple(judged[name] for name in situation.claims if name in judged)
    return Answer(situation, tuple(told), claims, regime_of(cells, folders) if cells else None)


def to_markdown(folders: Mapping[str, Folder], judged: Sequence[Judged], cards: Mapping[str, Any]) -> str:
    """A paragraph for each situation."""
    by_id = {each.claim.id: each for each in judged}
    parts = [_situation(each, folders, by_id) for each in SITUATIONS]
    parts.insert(4, _packed(cards))
    return "\n\n".join(parts)


def _situation(situation: Situation, folders: Mapping[str, Folder], judged: Mapping[str, Judged]) -> str:
    found = answer(situation, folders, judged)
    told = " ".join(_sentence(field, each) for field, each in found.told)
    lines = [f"**{situation.title}.** {told or 'Not run yet.'}"]
    if found.claims:
        lines.append(f"Claims: {', '.join(_verdict(each) for each in found.claims)}.")
    regime = f" ({found.regime.text()})" if found.regime else ""
    return " ".join([*lines, f"*Doubt*: {situation.doubt}{regime}"])


def _sentence(field: Field, found: Standing) -> str:
    """Who leads, by how much, who is not separable from it and who is worse than the reference."""
    unit, link = unit_of(field.table.metric), f"[{field.what}]({field.table.folder}/table.md)"
    if found.lead is None:
        sentence = f"For {link} nothing is ahead of `{field.reference}`"
    else:
        interval = found.lead.estimate.interval().scaled(unit.scale).text(unit.digits - (unit.scale > 1), signed=True)
        sentence = f"For {link} `{found.leader}` has the best mean ({ink(interval)} to `{field.reference}`"
        sentence += ")" if found.lead.separated else ", not separable)"
    sentence += f"; not separable from it: {_names(found.tied)}" if found.tied else "; every other row is behind it"
    sentence += f"; worse than `{field.reference}`: {_names(found.behind)}" if found.behind else ""
    return sentence + "."


def _names(rows: Sequence[str]) -> str:
    more = f" and {ink(len(rows) - _SHOWN)} more" if len(rows) > _SHOWN else ""
    return ", ".join(f"`{row}`" for row in rows[:_SHOWN]) + more


_GLYPHS = {HOLDS: "✓", FAILS: "✗", UNCLEAR: "≈", NOT_RUN: "…"}


def _verdict(judged: Judged) -> str:
    return f"[{judged.claim.id}](#{judged.claim.id}) {_GLYPHS[judged.verdict]}"


PACKED = "Packed documents"
PACKED_DOUBT = "measured as initialised, on logits; no study trains on packed rows."


def packed(cards: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Of packed documents the scorecard tells: the specs that were measured, and those that move when another document
    stands before their own."""
    measured = {spec: card["measures"]["D_batch"] for spec, card in cards.items() if "measures" in card}
    return list(measured), [spec for spec, cell in measured.items() if cell["verdict"] == "fail"]


def _packed(cards: Mapping[str, Any]) -> str:
    measured, moved = packed(cards)
    if not measured:
        return f"**{PACKED}.** Not run yet."
    unmoved = ink(f"{len(measured) - len(moved)} of {len(measured)}")
    told = (
        f"Behind padding and behind other documents {unmoved} specs of the [scorecard](scorecard/table.md) read alike"
    )
    told += f"; not {_names(moved)}" if moved else ""
    return f"**{PACKED}.** {told}. Positions are data here, and each document has its own. *Doubt*: {PACKED_DOUBT}"
