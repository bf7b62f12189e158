"""A ViT of one image size made into one of another."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from drawn import drawn

import posjax as pj
from posjax.encodings.resize import resize
from posjax.models import ViT, resize_params

KEY = jax.random.key(0)
SIZE, LARGE = (8, 12), (20, 8)


def vit(encoding, **fields):
    sizes = dict(image_size=SIZE, patch_size=4, width=8, depth=2, num_heads=2, num_registers=1)
    return ViT.from_config(sizes | fields, num_classes=2, encoding=encoding)


def images(size):
    return jnp.asarray(np.random.default_rng(1).normal(size=(1, *size, 3)), jnp.float32)


def shapes(model, size):
    return jax.eval_shape(model.init, KEY, images(size), model.sites(*size))


@pytest.mark.parametrize(
    ("encoding", "becomes"),
    [
        ("learned", "learned"),
        ("raster(width=3) >> learned", "raster(width=2) >> learned()"),
        ("learned, rope", "learned, rope"),
        ("swin_v2(hidden_dim=4), beit", "swin_v2(hidden_dim=4, pretrained_window=(2, 3)), beit()"),
        (pj.parse("rope() + learned_factorized()"), pj.parse("rope() + learned_factorized()")),
    ],
    ids=str,
)
def test_what_comes_out_is_a_model_of_the_new_size(encoding, becomes):
    model = vit(encoding, injection="every_layer")
    made = {}

    def resized(params):
        made["model"], params = resize_params(model, params, LARGE)
        return params

    params = jax.eval_shape(resized, shapes(model, SIZE))
    assert made["model"] == model.clone(encoding=becomes, image_size=LARGE)
    assert params == shapes(made["model"], LARGE)


def test_the_table_is_the_resized_one_and_the_rest_as_it_was():
    model = vit("learned(stddev=1)", injection="lape")
    variables = drawn(model.init, KEY, images(SIZE), model.sites(*SIZE))
    large, of_large = resize_params(model, variables, LARGE, method="google_npz")
    before, after = (tree["params"]["trunk"].pop("encoding") for tree in (variables, of_large))
    np.testing.assert_array_equal(after.rows[:2], before.rows[:2])
    expected = resize(before.rows[2:].reshape(2, 3, 8), (5, 2), method="google_npz").reshape(10, 8)
    np.testing.assert_allclose(after.rows[2:], expected, atol=1e-6)
    assert jax.tree.all(jax.tree.map(lambda a, b: a is b, variables, of_large))
    tree = {"trunk": variables["params"]["trunk"] | {"encoding": before}}
    assert resize_params(model, tree, LARGE)[1]["trunk"]["encoding"].extent == (5, 2)  # the tree alone


def test_a_resized_model_sees_what_a_run_time_resize_shows():
    """And gradients reach the table before the resize."""
    model = vit("learned(stddev=1)", depth=1)
    variables = drawn(model.init, KEY, images(SIZE), model.sites(*SIZE))
    inputs = images(LARGE), model.sites(*LARGE)
    at_run_time = model.clone(encoding="learned(stddev=1, resize='torch_bicubic')")

    @jax.jit
    def run(variables):
        def loss(variables):
            logits = model.clone(image_size=LARGE).apply(resize_params(model, variables, LARGE)[1], *inputs)
            return jnp.sin(logits).sum(), logits

        return *jax.grad(loss, has_aux=True)(variables), at_run_time.apply(variables, *inputs)

    gradient, resized, expected = run(variables)
    np.testing.assert_allclose(resized, expected, atol=1e-5)
    assert np.abs(gradient["params"]["trunk"]["encoding"].rows).min(axis=1).max() > 0
    with pytest.raises(ValueError, match="none for position"):
        jax.eval_shape(lambda: model.apply(variables, *inputs))
