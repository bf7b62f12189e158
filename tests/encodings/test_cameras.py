"""Cameras as positions: the world's frame, one camera, scenes in a row, gradients, and the drawn scenes."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import cameras, joined, rows

import posjax as pj
from posjax.data.scenes import PATCH, SIDE, draw_views, met
from posjax.encoding import Camera
from posjax.encodings.cameras import scene
from posjax.hosting import Hosted

HEADS, DIM, PATCHES = 2, 24, (2, 3)
DIMS = pj.Dims(HEADS * DIM, HEADS, DIM)
QKV = np.random.default_rng(0).normal(size=(3, 12, HEADS, DIM)).astype(np.float32)
MATRICES = ["prope()", "prope(intrinsics=False)", "gta(height=2, width=3)"]
RAYS = "rayrope(height=2, width=3, views=2)"
DEPTHS = np.random.default_rng(3).normal((0.5, 0.3), 0.2, size=(12, 2)).astype(np.float32)  # that rays read: log, width
LENSES = np.array([[[40.0, 0, 15], [0, 30, 11], [0, 0, 1]], [[25.0, 0, 18], [0, 35, 9], [0, 0, 1]]])


def views(seed=1):
    return cameras(np.random.default_rng(seed), 2).view


def site_of(view=None, lenses=LENSES):
    site = scene(views() if view is None else view, lenses, image_size=(20, 30), patches=PATCHES)
    return site._replace(state=DEPTHS)


@functools.partial(jax.jit, static_argnames=("spec", "implementation"))
def attended(spec, site, qkv=QKV, implementation="dense"):
    encoding = pj.parse(spec)
    params = encoding.init(jax.random.key(0), DIMS)
    return pj.attend(encoding, params, *qkv, site, site, implementation=implementation, consumed=("observe",))


@pytest.mark.parametrize("spec", [*MATRICES, RAYS])
def test_the_world_has_no_frame(spec):
    frame = cameras(np.random.default_rng(2), 1).view[0]
    run = functools.partial(attended, spec)
    out = run(site_of())
    np.testing.assert_allclose(run(site_of(views() @ frame)), out, atol=2e-5)
    turned = np.stack([views()[0] @ frame, views()[1]])  # one camera alone
    assert np.abs(run(site_of(turned)) - out).max() > 1e-2


@pytest.mark.parametrize("spec", MATRICES)
def test_one_camera_is_none(spec):
    alike = site_of(views()[[0, 0]], LENSES[[0, 0]])
    plain = alike._replace(
        relation=Camera(np.tile(np.eye(4, dtype=np.float32), (12, 1, 1)), 0 * alike.relation.lens + 1)
    )
    np.testing.assert_allclose(
        attended(spec, alike), attended(spec, plain), atol=2e-5
    )  # the rotation of patches is all that is left


def test_points_close_to_a_camera_do_not_see_where_it_stands():
    """At the least depth, 0.01, they would see the rounding of its motion to itself a hundredfold."""
    far = views() @ np.array([[1, 0, 0, 50], [0, 1, 0, 70], [0, 0, 1, 90], [0, 0, 0, 1]])
    sites = [site_of(view)._replace(state=DEPTHS - np.float32([6, 0])) for view in (np.stack([np.eye(4)] * 2), far)]
    alone = [site._replace(segment=np.repeat(np.int32([1, 2]), 6)) for site in sites]  # a scene of one view each
    np.testing.assert_allclose(*(attended(RAYS, site) for site in alone), atol=1e-6)


def test_rays_see_the_frame_and_the_focal_length():
    encoding = pj.parse("plucker(height=2, width=3)")
    params, x = encoding.init(jax.random.key(0), DIMS), jnp.zeros((12, DIMS.width))
    code = jax.jit(lambda site: encoding.embed(params, x, site))
    codes = [code(site) for site in (site_of(), site_of(views(3)), site_of(lenses=2 * LENSES))]
    assert min(np.abs(codes[0] - code).max() for code in codes[1:]) > 1e-2


def test_focal_lengths_are_seen_with_intrinsics_alone():
    zoomed = site_of(lenses=LENSES * [[2], [2], [1]])
    for spec in (*MATRICES, RAYS):
        change = np.abs(attended(spec, zoomed) - attended(spec, site_of())).max()
        assert (change > 1e-2) == (spec in ("prope()", RAYS)), spec


@pytest.mark.parametrize(
    ("spec", "implementation"), [("prope()", "dense"), ("prope()", "blockwise"), (RAYS, "blockwise")]
)
def test_scenes_are_alone_in_a_row(spec, implementation):
    first, second = site_of(), site_of(views(5))
    row = joined(first, second)._replace(segment=np.repeat([1, 2], 12).astype(np.int32))
    order, qkv = np.random.default_rng(1).permutation(24), np.concatenate([QKV, QKV[::-1]], axis=1)
    together = np.zeros_like(qkv[0])
    together[order] = attended(spec, rows(row, order), qkv[:, order], implementation)
    np.testing.assert_allclose(together[:12], attended(spec, first), atol=1e-5)
    np.testing.assert_allclose(together[12:], attended(spec, second, QKV[::-1]), atol=1e-5)


@pytest.mark.parametrize("spec", ["prope()", RAYS])
def test_views_are_decoded_one_by_one(spec):
    """A cache of keys serves the queries of the next camera: in the world's frame, or turned in its frame then."""
    encoding, site = pj.parse(spec), site_of()._replace(state=())
    first, second = (slice(0, 6), slice(6, 12))

    @jax.jit
    def run(qkv):
        x = qkv[0].reshape(12, -1)
        params = {"kernel": 0.1 * x.T[:, :2], "bias": jnp.array([0.5, 0.3])}  # depths of each token, which rays read
        whole, *hosted = (Hosted(encoding, params, each) for each in (site, rows(site, first), rows(site, second)))
        begun, cache = hosted[0].attend_cached(*qkv[:, first], x=x[first], cache_size=12)
        ended, _ = hosted[1].attend_cached(*qkv[:, second], x=x[second], cache=cache)
        return jnp.concatenate([begun, ended]), whole.attend(*qkv, x=x, causal=True)

    np.testing.assert_allclose(*run(QKV), atol=1e-5)


