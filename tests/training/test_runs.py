"""A run that is read back is the run that was trained."""

import json
import pathlib
import re
import shutil
import sys

import jax
import numpy as np
import pytest
from ml_collections import ConfigDict
from small import small_decoder, small_vit

import posjax.cli
import posjax.spec
from experiments import analyse, evaluate, export, generate, scorecard
from experiments.studies.weights import load_decoder
from posjax.jsonl import config_hash
from posjax.pretrained.parameters import is_encoding, paths_of
from posjax.training.checkpoints import CheckpointError, Checkpoints
from posjax.training.identity import describe_run, digest, digest_as_imported, identity, read_run, write_run
from posjax.training.initial import Start
from posjax.training.loop import train
from posjax.training.runs import PARAMS, Run, is_run, load_run, save_small
from posjax.training.tasks import make_task
from posjax.user_code import import_user_code


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """(result, workdir) of two seeds, in the folder that a row of an ablation would have."""
    workdir = tmp_path_factory.mktemp("ablation")
    config = small_vit(workdir / "data", steps=2, checkpoint_every=1, optimizer__warmup_steps=1)
    row = workdir / "study" / "row-0123"
    return train(make_task(config), config, (3, 5), row), row


def test_parameters_seeds_and_config_come_back(trained):
    result, row = trained
    run = load_run(row)
    assert (run.seeds, run.step, run.config.steps) == ((3, 5), 2, 2)
    jax.tree.map(np.testing.assert_array_equal, run.params, result.state.params)
    assert run.model is run.task.model
    one = jax.tree.map(lambda whole: whole[1], result.state.params)
    jax.tree.map(np.testing.assert_array_equal, run.of(1), one)


def test_an_earlier_step_is_another_state(trained):
    _, row = trained
    before, after = load_run(row, step=1), load_run(row)
    assert before.step == 1
    assert any(np.any(a != b) for a, b in zip(*map(jax.tree.leaves, (before.params, after.params)), strict=True))
    with pytest.raises(CheckpointError, match=r"step 7 in .*the steps there are \[1, 2\]"):
        load_run(row, step=7)


def test_the_newest_intact_step_is_taken_where_records_are_damaged(trained, tmp_path):
    _, row = trained
    shutil.copytree(row, tmp_path / "copy")
    (record,) = (tmp_path / "copy" / "checkpoints" / "2").rglob("record.json")
    record.write_text(record.read_text()[:-3])
    assert load_run(tmp_path / "copy").step == 1


def test_a_folder_without_checkpoints_is_refused_and_its_rows_are_named(trained, tmp_path):
    _, row = trained
    assert is_run(row)
    assert not is_run(row.parents[1])
    with pytest.raises(ValueError, match=r"no checkpoint in .*one of its rows, .*row-0123"):
        load_run(row.parents[1])
    with pytest.raises(ValueError, match="give the workdir of a run"):
        load_run(tmp_path)
    assert not Checkpoints(tmp_path / "checkpoints").directory.exists()


def test_a_small_run_is_one_seed_in_half_precision(trained, tmp_path):
    _, row = trained
    run = load_run(row)
    save_small(run, 1, row, tmp_path / "small")
    small = load_run(tmp_path / "small")
    assert (small.seeds, small.step, small.config.steps) == ((5,), 2, 2)
    assert small.times == pytest.approx(run.times, nan_ok=True)
    for name, leaf in paths_of(run.of(1)).items():
        rounded = leaf if is_encoding(name) else leaf.astype(np.float16).astype(leaf.dtype)
        np.testing.assert_array_equal(paths_of(small.of(0))[name], rounded)
    save_small(small, 0, tmp_path / "small", tmp_path / "small")
    jax.tree.map(np.testing.assert_array_equal, load_run(tmp_path / "small").params, small.params)
    assert (tmp_path / "small" / PARAMS).stat().st_mode == (tmp_path / "small" / "run.json").stat().st_mode
    with pytest.raises(CheckpointError, match=r"no step 1 in .*: this small run is of step 2"):
        load_run(tmp_path / "small", step=1)


