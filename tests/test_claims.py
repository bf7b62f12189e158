"""Verdicts and estimates of all claims are those of the committed copy: code may change, results do not by it."""

import json

import pytest

from goldens.make_claims import HERE, judged


def test_claims_are_judged_as_before():
    golden, now = json.loads((HERE / "claims.json").read_text()), judged()
    assert {name: each["verdict"] for name, each in now.items()} == {
        name: each["verdict"] for name, each in golden.items()
    }
    for name, each in golden.items():
        assert now[name]["p"] == pytest.approx(each["p"], rel=1e-9, abs=1e-12), name
        assert len(now[name]["estimates"]) == len(each["estimates"]), name
        for found, wanted in zip(now[name]["estimates"], each["estimates"], strict=True):
            assert found == pytest.approx(wanted, rel=1e-12, abs=1e-12), name
