"""Configurations of transformers 4 and 5 that must mean the same: tests/goldens/make_config_pairs.py wrote both."""

import json
from pathlib import Path

import pytest

import posjax as pj
from posjax import cli

PAIRS = json.loads((Path(__file__).parents[1] / "goldens" / "config_pairs.json").read_text())
# transformers 5.24 takes rope_theta out of an old file once for two layer types: sliding layers get the class's 500,000.
LOST = {
    "olmo3": "layers 0, 1, 2: rope(base=600000) + window(size=64) in the first, "
    "rope(base=500000) + window(size=64) in the second"
}


@pytest.mark.parametrize("family", PAIRS)
def test_both_formats_mean_the_same(family):
    old, new = PAIRS[family].values()
    found = pj.audit(configs=[old, new])
    assert found.findings == ((LOST[family],) if family in LOST else ())
    told = " ".join((*found.facts, *found.findings))
    bases = {value for key, value in old.items() if "theta" in key or key == "rope_local_base_freq"} - {10_000}
    assert [base for base in bases if f"base={base:.0f}" not in told] == []
    scaling = old.get("rope_scaling") or {"rope_type": "rope"}
    assert scaling.get("rope_type", scaling.get("type")) in told
    lost = new | {"rope_parameters": {"rope_type": "default"}, "rope_theta": None, "partial_rotary_factor": None}
    assert not pj.audit(configs=[old, lost]).ok


def test_two_files_are_compared(tmp_path, capsys):
    old, new = PAIRS["gemma3_text"].values()
    for name, config in {"old": old, "new": new, "lost": old | {"rope_local_base_freq": None}}.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(config))
    old, new, lost = (str(tmp_path / f"{name}.json") for name in ("old", "new", "lost"))
    assert cli.main(["audit", old, new]) == 0
    assert "layers 5: rope(base=2000000, scaling=linear(factor=8))\n  nothing wrong" in capsys.readouterr().out
    assert cli.main(["audit", old, lost]) == 1
    assert f"in {old}, rope() + window(size=4096) in {lost}" in capsys.readouterr().out
    assert cli.main(["audit", old, new, lost]) == 2
    assert "compares two configurations, got 3" in capsys.readouterr().err
    gemma2 = PAIRS["gemma2"]["5.24.0"]
    two = gemma2 | {"num_hidden_layers": 2, "layer_types": ["sliding_attention", "full_attention"]}
    assert pj.audit(configs=[gemma2, two]).findings == ("the first has 4 layers, the second 2",)
