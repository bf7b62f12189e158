"""results/README.md: what the records say, on one page. Nothing on it is typed but the sentences."""

import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from experiments.evidence import advice, matrix
from experiments.evidence.claims import CLAIMS, CONTROL, PUBLISHED, REPEAT, ROLES, Claim, Expectation
from experiments.evidence.inventory import STUDIES, Folder, Study, commits, core_hours, regime_of
from experiments.evidence.numbers import ink, plain
from experiments.evidence.verdicts import FAILS, HOLDS, NOT_RUN, UNCLEAR, Judged, judge_claims, looked_at
from experiments.report.families import FAMILIES
from experiments.report.statistics import LEVEL
from experiments.report.table import Unit
from posjax.describe.figures import save
from posjax.describe.markdown import escape_markdown, grid
from posjax.files import replace_file

NAME, PICTURE = "README.md", "matrix.png"
# Folders that hold no seeded runs: what each is, and the command.
_OTHERS = (
    ("scorecard", "every encoding as initialised, against ideal properties", "scorecard --out=results/scorecard"),
    ("benchmark", "time and memory beside other libraries", "benchmark SUITE --out=results/benchmark"),
    (
        "context",
        "how long an input fits in memory and time",
        "context --config=configs/decoder.py --workdir=results/context",
    ),
    ("analyse", "pictures of trained ViTs", "analyse --checkpoint=RUN --out=results/analyse/ROW"),
)
_ABSENT = (
    "No accelerator's numbers are there yet: `python -m experiments.accelerator --out=results/accelerator` makes them."
)


def render(folders: Mapping[str, Folder], cards: Mapping[str, Any]) -> str:
    """The page, with its numbers marked (see `numbers`).

    Args:
      folders: by name, those that are there.
      cards: of the scorecard, by spec.
    """
    judged = judge(folders)
    made = matrix.matrix(folders, judged)
    sections = (
        ("", _summary(judged, folders)),
        ("Claims", _claims(judged, folders)),
        ("The matrix", _matrix(made, folders, cards)),
        ("Which encoding should I use?", advice.to_markdown(folders, judged, cards)),
        ("Against the literature", _against(judged, folders)),
        ("How each study was run", _inventory(folders)),
    )
    parts = [f"## {title}\n\n{text}" if title else f"# Results\n\n{text}" for title, text in sections]
    return "\n\n".join(parts) + "\n"


def write(folders: Mapping[str, Folder], cards: Mapping[str, Any], directory: pathlib.Path) -> list[pathlib.Path]:
    """Writes the page and its picture; returns their paths."""
    page, picture = directory / NAME, directory / PICTURE
    replace_file(page, plain(render(folders, cards)).encode())
    save(matrix.figure(matrix.matrix(folders, judge(folders))), picture, dpi=110)
    return [page, picture]


def judge(folders: Mapping[str, Folder]) -> list[Judged]:
    """All claims, judged by the tables of the folders."""
    return judge_claims(CLAIMS, {name: folder.tables for name, folder in folders.items()})


def _summary(judged: Sequence[Judged], folders: Mapping[str, Folder]) -> str:
    counts = {verdict: sum(each.verdict == verdict for each in judged) for verdict in (HOLDS, FAILS, UNCLEAR, NOT_RUN)}
    held = {role: sum(each.claim.role == role for each in judged if each.verdict == HOLDS) for role in ROLES}
    records = [record for folder in folders.values() for record in folder.records]
    cost = sum(map(core_hours, folders.values()))
    return (
        "Generated from the records in this folder by `python -m experiments.report`; a test checks that it is current.\n\n"
        f"Of {ink(len(judged))} claims {ink(counts[HOLDS])} hold at this size, {ink(counts[FAILS])} do not, "
        f"{ink(counts[UNCLEAR])} are not separable, and {ink(counts[NOT_RUN])} have not been run. Of those that hold "
        f"{ink(held[PUBLISHED])} are published, {ink(held[REPEAT])} repeat one of these on other data and "
        f"{ink(held[CONTROL])} are controls of our own. Behind them are {ink(f'{len(records):,}')} records and at most "
        f"{ink(f'{cost:.0f}')} core-hours of training, of choosing learning rates and of evaluating.\n\n"
        "On this page: [claims](#claims), [the matrix](#the-matrix), "
        "[which encoding should I use?](#which-encoding-should-i-use), [against the literature](#against-the-literature), "
        "[how each study was run](#how-each-study-was-run)."
    )


