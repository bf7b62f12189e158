"""A run that is read back is the run that was trained."""

import pathlib
import shutil
import sys

import jax
import numpy as np
import pytest
from ml_collections import ConfigDict
from small import small_decoder, small_vit, write_trained

import posjax.cli
import posjax.spec
from experiments import export
from experiments.studies.weights import load_decoder
from posjax.jsonl import config_hash
from posjax.pretrained.parameters import is_encoding, paths_of
from posjax.training.checkpoints import CheckpointError, Checkpoints
from posjax.training.identity import describe_run, digest, digest_as_imported, identity, read_run
from posjax.training.loop import train
from posjax.training.runs import PARAMS, is_run, load_run, save_small
from posjax.training.step import starter
from posjax.user_code import import_user_code


@pytest.fixture(scope="module")
def row(tmp_path_factory):
    """The workdir of two seeds at steps 1 and 2, in the folder that a row of an ablation would have."""
    workdir = tmp_path_factory.mktemp("ablation")
    write_trained(
        small_vit(workdir / "data", steps=2, optimizer__warmup_steps=1), (3, 5), workdir / "study" / "row-0123", 1, 2
    )
    return workdir / "study" / "row-0123"


@pytest.fixture(scope="module")
def run(row):
    return load_run(row)


@pytest.mark.slow
def test_a_run_is_read_at_its_newest_intact_step_or_another(row, run, tmp_path):
    assert (run.seeds, run.step, run.config.steps) == ((3, 5), 2, 2)
    assert run.model is run.task.model
    jax.tree.map(lambda whole, one: np.testing.assert_array_equal(whole[1], one), run.params, run.of(1))
    before = load_run(row, step=1)
    assert before.step == 1
    assert any(np.any(a != b) for a, b in zip(*map(jax.tree.leaves, (before.params, run.params)), strict=True))
    with pytest.raises(CheckpointError, match="step 7"):
        load_run(row, step=7)
    shutil.copytree(row, tmp_path / "copy")
    record = tmp_path / "copy" / "checkpoints" / "2" / "record" / "record.json"
    record.write_text(record.read_text()[:-3])
    assert load_run(tmp_path / "copy").step == 1


def test_a_folder_without_checkpoints_is_refused_and_its_rows_are_named(row, tmp_path):
    assert is_run(row)
    assert not is_run(row.parents[1])
    for folder, mend in ((row.parents[1], "row-0123"), (tmp_path, "give the workdir of a run")):
        with pytest.raises(ValueError, match=mend):
            load_run(folder)
    assert not Checkpoints(tmp_path / "checkpoints").directory.exists()


def test_a_small_run_is_one_seed_in_half_precision(row, run, tmp_path):
    save_small(run, 1, row, tmp_path / "small")
    small = load_run(tmp_path / "small")
    assert (small.seeds, small.step, small.config.steps, small.times) == ((5,), 2, 2, run.times)
    for name, leaf in paths_of(run.of(1)).items():
        rounded = leaf if is_encoding(name) else leaf.astype(np.float16).astype(leaf.dtype)
        np.testing.assert_array_equal(paths_of(small.of(0))[name], rounded)
    save_small(small, 0, tmp_path / "small", tmp_path / "small")
    jax.tree.map(np.testing.assert_array_equal, load_run(tmp_path / "small").params, small.params)
    with pytest.raises(CheckpointError, match="step 1"):
        load_run(tmp_path / "small", step=1)
    with pytest.raises(ValueError, match="small run"):
        train(run.task, run.config, (5,), tmp_path / "small")
    before = (row / "run.json").read_bytes()
    with pytest.raises(ValueError, match="would be lost"):
        save_small(run, 0, row, row)
    assert (row / "run.json").read_bytes() == before
    assert not (row / PARAMS).exists()


def test_a_small_run_that_was_changed_is_refused(row, run, tmp_path):
    save_small(run, 0, row, tmp_path)
    whole = (tmp_path / PARAMS).read_bytes()
    for damaged in (whole[:-1] + bytes([whole[-1] ^ 1]), whole[:-3], None):
        (tmp_path / PARAMS).unlink()
        if damaged is not None:
            (tmp_path / PARAMS).write_bytes(damaged)
        with pytest.raises(ValueError, match=PARAMS):
            load_run(tmp_path)
        (tmp_path / PARAMS).touch()
    other = {**run.params, "head": {name: leaf[..., :1] for name, leaf in run.params["head"].items()}}
    save_small(run._replace(params=other), 0, row, tmp_path)
    with pytest.raises(CheckpointError, match="head/"):
        load_run(tmp_path)
    with pytest.raises(ValueError, match="head/kernel"):  # beyond half precision
        save_small(run._replace(params={**run.params, "head": {"kernel": np.full((2, 3), 1e6)}}), 0, row, tmp_path)


def test_a_run_says_once_what_it_is(row):
    about = read_run(row)
    config = ConfigDict(about["config"])
    assert (about["hash"], about["seeds"]) == (config_hash(identity(config)), [3, 5])
    assert about["fields"]["model.width"] == config.model.width == 8
    assert {"posjax", "jax", "commit", "device"} <= about["environment"].keys()
    assert not about["fields"].keys() & {"logger", "data.data_dir", "mesh.data", "init_from"}


