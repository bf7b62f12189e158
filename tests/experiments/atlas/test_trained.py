"""The small trained models of results/trained, and their attention, which the atlas shows."""

import json

import numpy as np
import pytest

from configs import trained as study
from experiments.atlas import trained
from posjax.spec import layers_text, parse_layers
from posjax.training.evaluate import evaluate, make_score
from posjax.training.identity import read_run
from posjax.training.runs import PARAMS, load_run

FOLDERS = sorted(path.parent for path in trained.FOLDER.glob("*/*/run.json"))
MOST_BYTES = 700_000  # of a folder


def test_weights_by_distance_are_those_of_loops():
    weights = np.random.default_rng(0).random((2, 3, 8, 8)) * np.tri(8)
    found = trained.attention_by_distance(weights)
    expected = [
        [np.mean([weights[n, h, q, q - d] * (q + 1) for n in range(2) for q in range(4, 8)]) for d in range(4)]
        for h in range(3)
    ]
    np.testing.assert_allclose(found, expected)
    uniform = np.tri(8) / np.arange(1, 9)[:, None]
    np.testing.assert_allclose(trained.attention_by_distance(uniform[None, None]), 1.0)


def test_every_row_of_the_study_has_a_small_run():
    config = study.get_config()
    rows = {(kind, row): spec for kind, table in config.studies.items() for row, spec in table.encodings.items()}
    assert {(path.parent.name, path.name) for path in FOLDERS} == set(rows)
    for path in FOLDERS:
        about = read_run(path)
        spec = rows[path.parent.name, path.name]
        assert layers_text(parse_layers(about["config"]["model"]["encoding"])) == layers_text(parse_layers(spec))
        assert about["config"]["data"]["data_dir"] is None
        assert (path / PARAMS).stat().st_size < MOST_BYTES


def test_the_atlas_shows_every_small_run():
    shown = trained.trained()
    assert {(kind, row) for kind, rows in shown.items() for row in rows} == {(p.parent.name, p.name) for p in FOLDERS}
    for rows, shape in ((shown["decoder"], (3, 4, 64)), (shown["vit"], (4, 15, 15))):
        assert all(np.shape(found["heads"]) == shape for found in rows.values())


def read_on_its_data(kind, name):
    """A small run, whose records hold for its own data: Python's documentation changes with Python."""
    folder = trained.FOLDER / kind / name
    run = load_run(folder)
    if run.task.digest != read_run(folder)["data_digest"]:
        pytest.skip(f"{run.config.data.name} is another text in this Python than in the one that the records are of")
    return run


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "name", "look"), [("decoder", "rope", trained.look_at_decoder), ("vit", "axial_rope", trained.look_at_vit)]
)
def test_what_is_shown_is_what_the_models_do(kind, name, look):
    read_on_its_data(kind, name)
    shown, found = trained.trained()[kind][name], look(trained.FOLDER / kind / name)
    assert found["spec"] == shown["spec"]
    np.testing.assert_allclose(found["heads"], shown["heads"], atol=0.02)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "name"), [("decoder", "alibi"), ("vit", "learned")])
def test_small_runs_score_as_their_records_say(kind, name):
    run = read_on_its_data(kind, name)
    records = map(json.loads, (trained.FOLDER / "results.jsonl").read_text().splitlines())
    (record,) = (each for each in records if (each["study"], each["row"]) == (kind, name))
    scores = evaluate(run.task, make_score(run.task), run.params)
    for metric, tolerance in {"decoder": {"loss": 2e-3}, "vit": {"accuracy": 3e-3, "loss": 5e-3}}[kind].items():
        expected, values = record["metrics"][metric], scores[metric]
        pairs = [(expected[str(at)], values[at]) for at in values] if kind == "decoder" else [(expected, values)]
        for was, (now,) in pairs:
            assert now == pytest.approx(was, abs=tolerance)
