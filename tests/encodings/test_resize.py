"""Resizing tables: beside torch, DINOv2, timm, transformers, SciPy and JAX, and what a resize must be whatever it is."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.ndimage
from goldens.check import load

import posjax as pj
from posjax.encodings.bias_grid import OffsetTable
from posjax.encodings.resize import METHODS, Resampling, resize, resize_matrix, resize_rows
from posjax.encodings.tables import Table

GOLDEN = load("resize")
TABLES = [(6, 6), (7, 4)]
SIZES = [(9, 9), (3, 3), (4, 10), (12, 3), (6, 5)]
TORCH = sorted(name for name in METHODS if name.startswith("torch"))
every_method = pytest.mark.parametrize("method", METHODS)


def close(a, b, atol=1e-6):
    assert np.shape(a) == np.shape(b)
    np.testing.assert_allclose(np.asarray(a, np.float64), np.asarray(b, np.float64), rtol=0, atol=atol)


def name_of(size):
    return f"{size[0]}x{size[1]}"


def noise(*shape):
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("method", TORCH)
@pytest.mark.parametrize("old", TABLES, ids=name_of)
def test_torch(method, old):
    for new in SIZES:
        ours = resize(GOLDEN[f"table_{name_of(old)}"], new, method=method)
        close(ours, GOLDEN[f"{method}_{name_of(old)}_{name_of(new)}"], atol=4e-6)


@pytest.mark.parametrize("new", [(9, 9), (3, 8), (6, 11)], ids=name_of)
def test_dinov2_resizes_by_a_scale_factor(new):
    """Also an axis that keeps its size, where the other one does not."""
    theirs = GOLDEN[f"dinov2_6x6_{name_of(new)}"]
    close(resize(GOLDEN["table_6x6"], new, method="dinov2"), theirs, atol=4e-6)
    assert np.abs(resize(GOLDEN["table_6x6"], new, method="torch_bicubic") - theirs).max() > 1e-3


@pytest.mark.parametrize("old", [*TABLES, (1, 4)], ids=name_of)
def test_scipy_and_jax(old):
    table = noise(*old, 3)
    for new in [*SIZES, (1, 1)]:
        factors = (new[0] / old[0], new[1] / old[1], 1)
        close(resize(table, new, method="google_npz"), scipy.ndimage.zoom(table.astype(np.float64), factors, order=1))
        for kind in ("linear", "cubic") if new in SIZES[:3:2] else ():
            close(resize(table, new, method=f"jax_{kind}"), jax.image.resize(table, (*new, 3), kind), atol=5e-6)


def test_transformers_vit_and_dinov2_and_timm():
    """Whole tables with a class token, to a grid of as many patches and another shape."""
    params = Table(GOLDEN["flat"], (6, 6))
    for golden, method in (
        ("hf_vit", "torch_bicubic"),
        ("hf_dinov2", "torch_bicubic"),
        ("timm_abs", "torch_bicubic_antialias"),
    ):
        _, resized = pj.parse("learned").resized(params, (6, 6), (9, 4), method)
        assert resized.extent == (9, 4)
        close(resized.rows, GOLDEN[golden], atol=4e-6)


def test_timm_relative_bias():
    params = OffsetTable(GOLDEN["relative"], (3, 3), 1)
    _, resized = pj.parse("beit").resized(params, (3, 3), (4, 6))
    close(resized.rows, GOLDEN["timm_relative"], atol=4e-6)


@every_method
def test_rows_are_those_of_the_matrix(method):
    """Sizes are NumPy's, traced, and different for every token."""
    traced = jax.jit(lambda position, new: resize_rows(position, old, new, method))
    old, grid = (6, 7), np.int32([12, 12])
    for new in [(9, 3), (1, 7), (5, 12)]:
        position = np.stack(np.mgrid[: grid[0], : grid[1]], axis=-1).reshape(-1, 2).astype(np.int32) % np.int32(new)
        size = np.int32(new)
        expected = [resize_matrix(o, n, method)[p] for o, n, p in zip(old, new, position.T, strict=True)]
        for rows in (resize_rows(position, old, size, method), traced(position, np.broadcast_to(size, position.shape))):
            for a, b in zip(rows, expected, strict=True):
                assert a.dtype == np.float32
                close(a, b, atol=1.5e-6 if method == "dinov2" else 4e-7)  # its offset is not exact in float32


