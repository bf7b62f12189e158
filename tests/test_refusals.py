"""A mistake in the last row of a study is reported before the first row trains."""

import sys

import pytest
from ml_collections import ConfigDict

import posjax.cli
from configs import decoder, extrapolate, quickstart, resolutions
from experiments import (
    ablate,
    analyse,
    benchmark,
    catalogue,
    cli,
    evaluate,
    prepare,
    scorecard,
)
from experiments import train as train_command
from experiments.studies import environment
from experiments.studies.readings import RESIZED
from posjax.training import loop

TINY = {"model.width": 8, "model.depth": 1, "model.num_heads": 2, "steps": 6, "batch_size": 4, "log_every": 1}


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    return str(tmp_path_factory.mktemp("data"))


@pytest.fixture(autouse=True)
def no_training(monkeypatch):
    """Whatever gets as far as training has not been refused."""

    def train(*arguments, **options):
        raise AssertionError("it trains")

    monkeypatch.setattr(environment, "compilation_cache", lambda directory: None)  # it would stay on for other tests
    monkeypatch.setattr(loop, "train", train)


def changed(config: ConfigDict, **fields) -> ConfigDict:
    """`model__width=8` sets model.width."""
    config.update_from_flattened_dict({name.replace("__", "."): value for name, value in fields.items()})
    return config


def ablation(data_dir, **wrong) -> ConfigDict:
    """Two studies, of which the second is wrong."""
    made = quickstart.get_config()
    made.seeds = (0,)
    for study in made.studies.values():
        changed(study, data__data_dir=data_dir)
        study.update_from_flattened_dict(TINY)
    made.studies.digits_vit.encodings = ConfigDict({"plain": "none"})
    made.studies.digits_vit.model.patch_size = 4
    made.studies.pydoc_decoder.encodings = ConfigDict({"mine": wrong.pop("encoding", "rope")})
    changed(made.studies.pydoc_decoder, data__length=16, eval_lengths=(16,), eval_batch_size=512)
    changed(made.studies.pydoc_decoder, **wrong)
    return made


