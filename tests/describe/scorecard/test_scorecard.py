"""The scorecard gives known numbers, separates encodings that differ, and marks measures that do not apply."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

import experiments.scorecard as command
import posjax as pj
from experiments.report import __main__ as report
from experiments.report.families import FAMILIES
from experiments.report.scorecard import GROUPS, group_table, heat_map, scorecard_page, write_scorecard
from posjax.describe.probes import Operator, logits, make_probe
from posjax.describe.scorecard import axes as scorecard_axes
from posjax.describe.scorecard import measures as scorecard_measures
from posjax.describe.scorecard import parts as scorecard_parts
from posjax.describe.scorecard.card import MEASURES, scorecard
from posjax.describe.scorecard.specs import every_spec
from posjax.describe.worlds import box
from posjax.spec import REGISTRY

DIMS = pj.Dims(width=16, num_heads=2, head_dim=8, length=256)
SMALL = DIMS._replace(length=128)  # of numbers that are worked out by hand, on 32 tokens


def probe(spec, extent=(64,), dims=DIMS):
    encoding = pj.parse(spec)
    return make_probe(encoding, encoding.init(jax.random.key(0), dims), dims, extent, seed=0)


def card_of_ones(**verdicts):
    cells = {name: {"value": 1.0, "verdict": verdicts.get(name, "pass"), "note": ""} for name in MEASURES}
    cells["X_phase"] = {"value": None, "verdict": "n/a", "note": "turns nothing"}
    return {"encoding": "rope()", "measures": cells}


@pytest.mark.slow
def test_a_card_holds_every_measure_and_says_why_one_is_missing():
    """Codes and rotations, on a line and on the plane."""
    spec = "sinusoidal() + rope(scaling=dynamic_ntk(factor=4, original_length=64))"
    found = scorecard(pj.parse(spec), length=64)["measures"]
    assert list(found) == list(MEASURES)
    assert all((cell["verdict"] == "n/a") == (cell["value"] is None) for cell in found.values())
    assert all(cell["note"] for cell in found.values() if cell["verdict"] == "n/a")
    assert max(found[name]["value"] for name in ("R_group", "R_norm", "A_group")) < 1e-5
    assert found["X_phase"]["value"] == 11 / 16  # 2 pi 10000^(c / 16) > 64 from c = 5 on
    assert found["A_waves"]["value"] == 2
    assert found["R_linear"]["value"] > 0.999
    assert found["D_prefix"]["value"] > 0.1
    assert found["D_cache"]["verdict"] == "handled"
    assert 0 < found["C_small"]["value"] <= 100


def test_without_an_encoding_a_layer_permutes_with_its_tokens():
    assert scorecard_measures.order(probe("none()", (32,), SMALL)).value < 1e-5
    assert scorecard_measures.order(probe("rope()", (32,), SMALL)).value > 1e-2


def test_collisions():
    """The claim that a collision in all dimensions is improbable holds for unit-variance tokens, not for small ones."""
    code = np.asarray(
        jax.jit(pj.parse("sinusoidal()").embed)((), np.zeros((256, 64), np.float32), pj.sites(256)), float
    )
    assert scorecard_parts.collision_rate(code, 1.0, seed=0) == 0
    assert 75 < scorecard_parts.collision_rate(code, 0.02 * 64**0.5, seed=0) < 95
    table = 0.02 * np.random.default_rng(0).normal(size=(256, 64))
    assert 60 < scorecard_parts.collision_rate(table, 0.02, seed=0) < 80


def test_the_group_defect_is_of_rotations_that_do_not_commute():
    found = scorecard_parts.rotation(probe("rope()", (4, 6), DIMS._replace(grid=(8, 12))))
    assert found["R_group"].value < 1e-6
    assert found["A_waves"].value == 2
    norms = scorecard_parts.rotation(probe("rope(scaling=yarn(factor=4, original_length=64))"))["R_norm"].value
    np.testing.assert_allclose(norms, 0.1 * np.log(4), rtol=1e-4)  # cosines and sines times 0.1 ln s + 1


def test_an_image_on_a_line_wraps_around():
    line = logits(probe("raster(width=8) >> alibi()", (8, 8)), box((8, 8)))
    plane = logits(probe("alibi()", (8, 8)), box((8, 8)))
    assert scorecard_axes.wrap(line, 8, 8).value > 0.8
    assert scorecard_axes.wrap(plane, 8, 8).value < 0.2
    assert scorecard_axes.wrap(logits(probe("none()", (8, 8)), box((8, 8))), 8, 8).value is None


def test_trained_parameters_need_their_dims():
    with pytest.raises(ValueError, match="dims"):
        scorecard(pj.parse("t5()"), {"table": np.zeros((32, 8))})


def test_every_registered_name_is_in_the_catalogue():
    specs, unknown = every_spec(256)
    assert not unknown, "give its arguments in posjax/describe/scorecard/specs.py"
    for spec in specs:
        assert pj.parse(spec)
    assert all(any(name in spec for spec in specs) for name in pj.names())


def test_frequency_scalings_of_the_catalogue_fit_its_heads():
    """16 frequencies each."""
    q, site = np.ones((4, 8, 32), np.float32), pj.sites(4)
    for spec in every_spec(256)[0]:
        if spec.startswith("rope(scaling="):
            rope = pj.parse(spec)
            params = rope.init(jax.random.key(0), pj.Dims(256, 8, 32))
            jax.eval_shape(lambda q, rope=rope, params=params: rope.rotate(params, q, site, q, site), q)


def test_tables_and_picture():
    cards = {"rope()": card_of_ones(U_gap="fail"), "t5(": {"encoding": "t5(", "error": "cannot | be read"}}
    cards["rope()"]["measures"]["U_coll"]["value"] = 0.00637
    text = scorecard_page(cards, ("a note",))
    row = next(line for line in text.splitlines() if line.startswith("| `rope()`"))
    assert row.split(" | ")[1:3] == ["1 ✗", "0.0064 ✓"]
    assert sum(line.count(" | ") for line in text.splitlines() if line.startswith("| `rope()`")) == len(MEASURES)
    assert "- `t5(`: cannot \\| be read" in text
    assert [len(group_table(cards, names).splitlines()) for names in GROUPS.values()] == [3] * len(GROUPS)
    figure = heat_map(cards)
    assert len(figure.axes[0].patches) == len(MEASURES)
    with pytest.raises(ValueError, match="nothing to draw"):
        heat_map({})


@pytest.mark.slow
def test_the_picture_has_the_colours_of_families(tmp_path):
    """A palette that is too small shifts them nearer to each other than readers can tell."""
    labels = {REGISTRY[name].family: name for name in pj.names() if REGISTRY[name].family in FAMILIES}
    cards = {label: card_of_ones(U_gap="fail", A_swap="handled") | {"encoding": label} for label in labels.values()}
    with Image.open(write_scorecard(cards, tmp_path)[1]) as image:
        drawn = {tuple(color) for color in np.unique(np.asarray(image.convert("RGB")).reshape(-1, 3), axis=0).tolist()}
    for family in labels:
        assert tuple(int(FAMILIES[family].color[at : at + 2], 16) for at in (1, 3, 5)) in drawn


def test_one_refusal_does_not_lose_the_others_and_only_what_is_missing_is_measured(tmp_path, monkeypatch, capsys):
    measured, out = [], f"--out={tmp_path}"

    def measure(encoding, **options):
        measured.append(str(encoding))
        if str(encoding) == "t5()":
            raise ValueError("no places")
        return card_of_ones()

    monkeypatch.setattr("posjax.describe.scorecard.card.scorecard", measure)
    assert command.main(["rope()", "t5()", out]) == 0
    saved = json.loads((tmp_path / "scorecard.json").read_text())
    assert saved["cards"]["t5()"]["error"] == "no places"
    assert saved["cards"]["rope()"]["measures"]["U_gap"]["verdict"] == "pass"
    assert saved["about"]["jax"] == jax.__version__
    assert {path.name for path in tmp_path.iterdir()} == {"scorecard.json", "scorecard.png", "README.md"}
    assert "t5() could not be measured: no places" in capsys.readouterr().err
    table = (tmp_path / "README.md").read_text()
    (tmp_path / "README.md").unlink()
    assert report.main([str(tmp_path)]) == 0
    assert (tmp_path / "README.md").read_text() == table
    assert "`t5()`: no places" in table
    assert command.main(["sinusoidal", "rope", "--missing", out]) == 0
    assert measured == ["rope()", "t5()", "sinusoidal()"]
    saved = json.loads((tmp_path / "scorecard.json").read_text())
    assert list(saved["cards"]) == ["sinusoidal()", "rope()"]
    assert saved["about"]["added"][0]["labels"] == ["sinusoidal()"]
    assert saved["notes"][-1].startswith("Added at commit")
    for arguments in (["alibi", "--length=128", "--missing", out], ["--length=8"], ["t5", "--checkpoint=x"]):
        capsys.readouterr()
        assert command.main(arguments) == 2
        assert capsys.readouterr().err.count("\n") == 1


def test_bfloat16_cannot_count():
    found = probe("alibi()")
    base = logits(found, box((64,)))
    near, far = (scorecard_measures.uniqueness(found, base, None, (longer,)) for longer in (256, 1024))
    assert near["U_coll_bf16"].value == 0  # 192, ..., 255
    assert far["U_coll_bf16"].value > 1  # 960, 964, ...: four places are one
    assert far["U_coll"].value == 0


def test_a_temperature_is_no_rotation():
    """log(p + 1) is 0 at the first place, so that its matrix has no inverse."""
    found = scorecard_parts.rotation(probe("ssmax()"))
    assert found["R_group"].note == "turns nothing"
    assert found["R_norm"].value > 0.1


def test_the_gap_is_that_of_the_nearest_two_places():
    tile = logits(probe("alibi", (32,), SMALL), box((32,)))
    weights = np.asarray(jax.nn.softmax(jnp.asarray(tile.value), axis=-1), np.float64)
    rows = np.moveaxis(weights, 2, 0).reshape(32, -1)
    apart = np.linalg.norm(rows[:, None] - rows[None], axis=-1)[np.triu_indices(32, 1)]
    found = scorecard_measures.uniqueness(probe("alibi", (32,), SMALL), tile, rows, (64,))
    for name in ("U_gap", "U_code"):
        assert found[name].value == pytest.approx(apart.min() / np.linalg.norm(rows, axis=1).mean(), rel=1e-4)
    assert scorecard_measures.distance_summary(np.array([[0.0, 0.0], [3.0, 4.0]])) == (2.5, 5.0)


def test_attention_without_an_encoding_spreads_evenly_over_what_was_never_seen():
    """Three quarters of 128 keys lie further back than 32 places reach; the entropy is that of 128 equal shares."""
    plain, rows = probe("none", (32,), SMALL), np.array([5, 60, 127])
    far = logits(plain, box((128,)), rows)
    found = scorecard_measures.extrapolation(plain, logits(plain, box((32,))), (128,), far, rows)
    assert found["X_mass"].value == pytest.approx(0.75, rel=1e-5)
    assert found["X_ent"].value == pytest.approx(np.log(128) / np.log(32), rel=1e-5)


def test_alibi_falls_all_the_way():
    alibi = probe("alibi", (32,), SMALL)
    found = scorecard_measures.decay(alibi, logits(alibi, box((32,))))
    assert found["monotone"].value == 1
    assert max(found["rho_same"].value, found["rho_other"].value) < -0.999


def test_offsets_are_read_on_other_pairs_than_those_that_were_fitted():
    """A line explains some of the noise that it was fitted to, and nothing else."""
    noise = np.random.default_rng(0).normal(size=(8, 16, 128, 128)).astype(np.float32)
    found = scorecard_measures.decodability(Operator(noise, np.ones((128, 128), bool)), probe("none", (128,), SMALL))
    assert -0.2 < found.value < 0


def test_a_phase_is_unseen_that_makes_no_whole_turn():
    """RoPE's four frequencies are 1, 0.1, 0.01 and 0.001: in 32 tokens the first alone turns once."""
    found = scorecard_parts.rotation(probe("rope", (32,), SMALL))
    assert found["X_phase"].value == 3 / 4
    assert found["R_group"].value < 1e-5


def test_a_shift_of_a_code_is_judged_where_it_was_not_fitted():
    """Random rows have no matrix that leads from one to the next, though some matrix fits half of them."""
    assert scorecard_parts.linear_relation(probe("sinusoidal", (32,), SMALL), (128,)).value > 0.99
    assert scorecard_parts.linear_relation(probe("learned(stddev=1)", (32,), SMALL), (128,)).value < 0
