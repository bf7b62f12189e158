"""Live defects of other vision codebases, each as a property that would catch it.

| where | what went wrong | the property |
| --- | --- | --- |
| timm, `resample_abs_pos_embed` | 2 x 8 taken for 4 x 4 | test_grids_of_equal_count_are_resized |
| big_vision, `resample_posemb` | 14x14 for 7x28; 12 x 20 gets 15 x 15 | test_grids_of_equal_count_are_resized |
| rope-vit, cached angles | 112 x 448 pixels get coordinates of 14 x 14 | test_grids_of_equal_count_are_told_apart |
| timm, `resize_rel_pos_bias_table` | planes of heads joined along one axis | test_each_head_has_a_plane_of_its_own |
| big_vision, `posemb_sincos_2d` | NaN at a width of 4 | test_a_width_without_frequencies_is_refused |
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import HEAD_DIM, HEADS, WIDTH, forward
from drawn import drawn

import posjax as pj
from posjax.encodings.resize import METHODS, resize
from posjax.models import BlockConfig, ViT

KEY = jax.random.key(0)
WEIGHTS = (0.3 * np.random.default_rng(3).normal(size=(3, WIDTH, HEADS, HEAD_DIM))).astype(np.float32)
DIMS = pj.Dims(WIDTH, HEADS, HEAD_DIM, grid=(6, 7), prefix=2)


def made(spec, dims=DIMS):
    encoding = pj.parse(spec)
    return encoding, drawn(functools.partial(encoding.init, dims=dims), KEY)


def close(a, b, atol=5e-6):
    np.testing.assert_allclose(np.asarray(a, np.float32), np.asarray(b, np.float32), rtol=0, atol=atol)


def tokens(count):
    return np.random.default_rng(2).normal(size=(count, WIDTH)).astype(np.float32)


@pytest.mark.parametrize(("old", "new"), [((2, 8), (4, 4)), ((14, 14), (12, 20))])
def test_grids_of_equal_count_are_resized(old, new):
    """A value that is the place itself stays so: only a resize on both axes keeps each axis to itself."""
    rows, columns = np.meshgrid(*(np.linspace(-1, 1, n, dtype=np.float32) for n in old), indexing="ij")
    resized = resize(np.stack([rows, columns], axis=-1), new, method="google_npz")
    assert resized.shape == (*new, 2)
    there = np.meshgrid(*(np.linspace(-1, 1, n) for n in new), indexing="ij")
    close(resized, np.stack(there, axis=-1), atol=1e-6)
    for method in METHODS:
        assert resize(np.ones((*old, 1), np.float32), new, method=method).shape == (*new, 1)
    encoding, params = made("learned(stddev=1)", DIMS._replace(grid=old))
    _, resized = encoding.resized(params, old, new)
    assert resized.rows.shape == (2 + new[0] * new[1], WIDTH)


@pytest.mark.parametrize(
    "spec", ["fit_grid(height=4, width=4) >> axial_rope()", "learned(stddev=1, resize='torch_bicubic')"]
)
def test_grids_of_equal_count_are_told_apart(spec):
    """Equal numbers of tokens with the same content stand in other places: 2 x 6 is not 3 x 4."""
    encoding, params = made(spec)
    grids = pj.grid(2, 6, prefix=2), pj.grid(3, 4, prefix=2)
    wide, tall = jax.jit(lambda x: [forward(encoding, params, x, site, WEIGHTS) for site in grids])(tokens(14))
    assert np.abs(np.asarray(wide) - np.asarray(tall)).max() > 1e-3


def test_a_model_of_a_table_refuses_another_shape_of_as_many_patches():
    """112 x 448 pixels for 224 x 224."""
    model = ViT(2, "learned", image_size=(224, 224), patch_size=16, block=BlockConfig(width=8, num_heads=2), depth=1)
    wide, site = jnp.zeros((1, 112, 448, 3)), model.sites(112, 448)
    params = jax.eval_shape(model.init, KEY, jnp.zeros((1, 224, 224, 3)), model.sites(224, 224))
    with pytest.raises(ValueError, match=r"none for position \[ 0 14\]"):
        jax.eval_shape(lambda params: model.apply(params, wide, site), params)


@pytest.mark.parametrize("spec", ["swin(stddev=1)", "beit(stddev=1)"])
def test_each_head_has_a_plane_of_its_own(spec):
    """Resized, heads stay apart, and rows of class token and registers behind them."""
    old, new, prefix = (3, 4), (5, 2), 5
    encoding, params = made(spec, DIMS._replace(grid=old, prefix=prefix))
    params = jax.tree.map(np.asarray, params)
    _, resized = encoding.resized(params, old, new)
    count = 9 * 3
    behind = 2 * prefix + prefix**2 if spec.startswith("beit") else 0
    assert resized.rows.shape == (count + behind, HEADS)
    for head in range(HEADS):
        plane = resize(params.rows[:35, head].reshape(5, 7, 1), (9, 3))
        close(resized.rows[:count, head], plane.ravel(), atol=1e-6)
    np.testing.assert_array_equal(resized.rows[count:], params.rows[35:])


def test_registers_and_relative_tables_live_together():
    """Five prefix tokens, each with biases of its own to and from patches; timm's tables take one at most."""
    encoding, params = made("beit(stddev=1)", DIMS._replace(grid=(2, 3), prefix=5))
    site, q = pj.grid(2, 3, prefix=5), np.zeros((11, HEADS, HEAD_DIM), np.float32)
    bias = np.asarray(jax.jit(lambda q: encoding.bias(params, q, site, q, site))(q))
    nowhere = np.unique(bias[0, :5, :5]).size, np.unique(bias[0, :5, 5:]).size, np.unique(bias[0, 5:, :5]).size
    assert nowhere == (25, 5, 5)


def test_a_width_without_frequencies_is_refused():
    site = pj.grid(2, 2)
    with pytest.raises(ValueError, match="a width of 4 is no multiple of 4 from 8 on"):
        pj.parse("sincos2d_big_vision").embed((), jnp.zeros((4, 4)), site)
    code = jax.jit(lambda x: pj.parse("sincos2d_big_vision").embed((), x, site))(np.zeros((4, 8), np.float32))
    assert np.isfinite(code).all()
