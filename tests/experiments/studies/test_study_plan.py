"""The rows that a config plans, the effect of flags, and refusals before anything is trained."""

import pathlib

import pytest
from ml_collections import ConfigDict

import posjax as pj
from experiments.cli import load
from experiments.studies.engine import plan
from experiments.studies.measures import check_lengths, sizes_of, stride_of
from experiments.studies.plan import (
    FIELDS,
    TABLE,
    TRAINING,
    check_study,
    finetune_config,
    rows_of,
    tables_of,
    training_of,
)
from experiments.studies.readings import RESIZED, Place, spec_of
from experiments.studies.weights import plain
from posjax.models import ViT
from posjax.training.classification import task_class

CONFIGS = pathlib.Path(__file__).parents[3] / "configs"


def config(name, *arguments):
    return load(":".join([f"configs/{name}.py", *arguments]))


def rows(made, **flags):
    return plan(made, **flags).rows


def at(size, trained=128, **more):
    return Place(trained, size, size / trained, **{"grid": (4, 4), "frequencies": 4, **more})


# Every study of configs/.


def test_the_configs_of_posjax_are_studies_and_their_fields_are_documented():
    for path in sorted([*CONFIGS.glob("*.py"), *(CONFIGS / "papers").rglob("*.py")]):
        if "seeds" in (made := load(str(path))):
            check_study(made)
            pretrained = path.stem in ("extrapolate_pretrained", "extend_360m", "released_vits")
            assert pretrained or "command" in made.get("page", {}) or rows(made)
    text = " ".join((CONFIGS.parent / "docs/experiments.md").read_text().split())
    assert not [name for name in FIELDS | TABLE if f"| `{name}` |" not in text]


def test_every_way_to_extend_a_rope_can_be_read_at_every_length():
    planned = rows(config("extrapolate"))
    assert [row.label for row in planned][:3] == ["none", "rope", "PI"]
    assert len([row for row in planned if row.base == "rope"]) == 1 + 12 + 3
    specs = {row.label: spec_of(row.read, "rope", at(512)) for row in planned if row.base == "rope"}
    assert specs["PI"] == "rope(scaling=linear(factor=4))"
    assert specs["dual chunk"] == "dual_chunk(chunk=96, local=32) >> rope()"
    assert specs["PoSE + PI, tuned"] == "pose(length=512) >> rope(scaling=linear(factor=4))"
    assert pj.parse(specs["LongRoPE"]).scaling.long_factor == pytest.approx((1, 1.5874, 2.51984, 4))
    assert spec_of(planned[2].read, "rope", at(64)) == "rope(scaling=linear(factor=1))"  # never below 1


def test_policies_can_be_read_at_every_resolution():
    made = config("resolutions", "fashion_mnist,cifar10,caltech101")
    for name, table in made.studies.items():
        planned = rows_of(name, table)
        assert {row.base for row in planned} == set(table.encodings)
        assert len([row for row in planned if row.finetune]) == 3
        training, sizes = planned[0].training, table.measures.resolutions.resolutions
        trained = 64 if training.data.mode == "native" else training.data.image_size[0]
        scales = [task_class(training).side_ratio(each, trained) for each in sizes]
        assert min(scales) <= 0.6
        assert 1.0 in scales
        assert max(scales) == 2.0
        for row in planned:
            if row.read != RESIZED:
                pj.parse(spec_of(row.read, row.training.model.encoding, at(96, 64, grid=(7, 7))))
        if name != "caltech101":  # whole patches tile every resolution
            model = ViT(10, image_size=tuple(table.data.image_size), patch_size=table.model.patch_size)
            for size in (*sizes, table.finetune.learned["learned, tuned"].size):
                assert model.patches(size, size), name
    with pytest.raises(ValueError, match="there is no study 'cifar'"):
        config("resolutions", "cifar")


def test_a_table_without_a_reading_for_other_sizes_has_no_row_as_trained():
    labels = [row.label for row in rows(config("resolutions", "fashion_mnist"))]
    assert labels[:4] == ["none", "learned, resized", "learned, tuned", "sincos2d"]
    assert "learned" not in labels


# Flags.


