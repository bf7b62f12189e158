"""Rotary encodings that learn or generalise: what their papers claim, where code differs, and what float32 carries."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg

import posjax as pj
from posjax.describe.worlds import normal
from posjax.encoding import Needs
from posjax.encodings.rotary_learned import expm, sum_of_products

T, H, D = 10, 3, 8
DIMS = pj.Dims(H * D, H, D, length=24)
ON_GRID = DIMS._replace(grid=(6, 7))
Q, K = (normal(seed, T, H, D) for seed in range(2))


def made(spec, dims=DIMS):
    encoding = pj.parse(spec)
    return encoding, jax.jit(functools.partial(encoding.init, dims=dims))(jax.random.key(1))


def logits(encoding, params, site, q=Q, k=K):
    @jax.jit
    def run(params, q, k):
        q, k = encoding.rotate(params, q, site, k, site)
        return encoding.product(q, site, k, site)

    return np.asarray(run(params, q, k))


# LeRoPE and RoPE++


def test_a_pair_of_heads_looks_with_one_query():
    """The second query of a pair is not looked at, nor its key where each head has one; an odd head is real."""
    encoding, site = pj.parse("rope_pp()"), pj.sites(T)
    q, k = (x.at[:, 1].set(jnp.nan) for x in (Q, K))
    ours, real = logits(encoding, (), site, q, k), logits(pj.parse("rope()"), (), site)
    np.testing.assert_allclose(ours[[0, 2]], real[[0, 2]], atol=1e-5)
    assert np.isfinite(ours[1]).all()
    many = jnp.concatenate([Q, Q], axis=1)
    with pytest.raises(ValueError, match="2 key heads serve 3 of 6 query heads each; choose num_kv_heads"):
        jax.eval_shape(lambda q, k: encoding.rotate((), q, site, k, site), many, K[:, :2])
    kept = jax.eval_shape(lambda q, k: encoding.rotate((), q, site, k, site), many, K)[1]
    assert kept.shape == K.shape  # a cache holds no more than the model has
    alone = logits(encoding, (), site, Q[:, :1], K[:, :1])
    np.testing.assert_allclose(alone, real[:1], atol=1e-5)


# RoPE-Mixed


def test_mixed_frequencies_at_first():
    """Two perpendicular directions for each head, of the magnitudes 10^(-4c/D) of the paper."""
    _, params = made("rope_mixed()", ON_GRID)
    wave = np.asarray(params["wave"])
    assert wave.shape == (2, H, D // 2)
    np.testing.assert_allclose(np.linalg.norm(wave, axis=0), np.tile([1, 10**-0.5], (H, 2)), rtol=1e-6)
    np.testing.assert_allclose((wave[..., :2] * wave[..., 2:]).sum(axis=0), 0, atol=1e-6)
    directions = np.arctan2(wave[0], wave[1])
    np.testing.assert_allclose(directions[:, 0], directions[:, 1], rtol=1e-5)
    assert np.unique(directions[:, 0].round(3)).size == H
    wave = np.asarray(pj.parse("rope_mixed").init(jax.random.key(0), pj.Dims(24, 2, 12, grid=(2, 3, 4)))["wave"])
    directions = wave.reshape(3, 2, 3, 2) * [1, 10**0.5]  # on three axes there are three
    products = np.einsum("ahbc,ahdc->hcbd", directions, directions)
    np.testing.assert_allclose(products, np.broadcast_to(np.eye(3), (2, 2, 3, 3)), atol=1e-5)


# Compass-RoPE


def test_compass_directions_are_uniform_at_first():
    """A head's directions are spread over a whole turn, and those of all heads at one magnitude over half a turn."""
    _, params = made("compass_rope()", ON_GRID)
    turns = np.exp(1j * np.asarray(params["direction"]))
    np.testing.assert_allclose(turns.sum(axis=1), 0, atol=1e-6)
    np.testing.assert_allclose((turns**2).sum(axis=0), 0, atol=1e-6)
    np.testing.assert_allclose(params["magnitude"], np.tile(10 ** (-np.arange(4) / 4), (H, 1)), rtol=1e-6)


# PoPE


def test_polar_phases_count_modulo_a_turn_and_never_die():
    """Clamped to [-2 pi, 0], as published code has it, a phase beyond would get no gradient again."""
    encoding, params = made("pope(bias_uniform_init=True)")
    assert -2 * np.pi <= params["phase"].min() < params["phase"].max() <= 0
    beyond = {"phase": params["phase"] + 2 * np.pi}
    both = [logits(encoding, p, pj.sites(T)) for p in (params, beyond)]
    np.testing.assert_allclose(*both, atol=1e-5)
    loss = lambda p: jnp.sum(jnp.sin(encoding.rotate(p, Q, pj.sites(T), K, pj.sites(T))[1]))  # noqa: E731
    assert np.all(jax.jit(jax.grad(loss))(beyond)["phase"] != 0)
    assert not np.any(made("pope()")[1]["phase"])


# LieRE


def defect(generator_dim, dims, first, second):
    """The distance of R(p)^T R(q) from R(q - p)."""
    encoding, params = made(f"liere(generator_dim={generator_dim})", dims)
    eye = jnp.eye(D)[:, None, :].repeat(H, axis=1)  # a token for each column of R

    def rotation(*position):
        site = pj.Site(np.int32([position] * D), np.ones(D, np.int32), np.zeros(D, np.int32))
        site = site if len(position) > 1 else site._replace(position=site.position[:, 0])
        turned = jax.jit(lambda params, eye: encoding.rotate(params, eye, site, eye, site)[0])(params, eye)
        return np.asarray(turned, np.float64)[:, 0].T

    difference = np.subtract(second, first)
    turns = rotation(*first), rotation(*second)
    for turn in turns:
        np.testing.assert_allclose(turn.T @ turn, np.eye(D), atol=1e-5)
    return np.abs(turns[0].T @ turns[1] - rotation(*difference)).max()


