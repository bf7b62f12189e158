"""The ViT hosts every encoding, wherever it is injected, and pools by its setting.

Everything runs eagerly on one small shape: JAX compiles each operation once for all the encodings.
"""

import functools
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from members import GRID, MEMBERS, one_of_each

import posjax as pj
from posjax.encoding import Needs
from posjax.models import ViT
from posjax.models.transformer import INJECTIONS

HEIGHT, WIDTH, PATCH = 4, 6, 2  # 2 x 3 patches
PATCHES = 6
# One spec for each registered name, as a model would host it.
SPECS = {name: spec for name, member in MEMBERS.items() if (spec := member.on(GRID))}
SAMPLE = ["interpolate", "learned", "none", "raster", "rope", "t5"]
QUICK = ("learned", "raster", "rope")
# Of each way to act one; that all of them train is tests/training/test_registry.py.
WAYS = {**one_of_each(GRID), **{name: SPECS[name] for name in SAMPLE}}
SLOW = {*SAMPLE, *one_of_each(GRID, lambda encoding: encoding.needs)}  # the others are thorough


def marks(name):
    return [] if name in QUICK else pytest.mark.slow if name in SLOW else pytest.mark.thorough


every_way = pytest.mark.parametrize(
    "spec", [pytest.param(spec, id=name, marks=marks(name)) for name, spec in WAYS.items()]
)
HOSTS = [  # injection matters to encodings that learn or add codes
    (name, injection)
    for name in SAMPLE
    for injection in {"learned": INJECTIONS, "t5": sorted({*INJECTIONS} - {"lape"})}.get(name, ["every_layer"])
]
some_hosts = pytest.mark.parametrize(
    ("spec", "injection"), [pytest.param(SPECS[host[0]], host[1], id="-".join(host)) for host in HOSTS]
)


def depth_of(spec):
    """Two layers for one of each way to act; for the others all layers are alike."""
    return 2 if spec in {SPECS[name] for name in SAMPLE} else 1


def vit(spec="rope", **options):
    sizes = dict(image_size=(HEIGHT, WIDTH), patch_size=PATCH, width=16, depth=2, num_heads=2, pooling="mean")
    return ViT.from_config({**sizes, "num_registers": 1, **options}, num_classes=3, encoding=spec)


def images(count=2, height=HEIGHT, width=WIDTH):
    return jnp.asarray(np.random.default_rng(0).normal(size=(count, height, width, 1)), jnp.float32)


@functools.cache
def init(model):
    """Parameters far from their initial values: a head of zeros would hide everything."""
    variables = model.init(jax.random.key(0), images(), model.sites(HEIGHT, WIDTH))
    rng = np.random.default_rng(0)
    return jax.tree.map(
        lambda x: jnp.asarray(np.asarray(x) + np.asarray(0.5 * rng.normal(size=x.shape), x.dtype)), variables
    )


def run(model, variables, x=None, site=None, **options):
    x = images() if x is None else x
    return model.apply(variables, x, model.sites(*x.shape[1:3]) if site is None else site, **options)


