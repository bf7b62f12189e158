"""Recipes are read as specs are, and their operations do what torchvision's, timm's and big_vision's do."""

import pathlib
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from posjax import data
from posjax.data.host_augment import RANDAUG, TIMM_RANDAUG
from posjax.training.classification import LOSSES

GOLDENS = pathlib.Path(__file__).parents[1] / "goldens"


def arrays(name):
    with np.load(GOLDENS / f"{name}.npz", allow_pickle=False) as file:
        return dict(file)


@pytest.fixture(scope="module")
def golden():
    return arrays("augment")


class Scripted:
    """A generator whose draws are given: by method, in their order; those of `uniform` as shares of its range."""

    def __init__(self, **draws):
        self._draws = {name: iter(values) for name, values in draws.items()}

    def is_used_up(self):
        return not any([*values] for values in self._draws.values())

    def uniform(self, low, high):
        return low + next(self._draws["uniform"]) * (high - low)

    def __getattr__(self, name):
        return lambda *arguments, **options: next(self._draws[name])


def operation(text):
    (found,) = data.parse_augment(text).operations
    return found


def differ(one, other):
    return int(np.abs(one.astype(int) - other.astype(int)).max())


def test_a_recipe_is_read_in_its_order():
    recipe = data.parse_augment(
        "repeat(3) + inception_crop(32) + flip + randaug(2, 10) + shift(2) + mixup(0.2) + cutmix(1)"
    )
    assert recipe.repeats == 3
    assert [str(each) for each in recipe.host] == ["inception_crop(size=32)", "flip()", "randaug(n=2, m=10)"]
    assert [str(each) for each in recipe.device] == ["shift(padding=2)"]
    assert [str(each) for each in recipe.mix] == ["mixup(alpha=0.2)", "cutmix(alpha=1)"]
    assert data.parse_augment(str(recipe)) == recipe == pickle.loads(pickle.dumps(recipe))  # as workers are given it
    other = data.parse_augment("color_jitter(0.3) + inception_crop + flip")
    assert other.repeats == 1
    assert [str(each) for each in other.device] == ["flip()"]  # nothing of the host comes after it
    assert data.parse_augment(None).operations == ()
    assert recipe.sized(32, 32) == recipe
    assert other.sized(8, 6).host[1].size == (8, 6)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "inception_corp(224)",
            r"no augmentation is named 'inception_corp'; did you mean 'inception_crop'\? known: color_",
        ),
        ("cutmix(0)", r"cutmix\(alpha=\.\.\.\) must be positive, got 0"),
        ("randaug(2, 11)", r"randaug\(m=\.\.\.\) must be at most 10, got 11"),
        ("shift(2, 'edge')", "shift\\(fill='edge'\\) must be one of 'black', 'reflect'"),
        ("inception_crop(8, ratio=(2, 1))", r"inception_crop\(ratio=\(2\.0, 1\.0\)\) must be two positive bounds"),
        ("inception_crop((0, 3))", r"inception_crop\(size=\(0, 3\)\) must be at least 1 pixel"),
        (
            "shift(2) + randaug(2, 10)",
            r"randaug cannot follow shift in .*: the order is repeat, operations on the host, on",
        ),
        ("flip + flip", "flip stands twice in the augmentation 'flip \\+ flip'"),
        ("flip >> mixup(0.2)", r"an augmentation spec is made of name\(argument=value\) and \+"),
    ],
)
def test_a_wrong_recipe_is_refused_in_one_line(text, message):
    with pytest.raises(ValueError, match=message):
        data.parse_augment(text)


def test_crops_are_torchvisions(golden):
    """The same draws give the same box and the same pixels; the last one fits nowhere, and the centre is cut out."""
    for number in range(4):
        drawn, places, box, pixels = (golden[f"crop{number}_{name}"] for name in ("draws", "places", "box", "pixels"))
        crop = operation(f"inception_crop((24, 20), resample={'bicubic' if number % 2 else 'bilinear'!r})")
        low, high = np.array([[0.08, -np.log(4 / 3)], [1, np.log(4 / 3)]])  # of areas and logarithms of aspects
        shares = (drawn.reshape(-1, 2) - low) / (high - low)
        script = dict(uniform=shares.ravel().tolist(), integers=places.tolist())
        rng = Scripted(**script)
        assert crop.box(40, 56, rng) == tuple(box)
        assert rng.is_used_up()
        np.testing.assert_array_equal(crop(golden["picture"], Scripted(**script)), pixels)