def test_damage_to_run_json_is_one_line(row, run, tmp_path):
    path = pathlib.Path(shutil.copytree(row, tmp_path / "copy")) / "run.json"
    content = path.read_bytes()
    for damaged in (content.replace(b'"seeds": [\n    3', b'"seeds": [\n    4'), content[:-9], None):
        path.unlink()
        if damaged is not None:
            path.write_bytes(damaged)
        for use in (lambda: load_run(path.parent), lambda: train(run.task, run.config, (3, 5), path.parent)):
            with pytest.raises(CheckpointError, match=r"run\.json"):
                use()
        path.touch()


SOURCE = """
from dataclasses import dataclass
import posjax as pj

@pj.register("by_somebody")
@dataclass(frozen=True)
class BySomebody(pj.Encoding):
    def bias(self, params, q, q_site, k, k_site):
        return 0.0
"""


@pytest.fixture(scope="module")
def own_code(tmp_path_factory):
    """(file, run, small run) of an encoding of a user's."""
    folder = tmp_path_factory.mktemp("own")
    (folder / "mine.py").write_text(SOURCE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(posjax.spec, "REGISTRY", dict(posjax.spec.REGISTRY))
        import_user_code([str(folder / "mine.py")])
        write_trained(small_decoder(folder / "data", model__encoding="by_somebody"), (3,), folder / "run")
        save_small(load_run(folder / "run"), 0, folder / "run", folder / "small")
        yield folder / "mine.py", folder / "run", folder / "small"


READERS = {
    "explain": lambda path: posjax.cli.main(["explain", f"--checkpoint={path}"]),
    "export": lambda path: export.main([f"--checkpoint={path}", f"--out={path}-out"]),
    "ablate": lambda path: load_decoder(path, ConfigDict()),
}


@pytest.mark.parametrize("reader", READERS)
def test_a_run_names_the_code_that_it_was_trained_with(reader, own_code, monkeypatch, capsys):
    _, _, small = own_code
    monkeypatch.delitem(posjax.spec.REGISTRY, "by_somebody")
    try:
        assert READERS[reader](small) == 2
        line = capsys.readouterr().err
    except ValueError as error:
        line = str(error)
    assert "no encoding is named 'by_somebody'; " in line
    assert f"{small} was trained with --import={small / 'mine.py'}" in line


def test_code_that_was_edited_is_told(own_code, warnings):
    path, row, small = own_code
    assert (small / "mine.py").read_text() == SOURCE
    assert read_run(row)["files"] == [str(path)]
    load_run(small)
    assert warnings == []
    path.write_text(SOURCE.replace("0.0", "1.0"))
    digest_as_imported.cache_clear()
    load_run(small)
    assert warnings == [f"{small} was trained with other code, {small / 'mine.py'} has changed: numbers may be wrong"]


def test_a_small_run_carries_the_helpers_of_its_encoding(tmp_path, monkeypatch):
    """Whichever way they are imported: 5 ways, and helpers of helpers; what is installed or lies elsewhere stays there."""
    monkeypatch.setattr(posjax.spec, "REGISTRY", dict(posjax.spec.REGISTRY))
    monkeypatch.setattr(sys, "path", [*sys.path])
    code, small = tmp_path / "code", tmp_path / "small"
    (code / "tools_of_mine").mkdir(parents=True)
    imports = "import helper_a\nfrom helper_b import B\nimport tools_of_mine.c as c\nfrom tools_of_mine import d\n"
    (code / "with_helpers.py").write_text("import json, numpy\n" + imports + SOURCE.replace("by_somebody", "helped"))
    (code / "helper_a.py").write_text("import helper_e\n")
    (code / "helper_e.py").write_text("E = 1\n")
    (code / "helper_b.py").write_text("B = 1\n")
    (code / "unused.py").write_text("")
    (code / "tools_of_mine" / "__init__.py").write_text("from . import d\n")
    for name in ("c", "d"):
        (code / "tools_of_mine" / f"{name}.py").write_text("from .d import __name__\n")
    import_user_code([str(code / "with_helpers.py")])
    config = small_decoder(tmp_path / "data", model__encoding="helped")
    task = write_trained(config, (3,), tmp_path / "run")
    about = read_run(tmp_path / "run")
    save_small(load_run(tmp_path / "run"), 0, tmp_path / "run", small)
    carried = {str(path.relative_to(small)) for path in small.rglob("*.py")}
    tools = {f"tools_of_mine/{name}.py" for name in ("__init__", "c", "d")}
    assert carried == {"with_helpers.py", "helper_a.py", "helper_b.py", "helper_e.py"} | tools
    assert {*read_run(small)["files"]} == carried
    (code / "helper_e.py").write_text("E = 2\n")
    digest_as_imported.cache_clear()
    assert describe_run(task, config, (3,))["fields"]["code"] != about["fields"]["code"]


@pytest.mark.slow
def test_bfloat16_parameters_are_restored_with_what_the_optimizer_has_summed_up(tmp_path):
    config = small_vit(tmp_path / "data", model__param_dtype="bfloat16")
    task = write_trained(config, (3,), tmp_path / "run")
    run = load_run(tmp_path / "run")
    params = jax.eval_shape(starter(task, config, (3,))).params
    assert jax.tree.map(lambda leaf: leaf.dtype, params) == jax.tree.map(lambda leaf: leaf.dtype, run.params)
    assert "bfloat16" in {leaf.dtype.name for leaf in jax.tree.leaves(run.params)}
    assert digest(run.params) != digest(jax.tree.map(lambda leaf: leaf * 2, run.params))
