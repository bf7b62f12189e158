"""Statements of papers on content-dependent encodings that the sweep over all encodings does not test."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import HEAD_DIM, HEADS, WIDTH, forward, joined, rows, world
from members import Case

import posjax as pj

DIMS = pj.Dims(WIDTH, HEADS, HEAD_DIM, length=30)


def close(a, b, atol=1e-5):
    np.testing.assert_allclose(np.asarray(a, np.float32), np.asarray(b, np.float32), rtol=0, atol=atol)


def setting(spec, site):
    """(encoding, its parameters, queries and keys for these sites)."""
    encoding = pj.parse(spec)
    q, k = jax.random.normal(jax.random.key(5), (2, len(site.segment), HEADS, HEAD_DIM))
    return encoding, encoding.init(jax.random.key(4), DIMS), q, k


def bias(spec, site, **changed):
    encoding, params, q, k = setting(spec, site)
    params = params | changed if changed else params
    return np.asarray(jax.jit(lambda params, q, k: encoding.bias(params, q, site, k, site))(params, q, k))


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param("rope() + shaw(max_relative_position=3)", marks=pytest.mark.slow),
        "shaw() + cope(npos=5, stddev=1)",
        "tupe(stddev=0.3)",
    ],
)
@pytest.mark.parametrize("dtype", [jnp.float32, pytest.param(jnp.bfloat16, marks=pytest.mark.slow)])
def test_tiles_read_and_widen_as_the_whole(spec, dtype):
    """Values read beside v, whole rows and a wider product: blockwise is dense, in both precisions, with its gradients."""
    w = world(Case(spec))

    def loss(params, x, tile):
        return jnp.sum(
            jnp.sin(forward(w.encoding, params, x, w.site, w.weights, causal=True, tile=tile).astype(jnp.float32))
        )

    of_tiles, of_whole = (
        jax.jit(jax.value_and_grad(lambda p, x, tile=tile: loss(p, x, tile), argnums=(0, 1)))(
            w.params, w.x.astype(dtype)
        )
        for tile in (5, None)
    )
    for tiled, whole in zip(jax.tree.leaves(of_tiles), jax.tree.leaves(of_whole), strict=True):
        assert tiled.dtype == whole.dtype
        close(tiled, whole, atol=2e-5 if dtype == jnp.float32 else 0.05 * float(jnp.abs(whole).max()))


def test_a_sum_reads_what_each_part_reads():
    """Two parts with values: their vectors add up. Without values there is nothing to read, and no tile asks."""
    w = world(Case("shaw(max_relative_position=2) + shaw(max_relative_position=2)"))
    both = tuple({"key": 0 * p["key"], "value": p["value"]} for p in w.params)
    once = {name: both[0][name] + both[1][name] for name in both[0]}
    one = w._replace(encoding=w.encoding.parts[0])
    run = jax.jit(lambda both, once: (forward(*w._replace(params=both), tile=5), forward(*one._replace(params=once))))
    close(*run(both, once))
    assert "read" in w.encoding.hooks
    assert "read" not in pj.parse("shaw(values=False)").hooks


def test_shaw_knows_no_distance_beyond_its_clip():
    for spec, first, last in (("max_relative_position=3", 3, 9), ("max_relative_position=4, right=1", 2, 7)):
        by_query = bias(f"shaw({spec})", pj.sites(12))[:, 6].T  # offsets -6 to 5
        near = by_query[first : last + 1]
        close(by_query, np.concatenate([near[:1]] * first + [near] + [near[-1:]] * (11 - last)), atol=0)
        assert np.abs(np.diff(near, axis=0)).max(axis=1).min() > 1e-2


def test_shaw_bias_is_scaled_like_the_logits():
    """Equation 4: the vector stands inside the product of query and key, so 1/sqrt(d) is on both."""
    encoding = pj.parse("shaw(max_relative_position=1)")
    q = jnp.ones((1, 1, 16))
    params = {"key": jnp.ones((1, 3, 16)), "value": jnp.zeros((1, 3, 16))}
    close(encoding.bias(params, q, pj.sites(1), q, pj.sites(1)), 4.0 * np.ones((1, 1, 1)))


@pytest.mark.parametrize("clamp_len", [-1, pytest.param(3, marks=pytest.mark.slow)])
def test_transformer_xl_is_as_exact_far_out(clamp_len):
    near, far = (bias(f"transformer_xl(clamp_len={clamp_len})", pj.sites(9, start=s)) for s in (0, 2**20))
    close(far, near, atol=2e-6)


def inkling_bias(spec, site):
    """The biases of tokens that read 1 off every profile; the profile of distance d is 1 + d."""
    encoding = pj.parse(spec)
    columns = 1.0 + np.arange(encoding.extent, dtype=np.float32)
    params = {"project": np.ones((1, 1, HEADS, 1), np.float32), "profiles": columns[None, None]}
    site = encoding.observe(params, jnp.ones((len(site.segment), 1)), site)
    q = jnp.zeros((len(site.segment), HEADS, HEAD_DIM))
    return np.asarray(encoding.bias(params, q, site, q, site))


def test_inkling_knows_no_later_key_and_none_beyond_its_extent():
    b = inkling_bias("inkling(rank=1, extent=3)", pj.sites(6, start=2**20))
    d = np.arange(6)[:, None] - np.arange(6)
    close(b, np.broadcast_to(np.where((d >= 0) & (d < 3), 1 + d, 0), b.shape))


def test_inklings_temperature_goes_by_the_own_position():
    """transformers' Inkling counts padding before it; here position 7 has 1 + ln(8 / 4) wherever it lies."""
    site = pj.padded(np.array([0, 0, 0, *[1] * 8]))
    b = inkling_bias("inkling(rank=1, extent=1, n_floor=4, alpha=1)", site)
    close(
        np.diagonal(b, axis1=1, axis2=2)[:, 3:], np.ones((HEADS, 1)) * (1 + np.log(np.maximum(np.arange(1, 9) / 4, 1)))
    )


