"""The parts of a ViT beside its blocks: sizes, stems, pooling, heads and sites; test_invariants.py compares its runs."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from drawn import drawn
from test_invariants import row_of

import posjax as pj
from posjax.models import ResNet, ViT, vit_sizes
from posjax.models.resnet import ResNetStem, StdConv

HEIGHT, WIDTH, PATCH = 4, 6, 2  # 2 x 3 patches
RNG = np.random.default_rng(0)
IMAGES = jnp.asarray(RNG.normal(size=(2, HEIGHT, WIDTH, 3)), jnp.float32)


def vit(**options):
    sizes = dict(image_size=(HEIGHT, WIDTH), patch_size=PATCH, width=16, depth=1, num_heads=2, pooling="cls")
    return ViT.from_config(dict(encoding="learned") | sizes | options, num_classes=3)


def initial(model, images=IMAGES):
    """Parameters away from their initial values: a head of zeros would hide everything."""
    return drawn(model.init, jax.random.key(0), images, model.sites(*images.shape[1:3]))


def applied(model):
    return jax.jit(lambda variables: model.apply(variables, IMAGES, model.sites(HEIGHT, WIDTH)))


def scaled(variables, factor, *parts):
    """The parameters whose path has all of these parts, times a factor."""
    inside = lambda path: all(part in jax.tree_util.keystr(path) for part in parts)  # noqa: E731
    return jax.tree_util.tree_map_with_path(lambda path, x: factor * x if inside(path) else x, variables)


@pytest.mark.parametrize(
    ("variant", "sizes"),
    [
        ("L/32", dict(width=1024, depth=24, num_heads=16, mlp_dim=4096, patch_size=32)),
        ("R50+B/16", dict(width=768, depth=12, num_heads=12, mlp_dim=3072, patch_size=1, resnet=(3, 4, 9))),
        ("R26+S/32", dict(width=384, depth=12, num_heads=6, mlp_dim=1536, patch_size=1, resnet=(2, 2, 2, 2))),
        ("R+Ti/16", dict(width=192, depth=12, num_heads=3, mlp_dim=768, patch_size=8, resnet=())),
    ],
)
def test_published_sizes_by_name(variant, sizes):
    model = ViT(10, image_size=(224, 224), **vit_sizes(variant))
    assert model == ViT.from_config({"variant": variant}, num_classes=10, image_size=(224, 224))
    assert {name: model.fields[name] for name in sizes} == sizes


@pytest.mark.slow
def test_a_hybrid_has_the_published_number_of_parameters():
    """R50+B/16 with 1000 classes: timm's own count, class token and table included."""
    model = ViT(1000, encoding="learned", image_size=(224, 224), **vit_sizes("R50+B/16"))
    shapes = jax.eval_shape(lambda: model.init(jax.random.key(0), *model.example(channels=3))["params"])
    assert sum(leaf.size for leaf in jax.tree.leaves(shapes)) == 98_659_112


def test_a_standardised_convolution_ignores_scale_and_mean_of_its_kernel():
    x, kernel = (jnp.asarray(RNG.normal(size=shape), jnp.float32) for shape in ((1, 5, 5, 4), (1, 1, 4, 8)))
    run = jax.jit(lambda kernel: StdConv(8, 1, 2).apply({"params": {"kernel": kernel}}, x))
    np.testing.assert_allclose(run(7 * kernel + 3), run(kernel), atol=1e-3)
    standard = np.asarray(kernel - kernel.mean(axis=(0, 1, 2))) / (kernel.std(axis=(0, 1, 2)) + 1e-5)
    np.testing.assert_allclose(run(kernel), np.asarray(x)[:, ::2, ::2] @ standard[0, 0], atol=1e-5)


