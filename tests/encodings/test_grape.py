"""GRAPE's identities: RoPE, ALiBi and FoX as actions of groups; and what its own members are without content."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg

import posjax as pj
from posjax.encodings.bias import alibi_slopes

T, H, D = 7, 4, 8
DIMS = pj.Dims(H * D, H, D, length=24)
X = jax.random.normal(jax.random.key(0), (T, H * D))
Q, K = jax.random.normal(jax.random.key(1), (2, T, H, D))
SITE = pj.sites(T)


def logits(encoding, params, site=SITE):
    """Unscaled, with the bias."""
    q, k = encoding.rotate(params, Q, site, K, site)
    return np.asarray(encoding.product(q, site, k, site) + encoding.bias(params, Q, site, K, site))


def lifted(h, turn):
    """[q; 1; 0] G^{-T} [k; 0; 1] for every causal pair, with the matrix G that `turn` gives for query i and key j."""
    out = np.zeros((T, T))
    for i in range(T):
        for j in range(i + 1):
            q, k = np.append(Q[i, h], [1, 0]), np.append(K[j, h], [0, 1])
            out[i, j] = q @ np.linalg.inv(turn(i, j)).T @ k
    return out


def unipotent(amount):
    """I + amount e_{d+2} e_{d+1}^T."""
    matrix = np.eye(D + 2)
    matrix[D + 1, D] += amount
    return matrix


def test_rope_is_a_multiplicative_action():
    """exp(n sum_i theta_i L(e_2i, J e_2i)), L(a, b) = a b^T - b a^T, eq. 3.1."""
    theta = 10_000.0 ** -(np.arange(D // 2) / (D // 2))
    # Turned by +n theta, as rope turns, with L(J a, a): L(a, J a) is -J on its plane.
    planes = [np.eye(D)[:, 2 * i : 2 * i + 2] for i in range(D // 2)]
    generator = sum(
        t * (np.outer(u[:, 1], u[:, 0]) - np.outer(u[:, 0], u[:, 1])) for t, u in zip(theta, planes, strict=True)
    )
    turn = [scipy.linalg.expm(n * generator) for n in range(T)]
    expected = np.einsum("tcd,thd,sce,she->hts", turn, Q, turn, K)
    np.testing.assert_allclose(logits(pj.parse("rope(layout='interleaved')"), ()), expected, atol=1e-5)


def test_alibi_is_a_unipotent_action():
    """Section 4.2: G(m)^{-T} = I - m A^T with A^T = -beta e_{d+1} e_{d+2}^T, m = j - i."""
    ours = np.tril(logits(pj.parse("alibi()"), ()))
    for h, beta in enumerate(alibi_slopes(H)):
        np.testing.assert_allclose(ours[h], lifted(h, lambda i, j, beta=beta: unipotent(-(j - i) * beta)), atol=1e-4)


def test_fox_is_a_path_of_unipotent_actions():
    """Equation 5.4: the product over l = j + 1 ... i of I - log f_l E, scored by its inverse transpose.

    The factors I + log f_l E of appendix C would turn the sign of the bias.
    """
    fox = pj.parse("fox()")
    params = fox.init(jax.random.key(2), DIMS)
    gates = np.asarray(jax.nn.log_sigmoid(X @ params["kernel"] + params["bias"]), np.float64)
    ours = np.tril(logits(fox, params, fox.observe(params, X, SITE)))

    def path(h, i, j):
        return functools.reduce(np.matmul, [unipotent(-gates[n, h]) for n in range(j + 1, i + 1)], np.eye(D + 2))

    for h in range(H):
        np.testing.assert_allclose(ours[h], lifted(h, functools.partial(path, h)), atol=1e-5)


def test_gates_that_read_nothing_are_alibi():
    """softplus(0) = ln 2 for the query and for the key."""
    encoding = pj.parse("grape_a()")
    nothing = jnp.zeros((H, D))
    params = {"omega": jnp.full(H, np.log(np.expm1(0.5 / np.log(2)))), "query": nothing, "key": nothing}
    np.testing.assert_allclose(logits(encoding, params), logits(pj.parse("alibi()"), ()), atol=1e-5)


def test_paths_that_read_nothing_are_alibi():
    """log sigmoid(0) = -ln 2 for every token after the key: ALiBi's slopes times ln 2."""
    encoding = pj.parse("grape_ap()")
    params = {"kernel": jnp.zeros((H * D, H, 8))}
    site = encoding.observe(params, X, SITE)
    ours, alibi = (
        np.asarray(e.bias(p, Q, s, K, s)) for e, p, s in ((encoding, params, site), (pj.parse("alibi()"), (), SITE))
    )
    np.testing.assert_allclose(np.tril(ours), np.log(2) * np.tril(alibi), atol=1e-5)
    assert not np.triu(ours, 1).any()


def test_phases_that_read_nothing_are_rope():
    """Gates of sigmoid(0) = 1/2 count half a position a token; the published start is 0.394, not 0.001."""
    encoding = pj.parse("grape_m()")
    params = encoding.init(jax.random.key(0), DIMS)
    np.testing.assert_allclose(jax.nn.sigmoid(params["bias"] / 16), 0.3937, atol=1e-4)
    half = params | {"bias": jnp.zeros(1)}
    at_half = SITE._replace(position=SITE.position.astype(np.float32) / 2)
    ours = logits(encoding, half, encoding.observe(half, X, SITE))
    np.testing.assert_allclose(ours, logits(pj.parse("rope()"), (), at_half), atol=1e-5)


def test_gates_are_of_vectors_of_length_one_if_normalized():
    params = pj.parse("grape_a()").init(jax.random.key(3), DIMS)
    longer = params | {"query": 3 * params["query"]}
    same, other = (
        [logits(pj.parse(spec), p) for p in (params, longer)] for spec in ("grape_a()", "grape_a(normalized=False)")
    )
    np.testing.assert_allclose(*same, atol=1e-5)
    assert np.abs(other[0] - other[1]).max() > 0.1
