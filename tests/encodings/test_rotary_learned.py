"""Rotary encodings that learn or generalise: what their papers claim, where code differs, and what float32 carries."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg

import posjax as pj
from posjax.encoding import Needs
from posjax.encodings.rotary_learned import expm

T, H, D = 10, 3, 8
DIMS = pj.Dims(H * D, H, D, length=24)
ON_GRID = DIMS._replace(grid=(6, 7))
Q, K = jax.random.normal(jax.random.key(0), (2, T, H, D))


def made(spec, dims=DIMS):
    encoding = pj.parse(spec)
    return encoding, encoding.init(jax.random.key(1), dims)


def logits(encoding, params, site, q=Q, k=K):
    @jax.jit
    def run(params, q, k):
        q, k = encoding.rotate(params, q, site, k, site)
        return encoding.product(q, site, k, site)

    return np.asarray(run(params, q, k))


def one_at(*position):
    return pj.grid(1, 1)._replace(position=np.int32([position]))


# LeRoPE and RoPE++


def test_learned_frequencies_are_scaled_ones():
    """a = -ln 3 for all channels is rope(scaling=linear(factor=3)), 0 is rope()."""
    site = pj.sites(T)
    for scale, spec in ((0.0, "rope()"), (-np.log(3), "rope(scaling=linear(factor=3))")):
        ours = logits(pj.parse("lerope()"), {"log_scale": jnp.full(D // 2, scale)}, site)
        np.testing.assert_allclose(ours, logits(pj.parse(spec), (), site), atol=1e-5)


def test_a_pair_of_heads_looks_with_one_query():
    """The second query of a pair is not looked at, nor its key where each head has one; an odd head is real."""
    encoding, site = pj.parse("rope_pp()"), pj.sites(T)
    q, k = (x.at[:, 1].set(jnp.nan) for x in (Q, K))
    ours, real = logits(encoding, (), site, q, k), logits(pj.parse("rope()"), (), site)
    np.testing.assert_allclose(ours[[0, 2]], real[[0, 2]], atol=1e-5)
    assert np.isfinite(ours[1]).all()
    many = jnp.concatenate([Q, Q], axis=1)
    with pytest.raises(ValueError, match="2 key heads serve 3 of 6 query heads each; choose num_kv_heads"):
        encoding.rotate((), many, site, K[:, :2], site)
    kept = encoding.rotate((), many, site, K, site)[1]
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


def test_mixed_on_a_line_begins_as_rope():
    encoding, params = made("rope_mixed(base=100, layout='half')")
    ours, theirs = (logits(e, p, pj.sites(T)) for e, p in ((encoding, params), (pj.parse("rope(base=100)"), ())))
    np.testing.assert_allclose(ours, theirs, atol=1e-5)


def test_mixed_frequencies_are_exact_far_out():
    """The logits of neighbours at 2^17 are those at 0: learned float32 frequencies, positions up to 10 apart."""
    encoding, params = made("rope_mixed()")
    params = {"wave": params["wave"] * jax.random.uniform(jax.random.key(2), (1, H, D // 2), minval=0.5)}
    near, far = (logits(encoding, params, pj.sites(T, start)) for start in (0, 2**17))
    np.testing.assert_allclose(far, near, atol=1e-5)


@pytest.mark.parametrize("spec", ["rope_mixed()", "compass_rope()", "liere()"])
def test_parameters_of_other_axes_are_refused(spec):
    encoding, params = made(spec)
    with pytest.raises(ValueError, match=r"initialised for positions of 1 axes, got 2: give Dims\(grid=...\)"):
        logits(encoding, params, pj.grid(2, 5))


# Compass-RoPE


def test_compass_directions_are_uniform_at_first():
    """Around each head, and modulo a half turn over the heads at each magnitude; rope_mixed has two to a head."""
    _, params = made("compass_rope()", ON_GRID)
    turns = np.exp(1j * np.asarray(params["direction"]))
    np.testing.assert_allclose(turns.sum(axis=1), 0, atol=1e-6)
    np.testing.assert_allclose((turns**2).sum(axis=0), 0, atol=1e-6)
    np.testing.assert_allclose(params["magnitude"], np.tile(10 ** (-np.arange(4) / 4), (H, 1)), rtol=1e-6)


def test_compass_is_mixed_of_the_same_frequencies():
    encoding, params = made("compass_rope()", ON_GRID)
    wave = params["magnitude"] * jnp.stack([jnp.sin(params["direction"]), jnp.cos(params["direction"])])
    theirs = logits(pj.parse("rope_mixed()"), {"wave": wave}, pj.grid(2, 5))
    np.testing.assert_allclose(logits(encoding, params, pj.grid(2, 5)), theirs, atol=1e-5)


def test_a_longer_compass_needle_turns_faster_along_its_direction():
    """One pair of channels of magnitude 0.5 towards the rows: a step down turns by 0.5, a step aside by nothing."""
    encoding, params = pj.parse("compass_rope()"), {"magnitude": jnp.full((1, 1), 0.5)}
    params |= {"direction": jnp.full((1, 1), np.pi / 2)}
    x = jnp.float32([[[1.0, 0.0]]])
    for position, turn in (((1, 0), 0.5), ((0, 1), 0.0)):
        turned = encoding.rotate(params, x, one_at(*position), x, one_at(*position))[0]
        np.testing.assert_allclose(turned[0, 0], [np.cos(turn), np.sin(turn)], atol=1e-6)


# PoPE


def test_polar_logits_by_hand():
    """Queries and keys of 0 have magnitude ln 2 everywhere, so that a logit is ln^2 2 sum_c cos((n - m) w_c + delta_c)."""
    encoding, _ = made("pope(base=16)")
    zero = jnp.zeros((2, 1, 4))
    params = {"phase": jnp.float32([[0, 1, 2, 3]])}
    site = pj.sites(2, start=5)
    expected = np.log(2) ** 2 * sum(np.cos(w + delta) for w, delta in zip((1, 0.5, 0.25, 0.125), range(4), strict=True))
    np.testing.assert_allclose(logits(encoding, params, site, zero, zero)[0, 0, 1], expected, rtol=1e-5)
    plain = logits(encoding, {"phase": jnp.zeros((1, 4))}, site, zero, zero)
    np.testing.assert_allclose(plain[0, 0, 0], 4 * np.log(2) ** 2, rtol=1e-6)


def test_polar_attention_is_scaled_by_the_head_dim_it_was_given():
    encoding, params = made("pope()")
    site = pj.sites(T)
    _, weights = pj.attend(encoding, params, Q, K, K, site, site, return_weights=True)
    expected = jax.nn.softmax(logits(encoding, params, site) / np.sqrt(D), axis=-1)
    np.testing.assert_allclose(weights, expected, atol=1e-6)


def test_polar_phases_count_modulo_a_turn_and_never_die():
    """Clamped to [-2 pi, 0], as published code has it, a phase beyond would get no gradient again."""
    encoding, params = made("pope(bias_uniform_init=True)")
    assert -2 * np.pi <= params["phase"].min() < params["phase"].max() <= 0
    beyond = {"phase": params["phase"] + 2 * np.pi}
    both = [logits(encoding, p, pj.sites(T)) for p in (params, beyond)]
    np.testing.assert_allclose(*both, atol=1e-5)
    loss = lambda p: jnp.sum(jnp.sin(encoding.rotate(p, Q, pj.sites(T), K, pj.sites(T))[1]))  # noqa: E731
    assert np.all(jax.grad(loss)(beyond)["phase"] != 0)
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
    raw = np.random.default_rng(0).uniform(0, 2 * np.pi, (8, 8))
    upper = np.triu(raw, 1) - 0.5
    np.testing.assert_allclose(upper - upper.T, np.triu(raw, 1) - np.triu(raw, 1).T, atol=1e-15)
    _, params = made("liere(generator_dim=4)", ON_GRID)
    generator = np.asarray(params["generator"]) * np.array([5, 6]).reshape(2, 1, 1, 1)
    assert 0 <= generator.min() < 0.5
    assert 5.5 < generator.max() <= 2 * np.pi + 1e-5


def test_exponentials_of_float32():
    x = np.random.default_rng(0).normal(size=(5, 8, 8))
    x = (x - x.swapaxes(-1, -2)).astype(np.float32)
    for size in (0, 1e-3, 1, 30):
        ours, angle = expm(jnp.asarray(size * x)), np.abs(np.linalg.eigvals(size * x)).max()
        theirs = np.array([scipy.linalg.expm(m) for m in np.float64(np.float32(size) * x)])
        np.testing.assert_allclose(ours, theirs, atol=1e-6 + 5e-7 * angle)
    assert np.isnan(expm(jnp.asarray(1e4 * x))).all()
    assert not np.isnan(expm(jnp.asarray(np.stack([x[0], 1e4 * x[0]])))[0]).any()


def test_channels_that_fill_no_block_pass():
    encoding, params = made("liere(generator_dim=3, per_head=False)", ON_GRID)
    assert params["generator"].shape == (2, 1, 2, 3)
    turned, _ = encoding.rotate(params, Q, pj.grid(2, 5), K, pj.grid(2, 5))
    np.testing.assert_array_equal(turned[..., 6:], Q[..., 6:])
    assert np.abs(turned - Q)[1:, :, :6].max() > 0.1


@pytest.mark.parametrize(
    ("spec", "dims", "message"),
    [
        ("liere(generator_dim=16)", DIMS, "liere.generator_dim=16. is above the head_dim 8"),
        ("liere()", DIMS._replace(length=None), r"give Dims\(length=...\) or Dims\(grid=...\)"),
        (
            "rope_mixed()",
            ON_GRID._replace(head_dim=6),
            "rope_mixed: a head_dim of 6 cannot be shared by 2 position axes",
        ),
        ("repo()", DIMS._replace(head_dim=7), "repo rotates pairs of channels: head_dim must be even, got 7"),
        ("fope()", DIMS._replace(head_dim=6), "must be divisible by 4, got 6"),
    ],
)
def test_sizes_that_cannot_be(spec, dims, message):
    with pytest.raises(ValueError, match=message):
        made(spec, dims)


# xPos


def test_xpos_decays_by_zeta():
    """A pair of equal channels at a distance where its rotation is a whole turn: zeta^(distance / 512) is left."""
    encoding = pj.parse("xpos(base=1)")  # every pair turns by 1 radian a position; 710 is 113 turns to 6e-5
    x = jnp.ones((2, 1, 8))
    site = pj.sites(2)._replace(position=np.int32([710, 0]))
    zeta = (np.arange(0, 8, 2) + 0.4 * 8) / (1.4 * 8)
    both = logits(encoding, (), site, x, x)[0]
    np.testing.assert_allclose(both[0, 1], 2 * np.sum(zeta ** (710 / 512)), rtol=1e-5)
    np.testing.assert_allclose(both[1, 0], 2 * np.sum(zeta ** (-710 / 512)), rtol=1e-5)  # ahead: amplified
    np.testing.assert_allclose(both[0, 0], 8, rtol=1e-6)


def test_xpos_is_the_same_from_any_centre():
    """torchscale counts from the middle rounded up, x-transformers rounded down: no logit can tell."""
    for length in (9, T):
        site = pj.sites(length)
        plain, centred = (
            logits(pj.parse(f"xpos(scale_base=16, centred={c})"), (), site, Q[:length], K[:length])
            for c in (False, True)
        )
        np.testing.assert_allclose(centred, plain, rtol=1e-5, atol=1e-5)
        shifted = [
            logits(
                pj.parse("xpos(scale_base=16)"),
                (),
                site._replace(position=site.position - np.int32(middle)),
                Q[:length],
                K[:length],
            )
            for middle in (length // 2, (length + 1) // 2)
        ]
        np.testing.assert_allclose(shifted, [plain] * 2, rtol=1e-5, atol=1e-5)


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


def test_dropped_frequencies_carry_content_twice():
    """cos and sin of a frequency of 0 would be 1 and 0; the authors' code pads both with 1."""
    encoding, params = made("fope(base=100, original_length=64)")
    q, k = (jnp.zeros((T, H, D)).at[..., [3, 7]].set(x[..., [3, 7]]) for x in (Q, K))  # of the last pair only
    unrotated = np.einsum("thd,shd->hts", q, k)
    np.testing.assert_allclose(logits(encoding, params, pj.sites(T), q, k), 2 * unrotated, atol=1e-5)