@every_method
def test_a_grid_of_the_same_size_is_the_identity(method):
    table = noise(4, 7, 2)
    np.testing.assert_array_equal(resize(table, (4, 7), method=method), table)
    position = pj.grid(4, 7).position
    for rows, at, n in zip(resize_rows(position, (4, 7), np.int32([4, 7]), method), position.T, (4, 7), strict=True):
        np.testing.assert_array_equal(rows, np.eye(n)[at])


@every_method
def test_constants_stay_and_axes_transpose(method):
    close(resize(np.ones((5, 3, 1), np.float32), (8, 2), method=method), np.ones((8, 2, 1)))
    table = noise(5, 3, 2)
    close(
        resize(table, (8, 2), method=method).swapaxes(0, 1), resize(table.swapaxes(0, 1), (2, 8), method=method), 1e-6
    )
    flipped = resize(table[::-1], (8, 2), method=method)
    if method != "dinov2":  # whose offset moves everything towards the first row
        close(flipped[::-1], resize(table, (8, 2), method=method))


def test_one_axis_and_three():
    table = noise(4, 3, 5, 2)
    film = resize(table, (2, 6, 5), method="torch_bilinear")
    each = [
        resize(frame, (6, 5), method="torch_bilinear") for frame in resize(table, (2, 3, 5), method="torch_bilinear")
    ]
    close(film, np.stack(each))
    close(resize(table[:, 0, 0], (9,), method="jax_cubic"), resize_matrix(4, 9, "jax_cubic") @ table[:, 0, 0])


def test_types_compilation_and_gradients():
    table = noise(6, 5, 2)
    rough = resize(table.astype(jnp.bfloat16), (9, 4))
    assert rough.dtype == jnp.bfloat16
    np.testing.assert_array_equal(
        rough, resize(table.astype(jnp.bfloat16).astype(np.float32), (9, 4)).astype(jnp.bfloat16)
    )
    compiled = jax.jit(lambda table: resize(table, (9, 4)))
    close(compiled(table), resize(table, (9, 4)))
    weight = noise(9, 4, 2)
    gradient = jax.grad(lambda table: (weight * resize(table, (9, 4))).sum())(table)
    down, across = resize_matrix(6, 9, "torch_bicubic"), resize_matrix(5, 4, "torch_bicubic")
    close(gradient, np.einsum("ij,kl,ikm->jlm", down, across, weight), atol=1e-5)


def test_a_resampling_of_ones_own():
    own = Resampling("cubic", a=-1.0)
    assert np.abs(resize_matrix(5, 8, own) - resize_matrix(5, 8, "jax_cubic")).max() > 1e-2
    _, params = pj.parse("learned").resized(Table(noise(6, 2), (2, 3)), (2, 3), (4, 4), own)
    close(params.rows, resize(noise(6, 2).reshape(2, 3, 2), (4, 4), method=own).reshape(16, 2))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: resize(noise(2, 2, 1), (3, 3), method="torch_cubic"), "'torch_cubic'; did you mean 'torch_bicubic'"),
        (lambda: resize(noise(4, 1), (2, 2)), r"shape \(4, 1\) is no grid of 2 axes"),
        (lambda: pj.parse("learned(resize='bicubic')"), "no resize is named 'bicubic'; did you mean 'torch_bicubic'"),
        (lambda: Resampling("cubic", edge="clamp"), "no edge of a resize is named 'clamp'"),
        (lambda: Resampling(antialias=True, edge="repeat"), "needs alignment='half_pixel' and edge='renormalise'"),
        (lambda: Resampling(alignment="corners", offset=0.1), "0 where corners are aligned; got 0.1"),
    ],
)
def test_what_cannot_be(call, message):
    with pytest.raises(ValueError, match=message):
        call()
