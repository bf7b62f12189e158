"""Claims of the literature, as data in the configs of studies, and verdicts on them by the records.

    LOSS = Table("heads", "heads_8", "loss")                                   # folder of results, study, metric
    Claim("alibi-behind", PRESS, "section 3", "ALiBi is behind RoPE.", (above(LOSS("alibi", 128) - LOSS("rope", 128)),))

A `Cell` is the mean over seeds of one metric of one row. A weighted sum of cells is a `Contrast`: a value, a difference, a
difference of differences, a mean over tasks. A claim gives a range for each of its contrasts. It holds if all contrasts lie
within their ranges, and fails at this size if one lies outside, both after Holm's correction over the claims of one folder of
results; else it is not settled. A range with one end claims a sign or a bound, a range with two ends claims a tie.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from experiments.records import Records
from experiments.report.statistics import LEVEL, Estimate, Verdict, holm, is_whole, judge_family, slope_weights, term
from experiments.report.statistics import contrast as estimate_of
from experiments.report.units import Unit, unit_of

Folders = Mapping[str, Records]  # folder of results -> its records
HOLDS, FAILS, UNSETTLED, NOT_RUN = "holds", "fails at this size", "not settled", "not run"


class Cell(NamedTuple):
    """The address of a number: folder under results, study, row and metric, at a length or resolution."""

    folder: str
    study: str
    row: str
    metric: str
    at: int | None = None

    def __str__(self) -> str:
        return self.row if self.at is None else f"{self.row} @{self.at}"


@dataclasses.dataclass(frozen=True)
class Contrast:
    """A sum of weight * cell."""

    terms: tuple[tuple[float, Cell], ...]

    def __add__(self, other: "Contrast") -> "Contrast":
        return Contrast(self.terms + other.terms)

    def __sub__(self, other: "Contrast") -> "Contrast":
        return self + -1.0 * other

    def __rmul__(self, factor: float) -> "Contrast":
        return Contrast(tuple((factor * weight, cell) for weight, cell in self.terms))

    def __truediv__(self, divisor: float) -> "Contrast":
        return (1 / divisor) * self

    def __str__(self) -> str:
        """Returns ``alibi @4096 - alibi @128``; a contrast over several studies names them."""
        tables = list(dict.fromkeys(cell.study for _, cell in self.terms))
        own = [tuple((w, c._replace(study="")) for w, c in self.terms if c.study == table) for table in tables]
        if len(tables) > 1 and all(terms == own[0] for terms in own):
            scaled = Contrast(tuple((weight * len(tables), cell) for weight, cell in own[0]))
            return f"mean over {', '.join(tables)} of {scaled}"
        parts = []
        for weight, cell in self.terms:
            times = "" if math.isclose(abs(weight), 1) else f"{abs(weight):.3g} "
            study = f" ({cell.study})" if len(tables) > 1 else ""
            parts.append(f"{'-' if weight < 0 else '+'} {times}{cell}{study}")
        return " ".join(parts).removeprefix("+ ")


class Table(NamedTuple):
    """A metric of a study; a call by row gives a cell's contrast: ``table("alibi", 4096)``."""

    folder: str
    study: str
    metric: str

    def __call__(self, row: str, at: int | None = None) -> Contrast:
        return Contrast(((1.0, Cell(self.folder, self.study, row, self.metric, at)),))


def mean(contrasts: Sequence[Contrast]) -> Contrast:
    """Returns the mean of contrasts, for example over tasks or lengths."""
    return sum(contrasts[1:], contrasts[0]) / len(contrasts)


def slope(by_size: Mapping[float, Contrast]) -> Contrast:
    """Returns the slope of contrasts by size, per tenfold size, of the line that least squares fit to {size: contrast}."""
    weights = slope_weights(list(by_size))
    first, *others = (weight * contrast for weight, contrast in zip(weights, by_size.values(), strict=True))
    return sum(others, first)


def estimate_contrast(contrast: Contrast, folders: Folders) -> Estimate | None:
    """Returns the estimate of a contrast; None if a cell has no records, or a seed has no finite value."""
    terms = []
    for weight, cell in contrast.terms:
        study = folders[cell.folder].studies.get(cell.study) if cell.folder in folders else None
        if study is None or not is_whole(study.values(cell.row, cell.metric, cell.at)):
            return None
        terms.append(term(study, cell.row, cell.metric, cell.at, weight))
    return estimate_of(terms)


class Source(NamedTuple):
    """A paper: authors, year and number in arXiv; or where else it is."""

    authors: str
    year: int
    arxiv: str = ""
    elsewhere: str = ""

    def __str__(self) -> str:
        return f"{self.authors} ({self.year}), {f'arXiv {self.arxiv}' if self.arxiv else self.elsewhere}"


