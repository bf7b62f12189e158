"""Training that starts from what another run, or a file, has learned."""

import jax
import numpy as np
import pytest
from drawn import drawn
from ml_collections import ConfigDict
from small import small_decoder, small_vit, write_trained

from experiments.cli import load
from experiments.studies.engine import plan
from experiments.studies.plan import rows_of
from experiments.studies.weights import row_hash
from posjax import pretrained
from posjax.models import ViT, resize_params
from posjax.models.kinds import make_model
from posjax.pretrained.parameters import is_encoding, paths_of
from posjax.training.checkpoints import CheckpointError
from posjax.training.initial import Start, as_started, class_means, fields_of, initial_params, of_own, options_of
from posjax.training.loop import train
from posjax.training.tasks import make_task


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Two seeds of a ViT with a learned table, and where the data are."""
    workdir = tmp_path_factory.mktemp("run")
    write_trained(small_vit(workdir / "data"), (3, 5), workdir)
    return Start(workdir), workdir / "data"


def seed_of(params, index):
    return jax.tree.map(lambda leaf: leaf[index], params)


def same(params, others):
    """Leaves in their order: encodings without parameters are trees of different forms."""
    for leaf, other in zip(jax.tree.leaves(params), jax.tree.leaves(others), strict=True):
        np.testing.assert_array_equal(leaf, other)


@pytest.mark.slow
def test_each_seed_starts_its_namesake_and_an_only_seed_starts_all(run, tmp_path):
    start, data_dir = run
    task, before = make_task(small_vit(data_dir)), start.run
    same(seed_of(initial_params(start, task, (5,)), 0), before.of(1))
    with pytest.raises(ValueError, match="seed 4"):
        initial_params(start, task, (4,))
    with pytest.raises(ValueError, match="init_head"):
        initial_params(start, task, (3,), head="kep")
    write_trained(small_vit(data_dir), (9,), tmp_path)
    both = initial_params(tmp_path, task, (0, 1))
    same(seed_of(both, 0), seed_of(both, 1))


@pytest.mark.slow
def test_tables_are_resized_to_larger_images(run):
    start, data_dir = run
    task, before = make_task(small_vit(data_dir, data__image_size=(12, 12))), start.run
    initial = initial_params(start, task, (3, 5), method="google_npz")
    for index in range(2):
        same(seed_of(initial, index), resize_params(before.model, before.of(index), (12, 12), "google_npz")[1])


@pytest.mark.slow
def test_a_run_started_so_goes_on_from_there_and_from_nowhere_else(run, tmp_path):
    start, data_dir = run
    config = small_vit(data_dir, steps=1, optimizer__learning_rate=1e-9, optimizer__warmup_steps=0)
    task = make_task(config)
    initial = initial_params(start, task, (3, 5))
    result = train(task, config, (3, 5), tmp_path, initial=initial)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), result.state.params, initial)
    for other in (jax.tree.map(lambda leaf: leaf[::-1], initial), None):
        with pytest.raises(CheckpointError, match="initial was"):
            train(task, config, (3, 5), tmp_path, initial=other)


def test_a_head_is_kept_or_made_new(run, tmp_path):
    start, data_dir = run
    task, before = make_task(small_vit(data_dir)), start.run
    new = initial_params(start, task, (3,), head="new")
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(new["head"]))
    same(seed_of(new["trunk"], 0), before.of(0)["trunk"])
    headless = {name: leaves for name, leaves in before.of(0).items() if name != "head"}
    pretrained.save(tmp_path / "few.safetensors", before.model.clone(num_classes=0), {"params": headless})
    initial = initial_params(tmp_path / "few.safetensors", task, (7, 8))
    assert initial["head"]["kernel"].shape == (2, 8, 10)
    assert not np.any(initial["head"]["kernel"])
    np.testing.assert_array_equal(initial["cls"][1], before.of(0)["cls"])


def test_a_head_of_class_means_takes_the_class_with_the_nearest_mean(run):
    start, data_dir = run
    task = make_task(small_vit(data_dir, eval_batch_size=300))
    params = seed_of(initial_params(start, task, (5,), head="means"), 0)
    body = {name: leaf for name, leaf in params.items() if name != "head"}

    def features(image):
        apply = jax.jit(task.model.clone(num_classes=0).apply)
        return np.asarray(apply({"params": body}, image / np.float32(127.5) - 1, task.site), np.float64)

    seen = features(task.train_data.image)
    means = np.stack([seen[task.train_data.label == label].mean(axis=0) for label in range(10)])
    shown = features(task.eval_data.image)
    nearest = ((shown[:, None] - means) ** 2).sum(axis=-1).argmin(axis=1)
    logits = shown @ params["head"]["kernel"] + params["head"]["bias"]
    assert (logits.argmax(axis=1) == nearest).mean() > 0.99  # but for ties in float32
    assert (nearest == task.eval_data.label).mean() > 0.2
    with pytest.raises(ValueError, match="init_head='means' is for"):
        class_means(make_task(small_vit(data_dir, model__pre_logits=8)), params)


@pytest.mark.slow
def test_another_encoding_takes_over_what_fits_or_starts_anew(run):
    start, data_dir = run
    before = start.run.of(0)
    task = make_task(small_vit(data_dir, model__encoding="learned(resize='torch_bicubic')"))
    rows = initial_params(start, task, (3,))["trunk"]["encoding"].rows[0]
    np.testing.assert_array_equal(rows, before["trunk"]["encoding"].rows)
    task = make_task(small_vit(data_dir, model__encoding="axial_rope"))
    with pytest.raises(ValueError, match=r"axial_rope.*config\.init_encoding=new"):
        initial_params(start, task, (3,))
    anew = seed_of(initial_params(start, task, (3,), encoding="new"), 0)
    del before["trunk"]["encoding"]
    same(anew, before)
    task = make_task(small_vit(data_dir, model__encoding="learned(stddev=2)"))
    anew = initial_params(start, task, (3, 5), encoding="new")["trunk"]["encoding"].rows
    start = jax.jit(lambda seed: task.init(jax.random.split(jax.random.key(seed))[0])["trunk"]["encoding"].rows)
    np.testing.assert_array_equal(anew, np.stack([start(seed) for seed in (3, 5)]))  # as training from that seed would


@pytest.mark.slow
def test_a_study_starts_its_rows_from_it(run):
    """Each is the model of the start under an encoding of its own, and another start is another row."""
    start, data_dir = run
    table = load("configs/finetune.py:vit")
    table.init_from, table.data.data_dir, table.init_encoding = str(start.path), str(data_dir), "keep_or_new"
    planned = {row.label: row for row in plan(table, encodings=["axial_rope", "{own} + axial_rope", "{own}"]).rows}
    specs = {label: row.training.model.encoding for label, row in planned.items()}
    assert specs == {"axial_rope": "axial_rope", "{own} + axial_rope": "learned() + axial_rope", "{own}": "learned()"}
    own, (before, _) = planned["{own}"], (start.run.of(index) for index in range(2))
    assert own.training.model.width == 8
    for label, kept in (("{own} + axial_rope", True), ("axial_rope", False)):
        row = planned[label]
        initial = initial_params(row.start, make_task(row.training), (3, 5), **options_of(row.training))
        rows = [leaf for name, leaf in paths_of(initial).items() if is_encoding(name)]
        assert [leaf.shape for leaf in rows] == [(2, *before["trunk"]["encoding"].rows.shape)] * kept
        np.testing.assert_array_equal(seed_of(initial, 0)["cls"], before["cls"])
    assert row_hash(own.training) == row_hash(rows_of(own.study, plan(table).tables[own.study])[0].training)
    assert row_hash(own.training) != row_hash(ConfigDict(own.training.to_dict() | {"init_digest": "0"}))


def test_what_no_shape_tells_is_compared(run):
    start, data_dir = run
    for overrides, field in (({"model__mlp": "gelu_exact"}, "model.mlp"), ({"data__mean": (0.4,)}, "data.mean")):
        with pytest.raises(ValueError, match=f"set config.{field}="):
            initial_params(start, make_task(small_vit(data_dir, **overrides)), (3,))


@pytest.fixture(scope="module")
def text_run(tmp_path_factory):
    """The workdir of a decoder, and its config."""
    workdir = tmp_path_factory.mktemp("text")
    sizes = dict(model__mlp="swiglu", model__depth=2, optimizer__warmup_steps=0, steps=1)
    config = small_decoder(workdir / "data", eval_lengths=(16,), eval_tokens=129, **sizes)
    write_trained(config, (3,), workdir)
    return workdir, config


def tuned(text_run, **given):
    """The config of a fine-tune that takes its model from the run."""
    workdir, config = text_run
    made = ConfigDict(config.to_dict())
    made.model = ConfigDict(dict.fromkeys(made.model) | {"kind": "init_from"} | given)
    made.init_from = str(workdir)
    return made


@pytest.mark.slow
def test_a_decoder_goes_on_as_the_model_that_learned(text_run, run):
    workdir, config = text_run
    start = Start(workdir)
    made = as_started(tuned(text_run, encoding="{own} + window(8)"), start)
    assert (made.model.norm, made.model.mlp, made.model.depth) == ("layer", "swiglu", 2)
    assert (made.model.encoding, made.data.tokenizer) == ("rope() + window(8)", "bytes")
    same(seed_of(initial_params(start, make_task(made), (0, 1)), 1), start.run.of(0))
    assert make_model(fields_of(start.model), "text") == start.model.clone(encoding="rope()")
    assert as_started(config, start) is config
    for other, message in ((None, "config.init_from"), (run[0], "--config=configs/finetune.py:vit")):
        with pytest.raises(ValueError, match=message):
            as_started(tuned(text_run), other)


_COLOURS = dict(mean=(0.5, 0.4, 0.3), std=(0.2, 0.3, 0.4))


@pytest.fixture(scope="module")
def vit_file(tmp_path_factory):
    """A ViT as it is published: of larger images in colour, of other classes, and with parts of its own."""
    sizes = dict(width=12, depth=2, num_heads=3, mlp_dim=20, mlp="gelu_exact", layer_scale=1e-5, num_registers=1)
    model = ViT.from_config(sizes, num_classes=3, image_size=(12, 12), patch_size=4)
    params = drawn(model.init, jax.random.key(0), *model.example(3))
    path = tmp_path_factory.mktemp("weights") / "vit.safetensors"
    pretrained.save(path, model, params, **_COLOURS)
    return path, model, params["params"]


def finetune_of(path, **data):
    made = load("configs/finetune.py:vit")
    made.init_from = str(path)
    made.data.update(data)
    return made


@pytest.mark.slow
def test_a_vit_of_a_file_is_fine_tuned_by_naming_the_file(vit_file):
    """Sizes, channels, mean, deviation and the size of images are the file's; parameters, but for the head, too."""
    path, model, params = vit_file
    start = Start(path)
    made = as_started(finetune_of(path), start)
    assert (made.data.image_size, made.data.channels) == ((12, 12), 3)
    assert (made.data.mean, made.data.std) == tuple(_COLOURS.values())
    task = make_task(made)
    assert fields_of(task.model) == fields_of(model.clone(num_classes=10))
    initial = seed_of(initial_params(start, task, (0,)), 0)
    assert not np.any(initial.pop("head")["kernel"])
    same(initial, {name: leaf for name, leaf in params.items() if name != "head"})
    larger = as_started(finetune_of(path, image_size=(20, 16), mean=(0.1,), std=(0.2,)), start)
    assert (larger.data.image_size, larger.data.mean) == ((20, 16), (0.1,))
    _, resized = resize_params(model, params, (20, 16), pretrained.info(path).method)
    rows = seed_of(initial_params(start, make_task(larger), (0,)), 0)["trunk"]["encoding"].rows
    np.testing.assert_array_equal(rows, resized["trunk"]["encoding"].rows)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("spec", "parts"),
    [
        ("learned + axial_rope", {"num_registers": 1, "distillation_token": True}),
        ("swin, none", {"norm_after_pooling": True, "pooling": "mean", "pre_logits": 4}),
    ],
)
def test_a_file_without_a_head_takes_any_encoding(data_dir, tmp_path, spec, parts):
    """Both the head and the encoding are made, and all else is the file's."""
    model = ViT.from_config(parts, num_classes=0, image_size=(8, 8), width=8, num_heads=2, depth=2)
    params = drawn(model.init, jax.random.key(0), *model.example(1))
    pretrained.save(tmp_path / "vit.safetensors", model, params, mean=(0.5,), std=(0.5,))
    config = finetune_of(tmp_path / "vit.safetensors", data_dir=str(data_dir))
    config.model.encoding = spec
    start = Start(config.init_from)
    task = make_task(as_started(config, start))
    initial = paths_of(seed_of(initial_params(start, task, (0,), encoding="new"), 0))
    assert initial.keys() == paths_of(jax.eval_shape(lambda: task.init(jax.random.key(0)))).keys()
    for name, leaf in paths_of(params).items():
        assert is_encoding(name) or np.array_equal(initial[name], leaf), name
    assert not np.any(initial["head/kernel"])


