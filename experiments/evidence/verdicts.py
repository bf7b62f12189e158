"""Verdicts on claims: is a contrast within the range that a paper's claim says, outside of it, or can we not tell?

A claim holds where every one of its contrasts lies within its range, and does not where one of them lies outside, both
after Holm's correction over all claims that the same study decides; else it is not separable at this size. A range with one
end is a claim of a sign or a bound, one with two of a tie.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from experiments.evidence.claims import Claim, Expectation
from experiments.evidence.contrast import Tables, evaluate
from experiments.report.statistics import LEVEL, Estimate, Verdict, holm

HOLDS, FAILS, UNCLEAR, NOT_RUN = "holds", "does not", "not separable", "not run"


class Judged(NamedTuple):
    """A claim with what is known of its contrasts; `p` is Holm's and `own` uncorrected, nan where it was not tested."""

    claim: Claim
    estimates: tuple[Estimate, ...]
    p: float
    own: float
    verdict: str
    tests: int  # of the family


def judge_claims(claims: Sequence[Claim], folders: Mapping[str, Tables]) -> list[Judged]:
    """All claims in their order; a claim whose records are not all there is not run, and no test of its family."""
    found = {claim.id: [evaluate(each.contrast, folders) for each in claim.expects] for claim in claims}
    judged = {}
    for folder in dict.fromkeys(claim.folder for claim in claims):
        family = [claim for claim in claims if claim.folder == folder]
        tests = {claim.id: _test(claim, found[claim.id]) for claim in family if None not in found[claim.id]}
        adjusted = dict(zip(tests, holm([p for _, p in tests.values()]), strict=True))
        count = sum(not math.isnan(p) for _, p in tests.values())
        for claim in family:
            judged[claim.id] = _judged(claim, found[claim.id], tests, adjusted, count)
    return [judged[claim.id] for claim in claims]


def _judged(claim: Claim, found: Sequence, tests: Mapping, adjusted: Mapping[str, float], count: int) -> Judged:
    if claim.id not in tests:
        return Judged(claim, (), math.nan, math.nan, NOT_RUN, count)
    (inside, own), p = tests[claim.id], adjusted[claim.id]
    verdict = (HOLDS if inside else FAILS) if p <= LEVEL else UNCLEAR
    return Judged(claim, tuple(found), p, own, verdict, count)


def judge_beside(family: Mapping[Any, Estimate], judged: Sequence[Judged], folder: str) -> dict[Any, Verdict]:
    """Verdicts on what is looked at beside the claims of a folder, corrected over those claims too.

    So nothing that a claim's own correction leaves open is called separated here.
    """
    claimed = [each.own for each in judged if each.claim.folder == folder]
    p_values = [*(each.p() for each in family.values()), *claimed]
    tests = sum(not math.isnan(p) for p in p_values)
    return {name: Verdict(each, p, tests) for (name, each), p in zip(family.items(), holm(p_values), strict=False)}


def _test(claim: Claim, estimates: Sequence[Estimate]) -> tuple[bool, float]:
    """(whether all contrasts lie within their ranges, p-value of that or of its contrary).

    All within is shown by the weakest of them; one outside is looked for among all of them, so its p-value is Bonferroni's.
    Where one cannot be tested (a single seed) the p-value is nan.
    """
    each = [of_range(expected, found) for expected, found in zip(claim.expects, estimates, strict=True)]
    if any(math.isnan(p) for _, p in each):
        return False, math.nan
    if all(inside for inside, _ in each):
        return True, max(p for _, p in each)
    return False, min(1.0, len(each) * min(p for inside, p in each if not inside))


def looked_at(claim: Claim, folders: Mapping[str, Tables]) -> list[str]:
    """What was looked at beside a claim, where there are records of it, as ``RoPE - none: +1.90 ± 9.28``."""
    found = [(each.name, evaluate(each.contrast, folders)) for each in claim.follow_up]
    scale, digits = claim.unit.scale, claim.unit.digits
    return [f"{name}: {each.interval().scaled(scale).text(digits, signed=True)}" for name, each in found if each]


def of_range(expected: Expectation, found: Estimate) -> tuple[bool, float]:
    """(whether the estimate lies within the range, two-sided p-value of the end that is nearest to denying that)."""
    ends = [end for end in (expected.low, expected.high) if math.isfinite(end)]
    if expected.low < found.value < expected.high:
        return True, max(found.p(end) for end in ends)
    return False, found.p(expected.low if found.value <= expected.low else expected.high)