def test_inkling_2_shortens_states_to_its_clip():
    encoding = pj.parse("inkling(rank=4, clip=8)")
    x = jnp.array([[0.0], [1.0], [4.0], [100.0]])
    params = {"project": jnp.ones((1, 1, HEADS, 4)), "scale": jnp.ones((1, HEADS, 4))}
    state = encoding.observe(params, x, pj.sites(4)).state
    close(jnp.linalg.norm(state, axis=-1)[:, 0, 0], [0.0, 2.0, 8.0, 8.0], atol=1e-4)


def test_transformer_xl_clamps_both_sides():
    """Transformer-XL clamps from above, where distances are never negative; XLNet both ways."""
    encoding, params, q, k = setting("transformer_xl(clamp_len=3)", site := pj.sites(12))
    k = jnp.zeros_like(k)  # without u . k
    params = params | {"position": 50 * params["position"]}
    b = np.asarray(encoding.bias(params, q, site, k, site))
    near = np.asarray(pj.parse("transformer_xl()").bias(params, q, site, k, site))
    distance = np.arange(12)[:, None] - np.arange(12)
    close(b[:, np.abs(distance) <= 3], near[:, np.abs(distance) <= 3])
    for i, j in ((11, 0), (9, 1), (0, 11), (2, 8)):
        close(b[:, i, j], near[:, i, i - 3 if i > j else i + 3])
        assert np.abs(b[:, i, j] - near[:, i, j]).max() > 1e-2


def test_deberta_buckets_as_published():
    """v3's 256 buckets up to 512: whole distances to 128, the last from 511 on; row 0 is for keys far after."""
    rows_of = pj.parse("deberta()").steps().listed()
    at = {d: int(rows_of[d + 512]) for d in range(-512, 513)}
    assert [at[d] for d in (-128, -1, 0, 1, 128)] == [128, 255, 256, 257, 384]
    assert (at[129], at[130], at[510], at[511], at[512]) == (385, 386, 511, 511, 511)
    assert (at[-129], at[-511], at[-512]) == (127, 1, 0)
    assert sorted({*at.values()}) == [*range(0, 512)]


