"""Training that starts from what another run, or a file, has learned."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ml_collections import ConfigDict
from small import small_vit

from posjax import pretrained
from posjax.models import ViT, resize_params
from posjax.studies.ablation import Ablation
from posjax.training.checkpoints import CheckpointError
from posjax.training.initial import initial_params
from posjax.training.loop import train
from posjax.training.runs import load_run
from posjax.training.tasks import make_task


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The workdir of two trained seeds, and where the data are."""
    workdir = tmp_path_factory.mktemp("run")
    config = small_vit(workdir / "data", steps=3, optimizer__warmup_steps=1, optimizer__learning_rate=0.1)
    train(make_task(config), config, (3, 5), workdir)
    return workdir, workdir / "data"


def seed_of(params, index):
    return jax.tree.map(lambda leaf: leaf[index], params)


def logits(task, params, image):
    site = task.model.sites(*image.shape[1:3])
    return jax.jit(lambda params, image: task.model.apply({"params": params}, image, site))(params, image)


@pytest.mark.slow
def test_the_first_logits_are_the_last_of_the_run(run):
    workdir, data_dir = run
    task, before = make_task(small_vit(data_dir)), load_run(workdir)
    found = initial_params(workdir, task, (5,))
    jax.tree.map(np.testing.assert_array_equal, seed_of(found, 0), before.of(1))
    image = jax.random.normal(jax.random.key(0), (2, 8, 8, 1))
    np.testing.assert_array_equal(logits(task, seed_of(found, 0), image), logits(before, before.of(1), image))


@pytest.mark.slow
def test_tables_are_resized_to_larger_images(run):
    workdir, data_dir = run
    task = make_task(small_vit(data_dir, data__image_size=(12, 12)))
    found = initial_params(workdir, task, (3, 5), method="google_npz")
    before = load_run(workdir)
    for index in range(2):
        _, wanted = resize_params(before.model, before.of(index), (12, 12), "google_npz")
        jax.tree.map(np.testing.assert_array_equal, seed_of(found, index), wanted)
    image = jnp.ones((1, 12, 12, 1))
    assert np.isfinite(logits(task, seed_of(found, 0), image)).all()


def test_a_run_started_so_goes_on_from_there_and_from_nowhere_else(run, tmp_path):
    workdir, data_dir = run
    config = small_vit(data_dir, steps=1, optimizer__learning_rate=1e-9, optimizer__warmup_steps=0)
    task = make_task(config)
    initial = initial_params(workdir, task, (3, 5))
    result = train(task, config, (3, 5), tmp_path, initial=initial)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), result.state.params, initial)
    swapped = jax.tree.map(lambda leaf: leaf[::-1], initial)
    with pytest.raises(CheckpointError, match="initial was"):
        train(task, config, (3, 5), tmp_path, initial=swapped)
    with pytest.raises(CheckpointError, match="initial was"):
        train(task, config, (3, 5), tmp_path)


def test_a_head_is_kept_or_made_new(run, tmp_path):
    workdir, data_dir = run
    task = make_task(small_vit(data_dir))
    kept, new = (initial_params(workdir, task, (3,), head=head) for head in ("keep", "new"))
    assert np.abs(kept["head"]["kernel"]).max() > 0
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(new["head"]))
    np.testing.assert_array_equal(kept["trunk"]["norm"]["scale"], new["trunk"]["norm"]["scale"])
    before = load_run(workdir)
    few = before.model.clone(num_classes=0)
    headless = {name: leaves for name, leaves in before.of(0).items() if name != "head"}
    pretrained.save(tmp_path / "few.safetensors", few, {"params": headless})
    found = initial_params(tmp_path / "few.safetensors", task, (7, 8))
    assert found["head"]["kernel"].shape == (2, *kept["head"]["kernel"].shape[1:])
    assert not np.any(found["head"]["kernel"])
    np.testing.assert_array_equal(found["cls"][1], before.of(0)["cls"])


def test_another_encoding_takes_over_what_fits(run):
    workdir, data_dir = run
    task = make_task(small_vit(data_dir, model__encoding="learned(resize='torch_bicubic')"))
    found = initial_params(workdir, task, (3,))
    np.testing.assert_array_equal(found["trunk"]["encoding"].rows[0], load_run(workdir).of(0)["trunk"]["encoding"].rows)
    with pytest.raises(ValueError, match="cannot take over"):
        initial_params(workdir, make_task(small_vit(data_dir, model__encoding="swin")), (3,))


def test_what_does_not_fit_is_told(run, tmp_path):
    workdir, data_dir = run
    task = make_task(small_vit(data_dir))
    with pytest.raises(ValueError, match=r"seed 4 is not among those of .*, 3, 5"):
        initial_params(workdir, task, (4,))
    with pytest.raises(ValueError, match="no init_head is named 'kep'; did you mean 'keep'"):
        initial_params(workdir, task, (3,), head="kep")
    with pytest.raises(ValueError, match="no resize is named 'bicubic'"):
        initial_params(workdir, make_task(small_vit(data_dir, data__image_size=(12, 12))), (3,), method="bicubic")
    wider = make_task(small_vit(data_dir, model__mlp_dim=12))
    with pytest.raises(ValueError, match=r"trunk/block_0/mlp/\S+ is \(.*config\.model must be as it was trained there"):
        initial_params(workdir, wider, (3,))
    with pytest.raises(FileNotFoundError):
        initial_params(tmp_path / "nothing.npz", task, (3,))


def test_one_seed_serves_all(run, tmp_path):
    """A run of one seed, as experiments.train makes them, starts any seed."""
    _, data_dir = run
    config = small_vit(data_dir, steps=1, optimizer__warmup_steps=0)
    train(make_task(config), config, (9,), tmp_path)
    found = initial_params(tmp_path, make_task(config), (0, 1))
    jax.tree.map(lambda leaf: np.testing.assert_array_equal(leaf[0], leaf[1]), found)
    assert isinstance(make_task(config).model, ViT)


def test_an_ablation_does_not_pass_over_it():
    """It would train every row from there, or none: it says that it does not."""
    study = {"encodings": {"none": "none"}, "init_from": "runs/vit", "model": {"encoding": "none"}}
    config = ConfigDict({"seeds": (0,), "studies": {"digits": study}})
    with pytest.raises(ValueError, match="row 'none' of 'digits' sets init_from"):
        Ablation(config).rows()


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        ({"model__mlp": "gelu_exact"}, "mlp is 'gelu' in .*set config.model.mlp=gelu"),
        ({"data__mean": (0.4,)}, r"std \(0.5,\) in .*set config.data.mean=\(0.5,\) and"),
        ({"model__injection": "every_layer_shared"}, "injection is 'stem' in .*set config.model.injection=stem"),
        ({"model__norm_epsilon": 1e-5}, "norm_epsilon is 1e-06 in .*set config.model.norm_epsilon=1e-06"),
    ],
)
def test_what_no_shape_tells_is_compared(run, overrides, told):
    workdir, data_dir = run
    with pytest.raises(ValueError, match=told):
        initial_params(workdir, make_task(small_vit(data_dir, **overrides)), (3,))