def test_a_small_run_replaces_no_run_and_no_training_goes_on_from_it(trained, tmp_path):
    _, row = trained
    run, before = load_run(row), (row / "run.json").read_bytes()
    with pytest.raises(ValueError, match=r"row-0123 holds a run, which would be lost"):
        save_small(run, 0, row, row)
    assert (row / "run.json").read_bytes() == before
    assert not (row / PARAMS).exists()
    save_small(run, 0, row, tmp_path)
    with pytest.raises(ValueError, match="holds a small run, from which no training goes on"):
        train(run.task, run.config, (3,), tmp_path)
    assert load_run(tmp_path).seeds == (3,)


def test_a_small_run_that_was_changed_is_refused(trained, tmp_path):
    _, row = trained
    run = load_run(row)
    save_small(run, 0, row, tmp_path)
    whole = (tmp_path / PARAMS).read_bytes()
    for damaged, line in (
        (whole[:-1] + bytes([whole[-1] ^ 1]), "differs from what was written"),
        (whole[:-3], "cut off"),
        (None, r"params.safetensors is missing: put it back"),
    ):
        (tmp_path / PARAMS).unlink()
        if damaged is not None:
            (tmp_path / PARAMS).write_bytes(damaged)
        else:
            assert is_run(tmp_path)
        with pytest.raises(ValueError, match=line):
            load_run(tmp_path)
        (tmp_path / PARAMS).touch()
    other = {**run.params, "head": {name: leaf[..., :1] for name, leaf in run.params["head"].items()}}
    save_small(run._replace(params=other), 0, row, tmp_path)
    with pytest.raises(CheckpointError, match=r"head/\w+ is .* in .*, but .* in the model of run.json"):
        load_run(tmp_path)