def single(**more) -> ConfigDict:
    """The config of a single run."""
    fields = dict.fromkeys(TRAINING, 1) | {"steps": 4, "seed": 7, "task": "classification"}
    data = {"name": "digits", "train_split": "train", "eval_split": "test"}
    model, optimizer = {"encoding": "none", "kind": "vit"}, {"learning_rate": 0.5}
    return ConfigDict({**fields, "data": data, "model": model, "optimizer": optimizer, **more}).lock()


def test_encodings_and_seeds_make_a_study_of_a_single_run():
    specs = ["none", "rope(base=0.5)", "learned + t5"]
    study = plan(single(), encodings=specs, seeds="3, 4")
    assert [(row.label, row.training.model.encoding) for row in study.rows] == [(spec, spec) for spec in specs]
    assert study.seeds(study.rows[0]) == (3, 4)
    study = plan(single(), encodings=["none"])
    assert study.seeds(study.rows[0]) == (7,)
    assert {row.study for row in study.rows} == {"digits_vit"}
    assert [row.label for row in rows(single())] == ["none"]


def test_encodings_take_the_place_of_all_rows_of_a_study():
    study = plan(config("quickstart"), encodings=["t5"], seeds="5")
    assert [(row.study, row.label) for row in study.rows] == [("digits_vit", "t5"), ("pydoc_decoder", "t5")]
    assert study.seeds(study.rows[0]) == (5,)
    assert [row.label for row in rows(config("extrapolate"), encodings=["fox"])] == ["fox"]


def test_a_table_may_have_seeds_of_its_own():
    made = config("quickstart")
    with made.studies.digits_vit.unlocked():
        made.studies.digits_vit.seeds = (8,)
    study = plan(made)
    assert {row.study: study.seeds(row) for row in study.rows} == {"digits_vit": (8,), "pydoc_decoder": (0, 1, 2, 3, 4)}
    asked = plan(made, seeds="3")
    assert {asked.seeds(row) for row in asked.rows} == {(3,)}


def test_variants_are_chosen_and_fine_tunes_left_out():
    def labels(variants, finetune=True):
        return [row.label for row in rows(config("extrapolate"), variants=variants, finetune=finetune)]

    assert labels(["YaRN", "PI, tuned"]) == ["none", "rope", "YaRN", "PI, tuned", "alibi"]
    assert labels([]) == ["none", "rope", "alibi"]
    assert not [label for label in labels(None, finetune=False) if "tuned" in label]
    with pytest.raises(ValueError, match=r"--variants YARN: there is no such variant; did you mean 'YaRN'"):
        labels(["YARN"])
    with pytest.raises(ValueError, match="--variants PI, tuned: there is no such variant"):
        labels(["PI, tuned"], finetune=False)


def test_rows_of_a_config_may_have_dots_in_their_labels():
    fields = {"steps=0.5": {"steps": 5, "model": {"encoding": "rope"}}}
    made = single(rows=ConfigDict(fields, allow_dotted_keys=True), seeds=(0,), name="toy")
    (row,) = rows(made)
    assert (row.label, row.training.steps, row.study) == ("steps=0.5", 5, "toy")


# Readings of a checkpoint.


def test_what_is_for_any_checkpoint_is_for_a_run_too():
    made = config("extrapolate_pretrained", "drope")
    with made.unlocked():
        made.encodings = ConfigDict({"mine": "alibi"})
        made.variants.mine = ConfigDict({"farther": "interpolate(factor=2) >> {own}"})
    training = training_of(made, {"model": {"encoding": "alibi"}}, "mine")
    planned = rows_of("x", made, {"mine": training})
    assert [row.label for row in planned][:3] == ["mine", "farther", "no positions"]
    assert "DroPE" in [row.label for row in planned]
    assert spec_of(planned[1].read, "alibi", at(4096)) == "interpolate(factor=2) >> alibi()"
    assert [row.label for row in rows_of("x", made)] == ["mine", "farther"]


@pytest.mark.parametrize(
    ("label", "own", "want"),
    [
        ("no positions", "rope, rope + window(8)", "none(), rope() + window(size=8)"),
        ("ReRoPE", "rope + window(8), rope(base=5)", "rope() + window(size=8), rerope(window=64) >> rope(base=5)"),
        ("NoPE every 4th", "rope, alibi, rope", "rope(), alibi(), rope(), none(), alibi(), rope(), rope(), none()"),
    ],
)
def test_readings_of_pretrained_models_change_the_layers_without_a_window(label, own, want):
    made = spec_of(config("extrapolate_pretrained").variants.loaded[label], own, at(512))
    assert made.startswith(want)