def test_units_of_a_resnet_start_as_their_shortcut():
    params = jax.jit(ResNet(3, (1,), 4).init)(jax.random.key(0), jnp.ones((1, 8, 8, 3)))["params"]["resnet"]
    assert not np.any(params["block1_unit1"]["gn3"]["scale"])
    assert np.all(params["block1_unit1"]["gn1"]["scale"] == 1)


@pytest.mark.parametrize(("stem", "size", "side"), [((), 32, 8), ((1,), 33, 9), ((1, 1, 1), 57, 4)])
def test_a_stem_shrinks_as_it_says(stem, size, side):
    x = jnp.zeros((1, size, 32, 3))
    out = jax.eval_shape(lambda: ResNetStem(stem, 32).init_with_output(jax.random.key(0), x)[0])
    assert out.shape[1:3] == (side, ResNetStem.shrunk(32, stem))
    assert ResNetStem.shrunk(size, stem) == side


def test_a_hybrid_hosts_an_encoding():
    model = vit(encoding="alibi", resnet=(1,), resnet_width=32, image_size=(16, 24))
    inputs = model.example(channels=3)
    assert inputs[1].segment.shape == (1 + 2 * 3,)
    variables = jax.eval_shape(model.init, jax.random.key(0), *inputs)
    assert jax.eval_shape(model.apply, variables, *inputs).shape == (1, 3)
    for call in (lambda: model.sites(20, 24), lambda: model.apply(variables, jnp.zeros((2, 20, 24, 3)), inputs[1])):
        with pytest.raises(ValueError, match="patches of 2x2 do not tile a stem's map of 5x6"):
            call()
    with pytest.raises(ValueError, match="a ResNet stem sees whole images"):
        model.apply(variables, jnp.zeros((1, 9, PATCH, PATCH, 3)), model.sites(16, 24))


@pytest.mark.parametrize(("pooling", "registers", "prefix"), [("cls", 0, 1), ("cls", 3, 4), ("mean", 2, 2)])
def test_a_learned_table_has_a_row_for_each_prefix_token_and_patch(pooling, registers, prefix):
    model = vit(pooling=pooling, num_registers=registers)
    table = jax.eval_shape(model.init, jax.random.key(0), *model.example(channels=3))["params"]["trunk"]["encoding"]
    assert (table.rows.shape, table.extent, model.num_prefix) == ((prefix + 6, 16), (2, 3), prefix)


def test_lape_adds_a_normed_code_to_what_attention_reads_and_to_nothing_else():
    model = vit(injection="lape")
    variables, run = initial(model), applied(model)
    out = run(variables)
    # A norm with no scale and no bias silences the code: as if there were no encoding.
    trunk = variables["params"]["trunk"]
    bare = {"params": {**variables["params"], "trunk": {**trunk, "encoding": ()}}}
    without = applied(vit(encoding="none"))(bare)
    np.testing.assert_allclose(run(scaled(variables, 0, "code_norm")), without, atol=1e-5)
    # It does not enter the residual stream: an attention that writes nothing hides it.
    mute = scaled(variables, 0, "'out'")
    np.testing.assert_array_equal(run(mute), run(scaled(mute, 7, "encoding")))
    np.testing.assert_allclose(run(scaled(variables, 100, "encoding")), out, atol=1e-4)
    assert jnp.abs(out - without).max() > 1e-3


def test_features_and_tokens_come_without_a_head():
    for fields, shape in ((dict(pre_logits=5), (1, 5)), (dict(pooling="none", num_registers=1), (1, 7, 16))):
        model = vit(**fields).clone(num_classes=0)
        out, variables = jax.eval_shape(model.init_with_output, jax.random.key(0), *model.example(channels=3))
        assert out.shape == shape
        assert "head" not in variables["params"]


def packed(shapes, prefix, total):
    """A packed row of images of these sizes, as a batch: patches and site."""
    images = [RNG.normal(size=(*shape, 3)).astype(np.float32) for shape in shapes]
    return jax.tree.map(lambda leaf: leaf[None], row_of(images, prefix, total))


