"""Images of one size and of their own sizes, ViTs and ResNets, through the real task."""

import json

import jax
import numpy as np
import pytest
from drawn import drawn
from ml_collections import ConfigDict
from PIL import Image
from small import small_vit

from posjax.models import ResNet
from posjax.models.kinds import make_model
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


@pytest.mark.slow
def test_every_picture_is_scored_once_however_rows_are_made(pictures):
    padded, packed = (make_task(native(pictures, data__tokens=tokens)) for tokens in (None, 24))
    params = drawn(padded.init, jax.random.key(0), spread=0.5)
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


def test_training_images_are_augmented_on_the_host(data_dir):
    plain, changed = (
        make_task(small_vit(data_dir, data__augment=f"repeat(2){more}")).batches(0)[0]
        for more in ("", " + randaug(2, 10)")
    )
    np.testing.assert_array_equal(plain["label"], changed["label"])
    np.testing.assert_array_equal(plain["image"][:8], plain["image"][8:])
    assert (changed["image"] != plain["image"]).any(axis=(1, 2, 3)).sum() > 8


def test_streamed_images_are_those_in_memory(pictures):
    given = dict(data__name="folder", data__image_size=(8, 8), data__fraction=0.5, batch_size=4, eval_batch_size=4)
    held, streamed = (
        make_task(small_vit(pictures, **given, data__stream=stream, data__workers=2)) for stream in (False, True)
    )
    assert (held.workers, streamed.workers) == (0, 2)
    for step in range(4):
        jax.tree.map(np.testing.assert_array_equal, held.batches(1)[step], streamed.batches(1)[step])
    (batch, *_), other = held.evaluation()[None], make_task(small_vit(pictures, **given, data__stream=True))
    jax.tree.map(np.testing.assert_array_equal, batch, next(other.evaluation()[None]))
    middles = [
        next(make_task(small_vit(pictures, **given, data__stream=stream, data__crop_fraction=0.75)).evaluation()[None])
        for stream in (False, True)
    ]
    jax.tree.map(np.testing.assert_array_equal, *middles)
    assert (middles[0]["image"] != batch["image"]).any()
    key = jax.random.key(0)
    assert jax.eval_shape(held.init, key) == jax.eval_shape(streamed.init, key)
    for wrong, message in (
        ({"data__image_size": None}, "data.stream=True needs data.image_size"),
        ({"data__mode": "native"}, "data.stream=True is for images of one size"),
        ({"data__workers": -1}, "data.workers=-1 must not be negative"),
        ({"data__crop_fraction": 1.5}, "crop_fraction=1.5 must lie in"),
    ):
        with pytest.raises(ValueError, match=message):
            make_task(small_vit(pictures, **given | {"data__stream": True} | wrong))


def test_a_resnet_needs_no_sites_and_a_variant_gives_the_sizes(data_dir):
    task = make_task(small_vit(data_dir, model__kind="resnet", model__resnet=(1,), model__resnet_width=8))
    assert isinstance(task.model, ResNet)
    batch = task.batches(0)[0]
    loss = jax.eval_shape(lambda key: task.loss(task.init(key), batch, key), jax.random.key(0))
    assert [leaf.shape for leaf in loss] == [(), ()]
    model = make_task(small_vit(data_dir, model__variant="Ti/4")).model
    assert (model.block.width, model.depth, model.block.num_heads, model.patch_size) == (192, 12, 3, 4)


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


def test_what_does_not_fit_is_refused(data_dir, pictures):
    for overrides, message in (
        ({"data__mode": "nativ"}, r"data\.mode"),
        ({"model__kind": "resnt"}, "resnt"),
        ({"data__tokens": 64}, r"data\.tokens=64"),
        ({"data__name": "folder"}, r"data\.image_size"),
        ({"data__image_size": (16,)}, r"data\.image_size"),
    ):
        with pytest.raises(ValueError, match=message):
            make_task(small_vit(data_dir, **overrides))
    for overrides, message in (
        ({"model__kind": "resnet"}, "ResNet"),
        ({"data__augment": "flip + mixup(0.2)"}, r"data\.augment='flip \+ mixup"),
        ({"model__encoding": "learned"}, "learned has rows for positions below 3x3"),
    ):
        with pytest.raises(ValueError, match=message):
            make_task(native(pictures, **overrides))
