"""A row of a study as the config of a single run, and published weights as rows."""

import json

import jax
import ml_dtypes
import pytest
from exported import TRAINED, write_llama
from goldens.pretrained_cases import written
from safetensors.numpy import load_file, save_file

from experiments import ablate
from experiments.cli import load
from experiments.records import read_records
from experiments.studies.engine import plan
from experiments.studies.planned import planned
from experiments.studies.weights import load_decoder

FULL = "configs/papers/full"


def test_a_row_is_a_single_run_on_random_data_with_the_seeds_of_its_study():
    made = planned(load(f"{FULL}/length_107m.py"), "rope")
    assert (made.model.encoding, made.seeds, made.batch_size) == ("rope(fraction=0.25)", (0, 1, 2), 64)
    made = planned(load(f"{FULL}/vit_s16_i1k.py"))
    assert (made.model.encoding, made.seeds, made.data.name) == ("none", (0,), "synthetic_images")
    with pytest.raises(ValueError, match="--row=rop: the study trains no such row; did you mean 'rope'"):
        planned(load(f"{FULL}/length_107m.py"), "rop")


def test_a_fine_tune_of_weights_is_a_row(tmp_path):
    folder, config = write_llama(tmp_path), load(f"{FULL}/extend_360m.py")
    tensors = {name: x.astype(ml_dtypes.bfloat16) for name, x in load_file(folder / "model.safetensors").items()}
    save_file(tensors, folder / "model.safetensors")
    first = planned(config, checkpoint=folder)
    assert (first.model.encoding, first.data.length) == ("none()", TRAINED)  # DroPE
    assert (first.model.dtype, first.model.param_dtype) == ("bfloat16", "float32")
    config.data.files, config.measures.lengths.lengths = f"{folder}/*.txt", (TRAINED,)
    loaded = load_decoder(folder, config).run.params
    assert {leaf.dtype.name for leaf in jax.tree.leaves(loaded)} == {"float32"}
    made = planned(config, "PI, tuned", folder)
    assert (made.data.length, made.data.name, made.model.width) == (8192, "synthetic_tokens", 16)
    assert made.model.encoding.startswith(f"rope(scaling=linear(factor={8192 // TRAINED})")
    with pytest.raises(ValueError, match="has no finetune"):
        planned(load("configs/extrapolate_pretrained.py"), checkpoint=folder)


def configured(folder, change):
    about = json.loads((folder / "config.json").read_text())
    change(about)
    (folder / "config.json").write_text(json.dumps(about))


@pytest.mark.slow
def test_released_vits_are_measured_and_not_trained(tmp_path):
    config = load(f"{FULL}/released_vits.py:small")
    table = config.studies.small
    fields = {"name": "digits", "eval_split": "test", "image_size": (32, 32), "channels": 3, "fraction": 1.0}
    table.data.update(fields)
    table.measures.resolutions.update(images=20, resolutions=(32, 48))
    kept = {"mixed": "timm rope_mixed", "table": "timm vit", "DINOv3": "timm dinov3"}
    for label in set(table.rows) - {*kept}:
        del table.rows[label]
    table.variants = {label: rows for label, rows in table.variants.items() if label in kept}
    for label, case in kept.items():
        (tmp_path / label).mkdir()
        table.rows[label].init_from = str(written(case, "safetensors", tmp_path / label))
        configured(tmp_path / label, lambda about: about["model_args"].update(num_heads=2))
    ablate.main(config, tmp_path / "run")
    records = {record.row: record for record in read_records(tmp_path / "run" / "results.jsonl")}
    assert {*records} == {"mixed", "table, resized", "DINOv3"}
    assert {record.steps for record in records.values()} == {0}
    assert {tuple(record.metrics["accuracy"]) for record in records.values()} == {(32, 48)}
    assert records["DINOv3"].metrics["loss"] != records["mixed"].metrics["loss"]  # whose head of other classes is new
    assert "48 pixels" in (tmp_path / "run" / "README.md").read_text()
    configured(tmp_path / "DINOv3", lambda about: about["pretrained_cfg"].update(mean=[0.5, 0.5, 0.5]))
    with pytest.raises(ValueError, match=r"'mixed' and 'DINOv3' of 'small' .* other images, data.mean"):
        plan(config)