def test_parameters_beyond_half_precision_make_no_small_run(trained, tmp_path):
    _, row = trained
    run = load_run(row)
    with pytest.raises(ValueError, match=r"head/kernel of .* is not finite in float16: copy the whole run"):
        save_small(run._replace(params={**run.params, "head": {"kernel": np.full((2, 3), 1e6)}}), 0, row, tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_run_says_once_what_it_is(trained):
    result, row = trained
    about = read_run(row)
    config = ConfigDict(about["config"])
    assert (about["hash"], about["seeds"]) == (config_hash(identity(config)), [3, 5])
    assert about["fields"]["model.width"] == config.model.width == 8
    assert {"posjax", "jax", "commit", "device"} <= about["environment"].keys()
    assert not about["fields"].keys() & {"logger", "data.data_dir", "mesh.data", "init_from"}


def says_the_same(text, other):
    """Whether damaged JSON reads as before: 1e-05 and 1E-05 are one number."""
    try:
        return json.loads(text) == json.loads(other)
    except ValueError:
        return False


def test_damage_to_run_json_is_found(trained, tmp_path):
    _, row = trained
    path = pathlib.Path(shutil.copytree(row, tmp_path / "copy")) / "run.json"
    content = path.read_bytes()
    for index in range(0, len(content), 41):
        changed = bytearray(content)
        changed[index] ^= 1 << (index % 7)
        path.write_bytes(changed)
        if says_the_same(changed, content):
            continue
        with pytest.raises(CheckpointError, match=r"run\.json"):
            read_run(path.parent)
    config = ConfigDict(read_run(row)["config"])
    path.write_bytes(content[:-9])
    for use in (lambda: load_run(path.parent), lambda: train(make_task(config), config, (3, 5), path.parent)):
        with pytest.raises(CheckpointError, match=r"run\.json cannot be read .*put back a copy of it, or move"):
            use()
    path.unlink()
    with pytest.raises(CheckpointError, match=r"run\.json cannot be read .*No such file"):
        load_run(path.parent)


def test_fields_of_another_version_are_one_line(trained, tmp_path):
    """Each field is left out, and is of another type."""
    _, row = trained
    path = pathlib.Path(shutil.copytree(row, tmp_path / "copy"))
    about = read_run(row)
    for name in about:
        for value in ({}, {name: "x"}, {name: 3}):
            write_run(path, {key: each for key, each in about.items() if key != name} | value)
            if read_or_message(path) is None:
                assert (name in ("hash", "data_digest"), value) == (True, {name: "x"})
    for name in ("task", "data", "model", "optimizer", "steps", "eval_batch_size"):
        for value in ({}, {name: None}, {name: [1]}):
            config = {key: each for key, each in about["config"].items() if key != name} | value
            write_run(path, {**about, "config": config})
            assert read_or_message(path)
    write_run(path, {**about, "config": {**about["config"], "steps": "x"}})
    assert re.match(
        r".*run.json is of posjax \d.* of commit \w+.* and this version cannot .*TypeError", read_or_message(path)
    )


def read_or_message(path):
    """Returns the message of a run that is refused, None of a run that is read."""
    try:
        load_run(path)
    except ValueError as error:
        return str(error)
    return None


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
        config = small_decoder(folder / "data", model__encoding="by_somebody")
        task = make_task(config)
        params = jax.tree.map(lambda leaf: np.asarray(leaf)[None], task.init(jax.random.key(0)))
        write_run(folder / "run", describe_run(task, config, (3,)))
        run = Run(task, task.model, params, (3,), config, 0, {"elapsed": 0.0, "step_time": 0.0})
        save_small(run, 0, folder / "run", folder / "small")
        yield folder / "mine.py", folder / "run", folder / "small"


REPO = pathlib.Path(__file__).parents[2]
READERS = {
    "analyse": lambda path: analyse.main([f"--checkpoint={path}", f"--out={path}-out", f"--files={REPO / 'docs'}"]),
    "evaluate": lambda path: evaluate.main([f"--checkpoint={path}"]),
    "explain": lambda path: posjax.cli.main(["explain", f"--checkpoint={path}"]),
    "export": lambda path: export.main([f"--checkpoint={path}", f"--out={path}-out"]),
    "generate": lambda path: generate.main([f"--checkpoint={path}", "--prompt=a"]),
    "scorecard": lambda path: scorecard.main([f"--checkpoint={path}"]),
    "train": Start,
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
    task = make_task(config)
    params = jax.tree.map(lambda leaf: np.asarray(leaf)[None], task.init(jax.random.key(0)))
    about = describe_run(task, config, (3,))
    write_run(tmp_path / "run", about)
    save_small(
        Run(task, task.model, params, (3,), config, 0, {"elapsed": 0.0, "step_time": 0.0}), 0, tmp_path / "run", small
    )
    carried = {str(path.relative_to(small)) for path in small.rglob("*.py")}
    tools = {f"tools_of_mine/{name}.py" for name in ("__init__", "c", "d")}
    assert carried == {"with_helpers.py", "helper_a.py", "helper_b.py", "helper_e.py"} | tools
    assert {*read_run(small)["files"]} == carried
    (code / "helper_e.py").write_text("E = 2\n")
    digest_as_imported.cache_clear()
    assert describe_run(task, config, (3,))["fields"]["code"] != about["fields"]["code"]


@pytest.mark.slow
def test_bfloat16_parameters_are_restored_with_what_the_optimizer_has_summed_up(tmp_path):
    config = small_vit(tmp_path / "data", steps=2, optimizer__warmup_steps=1, model__param_dtype="bfloat16")
    result = train(make_task(config), config, (3,), tmp_path / "run")
    run = load_run(tmp_path / "run")
    assert "bfloat16" in {leaf.dtype.name for leaf in jax.tree.leaves(run.params)}
    jax.tree.map(np.testing.assert_array_equal, run.params, result.state.params)
    again = train(make_task(config), config, (3,), tmp_path / "run")
    assert [leaf.dtype for leaf in jax.tree.leaves(again.state)] == [
        leaf.dtype for leaf in jax.tree.leaves(result.state)
    ]
    digests = {digest(params) for params in (run.params, jax.tree.map(lambda leaf: leaf * 2, run.params))}
    assert len(digests) == 2
