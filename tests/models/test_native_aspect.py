"""Images of different grids in one batch: each is classified as if it were alone, whatever else is in its batch or row.

timm 1.0.31 gets this wrong where it computes rotary angles on the largest grid of a batch.
Alone, an image's grid is known while tracing; in a batch it is not, and encodings compute with it otherwise.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from drawn import drawn

from posjax import data
from posjax.models import ViT

PATCH, MOST = 2, 12
SIZES = [(8, 8), (6, 20), (20, 12), (20, 12), (30, 30)]  # 3 x 3, 2 x 6 and 4 x 3 patches
SPECS = [
    "learned(resize='torch_bicubic')",
    "learned_factorized(resize='torch_bilinear')",
    "sincos2d_mae",
    "sincos2d_big_vision",
    "axial_rope",
    "fit_grid(3, 3) >> axial_rope",
    "rope_mixed",
    "dinov3",
    "alibi",
    "swin",
    "peg",
    "none",
    "learned(resize='torch_bicubic') + rope_mixed",
]
SAMPLE = [SPECS[0], "rope_mixed"]
every_spec = pytest.mark.parametrize(
    "spec", [pytest.param(spec, marks=[] if spec in SAMPLE else pytest.mark.slow) for spec in SPECS]
)


@functools.cache
def images():
    rng = np.random.default_rng(0)
    pixels = np.concatenate([rng.integers(0, 256, h * w * 3).astype(np.uint8) for h, w in SIZES])
    label = np.arange(len(SIZES), dtype=np.int32)
    return data.NativeImages("toy", pixels, np.array(SIZES, np.int32), label, tuple("abcde"), 3, "")


@functools.cache
def made(spec, pooling="cls"):
    """A model with parameters far from their initial values: a head of zeros would hide everything."""
    # The table of offsets must hold the widest image, 2 x 6; the other tables are resized.
    size = (12, 12) if spec == "swin" else (6, 6)
    sizes = dict(image_size=size, patch_size=PATCH, width=16, depth=2, num_heads=2, num_registers=1)
    model = ViT.from_config(sizes, num_classes=5, encoding=spec, pooling=pooling)
    site = model.sites(*size)
    return model, drawn(model.init, jax.random.key(0), jnp.zeros((1, *size, 3)), site)


@functools.cache
def alone(spec, pooling="cls"):
    """[5, classes]: the logits of each image by itself, as an image, not as patches."""
    model, variables = made(spec, pooling)
    logits = []
    for i in range(len(SIZES)):
        image = data.preprocess_native(images()[i], patch_size=PATCH, max_patches=MOST)
        logits.append(_alone(model, image.shape[:2])(variables, image[None])[0])
    return np.stack(logits)


@functools.cache
def _alone(model, size):
    return jax.jit(lambda variables, image: model.apply(variables, data.normalise(image), model.sites(*size)))


def batch_of(model, packed):
    """The five images as one batch: five padded rows, or two packed ones."""
    rows = dict(batch_size=2, tokens=46) if packed else dict(batch_size=5)
    source = data.NativePatches(images(), PATCH, MOST)
    (batch,) = data.native_epoch(source, prefix=model.num_prefix, **rows)
    assert batch["weight"].sum() == len(SIZES)
    return batch


@functools.partial(jax.jit, static_argnums=0)
def logits_of(model, variables, batch):
    patches = data.normalise(batch["patches"])
    return model.apply(variables, patches, data.site_of(batch), num_images=batch["label"].shape[1])


def by_image(batch, logits):
    there = batch["weight"] > 0
    order = np.argsort(batch["label"][there])
    return np.asarray(logits)[there][order]


def scrambled(batch):
    """The content of padding and prefix slots changes, as does the order of a row's tokens; padding ends up anywhere."""
    rng = np.random.default_rng(1)
    batch = {name: array.copy() for name, array in batch.items()}
    padding, prefix = batch["segment"] == 0, batch["prefix"] > 0
    batch["patches"][padding | prefix] = 201
    batch["position"][padding | prefix] = 3
    for row in range(len(padding)):
        order = rng.permutation(padding.shape[1])
        for name in ("patches", "position", "segment", "prefix"):
            batch[name][row] = batch[name][row][order]
    return batch


def check_as_if_alone(spec, pooling="cls", packed=True):
    model, variables = made(spec, pooling)
    batch = batch_of(model, packed)
    logits = by_image(batch, logits_of(model, variables, batch))
    np.testing.assert_allclose(logits, alone(spec, pooling), atol=1e-5, rtol=1e-5)


@pytest.mark.slow
@every_spec
def test_each_packed_image_is_as_if_alone(spec):
    check_as_if_alone(spec)


@pytest.mark.slow
@pytest.mark.parametrize("spec", SAMPLE)
def test_each_padded_image_is_as_if_alone(spec):
    check_as_if_alone(spec, packed=False)


@pytest.mark.slow
@pytest.mark.parametrize("pooling", ["map", pytest.param("mean", marks=pytest.mark.slow)])
def test_so_it_is_however_it_is_pooled(pooling):
    check_as_if_alone(SPECS[0], pooling)


@every_spec
def test_neither_padding_nor_the_order_of_tokens_matters(spec):
    model, variables = made(spec)
    batch = batch_of(model, packed=True)
    logits = logits_of(model, variables, batch), logits_of(model, variables, scrambled(batch))
    there = batch["weight"] > 0
    np.testing.assert_allclose(logits[0][there], logits[1][there], atol=1e-5, rtol=1e-5)


@every_spec
def test_positions_matter_unless_there_is_no_encoding(spec):
    """The tests above would pass for want of any difference."""
    model, variables = made(spec)
    batch = batch_of(model, packed=True)
    stretched = np.minimum(batch["position"] * (2, 1), 5).astype(np.int32)
    difference = by_image(batch, logits_of(model, variables, {**batch, "position": stretched})) - alone(spec)
    assert (np.abs(difference).max() > 1e-3) == (spec != "none")


@pytest.mark.slow
def test_blockwise_attention_agrees():
    model, variables = made("dinov3")
    batch = batch_of(model, packed=True)
    logits = by_image(batch, logits_of(model.with_fields(implementation="blockwise"), variables, batch))
    np.testing.assert_allclose(logits, alone("dinov3"), atol=1e-5, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("pooling", ["map", *(pytest.param(p, marks=pytest.mark.slow) for p in ("cls", "mean"))])
def test_gradients_are_finite_where_there_is_no_image(pooling):
    model, variables = made(SPECS[0], pooling)
    batch = batch_of(model, packed=True)
    assert not batch["weight"].all()

    def loss(variables):
        logits = jax.nn.log_softmax(logits_of(model, variables, batch))
        return -(jnp.take_along_axis(logits, batch["label"][..., None], -1)[..., 0] * batch["weight"]).sum()

    value, gradient = jax.jit(jax.value_and_grad(loss))(variables)
    assert jnp.isfinite(value)
    assert all(jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))
    assert all((leaf != 0).any() for leaf in jax.tree.leaves(gradient["params"]["trunk"]["encoding"]))