def test_deberta_without_buckets_is_clipped_as_in_the_paper():
    """delta(i, j) of equation 3: 0 where i - j <= -k, 2k - 1 where i - j >= k, else i - j + k."""
    rows_of = pj.parse("deberta(position_buckets=-1, max_relative_positions=4)").steps().listed()
    np.testing.assert_array_equal(rows_of, [0, 1, 2, 3, 4, 5, 6, 7, 7])


def test_deberta_reads_both_tables_at_query_minus_key():
    """Checkpoints were trained like this. The paper's third term has Q_delta(j, i), which would be row -2 here."""
    site = pj.sites(6)
    spec = "deberta(position_buckets=-1, max_relative_positions=6)"
    for name in ("pos_key", "pos_query"):
        tables = {n: jnp.zeros((12, HEADS, HEAD_DIM)) for n in ("pos_key", "pos_query")}
        b = bias(spec, site, **tables | {name: tables[name].at[6 + 2].set(1.0)})
        distance = np.arange(6)[:, None] - np.arange(6)
        assert (np.abs(b).min(axis=0)[distance == 2] > 0).all()
        assert not np.any(b[:, distance != 2])


@pytest.mark.slow
def test_deberta_queries_of_a_slice_are_those_of_the_whole():
    """transformers 5.23.0 looks p2c up for keys by keys, with two sizes swapped, and raises."""
    encoding, params, q, k = setting("deberta(position_buckets=4, max_relative_positions=8)", site := pj.sites(12))
    whole = encoding.bias(params, q, site, k, site)
    part = encoding.bias(params, q[9:], rows(site, slice(9, 12)), k, site)
    close(part, whole[:, 9:], atol=1e-6)


@pytest.mark.parametrize(("types", "terms"), [("('c2p', 'p2c')", 3), ("('p2c',)", 2)])
def test_deberta_counts_its_terms(types, terms):
    encoding, params, q, k = setting(f"deberta(pos_att_type={types})", site := pj.sites(4))
    rotated, same = encoding.rotate(params, q, site, k, site)
    close(rotated, q / terms**0.5)
    assert same is k


def test_tupe_unties_class_tokens():
    """theta_1 for a class token's queries, also at itself; theta_2 for others that look at it; neither moves with places."""
    encoding = pj.parse("tupe(stddev=1)")
    site = pj.grid(2, 2, prefix=2)
    params = encoding.init(jax.random.key(0), pj.Dims(WIDTH, HEADS, HEAD_DIM, grid=(2, 2), prefix=2))
    params["untied"] = jnp.array([[1.0] * HEADS, [2.0] * HEADS])
    q = jax.random.normal(jax.random.key(1), (6, HEADS, HEAD_DIM))
    expected = np.where(np.arange(6) < 2, 2.0, 0.0) * np.ones((HEADS, 6, 1))
    expected[:, :2] = 1.0
    close(encoding.bias(params, q, site, q, site), expected, atol=0)
    wide_q, wide_k = encoding.rotate(params, q, site, q, site)
    assert wide_q.shape == wide_k.shape == (6, HEADS, 2 * HEAD_DIM)
    assert not np.any(wide_q[:2, :, HEAD_DIM:])
    close(wide_q[:, :, :HEAD_DIM], q / 2**0.5)


def test_tupe_looks_at_its_table_through_a_layer_norm():
    """Follows the authors' code and not the paper: neither the table's scale nor its mean matters."""
    w = world(Case("tupe(stddev=1)"))
    table = w.params["table"]
    other = w.params | {"table": type(table)(5 * table.rows + 3, table.extent)}
    close(forward(*w._replace(params=other)), forward(*w), atol=1e-3)  # logits near 20, and the norm's epsilon