@pytest.mark.slow
def test_group_defect_of_non_commuting_generators():
    """Blocks of two, and blocks of any size on a line, are relative; others are not, whatever the paper's name for it."""
    assert defect(2, ON_GRID, (1, 4), (5, 2)) < 1e-5
    assert defect(8, DIMS, (3,), (11,)) < 1e-5
    assert defect(4, ON_GRID, (2, 0), (5, 0)) < 1e-5  # along one axis there is one generator
    assert defect(4, ON_GRID, (1, 4), (5, 2)) > 0.1
    assert pj.parse("liere(generator_dim=2)").relative
    assert not pj.parse("liere()").relative


def test_a_half_subtracted_from_both_triangles_cancels():
    """The authors' code: upper = triu(raw, 1) - 1/2, A = upper - upper^T. Ours begins with entries of one sign."""
    _, params = made("liere(generator_dim=4)", ON_GRID)
    generator = np.asarray(params["generator"]) * np.array([5, 6]).reshape(2, 1, 1, 1)
    assert 0 <= generator.min() < 0.5
    assert 5.5 < generator.max() <= 2 * np.pi + 1e-5


def test_sums_of_products_are_the_matrix_product():
    """`matrix_product` takes them on TPUs alone."""
    a, b = (normal(seed, 2, 3, 5, 5) for seed in range(2))
    np.testing.assert_allclose(sum_of_products(a, b), a @ b, atol=1e-5)
    np.testing.assert_allclose(sum_of_products(a, b[..., :1]), a @ b[..., :1], atol=1e-5)


def test_exponentials_of_float32():
    x = np.random.default_rng(0).normal(size=(5, 8, 8))
    x = (x - x.swapaxes(-1, -2)).astype(np.float32)
    exponential = jax.jit(expm)
    for size in (0, 1e-3, 1, 30):
        ours, angle = exponential(np.float32(size) * x), np.abs(np.linalg.eigvals(size * x)).max()
        theirs = np.array([scipy.linalg.expm(m) for m in np.float64(np.float32(size) * x)])
        np.testing.assert_allclose(ours, theirs, atol=1e-7 + 7e-8 * angle)
    assert np.isnan(exponential(np.float32(1e4) * x)).all()
    assert not np.isnan(np.asarray(exponential(np.concatenate([x[:1], np.float32(1e4) * x[1:]])))[0]).any()


# xPos


def test_xpos_reach():
    """e^69 at 28,200: refused beyond where positions are known, NaN where they are not; centred, anywhere."""
    plain, centred = pj.parse("xpos()"), pj.parse("xpos(centred=True)")
    assert 28_000 < plain.reach < 28_500
    assert centred.reach == np.inf
    near, edge, far = (pj.sites(T, start=start) for start in (0, 28_000, 2**20))
    np.testing.assert_allclose(logits(plain, (), edge), logits(plain, (), near), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(logits(centred, (), far), logits(plain, (), near), rtol=1e-4, atol=1e-4)
    with pytest.raises(ValueError, match=r"carries 28200 positions.* choose centred=True or a larger scale_base"):
        logits(plain, (), far)
    with pytest.raises(ValueError, match="larger scale_base"):
        jax.jit(lambda q: plain.rotate((), q, far, K, far)[0])(Q)
    assert np.isnan(jax.jit(lambda site: plain.rotate((), Q, site, K, site)[0])(far)).all()
    with pytest.raises(ValueError, match="each side of the middle, but a token stands 50000 away: a larger scale_base"):
        logits(centred, (), pj.sites(2)._replace(position=np.int32([0, 100_000])), Q[:2], K[:2])
    padded = far._replace(segment=np.zeros(T, np.int32))
    assert np.isfinite(logits(plain, (), padded)).all()


# FoPE


def test_fope_matrices_stay_as_drawn_unless_learnable():
    for learnable in (False, True):
        encoding, params = made(f"fope(base=100, original_length=200, learnable={learnable})")
        assert (Needs.CONSTANT_PARAMS in encoding.needs) != learnable
        grads = jax.jit(jax.grad(lambda p, e=encoding: e.rotate(p, Q, pj.sites(T), K, pj.sites(T))[0].sum()))(params)
        assert all(np.any(g) == learnable for g in jax.tree.leaves(grads))


@pytest.mark.parametrize("spec", ["compass_rope", "cayley_string", "grape_m"])
def test_parameters_in_half_precision_turn_as_their_values_do(spec):
    encoding, site = pj.parse(spec), pj.sites(T)

    @jax.jit
    def turned(x):
        params = encoding.init(jax.random.key(0), DIMS)
        half = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), params)
        whole = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), half)
        here = encoding.observe(whole, x.reshape(T, H * D), site)
        return [encoding.rotate(params, x, here, x, here) for params in (half, whole)]

    for half, whole in zip(*turned(Q), strict=True):
        np.testing.assert_allclose(half, whole, atol=0.02)


def test_equal_sites_share_rotations():
    encoding, site, other = pj.parse("liere"), pj.sites(4), pj.sites(4, start=1)
    params = encoding.init(jax.random.key(0), pj.Dims(16, 2, 8, length=4))
    q = jnp.ones((4, 2, 8))

    def exponentials(k_site):
        return str(jax.make_jaxpr(lambda q: pj.attend(encoding, params, q, q, q, site, k_site))(q)).count("remat2[")

    assert (exponentials(site), exponentials(other), exponentials(other._replace(state=jnp.ones((4, 1))))) == (1, 2, 2)