class Expectation(NamedTuple):
    """A contrast of ours, and the open range that the claim expects it in."""

    contrast: Contrast
    low: float = -math.inf
    high: float = math.inf
    name: str = ""  # "" for the contrast's own text


class Looked(NamedTuple):
    """A named contrast of ours that is shown but not tested."""

    contrast: Contrast
    name: str


ROLES = PUBLISHED, CONTROL, REPEAT = "published", "control", "repeat"


@dataclasses.dataclass(frozen=True, eq=False)
class Claim:
    """One claim.

    Attributes:
      id: name of the claim for other pages and texts.
      place: section of the paper, and how the claim was read if it is not there.
      says: the claim, without numbers.
      expects: expectations that together are the claim; all read one folder of results.
      paper: {quantity: the paper's number, in its unit}; empty if none was read.
      role: PUBLISHED; CONTROL for our own claim beside the paper's; or REPEAT for a claim repeated on other data.
      doubt: limits of the verdict.
      tried: attempts to explain a result against the claim.
      remains: next steps if our result is against the claim.
      follow_up: contrasts that explain or bound the result, shown with the claim but not tested.
    """

    id: str
    source: Source
    place: str
    says: str
    expects: tuple[Expectation, ...]
    paper: Mapping[str, float] = dataclasses.field(default_factory=dict)
    role: str = PUBLISHED
    doubt: str = ""
    tried: str = ""
    remains: str = ""
    follow_up: tuple[Looked, ...] = ()

    @property
    def cells(self) -> tuple[Cell, ...]:
        """All cells of the claim, each once."""
        return tuple(dict.fromkeys(cell for expected in self.expects for _, cell in expected.contrast.terms))

    @property
    def folder(self) -> str:
        """The folder of results that decides the claim; Holm's correction is over the claims of one folder."""
        return self.cells[0].folder

    @property
    def unit(self) -> Unit:
        """The unit of the contrasts; shares are shown in percentage points."""
        return unit_of(self.cells[0].metric)


def above(contrast: Contrast, low: float = 0.0, name: str = "") -> Expectation:
    """Expects a contrast larger than `low`."""
    return Expectation(contrast, low=low, name=name)


def below(contrast: Contrast, high: float = 0.0, name: str = "") -> Expectation:
    """Expects a contrast smaller than `high`."""
    return Expectation(contrast, high=high, name=name)


def within(contrast: Contrast, margin: float, name: str = "") -> Expectation:
    """Expects a tie: a contrast closer to 0 than `margin`."""
    return Expectation(contrast, -margin, margin, name)


def rise(table: Table, row: str, start: int, end: int) -> Contrast:
    """Returns the rise of a row's metric from place `start` to `end`."""
    return table(row, end) - table(row, start)


class Judged(NamedTuple):
    """A claim with the estimates of its contrasts; `p` is Holm's, `own` uncorrected; nan if the claim was not tested."""

    claim: Claim
    estimates: tuple[Estimate, ...]
    p: float
    own: float
    verdict: str
    tests: int  # of the family


def judge_claims(claims: Sequence[Claim], folders: Folders) -> list[Judged]:
    """Judges claims in their order; a claim with missing records counts as not run, and not as a test of its family."""
    judged = {}
    for folder in dict.fromkeys(claim.folder for claim in claims):
        family = [claim for claim in claims if claim.folder == folder]
        estimates = {claim: [estimate_contrast(e.contrast, folders) for e in claim.expects] for claim in family}
        tests = {claim: _test(claim, found) for claim, found in estimates.items() if None not in found}
        adjusted = dict(zip(tests, holm([p for _, p in tests.values()]), strict=True))
        count = sum(not math.isnan(p) for _, p in tests.values())
        for claim, found in estimates.items():
            if claim not in tests:
                judged[claim] = Judged(claim, (), math.nan, math.nan, NOT_RUN, count)
                continue
            (inside, own), p = tests[claim], adjusted[claim]
            verdict = (HOLDS if inside else FAILS) if p <= LEVEL else UNSETTLED
            judged[claim] = Judged(claim, tuple(found), p, own, verdict, count)
    return [judged[claim] for claim in claims]


def _test(claim: Claim, estimates: Sequence[Estimate]) -> tuple[bool, float]:
    """Returns (whether all contrasts lie within their ranges, p-value of this or of its contrary).

    The weakest contrast decides "all within". One outside is the most extreme of all, so its p-value is Bonferroni's. The
    p-value is nan if a contrast cannot be tested (a single seed).
    """
    each = [of_range(expected, found) for expected, found in zip(claim.expects, estimates, strict=True)]
    if any(math.isnan(p) for _, p in each):
        return False, math.nan
    if all(inside for inside, _ in each):
        return True, max(p for _, p in each)
    return False, min(1.0, len(each) * min(p for inside, p in each if not inside))


