"""Verdicts and estimates of all claims equal the committed copy: changes of code must not change results."""

import json

import pytest
from goldens.make_claims import HERE, judged


def test_claims_are_judged_as_before():
    golden, now = json.loads((HERE / "claims.json").read_text()), judged()
    verdicts = [{name: each["verdict"] for name, each in found.items()} for found in (golden, now)]
    assert verdicts[0] == verdicts[1]
    for name, each in golden.items():
        assert numbers(now[name]) == pytest.approx(numbers(each), rel=1e-12, abs=1e-12, nan_ok=True), name


def numbers(judged):
    """The estimates and p of a claim, flat."""
    found = [judged["p"], *(number for estimate in judged["estimates"] for number in estimate)]
    return [float("nan") if number is None else number for number in found]