@pytest.mark.parametrize("spec", [MATRICES[0], MATRICES[2], RAYS])
def test_cameras_have_gradients(spec):
    """Along a random direction of both matrices, beside a difference quotient."""
    random, leaves = np.random.default_rng(4), (jnp.asarray(views()), jnp.asarray(LENSES, jnp.float32))
    way = tuple(random.normal(size=leaf.shape).astype(np.float32) * (leaf != 0) for leaf in leaves)

    @jax.jit
    def loss(view, lenses):
        return jnp.sum(jnp.sin(attended(spec, site_of(view, lenses))))

    slope = jax.jvp(loss, leaves, way)[1]
    ends = [loss(*(leaf + step * w for leaf, w in zip(leaves, way, strict=True))) for step in (-1e-3, 1e-3)]
    np.testing.assert_allclose(slope, (ends[1] - ends[0]) / 2e-3, rtol=2e-2)
    assert np.isfinite(jax.grad(loss)(*leaves)).all()


def test_a_sum_does_not_depend_on_the_order_of_its_parts():
    """The part that leaves other channels is the last to turn values, and the first to turn them back."""
    site = site_of()._replace(state=())
    out = [
        Hosted(encoding, encoding.init(jax.random.key(0), DIMS), site).attend(*QKV, x=QKV[0].reshape(12, -1))
        for encoding in map(
            pj.parse, (f"{RAYS} + (axis(index=2) >> value_rotary())", f"(axis(index=2) >> value_rotary()) + {RAYS}")
        )
    ]
    np.testing.assert_allclose(*out, atol=1e-5)


def test_views_that_are_not_there_are_refused_or_read_nothing():
    site = site_of()
    moved = site._replace(position=site.position + np.int32([1, 0, 0]))
    with pytest.raises(ValueError, match="views 0 to 1, and a token is in view 2"):
        pj.attend(pj.parse(RAYS), (), *QKV, moved, moved, consumed=("observe",))
    out = attended(RAYS, moved)
    assert np.isnan(out[6:]).all()
    np.testing.assert_allclose(out[:6], attended(RAYS, site)[:6], atol=1e-5)


def test_sizes_follow_the_grid():
    for spec in ("gta(height=2, width=3)", "plucker(height=2, width=3)", RAYS):
        encoding, _ = pj.parse(spec).resized((), (2, 3), (4, 5))
        assert str(encoding) == spec.replace("height=2, width=3", "height=4, width=5")


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda: attended("prope()", pj.grid(3, 4)), r"camera of each token.*cameras\.scene"),
        (lambda: attended("prope()", site_of(), QKV[..., :6]), "divisible by 8, got 6"),
        (lambda: attended(RAYS, site_of(), QKV[..., :5]), "even, got 5"),
        (lambda: pj.parse(f"{RAYS} + shaw(max_relative_position=3)"), "reads beside them"),
        (lambda: site_of(views()[:, :3]), r"views \[V, 4, 4\].*got \(2, 3, 4\)"),
    ],
)
def test_mistakes_name_their_mend(made, message, unchecked_shapes):
    with pytest.raises(ValueError, match=message):
        made()


def test_scenes_have_exact_cameras():
    """Points are on the sphere and on their rays; a colour is shared if and only if another frame holds its point."""
    drawn = draw_views(np.random.default_rng(0), 3, colours=5, zoom=1.5)
    count = (SIDE // PATCH) ** 2
    each = slice(None, None, count)
    cameras_of = [(view, float(lens[0])) for view, lens in zip(drawn.view[each], drawn.lens[each], strict=True)]
    points = np.concatenate([met(*camera) for camera in cameras_of])  # [N, P, 3]
    np.testing.assert_allclose(np.linalg.norm(points, axis=-1), 1, atol=1e-6)
    seen = np.einsum("nij,npj->npi", drawn.view[:, :3, :3], points) + drawn.view[:, None, :3, 3]
    image = drawn.lens[:, None, :2] * seen[..., :2] / seen[..., 2:]
    within = np.stack(np.meshgrid(range(PATCH), range(PATCH)), axis=-1).reshape(-1, 2)  # (column, row)
    pixel = PATCH * drawn.place[:, None, :0:-1] + within
    np.testing.assert_allclose(image, (pixel + 0.5) / SIDE - 0.5, atol=1e-5)
    local = (
        np.einsum("vij,npj->npvi", drawn.view[each, :3, :3], points) + drawn.view[each, :3, 3]
    )  # in each camera's frame
    inside = (np.abs(drawn.lens[each, 0, None] * local[..., :2] / local[..., 2:]) < 0.5).all(axis=-1) & (
        local[..., 2] > 0
    )
    shared = (inside & (drawn.place[:, :1] != np.arange(3))[:, None]).any(axis=-1)
    assert (drawn.shared == shared).all()
    assert 0 < shared.mean() < 1
    first, *others = np.split(points.reshape(-1, 3), 3)
    one, *colours = np.split(drawn.colour.ravel(), 3)
    near = np.abs(first[:, None] - np.concatenate(others)).max(axis=-1) < 1e-2
    assert near.sum() > 100
    assert (one[:, None] == np.concatenate(colours))[near].mean() > 0.95