def _claims(judged: Sequence[Judged], folders: Mapping[str, Folder]) -> str:
    """How to read it, then a table for each folder that decides claims."""
    told = (
        f"Ours are means over seeds ± half-widths of {ink(f'{1 - LEVEL:.0%}')} intervals, each uncorrected; they leave out "
        "the sampling of the test set. Rows of the same weights are paired by seed, others are not (Welch). A claim *holds* "
        "if ours lies in the range that the claim says, and *does not* if it lies outside, each after Holm's correction over "
        "the claims of its study, not over the page; otherwise it is *not separable* at this size. Where ours has several "
        "lines all of them are the claim: it holds by the weakest and fails by any. p is of the side on which ours lies, "
        "so beside *not separable* a small one may speak against the claim. A tie is claimed within a margin; it is "
        "exploratory. Accuracies are in points, losses in nats, errors of positions in bytes. *Beside it* stands what "
        "bounds or explains the result and was not tested."
    )
    parts = [told]
    for study in STUDIES:
        if own := [each for each in judged if each.claim.folder == study.folder]:
            parts.append(f"### {study.folder}\n\n{_heading(study, own, folders)}\n\n{_table(own, folders)}")
    return "\n\n".join(parts)


def _heading(study: Study, judged: Sequence[Judged], folders: Mapping[str, Folder]) -> str:
    if study.folder not in folders:
        return f"{study.asks} Not run here: `{study.command}`"
    many = "test" if judged[0].tests == 1 else "tests"
    return f"{study.asks} [Table]({study.folder}/table.md), {ink(judged[0].tests)} {many}: `{study.command}`"


def _table(judged: Sequence[Judged], folders: Mapping[str, Folder]) -> str:
    rows = []
    for each in judged:
        claim = each.claim
        paper = "; ".join(ink(f"{what} {value:g}") for what, value in claim.paper.items())
        source = ink(f"{claim.source}, {claim.place}")
        ours = "<br>".join(
            _ours(expected, found, claim.unit) for expected, found in zip(claim.expects, each.estimates, strict=False)
        )
        regime = regime_of(claim.cells, folders).text() if each.estimates else ""
        # What was looked at beside a claim that fails stands in a section of its own.
        if claim.follow_up and each.estimates and each.verdict != FAILS:
            ours += f"<br>*Beside it*: {_looked(claim, folders)}"
        says = f'<a id="{claim.id}"></a>{claim.id}: {claim.says}' + (f" *Doubt*: {claim.doubt}" if claim.doubt else "")
        rows.append((says, f"{source}: {paper}" if paper else source, ours or "-", _verdict(each), regime))
    return grid(("claim", "paper", "ours", "verdict", "regime"), rows, left=5)


def ours(expected: Expectation, found: Any, unit: Unit) -> str:
    """``loss, alibi at 4096 - alibi at 128: +0.012 ± 0.003 (below 0.02)``."""
    name = (expected.name or str(expected.contrast)).replace("@", "at ")
    metrics = {cell.metric.replace(" by length", "") for _, cell in expected.contrast.terms}
    what = f"{metrics.pop()}, {name}" if len(metrics) == 1 else name
    return f"{what}: {found.interval().scaled(unit.scale).text(unit.digits, signed=True)} ({asked(expected, unit)})"


def _ours(expected: Expectation, found: Any, unit: Unit) -> str:
    return ink(escape_markdown(ours(expected, found, unit)))


def asked(expected: Expectation, unit: Unit) -> str:
    """The range that a claim says, as ``below 0.02``."""
    ends = [("above", expected.low), ("below", expected.high)]
    return " and ".join(f"{word} {end * unit.scale:g}" for word, end in ends if abs(end) != float("inf"))


def _verdict(judged: Judged) -> str:
    """The verdict and Holm's p."""
    if not judged.estimates:
        return judged.verdict
    if math.isnan(judged.p):
        return f"{judged.verdict} (no test: too few seeds)"
    words = f"**{judged.verdict}**" if judged.verdict in (HOLDS, FAILS) else judged.verdict
    return f"{words} ({ink('p < 0.001' if judged.p < 0.001 else f'p = {judged.p:.2g}')})"