@pytest.mark.parametrize(
    ("wrong", "field"),
    [({"data__name": "pydoc_topic"}, "pydoc_topics"), ({"encoding": "rope", "model__width": 6}, "head_dim")],
)
def test_an_ablation_refuses_its_second_study(wrong, field, data_dir, tmp_path):
    with pytest.raises(ValueError, match=f"row 'mine' of 'pydoc_decoder': .*{field}"):
        ablate.main(ablation(data_dir, **wrong), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_no_row_is_traced_before_all_are_read(data_dir, tmp_path, monkeypatch):
    """Data, sizes, optimizers and loggers of all rows take no second, models do."""
    monkeypatch.setattr(loop.Programs, "trace", lambda self: pytest.fail("it traces"))
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    with pytest.raises(ValueError, match=r"pip install .*\[tensorboard\]"):
        ablate.main(ablation(data_dir, logger="tensorboard"), tmp_path)


def test_a_single_run_is_refused_before_its_directory_is_written(data_dir, tmp_path):
    config = changed(decoder.get_config(), data__data_dir=data_dir, data__length=16, eval_lengths=(16,))
    config.update_from_flattened_dict(TINY)
    with pytest.raises(ValueError, match="num_heads"):
        train_command.main(changed(config, model__num_heads=3), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_lengths_refuse_every_row(data_dir, tmp_path):
    made = extrapolate.get_config()
    made.update_from_flattened_dict(TINY)
    made.encodings, made.finetune = ConfigDict({"rope": "rope"}), ConfigDict()
    made.variants = ConfigDict({"rope": {"mine": "t5"}})
    changed(made, data__data_dir=data_dir, data__length=64, eval_lengths=(64,), eval_tokens=257)
    changed(made, measures__lengths__bytes=256, measures__lengths__lengths=(64, 128))
    changed(made, measures__retrieval__lengths=(64,), measures__retrieval__tasks=("recall",))
    made.data.retrieval.tasks = ("recall",)
    with pytest.raises(ValueError, match="row 'mine' of 'extrapolate'"):
        ablate.main(made, tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_resolutions_refuse_a_fine_tune(data_dir, tmp_path):
    made = resolutions.get_config("fashion_mnist")
    made.seeds = (0,)
    study = made.studies.fashion_mnist
    study.update_from_flattened_dict(TINY)
    changed(study, data__name="digits", data__data_dir=data_dir, data__image_size=(8, 8), model__patch_size=2)
    changed(study, measures__resolutions__resolutions=(8, 12), measures__resolutions__images=10, eval_batch_size=100)
    study.encodings = ConfigDict({"learned": "learned"})
    study.variants = ConfigDict({"learned": {"learned": None, "learned, resized": RESIZED}}, sort_keys=False)
    tuned = dict(read="swin", size=12, steps=2, learning_rate=1e-3)
    study.finetune = ConfigDict({"learned": {"learned, tuned": tuned}})
    with pytest.raises(ValueError, match=r"row 'learned, tuned' of 'fashion_mnist': .* cannot take over"):
        ablate.main(made, tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_data_are_loaded_once_for_all_rows(data_dir, tmp_path, monkeypatch):
    from posjax import data

    loaded, load = [], data.load_images
    monkeypatch.setattr(
        data, "load_images", lambda name, split, **options: loaded.append(split) or load(name, split, **options)
    )
    made = ablation(data_dir)
    del made.studies["pydoc_decoder"]
    made.studies.digits_vit.encodings = ConfigDict({"a": "none", "b": "learned"})
    with pytest.raises(AssertionError, match="it trains"):
        ablate.main(made, tmp_path)
    assert sorted(loaded) == ["test", "train"]


@pytest.mark.parametrize("make", [decoder.get_config, quickstart.get_config, extrapolate.get_config])
def test_the_warm_up_follows_the_steps(make):
    made = make()
    for config in made.studies.values() if "studies" in made else [made]:
        before, steps = config.optimizer.warmup_steps, config.steps
        assert 0 < before < steps
        config.steps = 20
        assert config.optimizer.warmup_steps == before * 20 // steps
        config.optimizer.warmup_steps = 30  # an explicit one stays, and is refused with the row
        config.steps = 25
        assert config.optimizer.warmup_steps == 30


@pytest.mark.parametrize(
    ("command", "arguments", "message"),
    [
        (scorecard, ["rope", "--out=FILE/x"], "--out=FILE/x"),
        (scorecard, ["rope", "--lenght=3"], "did you mean --length?"),
        (posjax.cli, ["chek", "rope"], "invalid choice: 'chek'"),
        (evaluate, ["--checkpoint=FILE/x"], "FILE/x"),
        (analyse, ["--checkpoint=FILE", "--out=OUT", "--data=digits"], "FILE"),
        (prepare, ["--name=digits", "--data_dir=FILE"], "FILE/downloads: Not a directory"),
        (catalogue, ["--family=rotry"], "did you mean 'rotary'?"),
    ],
)
def test_a_mistake_in_any_command_is_one_line_and_exit_code_2(command, arguments, message, tmp_path, capsys):
    file = tmp_path / "file"
    file.write_text("in the way")
    try:
        code = command.main([each.replace("FILE", str(file)).replace("OUT", str(tmp_path)) for each in arguments])
    except SystemExit as ended:
        code = ended.code
    (line,) = capsys.readouterr().err.splitlines()
    assert (code, line[:7]) == (2, "error: ")
    assert message.replace("FILE", str(file)) in line


def test_no_command_writes_into_the_committed_results():
    """Unless it is told to."""
    told = [scorecard.OUT, benchmark.OUT]
    told += [cli.runs_of(decoder.get_config(), "configs/decoder.py"), cli.runs_of(quickstart.get_config(), "any")]
    assert all(path.parts[0] == "runs" for path in told)
    assert len(set(told)) == len(told)
