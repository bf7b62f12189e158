"""The studies of papers can be planned, and those that were not run here train when their sizes are overridden."""

import importlib

import jax
import pytest
from ml_collections import ConfigDict

from experiments.report import page
from experiments.studies import environment, study
from experiments.studies.ablation import Ablation
from experiments.studies.extrapolation import finetune_config, plan, training_config
from experiments.studies.records import read_records
from experiments.studies.resolutions import Resolutions
from posjax.training.tasks import make_task

ALGORITHMIC = ("randomized_positions", "contextual_counting", "length_generalization", "state_tracking")


def config(name):
    return importlib.import_module(f"configs.papers.{name}").get_config()


@pytest.mark.parametrize("name", ALGORITHMIC)
def test_rows_are_trained_short_and_judged_by_longer_or_other_problems(name):
    made = config(name)
    assert len(made.seeds) >= 5
    assert not {*made.seeds} & {*made.tune.seeds}
    for row in Ablation(made).rows():
        data = row.training.data
        assert min(row.training.eval_lengths) == data.length  # what is trained is evaluated, too
        assert max(row.training.eval_lengths) >= 2 * data.length or data.others
        assert row.training.model.kind == ("encoder" if name == "randomized_positions" else "decoder")


def test_what_is_drawn_has_no_share_that_a_sweep_could_hold_out():
    with pytest.raises(ValueError, match=r"task 'algorithmic' has no data\.train_split to hold a share out of: tune"):
        Ablation(untuned(config("contextual_counting")), ["config.batch_size=2,4"]).rows()


def untuned(made):
    made.tune.learning_rates = ()
    return made


def test_every_base_stands_beside_itself_randomised():
    for table in config("randomized_positions").studies.values():
        specs = table.encodings.to_dict()
        bases = [label for label in specs if not label.startswith("randomized ") and label != "none"]
        assert {f"randomized {base}": f"randomized(256) >> {specs[base]}" for base in bases}.items() <= specs.items()
        assert len(specs) == 2 * len(bases) + 1
        longest = 3 * max(table.eval_lengths)  # of a problem with an answer twice as long
        assert longest <= 256


def test_what_counts_has_as_many_parameters_as_what_does_not():
    counts = {}
    for row in Ablation(config("contextual_counting")).rows():
        shapes = jax.eval_shape(make_task(row.training).init, jax.random.key(0))
        counts[row.label] = sum(leaf.size for leaf in jax.tree.leaves(shapes))
    assert {"none", "rope", "alibi", "cope", "fox"} <= counts.keys()
    assert max(counts.values()) - min(counts.values()) <= 8, counts


SMALL = {"model.width": 8, "model.depth": 1, "model.num_heads": 2, "steps": 2, "optimizer.warmup_steps": 1}
SMALL |= {"batch_size": 4, "checkpoint_every": 2}
OF_TEXT = {"data.name": "pydoc_topics", "data.eval_split": "validation", "data.length": 16, "eval_lengths": (16,)}
OF_TEXT |= {"eval_tokens": 65, "eval_batch_size": 4, "model.dtype": "float32"}
OF_IMAGES = {"data.name": "digits", "data.image_size": (8, 8), "model.variant": None, "model.patch_size": 2}
OF_IMAGES |= {"model.drop_path": 0.0, "evaluation.images": 4, "evaluation.resolutions": (8, 16), "eval_batch_size": 4}
OF_PROBLEMS = {"data.length": 4, "data.shortest": 4, "eval_lengths": (4,), "eval_examples": 4, "eval_batch_size": 4}


def test_a_tuned_context_keeps_its_retrieval():
    """Of the two rows of a step a quarter, the share of training, would be none: tuning would unlearn what is asked."""
    made = config("context_extension")
    rows = [row for row in plan(made, {"rope": training_config(made, "rope")}) if row.tuning]
    assert len(rows) == 4
    for row in rows:
        tuned = finetune_config(row.training, row.tuning, row.tuning.spec)
        assert tuned.batch_size * tuned.data.length == row.training.batch_size * row.training.data.length
        assert round(tuned.batch_size * tuned.data.retrieval.share) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "kind", "group", "label", "small"),
    [
        pytest.param("p_rope", Ablation, "studies", "p_rope 3/4", OF_TEXT, marks=pytest.mark.thorough),
        ("rope_vit", Resolutions, "sets", "mixed", OF_IMAGES),
        ("contextual_counting", Ablation, "studies", "fox", OF_PROBLEMS),
    ],
)
def test_they_train_at_other_sizes(name, kind, group, label, small, tmp_path, monkeypatch):
    made = config(name)
    table = next(iter(made[group].values()))
    made[group] = ConfigDict({next(iter(made[group])): table})
    with table.ignore_type():
        table.update_from_flattened_dict(SMALL | small)
    for rows in ("encodings", "rows", "policies"):
        if rows in table:
            table[rows] = ConfigDict({label: table[rows][label]}, allow_dotted_keys=True)
    made.seeds = (0, 1)
    monkeypatch.setattr(environment, "compilation_cache", lambda directory: None)
    monkeypatch.setattr(page, "write_page", lambda *told: None)
    monkeypatch.setattr(page, "print_page", lambda *told: None)
    study.run(kind(made), tmp_path, allocator=None, command="x")
    records = read_records(tmp_path / "results.jsonl")
    assert {record.seed for record in records} == {0, 1}
    assert {record.steps for record in records} == {2}
    if name == "contextual_counting":
        tuned = records[0].more["tuned"]
        assert (tuned["by"], tuned["on"]) == ("accuracy", "length 4")
        by_length = records[0].metrics["accuracy by length, flip_flop_sparse"]
        assert list(by_length) == ["4"]