def test_tupe_refuses_what_its_table_does_not_hold():
    encoding, params, q, _ = setting("tupe()", site := pj.sites(3, start=29))
    with pytest.raises(ValueError, match="none for position 30"):
        encoding.rotate(params, q, site, q, site)
    traced = jax.jit(lambda site: encoding.rotate(params, q, site, q, site)[0])(site)
    assert np.isnan(traced[1:, :, HEAD_DIM:]).all()
    assert np.isfinite(traced[0]).all()


def counting(site, npos=9, gate=50.0, scaled=True):
    """The bias of a CoPE whose row p holds p in its first channel, all of whose gates are open."""
    encoding = pj.encodings.cope(npos, scaled)
    table = jnp.zeros((npos, 4)).at[:, 0].set(jnp.arange(npos))
    q = jnp.zeros((len(site.segment), 1, 4)).at[:, :, 0].set(1.0)
    return np.asarray(jax.jit(lambda table, q: encoding.bias(table, q, site, gate * q, site))(table, q))[0]


@pytest.mark.slow
def test_cope_counts_tokens_where_all_gates_are_open():
    """p_ij = i - j + 1: the query's own gate counts, later keys are at 0, far ones at npos - 1."""
    i, j = np.arange(12)[:, None], np.arange(12)
    close(counting(pj.sites(12, start=7), scaled=False), np.clip(i - j + 1, 0, 8))


def test_cope_divides_by_the_root_of_the_head_dim_if_scaled():
    close(counting(pj.sites(5), scaled=True), counting(pj.sites(5), scaled=False) / 2)


def test_cope_scales_its_gates():
    """sigmoid(q . k / sqrt(d)) as in RAM and in the paper's listing; the formula in its text has no sqrt(d)."""
    half_open = counting(pj.sites(1), gate=2.0, scaled=False)
    close(half_open, [[1 / (1 + np.exp(-2.0 / 2))]])


def test_cope_counts_its_own_document_by_position():
    """Tokens may come in any order, with documents and padding between them; tokens of one position count together."""
    first, second = pj.sites(5), pj.sites(4, start=2)._replace(segment=np.full(4, 2, np.int32))
    pad = pj.sites(3)._replace(segment=np.zeros(3, np.int32))
    together = joined(first, pad, second)
    alone = counting(first)
    order = np.random.default_rng(0).permutation(12)
    b = counting(rows(together, order))
    where = np.argsort(order)
    close(b[np.ix_(where[:5], where[:5])], alone)
    close(b[np.ix_(where[8:], where[8:])], counting(second))
    twice = pj.sites(3)._replace(position=np.int32([0, 1, 1]))
    close(counting(twice, scaled=False), [[1, 0, 0], [3, 2, 2], [3, 2, 2]])


def test_cope_counts_no_token_that_stands_nowhere():
    site = pj.sites(5)._replace(prefix=np.int32([1, 0, 0, 2, 0]))
    b = counting(site, scaled=False)
    standing = np.array([1, 2, 4])
    close(b[np.ix_(standing, standing)], [[1, 0, 0], [2, 1, 0], [3, 2, 1]])
    assert not np.any(b[[0, 3]])
    assert not np.any(b[:, [0, 3]])


def test_cope_starts_at_zero_as_published():
    assert not np.any(pj.parse("cope()").init(jax.random.key(0), DIMS))


def test_refused_sizes():
    with pytest.raises(ValueError, match="width must be even, got 7"):
        pj.parse("transformer_xl()").init(jax.random.key(0), DIMS._replace(width=7))
    with pytest.raises(ValueError, match=r"give Dims\(length"):
        pj.parse("tupe()").init(jax.random.key(0), DIMS._replace(length=None))
    with pytest.raises(ValueError, match="vectors for 1 position axes, got 2"):
        bias("shaw()", pj.grid(2, 2))
    with pytest.raises(ValueError, match="profiles for 1 position axes, got 2"):
        inkling_bias("inkling(rank=1)", pj.grid(2, 2))
    for spec in ("cope()", "deberta()"):
        with pytest.raises(ValueError, match=rf"positions of 1 axes, got 2: lay a grid out .* >> {spec[:-2]}"):
            bias(spec, pj.grid(2, 2))