def test_fope_without_noise_is_a_choice_of_rope_channels():
    """Every second of the frequencies 1, 0.1, 0.01 above 2 pi / 1000: rotations of the first two pairs."""
    encoding, params = made("fope(base=10000, original_length=1000, gain=0)")
    np.testing.assert_array_equal(params["cos"][0], [[1, 0], [0, 0], [0, 1]])
    site = pj.sites(T)
    turned, _ = encoding.rotate(params, Q, site, K, site)
    for pair, frequency in ((0, 1), (1, 0.01)):
        z = (Q[..., pair] + 1j * Q[..., pair + 4]) * np.exp(1j * frequency * site.position)[:, None]
        np.testing.assert_allclose(turned[..., pair], z.real, atol=1e-6)
        np.testing.assert_allclose(turned[..., pair + 4], z.imag, atol=1e-6)


def test_fope_is_not_relative_once_frequencies_are_mixed():
    near, far = pj.sites(T), pj.sites(T, start=7)
    for gain, relative in ((0, True), (0.3, False)):
        encoding, params = made(f"fope(base=100, original_length=200, gain={gain})")
        change = np.abs(logits(encoding, params, near) - logits(encoding, params, far)).max()
        assert (change < 1e-5) == relative


def test_fope_matrices_stay_as_drawn_unless_learnable():
    for learnable in (False, True):
        encoding, params = made(f"fope(base=100, original_length=200, learnable={learnable})")
        assert (Needs.CONSTANT_PARAMS in encoding.needs) != learnable
        grads = jax.grad(lambda p, e=encoding: e.rotate(p, Q, pj.sites(T), K, pj.sites(T))[0].sum())(params)
        assert all(np.any(g) == learnable for g in jax.tree.leaves(grads))


@pytest.mark.parametrize("spec", ["rope_mixed", "compass_rope", "cayley_string", "grape_m"])
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_parameters_in_half_precision_turn_as_their_values_do(spec, dtype):
    encoding, site = pj.parse(spec), pj.sites(6)
    params = encoding.init(jax.random.key(0), pj.Dims(width=32, num_heads=4, head_dim=8, length=6))
    half = jax.tree.map(lambda leaf: leaf.astype(dtype), params)
    whole = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), half)
    x = jax.random.normal(jax.random.key(1), (6, 32))

    def attended(params):
        coded, hosted = pj.host(encoding, params, x, site, key=None)
        return hosted.attend(*[x.reshape(6, 4, 8)] * 3, x=coded)

    np.testing.assert_allclose(attended(half), attended(whole), atol=0.02)
