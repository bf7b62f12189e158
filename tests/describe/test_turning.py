"""Which channels turn within a length, of a model's own rotary encodings."""

import numpy as np
import pytest
from exported import write_llama

from experiments import explain
from posjax import parse
from posjax.describe.explain.turning import Model, explain_turning, model_of, rates_of

MODEL = Model("rope", depth=4, head_dim=8, num_heads=2, trained=64)


@pytest.mark.parametrize(
    ("spec", "rates"),
    [
        ("rope", [1, 0.1, 0.01, 0.001]),
        ("rope(layout='interleaved', base=16)", [1, 0.5, 0.25, 0.125]),
        ("rope(scaling=linear(factor=4)) + window(8)", [0.25, 0.025, 0.0025, 0.00025]),
        ("interpolate(factor=4) >> rope(fraction=0.5)", [0.25, 0.0025]),
    ],
)
def test_rates_are_those_of_the_definition(spec, rates):
    pairs, found = rates_of(parse(spec), MODEL, 64)
    assert len(pairs) == len(rates)
    np.testing.assert_allclose(found, rates, rtol=1e-4)


@pytest.mark.slow
def test_a_scaling_by_length_turns_at_the_length_that_is_asked_for():
    encoding = parse("rope(scaling=dynamic_ntk(factor=1, original_length=64))")
    slowest = [rates_of(encoding, MODEL, length)[1][-1] for length in (64, 256)]
    assert slowest[1] < slowest[0] / 2


def test_pairs_that_training_has_not_turned_meet_new_angles():
    lines = explain_turning(MODEL, (256, 1024))
    text = "\n".join(lines)
    assert "Within the 64 tokens of training 2 of 4 pairs of channels turn fully; pairs 2 to 3 do not." in text
    cells = [line.split() for line in lines if line.split()[:1] in (["64"], ["256"], ["1,024"])]
    assert [row[1:3] for row in cells] == [["2", "0"], ["2", "2"], ["3", "2"]]
    scaled = Model("rope(scaling=linear(factor=16))", 4, 8, 2, trained=1024)
    assert "0 of 4" not in "\n".join(explain_turning(scaled, ()))


def test_every_encoding_of_a_pattern_is_told_with_its_layers():
    text = "\n".join(explain_turning(MODEL._replace(encoding="rope, rope, none"), (), lambda spec, n: spec))
    assert "rope() (layers 0 to 1, 3)" in text
    assert "none() (layers 2)" in text
    assert "Nothing in it turns pairs of channels" in text
    with pytest.raises(ValueError, match="give --trained_length"):
        explain_turning(MODEL._replace(trained=None), ())


@pytest.mark.slow
def test_the_command_reads_a_folder(tmp_path, capsys):
    write_llama(tmp_path)
    assert model_of(tmp_path) == Model("rope()", 2, 8, 2, 64)
    spec = "{own}, rope(scaling=yarn(factor={factor}, original_length={trained}))"
    assert explain.main([spec, f"--checkpoint={tmp_path}", "--lengths=256"]) == 0
    out = capsys.readouterr().out
    assert "rope() (layers 0)" in out
    assert "rope(scaling=yarn(factor=1, original_length=64)) (layers 1)" in out
    assert explain.main(["--lengths=256"]) == 2
    assert "give an encoding, as in: explain rope" in capsys.readouterr().err