def looked_at(claim: Claim, folders: Folders) -> list[str]:
    """Returns the contrasts shown beside a claim that have records, as ``RoPE - none: +1.90 ± 9.28``."""
    found = [(looked.name, estimate_contrast(looked.contrast, folders)) for looked in claim.follow_up]
    scale, digits = claim.unit.scale, claim.unit.digits
    return [f"{name}: {x.interval().scaled(scale).text(digits, signed=True)}" for name, x in found if x]


def of_range(expected: Expectation, found: Estimate) -> tuple[bool, float]:
    """Returns (whether the estimate lies within the range, the two-sided p-value at the end nearest to the contrary)."""
    ends = [end for end in (expected.low, expected.high) if math.isfinite(end)]
    if expected.low < found.value < expected.high:
        return True, max(found.p(end) for end in ends)
    return False, found.p(expected.low if found.value <= expected.low else expected.high)


@dataclasses.dataclass(frozen=True)
class Question:
    """A user's choice, and the rows of our records that answer it.

    Attributes:
      asks: the user's case, e.g. "Images of one size".
      tables: metrics, of which the mean counts; all of one folder.
      at: length or resolution.
      what: the compared quantity, e.g. "accuracy on Fashion-MNIST".
      doubt: limits of the records.
      reference: the row that others are compared with.
      others: rows that were trained for another purpose, left out here.
      column: title in the figure of all questions; "" leaves the question out.
      main: whether the page lists the answer.
      claims: ids of claims that bear on the answer.
    """

    asks: str
    tables: tuple[Table, ...]
    what: str
    at: int | None = None
    doubt: str = ""
    reference: str = "none"
    others: tuple[str, ...] = ()
    column: str = ""
    main: bool = True
    claims: tuple[str, ...] = ()

    @property
    def folder(self) -> str:
        return self.tables[0].folder

    @property
    def unit(self) -> Unit:
        return unit_of(self.tables[0].metric)

    def contrast(self, row: str, other: str | None = None) -> Contrast:
        """Returns the mean of a row over the tables, minus the mean of `other`."""
        own = mean([table(row, self.at) for table in self.tables])
        return own if other is None else own - mean([table(other, self.at) for table in self.tables])


class Answer(NamedTuple):
    """The answer to a question: the leading row, and how others compare.

    Attributes:
      lead: verdict on the leader against the reference; None if the reference leads.
      tied: rows that are not clearly behind the leader.
      against: {row: verdict on its difference to the reference}.
    """

    question: Question
    leader: str
    lead: Verdict | None
    tied: tuple[str, ...]
    against: Mapping[str, Verdict]

    def gain(self, row: str) -> Estimate:
        """Returns the lead of a row over the reference, in the unit that is shown; a better row leads."""
        unit = self.question.unit
        return self.against[row].estimate.scaled(unit.scale if unit.best is max else -unit.scale)

    @property
    def behind(self) -> tuple[str, ...]:
        """The rows that are clearly behind the reference."""
        return tuple(row for row, verdict in self.against.items() if verdict.separated and self.gain(row).value < 0)


def answer_to(question: Question, folders: Folders, judged: Sequence[Judged]) -> Answer | None:
    """Returns the answer to a question, corrected over its comparisons and the study's claims; None without records."""
    records = folders.get(question.folder)
    if records is None:
        return None
    study = records.studies.get(question.tables[0].study)
    rows = study.rows if study else ()
    known = {row: estimate_contrast(question.contrast(row), folders) for row in rows if row not in question.others}
    sign = -1.0 if question.unit.best is max else 1.0
    values = {row: found.value for row, found in known.items() if found is not None}
    values = dict(sorted(values.items(), key=lambda item: sign * item[1]))
    if question.reference not in values or len(values) < 2:
        return None
    leader, reference = next(iter(values)), question.reference
    pairs = [(row, reference) for row in values if row != reference]
    pairs += [(leader, row) for row in values if leader != reference and row not in (leader, reference)]
    family = {pair: estimate_contrast(question.contrast(*pair), folders) for pair in pairs}
    claimed = [one.own for one in judged if one.claim.folder == question.folder]
    found = judge_family({pair: each for pair, each in family.items() if each}, claimed)
    beside = {row: found.get((leader, row), found.get((row, leader))) for row in values}
    tied = tuple(row for row, verdict in beside.items() if verdict is not None and not verdict.separated)
    against = {row: found[row, reference] for row in values if (row, reference) in found}
    return Answer(question, leader, against.get(leader), tied, against)
