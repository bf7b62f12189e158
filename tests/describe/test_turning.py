"""The channels of a model's rotary encodings that turn within a length."""

import numpy as np
import pytest
from exported import write_llama

from posjax import cli, parse
from posjax.describe.explain.turning import RotaryModel, explain_turning, model_of, turning_of

MODEL = RotaryModel("rope", depth=4, head_dim=8, num_heads=2, trained=64)


@pytest.mark.parametrize(
    ("spec", "length", "rates"),
    [
        ("rope(layout='interleaved', base=16)", 64, [1, 0.5, 0.25, 0.125]),
        ("interpolate(factor=4) >> rope(fraction=0.5)", 64, [0.25, 0.0025]),
        (
            "rope(scaling=dynamic_ntk(factor=1, original_length=64))",
            256,
            10.0 ** -np.arange(4) * 4 ** -(np.arange(4) / 3),
        ),
    ],
)
def test_rates_are_those_of_the_definition(spec, length, rates):
    found = turning_of(parse(spec), MODEL, length)
    assert len(found.pairs) == len(rates)
    np.testing.assert_allclose(found.rates, rates, rtol=1e-4)


@pytest.mark.parametrize(
    ("spec", "offsets"),
    [
        ("rerope(window=3) >> rope()", 4),
        ("self_extend(group=2, window=4) >> rope()", 22),  # 39 // 2 + 4 - 4 // 2 and one more
        ("streaming(num_sinks=4, window=7) >> rope()", 11),
        ("sinks(num_sinks=4, window=7) + rope()", 40),  # a few keys are seen from anywhere
        ("chunked(size=5, before=1) + rope()", 10),
    ],
)
def test_offsets_are_those_of_the_pairs_that_a_causal_query_sees(spec, offsets):
    assert turning_of(parse(spec), MODEL, 40).offsets == pytest.approx(offsets)


def test_pairs_that_training_has_not_turned_meet_new_angles():
    lines = explain_turning(MODEL, (256, 1024))
    text = "\n".join(lines)
    assert "Within the 64 tokens of training 2 of 4 pairs of channels turn fully; pairs 2 to 3 do not:" in text
    cells = [line.split() for line in lines if line.split()[:1] in (["64"], ["256"], ["1,024"])]
    assert [row[1:5] for row in cells] == [
        ["64", "64", "2", "0"],
        ["256", "256", "2", "2"],
        ["1,024", "1,024", "3", "2"],
    ]
    scaled = RotaryModel("rope(scaling=linear(factor=16))", 4, 8, 2, trained=1024)
    assert "0 of 4" not in "\n".join(explain_turning(scaled, ()))


def test_a_layer_that_looks_no_further_meets_no_new_angle():
    lines = explain_turning(MODEL._replace(encoding="rope + window(8)"), (1024,))
    said = "1 of 4 pairs of channels turn fully; pairs 1 to 3 do not: a query sees keys less than 8 positions before it"
    assert said in " ".join(lines)
    (cells,) = (line.split() for line in lines if line.split()[:1] == ["1,024"])
    assert cells[1:6] == ["8", "8", "1", "0", "none"]


def test_every_encoding_of_a_pattern_is_told_with_its_layers():
    text = "\n".join(explain_turning(MODEL._replace(encoding="rope, rope, none"), (), lambda spec, n: spec))
    assert "rope() (layers 0 to 1, 3)" in text
    assert "none() (layers 2)" in text
    assert "Nothing in it turns pairs of channels" in text
    with pytest.raises(ValueError, match="give --trained-length"):
        explain_turning(MODEL._replace(trained=None), ())


@pytest.mark.slow
def test_the_command_reads_a_folder(tmp_path, capsys):
    write_llama(tmp_path)
    assert model_of(tmp_path) == RotaryModel("rope()", 2, 8, 2, 64)
    spec = "{own} + window(16), {own}"
    assert cli.main(["explain", spec, f"--checkpoint={tmp_path}", "--lengths=256", "--scaling=yarn"]) == 0
    out = capsys.readouterr().out
    assert "rope() + window(size=16) (layers 0)" in out
    assert "rope(scaling=yarn(factor=1, original_length=64)) (layers 1)" in out
    assert cli.main(["explain", "--lengths=256"]) == 2
    assert "--lengths: options of a --checkpoint; leave them out" in capsys.readouterr().err
    assert cli.main(["explain", f"--checkpoint={tmp_path}", "--cite"]) == 2
    assert "--cite: options of an encoding; leave them out" in capsys.readouterr().err
    assert cli.main(["explain"]) == 2
    assert "give an encoding, as in: posjax explain rope" in capsys.readouterr().err