def _matrix(made: matrix.Matrix, folders: Mapping[str, Folder], cards: Mapping[str, Any]) -> str:
    told = (
        f"Differences to `none`: {matrix.AHEAD} ahead, {matrix.BEHIND} behind, {matrix.TIED} not separable, "
        f"{matrix.NONE_THERE} not measured; exploratory, by Holm's correction over all cells and claims of a study. Of text "
        "lower is better. Beside them: how many of a group's properties on the [scorecard](scorecard/table.md) are as an "
        "ideal encoding's, of those that apply; the time of a training step of quickstart's decoder over that "
        "of `none` (the other studies shared their machine); parameters that it adds. Marks are of families: "
        f"{'; '.join(f'{family.glyph} {family.about}' for family in FAMILIES.values())}."
    )
    places = [
        f"{ink(title)}: {', '.join(f'[{t.folder}]({t.folder}/table.md)' for t in dict.fromkeys(t for t, _ in source[:1]))}"
        for title, source in made.sources.items()
    ]
    picture = f"![Encodings by tasks, as differences to no encoding]({PICTURE})"
    return "\n\n".join([told, picture, matrix.to_markdown(made, folders, cards), f"Where from: {'; '.join(places)}."])


def _against(judged: Sequence[Judged], folders: Mapping[str, Folder]) -> str:
    """What contradicts a paper with what was tried to explain it, then what remains open."""
    against = [_contradiction(each, folders) for each in judged if each.verdict == FAILS]
    parts = ["\n".join(against) or "Nothing that was run contradicts its paper."]
    for verdict, words in ((UNCLEAR, "Not separable at this size"), (NOT_RUN, "Not run")):
        if names := [f"[{each.claim.id}](#{each.claim.id})" for each in judged if each.verdict == verdict]:
            parts.append(f"{words}: {', '.join(names)}.")
    return "\n\n".join(parts)


def _contradiction(judged: Judged, folders: Mapping[str, Folder]) -> str:
    claim = judged.claim
    ours = "; ".join(_ours(e, found, claim.unit) for e, found in zip(claim.expects, judged.estimates, strict=True))
    looked = _looked(claim, folders)
    tried = " ".join([claim.tried or "Nothing yet.", *([f"{looked}."] if looked else [])])
    remains = claim.remains or "What else could explain it."
    says = f"- [{claim.id}](#{claim.id}): {claim.says} ({ink(claim.source)}) Ours: {ours}."
    return f"{says} *Tried*: {tried} *Open*: {remains}"


def _looked(claim: Claim, folders: Mapping[str, Folder]) -> str:
    return "; ".join(map(ink, looked_at(claim, {name: folder.tables for name, folder in folders.items()})))


def _inventory(folders: Mapping[str, Folder]) -> str:
    """A row for each folder of records, and for each that claims wait for; then the others."""
    rows, claimed = [], {claim.folder for claim in CLAIMS}
    for study in STUDIES:
        folder = folders.get(study.folder)
        if folder is None and study.folder not in claimed:
            continue
        if folder is None:
            rows.append((f"`{study.folder}`", "not run", "", "", "", f"`{study.command}`"))
            continue
        counts = {len(runs) for table in folder.tables.values() for runs in table.values()}
        rows.append(
            (
                f"[{study.folder}]({study.folder}/table.md)",
                ink(len({(r["study"], r["label"]) for r in folder.records})),
                ink(" to ".join(map(str, sorted({min(counts), max(counts)})))),
                ink(f"{core_hours(folder):.2f}"),
                " ".join(f"`{commit}`" for commit in commits(folder.records)),
                f"`{study.command}`",
            )
        )
    table = grid(("folder", "rows", "seeds", "core-hours", "commits", "command"), rows, left=6)
    others = [f"- [{name}]({name}): {what}. `python -m experiments.{command}`" for name, what, command in _OTHERS]
    told = (
        "Core-hours are wall time times the cores that were there, on machines that may have been shared: upper bounds. "
        "Versions, device, data digest and config hash stand in every record; a commit that ends in `-dirty` had changed "
        "files. Beside them:"
    )
    return "\n\n".join([table, told, "\n".join(others), _ABSENT])


__all__ = ["NAME", "PICTURE", "Folder", "render", "write"]