def shuffled(x, order):
    """The patches of images [B, h, w, 1] in another order."""
    tiles = np.asarray(x).reshape(len(x), HEIGHT // PATCH, PATCH, WIDTH // PATCH, PATCH, 1).transpose(0, 1, 3, 2, 4, 5)
    tiles = tiles.reshape(len(x), PATCHES, PATCH, PATCH, 1)[:, order]
    tiles = tiles.reshape(len(x), HEIGHT // PATCH, WIDTH // PATCH, PATCH, PATCH, 1)
    return jnp.asarray(tiles.transpose(0, 1, 3, 2, 4, 5).reshape(x.shape))


def close(a, b, **tolerance):
    np.testing.assert_allclose(a, b, **{"rtol": 1e-5, "atol": 2e-5, **tolerance})


def differ(a, b):
    return float(np.abs(np.asarray(a) - np.asarray(b)).max()) > 1e-3


@pytest.mark.slow  # the decoder has fast ones
@some_hosts
def test_encodings_run_with_finite_gradients(spec, injection):
    model = vit(spec, injection=injection)
    variables = init(model)
    assert run(model, variables).shape == (2, 3)
    grads = jax.jit(jax.grad(lambda v: jnp.square(run(model, v)).sum()))(variables)
    assert all(jnp.isfinite(g).all() for g in jax.tree.leaves(grads))
    trunk = grads["params"]["trunk"]
    hosted = ["encoding_0", "encoding_1"] if injection == "every_layer" else ["encoding"]
    assert [name for name in trunk if name.startswith("encoding")] == hosted
    if Needs.CONSTANT_PARAMS not in pj.parse(spec).needs:
        assert all(jnp.any(g != 0) for name in hosted for g in jax.tree.leaves(trunk[name]))


class Spy(pj.Encoding):
    """Writes down which hook was called with which parameter, and where the first patch stood."""

    calls: ClassVar[list] = []

    def init(self, key, dims):
        return jax.random.normal(key)

    def embed(self, params, x, site):
        self.calls.append(("embed", float(params)))
        return x

    def bias(self, params, q, q_site, k, k_site):
        self.calls.append(("bias", float(params)))
        return params


@pytest.mark.slow
@pytest.mark.parametrize(
    ("injection", "expected"),
    [
        ("stem", ["embed 0", "bias 0", "bias 0"]),
        ("every_layer_shared", ["embed 0", "bias 0", "embed 0", "bias 0"]),
        ("every_layer", ["embed 0", "bias 0", "embed 1", "bias 1"]),
    ],
)
def test_injection_says_where_codes_act_and_whose_parameters(injection, expected):
    model = vit(Spy(), injection=injection)
    variables = init(model)
    trunk = variables["params"]["trunk"]
    values = [float(trunk[name]) for name in sorted(trunk) if name.startswith("encoding")]
    assert len(set(values)) == len(values) == (2 if injection == "every_layer" else 1)
    Spy.calls.clear()
    run(model, variables)
    assert [f"{hook} {values.index(value)}" for hook, value in Spy.calls] == expected


@pytest.mark.parametrize(("pooling", "registers", "prefix"), [("cls", 0, 1), ("cls", 3, 4), ("mean", 2, 2)])
def test_a_learned_table_has_a_row_for_each_prefix_token_and_patch(pooling, registers, prefix):
    model = vit("learned", pooling=pooling, num_registers=registers)
    sizes = jax.eval_shape(model.init, jax.random.key(0), images(), model.sites(HEIGHT, WIDTH))
    table = sizes["params"]["trunk"]["encoding"]
    assert (table.rows.shape, table.extent, model.num_prefix) == ((prefix + PATCHES, 16), (2, 3), prefix)


@pytest.mark.slow
def test_each_row_of_a_learned_table_reaches_the_logits():
    model = vit("learned", pooling="cls", num_registers=0)
    variables = init(model)
    before = run(model, variables)
    for row in range(1 + PATCHES):

        def changed(path, x, row=row):
            more = np.zeros_like(x)
            if "encoding" in jax.tree_util.keystr(path):
                more[row, 0] = 3.0
            return jnp.asarray(np.asarray(x) + more)

        assert differ(run(model, jax.tree_util.tree_map_with_path(changed, variables)), before), row


@pytest.mark.slow
@pytest.mark.parametrize("pooling", ["mean", "map"])
def test_registers_do_not_enter_the_pooled_patches(pooling):
    model = vit("none", pooling=pooling, depth=0)  # without blocks tokens do not meet before pooling
    variables = init(model)
    params = variables["params"]
    other = {"params": {**params, "registers": 2 * params["registers"][:, ::-1] + 1.0}}
    close(run(model, other), run(model, variables), atol=0)
    assert differ(run(model, variables, images() + 1 + images()[:, ::-1]), run(model, variables))


def test_pooling_by_class_token_reads_nothing_else():
    model = vit("none", pooling="cls", depth=0, num_registers=0)
    variables = init(model)
    params = variables["params"]
    close(run(model, variables, 2 * images() + 1), run(model, variables), atol=0)
    assert differ(run(model, {"params": {**params, "cls": params["cls"][:, ::-1]}}), run(model, variables))


@pytest.mark.parametrize(
    ("spec", "pooling"),
    [
        *(pytest.param(SPECS[n], "mean", marks=pytest.mark.thorough) for n in SAMPLE),
        pytest.param("rope", "map", marks=pytest.mark.slow),
        pytest.param("rope", "cls", marks=pytest.mark.slow),
    ],
)
def test_padded_patches_are_as_if_they_were_not_there(spec, pooling):
    """The last column of patches is padding in one image and not in the other: the first one is a 4 x 4 image."""
    model = vit(spec, pooling=pooling, num_registers=int(pooling != "cls"))
    variables, whole = init(model), model.sites(HEIGHT, WIDTH)
    padded = whole._replace(segment=np.where(whole.position[:, 1] == 2, 0, whole.segment).astype(np.int32))
    both = jax.tree.map(lambda *leaves: np.stack(leaves), padded, whole)
    compiled = jax.jit(functools.partial(run, model))
    logits = np.asarray(compiled(variables, images(), both))
    smaller = jnp.asarray(np.asarray(images())[:, :, :4])
    close(logits[:1], np.asarray(compiled(variables, smaller))[:1])
    unpadded = np.asarray(compiled(variables))
    close(logits[1:], unpadded[1:])
    assert differ(logits[0], unpadded[0])


@every_way
def test_patches_may_come_in_any_order_if_their_sites_come_along(spec):
    model = vit(spec, injection="every_layer", depth=depth_of(spec))
    variables, site = init(model), model.sites(HEIGHT, WIDTH)
    order = np.array([4, 0, 5, 2, 1, 3])
    whole = np.concatenate([[0], 1 + order])
    moved = jax.tree.map(lambda leaf: leaf[whole], site)
    before, x = run(model, variables), shuffled(images(), order)
    close(run(model, variables, x, moved), before)
    if pj.parse(spec).hooks <= {"observe", "sink"}:  # knows nothing of position
        close(run(model, variables, x), before)
    else:
        assert differ(run(model, variables, x), before)


@pytest.mark.thorough
@every_way
def test_a_shared_site_is_the_same_site_for_every_example(spec):
    model = vit(spec, pooling="map", injection="every_layer", depth=depth_of(spec))
    variables, site = init(model), model.sites(HEIGHT, WIDTH)
    each = jax.tree.map(lambda leaf: np.stack([leaf, leaf]), site)
    close(run(model, variables, site=each), run(model, variables, site=site))


@pytest.mark.slow  # the decoder's is fast
def test_compute_types_act_where_they_say():
    spec = "rope(base=100) + learned"
    variables = init(vit(spec))
    exact = run(vit(spec), variables)
    for options in ({"dtype": "bfloat16"}, {"attention_dtype": "bfloat16"}):
        model = vit(spec, **options)
        assert dtypes(model) == ({"float32"}, {"float32"})
        rough = run(model, variables)
        assert rough.dtype == jnp.float32
        assert not np.array_equal(rough, exact)
        close(rough, exact, rtol=0.1, atol=0.25)
    assert dtypes(vit(spec, param_dtype="bfloat16")) == ({"bfloat16"}, {"float32"})  # codes are never half-precision


def dtypes(model):
    """The numbers of parameters: (the model's, the encoding's)."""
    params = jax.eval_shape(model.init, jax.random.key(0), images(), model.sites(HEIGHT, WIDTH))["params"]
    encoding = params["trunk"].pop("encoding")
    return tuple({leaf.dtype.name for leaf in jax.tree.leaves(tree)} for tree in (params, encoding))


def test_dropout_acts_in_training_only():
    model, still = vit(dropout=0.5), vit(dropout=0.0)
    variables = init(still)
    plain = run(still, variables)
    first, again, second = (
        run(model, variables, train=True, rngs={"dropout": jax.random.key(k), "place": jax.random.key(9)})
        for k in (0, 0, 1)
    )
    close(run(model, variables), plain, atol=0)
    close(first, again, atol=0)
    assert differ(first, second)
    assert differ(first, plain)


@pytest.mark.slow
def test_blockwise_is_dense():
    spec = "rope(base=100) + alibi + t5(num_buckets=8, max_distance=4) + learned"
    variables = init(vit(spec))
    dense, blockwise = (run(vit(spec, implementation=name), variables) for name in ("dense", "blockwise"))
    close(dense, blockwise)


def test_images_need_not_be_square():
    model = vit("rope(base=100)")
    assert (model.patches(4, 6), model.patches(6, 4)) == ((2, 3), (3, 2))
    assert model.sites(4, 6).position[-1].tolist() == [1, 2]
    variables = init(model)
    wide = run(model, variables)
    assert differ(run(model, variables, images().transpose(0, 2, 1, 3)), wide)
    # The same six patches further apart: only the sites know.
    site = model.sites(4, 6)
    assert differ(run(model, variables, site=site._replace(position=3 * site.position)), wide)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"patch_size": 5},
            r"patches of 5x5 do not tile an image of 4x6: crop or resize images to 5 x 5, .* may be \[1, 2\]",
        ),
        ({"pooling": "avg"}, r"no pooling is named 'avg'; .*known: cls, cls_mean, map, mean, none"),
        ({"injection": "all_layers"}, r"no injection is named 'all_layers'; did you mean 'every_layer"),
        ({"injection": "lape"}, r"'lape' normalises what is added to tokens, and rope\(\) adds nothing; take"),
        ({"distillation_token": True, "norm_after_pooling": True}, r"takes the final norm"),
        ({"drop_path": 1.0}, r"drop_path=1.0 must lie in \[0, 1\)"),
        ({"encoding": "rop"}, r"no encoding is named 'rop'; did you mean 'rope'\?"),
        ({"encoding": "rope(bse=1)"}, r"rope has no argument 'bse'; did you mean 'base'\?"),
        ({"implementation": "blocks"}, r"no implementation is named 'blocks'; .*known: auto, dense, blockwise"),
        ({"num_heads": 3}, r"width 16 is not divisible by num_heads 3"),
        ({"width": 12}, r"rope: a head_dim.*6"),  # 6 channels cannot be shared evenly by two axes' pairs
    ],
)
def test_a_mistake_is_told_with_its_mend(options, message):
    with pytest.raises(ValueError, match=message):
        vit("rope").with_fields(**options).init(jax.random.key(0), images(), pj.grid(2, 3, prefix=1))


def test_sites_must_be_those_of_the_image():
    model = vit("rope")
    with pytest.raises(ValueError, match=r"4x6 images make 1 prefix tokens and 2x3 patches, but the site has 5 tokens"):
        model.init(jax.random.key(0), images(), pj.grid(2, 2, prefix=1))


@pytest.mark.parametrize("sides", [(3, 2), (1, 6), (6, 1)])
def test_a_grid_of_other_sides_is_refused(sides):
    """As many patches, but not where the image has them: height and width exchanged, for one."""
    message = r"4x6 images make 2x3 patches, but the site is a grid of {}x{}: take model.sites\(4, 6\)".format(*sides)
    with pytest.raises(ValueError, match=message):
        jax.eval_shape(lambda: vit("rope").init(jax.random.key(0), images(), pj.grid(*sides, prefix=1)))


def test_other_grids_are_carried_or_refused():
    tall = images(2, WIDTH, HEIGHT)
    model = vit("rope(base=100)")
    assert jnp.isfinite(run(model, init(model), tall)).all()
    model = vit("learned")
    with pytest.raises(ValueError, match=r"learned has rows for positions below 2x3 .*\[2 0\].* make the table larger"):
        run(model, init(model), tall)