def test_all_that_differs_from_a_file_is_told_at_once(vit_file):
    path = vit_file[0]
    config = load("configs/vit.py")
    config.model.depth, config.data.image_size, config.model.patch_size = 1, (12, 12), 4
    sizes = {"width": "12", "depth": "2", "num_heads": "3", "mlp_dim": "20"}
    parts = {"mlp": "gelu_exact", "layer_scale": "1e-05", "num_registers": "1"}
    wanted = {f"model.{name}": value for name, value in (sizes | parts).items()} | {"data.channels": "3"}
    with pytest.raises(ValueError, match=r"--config=configs/finetune.py:vit") as raised:
        initial_params(path, make_task(config), (0,))
    mend = str(raised.value).split(": set ")[1].split(", or take")[0]
    assert dict(each.removeprefix("config.").split("=") for each in mend.split()) == wanted
    for name, value in wanted.items():
        target, _, field = name.partition(".")
        config[target][field] = int(value) if value.isdecimal() else value if field == "mlp" else float(value)
    initial_params(path, make_task(config), (0,))  # what the message says is enough


def test_a_spec_may_name_what_is_there():
    for spec, own, want in (
        ("alibi", "rope(), none()", "alibi"),
        ("{own}, {own}, none", "rope(base=5)", "rope(base=5), rope(base=5), none"),
        ("rerope(window=4) >> {own}", "rope(), none()", "rerope(window=4) >> rope(), rerope(window=4) >> none()"),
    ):
        assert of_own(spec, own) == want
    with pytest.raises(ValueError, match=r"pattern over layers, and so is \{own\}"):
        of_own("{own}, none", "rope, alibi")


def test_bytes_are_not_taken_for_the_tokens_of_a_folder(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    start = Start(tmp_path)
    with pytest.raises(ValueError, match=r"config\.data\.tokenizer"):
        _ = start.tokenizer
    (tmp_path / "tokenizer.json").write_text("{}")
    assert start.tokenizer == str(tmp_path / "tokenizer.json")
