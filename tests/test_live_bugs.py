"""The live defects of other vision codebases that the notes list (section 1.4), each as a property that would catch it.

| # | where | what went wrong | the property |
| --- | --- | --- | --- |
| 1 | timm, `ref_feat_shape` in mixed batches | angles of the batch's largest grid | test_an_image_is_encoded_as_if_alone |
| 2 | timm, mixed rotary | dtype and device exchanged | test_learned_frequencies_in_batches_of_several_grids |
| 3 | timm, `resample_abs_pos_embed` | 2 x 8 taken for 4 x 4 | test_grids_of_equal_count_are_resized |
| 4 | timm, `resize_rel_pos_bias_table` | planes of heads joined along one axis | test_each_head_has_a_plane_of_its_own |
| 5 | big_vision, `resample_posemb` | 14x14 for 7x28; 12 x 20 gets 15 x 15 | test_grids_of_equal_count_are_resized |
| 6 | rope-vit, cached angles | 112 x 448 pixels get coordinates of 14 x 14 | test_grids_of_equal_count_are_told_apart |
| 7 | bonsai, `interpolate_posembed` | the table's side is a traced number | test_every_resolution_compiles |
| 8 | vit_jax, `load_pretrained` | a table that the model lacks is a KeyError | test_what_the_caller_says_is_checked |
| 9 | scenic, `load_augreg_params` | cannot load at another resolution | test_a_model_is_made_for_another_image_size |
| 10 | vit_jax, `train.py` | one seed; checkpoints at every evaluation | test_each_step_and_each_seed_draws_for_itself |
| 11 | big_vision, `posemb_sincos_2d` | NaN at a width of 4 | test_a_width_without_frequencies_is_refused |
| 12 | scenic, `rel_pos_w` | sized by the height | test_every_offset_of_a_window_has_a_row |

8 is tested in tests/pretrained/test_vision_files.py, 10 in tests/training/test_loop.py (checkpoints:
test_the_best_and_the_newest_checkpoints_are_kept), the others here.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import HEAD_DIM, HEADS, WIDTH, forward, joined
from drawn import drawn

import posjax as pj
from posjax.encodings.resize import METHODS, resize
from posjax.models import BlockConfig, ViT, resize_params

KEY = jax.random.key(0)
WEIGHTS = (0.3 * np.random.default_rng(3).normal(size=(3, WIDTH, HEADS, HEAD_DIM))).astype(np.float32)
DIMS = pj.Dims(WIDTH, HEADS, HEAD_DIM, grid=(6, 7), prefix=2)
FITTED = "fit_grid(height=4, width=4) >> axial_rope()"
RESIZED = "learned(stddev=1, resize='torch_bicubic')"
# Codes and angles that are made of more than the token's own position.
SOME = [FITTED, RESIZED]
on_grids = pytest.mark.parametrize("spec", SOME)


def made(spec, dims=DIMS):
    encoding = pj.parse(spec)
    return encoding, drawn(functools.partial(encoding.init, dims=dims), KEY)


def close(a, b, atol=5e-6):
    np.testing.assert_allclose(np.asarray(a, np.float32), np.asarray(b, np.float32), rtol=0, atol=atol)


def tokens(count):
    return np.random.default_rng(2).normal(size=(count, WIDTH)).astype(np.float32)


def padded(site, count):
    """With padding behind it, which stands anywhere."""
    more = count - len(site.segment)
    zeros = np.zeros(more, np.int32)
    return joined(site, pj.Site(np.full((more, 2), 5, np.int32), zeros, zeros))


@pytest.mark.slow
@on_grids
def test_an_image_is_encoded_as_if_alone(spec):
    """Whatever the other images of its batch are: the rows of a padded batch, run by one program."""
    encoding, params = made(spec)
    images = [pj.grid(2, 3, prefix=2), pj.grid(6, 5, prefix=2), pj.grid(5, 6, prefix=2)]
    count = max(len(site.segment) for site in images)
    x = tokens(count)
    run = jax.jit(jax.vmap(lambda site: forward(encoding, params, x, site, WEIGHTS)))
    rows = [padded(site, count) for site in images]
    batches = [[rows[0], rows[1]], [rows[0], rows[2]]]
    first, second = (run(jax.tree.map(lambda *leaves: np.stack(leaves), *batch)) for batch in batches)
    np.testing.assert_array_equal(first[0], second[0])
    small = len(images[0].segment)
    alone = jax.jit(lambda: forward(encoding, params, x[:small], images[0], WEIGHTS))()
    close(first[0, :small], alone, atol=1e-5)
    assert not np.any(first[0, small:])


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [jnp.bfloat16])
def test_learned_frequencies_in_batches_of_several_grids(dtype):
    encoding, params = made("rope_mixed()")
    images = [pj.grid(2, 3), pj.grid(3, 2), pj.grid(1, 5)]
    sites = jax.tree.map(lambda *leaves: np.stack(leaves), *[padded(site, 6) for site in images])
    x = tokens(6)
    out = jax.jit(jax.vmap(lambda site: forward(encoding, params, x.astype(dtype), site, WEIGHTS)))(sites)
    assert out.dtype == dtype
    alone = jax.jit(lambda: forward(encoding, params, x, images[1], WEIGHTS))()
    close(out[1], alone, atol=0.05 if dtype == jnp.bfloat16 else 5e-6)


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


@on_grids
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


def test_every_resolution_compiles():
    """Traced tables have static sizes, never computed from arrays."""
    for size in ((1, 1), (3, 5), (7, 2)):
        compiled = jax.jit(lambda table, size=size: resize(table, size))
        assert compiled.eval_shape(jnp.zeros((4, 4, 2))).shape == (*size, 2)
    encoding, params = made("learned(stddev=1)", DIMS._replace(grid=(4, 4)))
    resized = jax.jit(lambda params: encoding.resized(params, (4, 4), (3, 5))[1])(params)
    close(resized.rows, encoding.resized(params, (4, 4), (3, 5))[1].rows)
    assert resized.extent == (3, 5)


def test_a_model_is_made_for_another_image_size():
    """Loading, so to say, at another resolution: under jit and traced, whatever its layers host."""
    model = ViT(2, "learned, swin", image_size=(8, 8), patch_size=2, block=BlockConfig(width=8, num_heads=2), depth=2)
    variables = jax.eval_shape(model.init, KEY, jnp.zeros((1, 8, 8, 3)), model.sites(8, 8))
    large = model.clone(image_size=(6, 10))
    expected = jax.eval_shape(large.init, KEY, jnp.zeros((1, 6, 10, 3)), large.sites(6, 10))
    assert jax.eval_shape(lambda params: resize_params(model, params, (6, 10))[1], variables) == expected


def test_a_width_without_frequencies_is_refused():
    site = pj.grid(2, 2)
    with pytest.raises(ValueError, match="a width of 4 is no multiple of 4 from 8 on"):
        pj.parse("sincos2d_big_vision").embed((), jnp.zeros((4, 4)), site)
    code = jax.jit(lambda x: pj.parse("sincos2d_big_vision").embed((), x, site))(np.zeros((4, 8), np.float32))
    assert np.isfinite(code).all()


@pytest.mark.parametrize("grid", [(3, 7), (1, 5)])
def test_every_offset_of_a_window_has_a_row(grid):
    """(2h - 1)(2w - 1) of them, on windows of any shape."""
    encoding, params = made("swin(stddev=1)", DIMS._replace(grid=grid))
    site = pj.grid(*grid)
    q = np.zeros((len(site.segment), HEADS, HEAD_DIM), np.float32)
    bias = jax.jit(lambda q: encoding.bias(params, q, site, q, site))(q)
    offset = site.position[:, None] - site.position[None]
    row = (offset + np.array(grid) - 1) @ [2 * grid[1] - 1, 1]
    np.testing.assert_array_equal(bias, np.asarray(params.rows).T[:, row])
    assert (
        np.unique(bias[0]).size
        == np.unique(np.asarray(params.rows)[:, 0]).size
        == (2 * grid[0] - 1) * (2 * grid[1] - 1)
    )


@pytest.mark.parametrize("spec", [FITTED])
def test_columns_and_rows_may_be_exchanged(spec):
    """An image and its transpose, under an encoding that gives the axes alike, have transposed logits up to a permutation."""
    encoding, params = made(spec)
    site = encoding.place(params, pj.grid(4, 4))
    transposed = encoding.place(params, pj.grid(4, 4)._replace(position=pj.grid(4, 4).position[:, ::-1]))
    x = np.random.default_rng(0).normal(size=(16, 1, HEAD_DIM)).astype(np.float32)
    blocks = np.arange(HEAD_DIM).reshape(2, 2, 2)[:, ::-1].ravel()  # the channels of one axis exchanged for the other's
    turned = jax.jit(lambda x, site: encoding.rotate(params, x, site, x, site)[0])
    close(np.asarray(turned(x[..., blocks], transposed))[..., np.argsort(blocks)], turned(x, site))
