"""The parts of a ViT beside its blocks: sizes, stems, pooling, dropouts in training, native-aspect rows."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from drawn import drawn

import posjax as pj
from posjax.models import ResNet, ViT, vit_sizes
from posjax.models.resnet import ResNetStem, StdConv


def images(count=2, height=4, width=6, channels=3):
    return jnp.asarray(np.random.default_rng(0).normal(size=(count, height, width, channels)), jnp.float32)


def vit(**options):
    sizes = dict(encoding="learned", image_size=(4, 6), patch_size=2, width=16, depth=2, num_heads=2, pooling="cls")
    return ViT.from_config(sizes | options, num_classes=3)


def made(model, x=None):
    x = images() if x is None else x
    site = model.sites(*x.shape[1:3])
    return drawn(model.init, jax.random.key(0), x, site), x, site


@pytest.mark.parametrize(
    ("variant", "sizes"),
    [
        ("Ti/16", dict(width=192, depth=12, num_heads=3, mlp_dim=768, patch_size=16)),
        ("L/32", dict(width=1024, depth=24, num_heads=16, mlp_dim=4096, patch_size=32)),
        ("R50+B/16", dict(width=768, depth=12, num_heads=12, mlp_dim=3072, patch_size=1, resnet=(3, 4, 9))),
        ("R26+S/32", dict(width=384, depth=12, num_heads=6, mlp_dim=1536, patch_size=1, resnet=(2, 2, 2, 2))),
        ("R50+L/32", dict(width=1024, depth=24, num_heads=16, mlp_dim=4096, patch_size=1, resnet=(3, 4, 6, 3))),
        ("R+Ti/16", dict(width=192, depth=12, num_heads=3, mlp_dim=768, patch_size=8, resnet=())),
    ],
)
def test_published_sizes_by_name(variant, sizes):
    model = ViT(10, image_size=(224, 224), **vit_sizes(variant))
    assert model == ViT.from_config({"variant": variant}, num_classes=10, image_size=(224, 224))
    assert {name: model.fields[name] for name in sizes} == sizes


@pytest.mark.slow
@pytest.mark.parametrize(
    ("variant", "count"),  # of ViT-B/16 and others with 1000 classes: timm's own counts, class token and table included
    [
        ("Ti/16", 5_717_416),
        pytest.param("S/16", 22_050_664, marks=pytest.mark.slow),
        pytest.param("B/16", 86_567_656, marks=pytest.mark.slow),
        pytest.param("R50+B/16", 98_659_112, marks=pytest.mark.slow),
    ],
)
def test_published_sizes_have_the_published_number_of_parameters(variant, count):
    model = ViT(1000, encoding="learned", image_size=(224, 224), **vit_sizes(variant))
    shapes = jax.eval_shape(
        lambda: model.init(jax.random.key(0), jnp.zeros((1, 224, 224, 3)), model.sites(224, 224))["params"]
    )
    assert sum(leaf.size for leaf in jax.tree.leaves(shapes)) == count


@pytest.mark.parametrize("name", ["B16", "Q/16", "R99+B/16"])
def test_an_unknown_size_is_told_with_the_nearest(name):
    with pytest.raises(ValueError, match=rf"no ViT is named '{name.replace('+', '[+]')}'.*/16"):
        vit_sizes(name)


def test_a_standardised_convolution_ignores_scale_and_mean_of_its_kernel():
    x = images(1, 5, 5, 4)
    conv = StdConv(8, 3, 2)
    variables = conv.init(jax.random.key(0), x)
    changed = jax.tree.map(lambda w: 7 * w + 3, variables)
    np.testing.assert_allclose(conv.apply(changed, x), conv.apply(variables, x), atol=1e-3)
    one = StdConv(8, 1, 2)
    kernel = one.init(jax.random.key(0), x)
    weight = kernel["params"]["kernel"]
    standard = (weight - weight.mean(axis=(0, 1, 2))) / (weight.std(axis=(0, 1, 2)) + 1e-5)
    expected = jax.lax.conv_general_dilated(x, standard, (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    np.testing.assert_allclose(one.apply(kernel, x), expected, atol=1e-5)


@pytest.mark.parametrize(("stem", "size", "side"), [((), 32, 8), ((1, 1), 32, 4), ((1,), 33, 9), ((1, 1, 1), 57, 4)])
def test_a_stem_shrinks_as_it_says(stem, size, side):
    x = images(1, size, 32)
    out = jax.eval_shape(lambda: ResNetStem(stem, 32).init_with_output(jax.random.key(0), x)[0])
    assert out.shape[1:3] == (side, ResNetStem.shrunk(32, stem))
    assert ResNetStem.shrunk(size, stem) == side


@pytest.mark.parametrize("spec", ["learned", pytest.param("alibi", marks=pytest.mark.slow)])
def test_a_hybrid_hosts_any_encoding(spec):
    model = vit(encoding=spec, resnet=(1,), resnet_width=32, image_size=(16, 24), patch_size=2)
    variables, x, site = made(model, images(2, 16, 24))
    assert site.segment.shape == (1 + 2 * 3,)
    assert jnp.isfinite(jax.jit(model.apply)(variables, x, site)).all()
    with pytest.raises(ValueError, match="patches of 2x2 do not tile a stem's map of 5x6"):
        model.sites(20, 24)
    with pytest.raises(ValueError, match="patches of 2x2 do not tile a stem's map of 5x6"):
        model.apply(variables, images(2, 20, 24), site)


@pytest.mark.slow
def test_the_plain_resnet_learns_from_every_parameter():
    model = ResNet(3, (1,), 32)
    x = images(2, 8, 8)
    variables = drawn(model.init, jax.random.key(0), x)
    grads = jax.jit(jax.grad(lambda v: (model.apply(v, x) ** 2).sum()))(variables)
    assert all(jnp.abs(leaf).max() > 0 for leaf in jax.tree.leaves(grads))


def test_lape_adds_a_normed_code_to_what_attention_reads_and_to_nothing_else():
    model = vit(injection="lape", depth=1)
    variables, x, site = made(model)
    trunk = variables["params"]["trunk"]
    assert trunk["block_0"]["code_norm"]["scale"].shape == (16,)
    # A norm with no scale and no bias silences the code: as if there were no encoding.
    silent = jax.tree_util.tree_map_with_path(lambda p, w: 0 * w if "code_norm" in str(p) else w, variables)
    bare = {**variables["params"], "trunk": {**trunk, "encoding": ()}}
    without = vit(encoding="none", depth=1).apply({"params": bare}, x, site)
    np.testing.assert_allclose(model.apply(silent, x, site), without, atol=1e-5)
    # It does not enter the residual stream: an attention that writes nothing hides it.
    mute = jax.tree_util.tree_map_with_path(lambda p, w: 0 * w if "'out'" in str(p) else w, variables)
    other = jax.tree_util.tree_map_with_path(lambda p, w: w + 1 if "encoding" in str(p) else w, mute)
    np.testing.assert_array_equal(model.apply(mute, x, site), model.apply(other, x, site))
    assert jnp.abs(model.apply(variables, x, site) - without).max() > 1e-3


def test_lape_does_not_see_the_scale_of_a_code():
    model = vit(injection="lape")
    variables, x, site = made(model)
    louder = jax.tree_util.tree_map_with_path(lambda p, w: 100 * w if "'encoding'" in str(p) else w, variables)
    np.testing.assert_allclose(model.apply(louder, x, site), model.apply(variables, x, site), atol=1e-4)


def test_layer_scale_of_zero_leaves_the_tokens_alone():
    model = vit(layer_scale=0.1)
    variables, x, site = made(model)
    assert variables["params"]["trunk"]["block_1"]["attention_scale"].shape == (16,)
    still = jax.tree_util.tree_map_with_path(lambda p, w: 0 * w if "_scale" in str(p) else w, variables)
    out, seen = model.apply(still, x, site, mutable=["intermediates"])
    seen = seen["intermediates"]["trunk"]
    np.testing.assert_array_equal(seen["tokens_1"][0], seen["tokens_in"][0])
    assert jnp.abs(out - model.apply(variables, x, site)).max() > 1e-3


@pytest.mark.slow
def test_intermediates_are_what_the_model_computed():
    model = vit(num_registers=2)
    variables, x, site = made(model)
    out, seen = model.apply(variables, x, site, mutable=["intermediates"])
    weights = seen["intermediates"]["trunk"]["block_0"]["attention"]["weights"][0]
    assert weights.shape == (2, 2, 9, 9)
    np.testing.assert_allclose(weights.sum(axis=-1), 1, atol=1e-5)
    np.testing.assert_allclose(out, model.apply(variables, x, site), atol=1e-5)


def test_drop_path_drops_whole_branches_of_whole_images():
    model = vit(drop_path=0.5, depth=2)
    variables, _, site = made(model)
    x = jnp.repeat(images(1), 64, axis=0)
    options = dict(train=True, mutable=["intermediates"])
    rngs = {"dropout": jax.random.key(0), "place": jax.random.key(0)}
    _, seen = jax.jit(lambda v: model.apply(v, x, site, rngs=rngs, **options))(variables)
    tokens = seen["intermediates"]["trunk"]
    first = np.asarray(tokens["tokens_0"][0])
    assert np.ptp(first, axis=0).max() == 0  # the first block's rate is 0
    kinds = np.unique(np.asarray(tokens["tokens_1"][0]).round(4).reshape(64, -1), axis=0)
    assert len(kinds) == 4  # either branch there or not


@pytest.mark.slow
def test_a_distillation_token_has_a_head_of_its_own():
    model = vit(distillation_token=True, num_registers=1)
    assert model.num_prefix == 3
    variables, x, site = made(model)
    params = variables["params"]
    tokens = model.clone(pooling="none", distillation_token=False, num_registers=3)
    rest = {name: tree for name, tree in params.items() if "head" not in name}
    rest["registers"] = np.concatenate([rest.pop(name) for name in ("cls", "distillation", "registers")])
    read = np.asarray(tokens.apply({"params": rest}, x, site))
    heads = [params[name] for name in ("head", "head_distillation")]
    each = [read[:, i] @ head["kernel"] + head["bias"] for i, head in enumerate(heads)]
    np.testing.assert_allclose(model.apply(variables, x, site), (each[0] + each[1]) / 2, atol=1e-5)


def test_features_and_tokens_come_without_a_head():
    small = dict(width=16, depth=1, num_heads=2)
    model = ViT.from_config(small, num_classes=0, encoding="learned", image_size=(4, 6), patch_size=2, pre_logits=5)
    variables, x, site = made(model)
    assert "head" not in variables["params"]
    features = model.apply(variables, x, site)
    assert features.shape == (2, 5)
    assert jnp.abs(features).max() <= 1
    tokens = ViT.from_config(
        small, num_classes=0, encoding="learned", image_size=(4, 6), patch_size=2, pooling="none", num_registers=1
    )
    variables, x, site = made(tokens)
    assert tokens.apply(variables, x, site).shape == (2, 7, 16)


def test_norm_after_pooling_is_not_norm_before_it():
    before, after = vit(pooling="mean"), vit(pooling="mean", norm_after_pooling=True)
    variables, x, site = made(before)
    params = variables["params"]
    trunk = {k: v for k, v in params["trunk"].items() if k != "norm"}
    moved = {**params, "trunk": trunk, "pooled_norm": params["trunk"]["norm"]}
    assert jnp.abs(after.apply({"params": moved}, x, site) - before.apply(variables, x, site)).max() > 1e-4


def row(shapes, prefix, total, size=2):
    """A packed row of images of these sizes: patches, site and the images."""
    rng = np.random.default_rng(3)
    pictures = [rng.normal(size=(h, w, 3)).astype(np.float32) for h, w in shapes]
    patches, sites = [], []
    for number, picture in enumerate(pictures, 1):
        h, w = picture.shape[0] // size, picture.shape[1] // size
        cut = picture.reshape(h, size, w, size, 3).swapaxes(1, 2).reshape(h * w, size, size, 3)
        patches.append(np.concatenate([np.full((prefix, size, size, 3), 9.0), cut]))
        site = pj.grid(h, w, prefix)
        sites.append(site._replace(segment=site.segment * number))
    lack = total - sum(map(len, patches))
    patches.append(np.zeros((lack, size, size, 3)))
    padding = pj.Site(np.zeros((lack, 2), np.int32), np.zeros(lack, np.int32), np.zeros(lack, np.int32))
    site = jax.tree.map(lambda *leaves: np.concatenate(leaves), *sites, padding)
    return np.concatenate(patches).astype(np.float32), site, pictures


def test_prefix_tokens_that_do_not_fit_are_refused():
    """Sites as data give NaN. Without it a model that lacks its class token would answer the same for all images."""
    model = vit(encoding="rope(base=100)")
    variables, x, _ = made(model)
    with pytest.raises(ValueError, match=r"prefix tokens of an image come first.* take model.sites\(4, 6\); got \[0 0"):
        model.apply(variables, x, pj.sites(7))
    apply = jax.jit(functools.partial(model.apply, num_images=3))
    for prefix, fits in ((0, False), (1, True), (2, False)):
        patches, site, _ = row([(4, 6), (2, 2)], prefix, 16)
        logits = apply(variables, *jax.tree.map(lambda leaf: leaf[None], (patches, site)))
        assert np.isfinite(logits[0, :2]).all() == fits
        assert prefix == 2 or np.isfinite(logits[0, 2]).all()  # a third image is not there at all


def test_what_other_slots_hold_reaches_no_gradient():
    model = vit(encoding="rope(base=100)", num_registers=1)
    variables, _, _ = made(model)
    patches, site, _ = row([(4, 6), (2, 2)], 2, 16)
    garbage = np.where(((site.prefix > 0) | (site.segment == 0))[:, None, None, None], np.nan, patches)
    loss = lambda v, p: model.apply(v, p[None], jax.tree.map(lambda leaf: leaf[None], site), num_images=2).sum()  # noqa: E731
    clean, dirty = (jax.jit(jax.value_and_grad(loss))(variables, p) for p in (patches, garbage))
    jax.tree.map(np.testing.assert_array_equal, clean, dirty)
    assert np.abs(clean[1]["params"]["patches_to_tokens"]["kernel"]).max() > 0


def test_a_row_of_more_images_than_are_asked_for():
    """Their mean would look like an answer: an error where sites are known, NaN where they are not."""
    model = vit(encoding="rope(base=100)", pooling="mean")
    variables, _, _ = made(model)
    patches, site, _ = row([(4, 6), (2, 2)], 0, 8)
    batch = jax.tree.map(lambda leaf: leaf[None], (patches, site))
    for count in (None, 1):
        with pytest.raises(ValueError, match=f"a row holds image 2, but num_images={count}: give num_images=I"):
            model.apply(variables, *batch, num_images=count)
        assert np.isnan(jax.jit(functools.partial(model.apply, num_images=count))(variables, *batch)).all()


def test_patches_that_do_not_fit_are_refused():
    model = vit()
    variables, _, _ = made(model)
    patches, site, _ = row([(4, 6)], 1, 10)
    batch = jax.tree.map(lambda leaf: leaf[None], (patches, site))
    with pytest.raises(ValueError, match=r"patches are \[B, N, 2, 2, C\] with sites of their own"):
        model.apply(variables, batch[0], site)
    with pytest.raises(ValueError, match="a ResNet stem sees whole images"):
        model.clone(resnet=(1,)).apply(variables, *batch)
