"""The channels of a model's rotary encodings that turn within a length."""

import jax
import numpy as np
import pytest
from cases import CASES, LINE
from exported import write_llama

from posjax import Dims, cli, parse, sites
from posjax.attention.dense import shown
from posjax.describe.explain.turning import RotaryModel, explain_turning, model_of, turning_of
from posjax.encodings.views import Viewed

MODEL = RotaryModel("rope", depth=4, head_dim=8, num_heads=2, trained=64)
BOUNDED = {
    case.spec if "rope" in case.spec else f"({case.spec}) + rope()"
    for case in CASES
    if case.kind == LINE and (isinstance(parse(case.spec), Viewed) or "mask" in parse(case.spec).hooks)
}
FAST = ("chunked", "dilated(size=2", "rerope(window=3)", "sinks(num_sinks=4", "streaming(num_sinks=4", "interpolate")


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
    found = turning_of(parse(spec), MODEL, 64)
    assert len(found.pairs) == len(rates)
    np.testing.assert_allclose(found.rates, rates, rtol=1e-4)


def marked(specs):
    return [pytest.param(s, marks=[] if any(each in s for each in FAST) else pytest.mark.slow) for s in sorted(specs)]


@pytest.mark.parametrize("spec", marked(BOUNDED | {"interpolate(factor=2) >> rerope(window=3) >> rope()"}))
def test_offsets_are_those_of_the_pairs_that_a_causal_query_sees(spec):
    encoding, at = parse(spec), np.arange(40)
    site = encoding.place(encoding.init(jax.random.key(0), Dims(16, 2, 8, length=40)), sites(40))
    seen = np.broadcast_to(shown(encoding, site, site), (40, 40)) & (at[:, None] >= at)
    away = at[:, None] - at.astype(float)
    viewed, scale = (encoding.encoding, 2) if spec.startswith("interpolate") else (encoding, 1)
    if isinstance(viewed, Viewed):
        stands = at / scale if scale > 1 else at
        index = np.asarray(viewed.position_map.select(stands[:, None], stands[None])).astype(int)
        views = viewed.position_map.views(stands)
        away = np.choose(index, [np.subtract.outer(*map(np.asarray, view)) * scale for view in views])
    found, farthest = turning_of(encoding, MODEL, 40).offsets, away[seen].max() + 1
    if "after=2" in spec or "ahead=3" in spec:
        assert farthest <= found  # a mask reaches as far to both sides
    elif "bigbird" in spec or "longformer(window=4" in spec or "sinks(num_sinks=4" in spec:
        assert farthest <= found == 40  # a few keys are seen from anywhere
    else:
        assert found == pytest.approx(farthest)


@pytest.mark.slow
def test_a_scaling_by_length_turns_at_the_length_that_is_asked_for():
    encoding = parse("rope(scaling=dynamic_ntk(factor=1, original_length=64))")
    slowest = [turning_of(encoding, MODEL, length).rates[-1] for length in (64, 256)]
    assert slowest[1] < slowest[0] / 2


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


@pytest.mark.parametrize("spec", ["rope + window(8)", "rope + chunked(8)", "streaming(num_sinks=0, window=8) >> rope"])
def test_a_layer_that_looks_no_further_meets_no_new_angle(spec):
    lines = explain_turning(MODEL._replace(encoding=spec), (1024,))
    assert (
        "1 of 4 pairs of channels turn fully; pairs 1 to 3 do not: a query sees keys less than 8 positions before it"
        in " ".join(lines)
    )
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