def test_draws_of_crops_have_torchvisions_law(golden):
    crop, rng = operation("inception_crop(224)"), np.random.default_rng(0)
    top, left, h, w = np.array([crop.box(375, 500, rng) for _ in range(4000)]).T
    assert ((top + h <= 375) & (left + w <= 500)).all()
    for name, value in (("area", h * w / (375 * 500)), ("aspect", w / h), ("top", top / 375)):
        below = (value[:, None] <= golden[f"crop_{name}"]).mean(axis=0)
        np.testing.assert_allclose(below, golden["quantiles"], atol=0.03, err_msg=name)


def test_colours_are_torchvisions_and_timms(golden):
    picture = golden["picture"]
    for number in range(2):
        shares = (golden[f"jitter{number}_factors"] - 0.6) / 0.8
        script = dict(permutation=[golden[f"jitter{number}_order"]], uniform=shares.tolist())
        jittered = operation("color_jitter(0.4)")(picture, Scripted(**script))
        np.testing.assert_array_equal(jittered, golden[f"jitter{number}_pixels"])
    for number, name in enumerate(("grey", "solarize", "blur")):
        one = operation("three_augment")(picture, Scripted(integers=[number], uniform=[1.15 / 1.9]))
        np.testing.assert_array_equal(one, golden[f"three_{name}"], err_msg=name)


