"""Images of one size and of their own sizes, ViTs and ResNets, through the real task."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ml_collections import ConfigDict
from PIL import Image
from small import small_vit
from test_tasks import perturbed

from posjax.models import ResNet
from posjax.models.kinds import make_model
from posjax.training.loop import train
from posjax.training.tasks import make_task


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """A folder of pictures of all sizes: the class is which half is bright."""
    root, rng = tmp_path_factory.mktemp("pictures"), np.random.default_rng(0)
    for split, count in (("train", 12), ("test", 5)):
        for label, name in enumerate(("left", "right")):
            (root / split / name).mkdir(parents=True)
            for i in range(count):
                h, w = rng.integers(6, 21, 2)
                picture = rng.integers(0, 60, (h, w, 3), np.uint8)
                half = slice(0, w // 2) if label == 0 else slice(w // 2, None)
                picture[:, half] += 150
                Image.fromarray(picture).save(root / split / name / f"{i}.png")
    return root


def native(pictures, **overrides):
    sizes = dict(data__name="folder", data__mode="native", data__max_patches=9, batch_size=6, eval_batch_size=4)
    sizes["model__encoding"] = "rope(base=100)"  # needs no table
    return small_vit(pictures, **sizes | overrides)


@pytest.mark.parametrize(
    "overrides",
    [
        pytest.param({"data__tokens": 24, "model__pooling": "cls"}, marks=pytest.mark.thorough),
        pytest.param({}, marks=pytest.mark.thorough),
        pytest.param({"data__min_patches": 4}, marks=pytest.mark.slow),
    ],
)
def test_pictures_of_any_size_are_learned_in_their_own_aspect(pictures, tmp_path, overrides):
    config = native(pictures, optimizer__learning_rate=1e-2, steps=40, **overrides)
    task = make_task(config)
    result = train(task, config, (0, 1), tmp_path)
    assert result.metrics["accuracy"].min() >= 0.8


def test_every_picture_is_scored_once_however_rows_are_made(pictures):
    padded, packed = (make_task(native(pictures, data__tokens=tokens)) for tokens in (None, 24))
    params = perturbed(padded)
    sums = []
    for task in (padded, packed):
        score = jax.jit(task.score)
        totals = [score(params, batch) for batch in task.evaluation()[None]]
        sums.append({name: float(sum(total[name] for total in totals)) for name in totals[0]})
    assert sums[0]["weight"] == sums[1]["weight"] == 10
    assert sums[0]["loss"] == pytest.approx(sums[1]["loss"], rel=1e-4)


def test_images_become_the_size_that_is_asked_for(data_dir, pictures):
    task = make_task(small_vit(data_dir, data__image_size=(12, 16)))
    assert task.batches(0)[0]["image"].shape[1:3] == (12, 16)
    assert task.site.segment.shape == (1 + 3 * 4,)
    task = make_task(small_vit(pictures, data__name="folder", data__image_size=(8, 8), batch_size=4, eval_batch_size=4))
    assert task.batches(0)[0]["image"].shape == (4, 8, 8, 3)


def test_mean_and_std_are_those_that_are_asked_for(data_dir):
    plain, other = (
        make_task(small_vit(data_dir, **{"data__mean": m, "data__std": s}))
        for m, s in [((0.5,),) * 2, ((0.1,), (0.3,))]
    )
    image = jnp.asarray([[0.0, 255.0]]) / 127.5 - 1
    np.testing.assert_allclose(plain.standardised(image), [[-1, 1]], atol=1e-6)
    np.testing.assert_allclose(other.standardised(image), [[-1 / 3, 3.0]], atol=1e-6)


def test_a_resnet_needs_no_sites(data_dir):
    task = make_task(small_vit(data_dir, model__kind="resnet", model__resnet=(1,), model__resnet_width=8))
    assert isinstance(task.model, ResNet)
    params, batch = perturbed(task), task.batches(0)[0]
    loss, weight = jax.jit(task.loss)(params, batch, jax.random.key(0))
    scored = jax.jit(task.score)(params, batch | {"weight": np.ones(16, np.float32)})
    assert weight == scored["weight"] == 16
    assert loss == pytest.approx(float(scored["loss"]), rel=1e-4)


def test_a_variant_gives_the_sizes(data_dir, pictures):
    model = make_task(small_vit(data_dir, model__variant="Ti/4")).model
    assert (model.block.width, model.depth, model.block.num_heads, model.patch_size) == (192, 12, 3, 4)
    model = make_task(native(pictures, model__variant="Ti/2")).model
    assert model.patches(*model.image_size) == (3, 3)


def test_a_model_of_a_config_that_was_read_back_is_the_same():
    """JSON has lists for tuples, and lists have no hash, which compiling asks for."""
    config = ConfigDict({"model": {"kind": "vit", "variant": None, "patch_size": 1, "width": 8, "depth": 1}})
    config.model.update(num_heads=1, resnet=(1,))
    read = ConfigDict(json.loads(json.dumps(config.to_dict())))
    one, other = (make_model(dict(each.model), "images", num_classes=10) for each in (config, read))
    assert hash(one) == hash(other)


def test_a_share_of_the_training_images_only(data_dir):
    whole, some = (make_task(small_vit(data_dir, data__fraction=f)) for f in (1.0, 0.1))
    assert whole.digest != some.digest
    assert len(some.train_data) < 0.11 * len(whole.train_data)
    assert len(some.eval_data) == len(whole.eval_data)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"data__mode": "nativ"}, r"no data.mode is named 'nativ'; did you mean 'native'\?"),
        ({"model__kind": "resnt"}, r"no model of images is named 'resnt'; did you mean 'resnet'\?"),
        ({"data__tokens": 64}, r"data.tokens=64 is for images of native aspect: set data.mode='native' too"),
        ({"data__fraction": 2.0}, r"fraction=2.0 of a set must lie in"),
        ({"model__variant": "Ty/4"}, r"no ViT is named 'Ty/4'"),
        ({"data__mode": "pad"}, r"data.name='digits' with data.mode='pad' needs data.image_size"),
        ({"data__name": "folder"}, r"data.name='folder' with data.mode='crop' needs data.image_size"),
        ({"data__image_size": (16,)}, r"data.image_size=\(16,\) must be \(height, width\)"),
        ({"data__mean": (0.1, 0.2, 0.3)}, r"mean=\[0.1, 0.2, 0.3\] is not one for all or for each of 1 channels"),
        ({"data__std": (0.0,)}, r"std=\[0.0\] must be positive"),
    ],
)
def test_mistakes_are_told(data_dir, overrides, message):
    with pytest.raises(ValueError, match=message):
        make_task(small_vit(data_dir, **overrides))


def test_what_native_aspects_cannot_have(pictures):
    for model in ({"model__kind": "resnet"}, {"model__resnet": (1,), "model__patch_size": 1}):
        with pytest.raises(ValueError, match="a ResNet, also as a stem, sees images of one size"):
            make_task(native(pictures, **model))
    with pytest.raises(ValueError, match=r"data\.least_area are for images of one size"):
        make_task(native(pictures, data__mixup=0.2))
    with pytest.raises(ValueError, match="learned has rows for positions below 3x3"):
        make_task(native(pictures, model__encoding="learned"))