# Refusals.


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"notes": 3}, "notes"),
        ({"titel": "x"}, "title"),
        ({"tune": {"learning_rates": (1e-3,)}}, "seeds"),
        ({"axis": {"title": "size", "values": {"b": 1}}}, "axis"),
        ({"rows": {"a": {"stepps": 1}}}, "steps"),
        ({"encodings": {}}, "encodings"),
        ({"variants": {"none": {"none": "rope"}}}, "'none'"),
        ({"measures": {"score": {}}}, "scores"),
    ],
)
def test_the_config_of_a_study_is_checked(change, field):
    table = single(encodings={"none": "none"}).to_dict()
    whole = {"name": "toy", "seeds": (0, 1), "studies": {"a": table}}
    table.update({name: value for name, value in change.items() if name in TABLE and name != "tune"})
    with pytest.raises(ValueError, match=field):
        made = plan(ConfigDict({**whole, **{name: value for name, value in change.items() if name not in table}}))
        made.seeds(made.rows[0])


def test_a_pattern_over_layers_is_said_to_be_one_row(warnings):
    assert len(rows(single(), encodings=["none,learned,rope", "rope"])) == 2
    assert "none,learned,rope is one row, a pattern over layers" in warnings[0]


def test_an_encoding_is_not_compared_with_itself():
    with pytest.raises(ValueError, match=r"'rope' and 'rope\(\)' are the same encoding, leave one out"):
        plan(single(), encodings=("none", "rope", "rope()"))


def test_a_training_without_a_field_that_it_reads_late_is_refused():
    whole = config("vit")
    training_of(whole, {}, "x")
    for name in TRAINING:
        some = ConfigDict({field: value for field, value in whole.items() if field != name})
        with pytest.raises(ValueError, match=f"has no field '{name}'"):
            training_of(some, {}, "x")


def test_lengths_that_do_not_divide_are_refused():
    options = config("extrapolate").measures.lengths
    options.update(lengths=(128, 96))
    with pytest.raises(ValueError, match="length=96"):
        check_lengths(options)


def test_the_stride_is_a_share_of_the_length():
    made = config("extrapolate")
    assert sizes_of(made) == [128, 256, 512, 1024, 2048]
    assert [stride_of(length, made.measures.lengths) for length in (128, 2048, 65536)] == [64, 1024, 4096]


# Fine-tunes.


def test_a_fine_tune_on_images_differs_in_resolution_and_length_alone():
    table = tables_of(config("resolutions", "fashion_mnist"))["fashion_mnist"]
    asked, base = table.finetune.learned["learned, tuned"], training_of(table, {"model": {"encoding": "learned"}}, "x")
    tuned = finetune_config(base, asked, "learned")
    assert (tuned.data.image_size, tuned.steps, tuned.optimizer.learning_rate) == ((40, 40), asked.steps, 1e-3)
    wide = training_of(table, {"data": {"image_size": (28, 56)}}, "x")
    assert finetune_config(wide, asked, "learned").data.image_size == (40, 80)
    table = tables_of(config("resolutions", "caltech101"))["caltech101"]
    tuned = finetune_config(training_of(table, {}, "x"), table.finetune.learned["learned, tuned"], "learned")
    assert (tuned.data.image_size, tuned.data.max_patches) == ((128, 128), 144)


def test_a_tuned_context_keeps_its_retrieval_and_sees_whole_windows():
    """A quarter of the two rows of a step, the share of training, would be none: tuning would unlearn retrieval."""
    tuned = [row for row in rows(config("papers/context_extension")) if row.finetune]
    assert len(tuned) == 4
    for row in tuned:
        made = finetune_config(row.training, row.finetune, "rope")
        assert made.batch_size * made.data.length == row.training.batch_size * row.training.data.length
        assert round(made.batch_size * made.data.retrieval.share) == 1
        assert made.data.ladder.steps == 0


def test_a_long_label_names_a_folder():
    labels = ["长" * 300, "长" * 301]
    names = [plain(label) for label in labels]
    assert max(len(f"{name}-{'0' * 12}".encode()) for name in names) <= 255
    assert len({*names}) == 2
    assert plain("rope + alibi") == "rope---alibi"