@pytest.mark.parametrize("name", RANDAUG)
def test_randaug_is_big_visions(golden, name):
    """Grey levels differ by one of 255 at most: TensorFlow rounds otherwise. Contrast is timm's, see RandAugment."""
    theirs = arrays("randaug")
    if name == "contrast":
        theirs = {"contrast_0": golden["rand_contrast"]}
    keys = [key for key in theirs if key.rpartition("_")[0] == name]
    assert keys
    for key in keys:
        sign = int(key.rpartition("_")[2])
        script = dict(random=[0.0 if sign > 0 else 0.9], integers=[[[*RANDAUG].index(name)], 40 // 3, 56 // 3])
        ours = operation("randaug(1, 6.9)")(golden["picture"], Scripted(**script))
        assert differ(ours, theirs[key]) <= 1, key
        if f"rand_{name.replace('_', '')}" in golden:
            np.testing.assert_array_equal(ours, golden[f"rand_{name.replace('_', '')}"])


def test_randaug_of_timm_is_timms(golden):
    """Also: magnitudes are normal and cut to 0 to 10, and half of the draws do nothing."""
    picture = golden["picture"][4:20, 8:24]
    short = lambda name: name.lower().removesuffix("increasing").removesuffix("rel")  # noqa: E731
    keys = {key: key.split("_")[1:] for key in golden if key.startswith("timm_")}
    assert {short(name) for name, _ in keys.values()} == {name.replace("_", "") for name in TIMM_RANDAUG}
    for key, (name, sign) in keys.items():
        number = [each.replace("_", "") for each in TIMM_RANDAUG].index(short(name))
        draws = dict(integers=[[number]], random=[0.1, 0.9 if sign == "-1" else 0.1])
        ours = operation("timm_randaug(1, 6.9)")(picture, Scripted(**draws, normal=[6.9]))
        np.testing.assert_array_equal(ours, golden[key], err_msg=key)
    solarize, posterize = map([*TIMM_RANDAUG].index, ("solarize", "posterize"))
    for random, normal, wanted in (
        ((0.1, 0.6), 10.0, 255 - picture),
        ((0.6, 0.1), -3.0, picture & 0xF0),
        ((0.6, 0.1), 12.0, picture & 0x80),
        ((0.6, 0.6), 9.0, picture),
    ):
        draws = dict(integers=[[solarize, posterize]], random=random, normal=[normal])
        ours = operation("timm_randaug")(picture, Scripted(**draws))
        np.testing.assert_array_equal(ours, wanted)


def test_randaug_draws_all_and_takes_grey_pictures(golden):
    picture = golden["picture"][..., :1]
    rng = np.random.default_rng(0)
    shapes = {
        each(picture, rng).shape
        for each in map(operation, ("randaug(2, 10)", "timm_randaug", "three_augment", "color_jitter(0.3)"))
        for _ in range(30)
    }
    assert shapes == {picture.shape}
    least = operation("randaug(1, 0)")
    changed = [differ(least(golden["picture"], rng), golden["picture"]) > 0 for _ in range(100)]
    assert 30 < sum(changed) < 90  # at m=0 moves, cutout and solarize_add do nothing


def test_boxes_of_cutmix_are_timms(golden, monkeypatch):
    images = jnp.zeros((3, 24, 32, 1)).at[2].set(1.0)  # the predecessor of the first is the last
    for (part, row, column), (top, bottom, left, right) in zip(
        golden["cutmix_draws"], golden["cutmix_boxes"], strict=True
    ):
        monkeypatch.setattr(jax.random, "beta", lambda *arguments, part=part, **options: jnp.float32(part))
        monkeypatch.setattr(jax.random, "randint", lambda *_, at=(row, column): jnp.array(at, jnp.int32))
        mixed, labels = operation("cutmix(1)")(jax.random.key(0), images, jnp.eye(3))
        expected = np.zeros((24, 32))
        expected[top:bottom, left:right] = 1
        np.testing.assert_array_equal(mixed[0, ..., 0], expected)
        np.testing.assert_allclose(labels[0], [1 - expected.mean(), 0, expected.mean()], atol=1e-6)


def test_shares_of_cutmix_have_timms_law_and_half_of_the_examples_take_mixup(golden):
    own = np.arange(6000) % 2
    images, labels = jnp.zeros((6000, 32, 32, 1)).at[1::2].set(1.0), jax.nn.one_hot(own, 2)
    both = data.parse_augment("mixup(1) + cutmix(1)").mix
    mixed, soft = (np.asarray(x) for x in jax.jit(data.mix, static_argnums=3)(jax.random.key(0), images, labels, both))
    np.testing.assert_allclose(
        soft[:, 1], mixed.mean(axis=(1, 2, 3)), atol=1e-5
    )  # labels have the shares of the pixels
    pasted = ((mixed == 0) | (mixed == 1)).all(axis=(1, 2, 3))
    assert 0.47 < pasted.mean() < 0.53
    share = 1 - (soft * labels).sum(axis=-1)[pasted]
    np.testing.assert_allclose((share[:, None] <= golden["cutmix_share"]).mean(axis=0), golden["quantiles"], atol=0.03)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_binary_cross_entropy_is_timms(golden, smoothing):
    labels, part = jax.nn.one_hot(golden["labels"], 5), golden["part"][:, None]
    smooth = optax.smooth_labels(labels, smoothing)
    targets = part * smooth + (1 - part) * smooth[::-1]
    np.testing.assert_allclose(targets, golden[f"targets_{smoothing}"], atol=1e-6)
    np.testing.assert_allclose(LOSSES["bce"](golden["logits"], targets).mean(), golden[f"bce_{smoothing}"], rtol=1e-5)


IMAGES = data.Images(
    "toy", np.random.default_rng(0).integers(0, 256, (10, 8, 8, 3), np.uint8), np.arange(10, dtype=np.int32), 10, ""
)


def test_images_are_augmented_by_the_step_alone_and_copies_are_not_neighbours():
    recipe = data.parse_augment("repeat(3) + inception_crop + randaug(2, 10)").sized(8, 8)
    frame = data.Frame((8, 8), channels=IMAGES.channels, host=recipe.host)
    options = dict(batch_size=8, seed=3, frame=frame, repeats=recipe.repeats)
    ds = data.image_batches(IMAGES, **options)
    batches = [ds[step] for step in range(12)]
    labels = np.concatenate([batch["label"] for batch in batches])
    assert (np.bincount(labels[:24], minlength=10) <= 3).all()
    assert (np.bincount(labels, minlength=10) >= 9).all()  # 96 places are three epochs of 30
    again = data.image_batches(IMAGES, **options)[5]
    np.testing.assert_array_equal(batches[5]["image"], again["image"])
    halves = [data.image_batches(IMAGES, **options, process_index=p, process_count=2)[5]["image"] for p in range(2)]
    np.testing.assert_array_equal(batches[5]["image"], np.concatenate(halves))
    for batch in batches[:3]:  # of one epoch
        assert (batch["label"] != np.roll(batch["label"], 1)).all()
    first = [(batch["image"][batch["label"] == 4]) for batch in batches]
    seen = np.concatenate(first)
    assert len({each.tobytes() for each in seen}) == len(seen)  # every copy in every epoch has draws of its own