def test_prefix_tokens_that_do_not_fit_are_refused():
    """Sites as data give NaN. Without it a model that lacks its class token would answer the same for all images."""
    model = vit(encoding="rope(base=100)", depth=0)
    variables = initial(model)
    with pytest.raises(ValueError, match=r"prefix tokens of an image come first.* take model.sites\(4, 6\); got \[0 0"):
        model.apply(variables, IMAGES, pj.sites(7))
    apply = jax.jit(functools.partial(model.apply, num_images=3))
    for prefix, fits in ((0, False), (1, True), (2, False)):
        logits = apply(variables, *packed([(4, 6), (2, 2)], prefix, 16))
        assert np.isfinite(logits[0, :2]).all() == fits
        assert prefix == 2 or np.isfinite(logits[0, 2]).all()  # a third image is not there at all


def test_a_row_of_more_images_than_are_asked_for():
    """Their mean would look like an answer: an error where sites are known, NaN where they are not."""
    model = vit(encoding="rope(base=100)", pooling="mean", depth=0)
    variables, batch = initial(model), packed([(4, 6), (2, 2)], 0, 8)
    for count in (None, 1):
        with pytest.raises(ValueError, match=f"a row holds image 2, but num_images={count}: give num_images=I"):
            model.apply(variables, *batch, num_images=count)
    assert np.isnan(jax.jit(model.apply)(variables, *batch)).all()


def test_sites_must_be_those_of_the_image():
    """A grid of as many patches too, but not where the image has them: height and width exchanged, for one."""
    model, (patches, site) = vit(encoding="rope"), packed([(4, 6)], 1, 10)
    for images, wrong, message in (
        (IMAGES, pj.grid(2, 2, prefix=1), "1 prefix tokens and 2x3 patches, but the site has 5 tokens"),
        (IMAGES, pj.grid(3, 2, prefix=1), r"2x3 patches, but the site is a grid of 3x2: take model.sites\(4, 6\)"),
        (IMAGES, pj.grid(1, 6, prefix=1), "the site is a grid of 1x6"),
        (patches, jax.tree.map(lambda leaf: leaf[0], site), r"patches are \[B, N, 2, 2, C\] with sites of their own"),
    ):
        with pytest.raises(ValueError, match=message):
            jax.eval_shape(lambda images=images, wrong=wrong: model.init(jax.random.key(0), images, wrong))


@pytest.mark.parametrize(
    ("name", "message"), [("Q/16", "no ViT is named 'Q/16'.*/16"), ("R50+B/8", "does not divide 8")]
)
def test_an_unknown_size_is_told_with_the_nearest(name, message):
    with pytest.raises(ValueError, match=message):
        vit_sizes(name)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (dict(patch_size=5), r"patches of 5x5 do not tile an image of 4x6: crop .* may be \[1, 2\]"),
        (dict(pooling="avg"), "no pooling is named 'avg'"),
        (dict(injection="all_layers"), "no injection is named 'all_layers'; did you mean 'every_layer"),
        (dict(injection="lape"), r"'lape' normalises what is added to tokens, and rope\(\) adds nothing"),
        (dict(remat="all"), "no remat is named 'all'"),
        (dict(distillation_token=True, norm_after_pooling=True), "norm_after_pooling"),
        (dict(encoding="rope(bse=1)"), "rope has no argument 'bse'"),
        (dict(implementation="blocks"), "no implementation is named 'blocks'; .*known: auto, dense, blockwise"),
        (dict(width=12), "rope: a head_dim.*6"),  # 6 channels cannot be shared evenly by two axes' pairs
    ],
)
def test_a_mistake_is_told_with_its_mend(fields, message):
    model = vit(encoding="rope").with_fields(**fields)
    with pytest.raises(ValueError, match=message):
        jax.eval_shape(lambda: model.init(jax.random.key(0), IMAGES, pj.grid(2, 3, prefix=1)))
