"""Statements of papers on content-dependent encodings that the sweep over all encodings does not test."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import forward, world
from members import Case

import posjax as pj


def close(a, b, atol=1e-5):
    np.testing.assert_allclose(np.asarray(a, np.float32), np.asarray(b, np.float32), rtol=0, atol=atol)


def test_a_sum_reads_what_each_part_reads():
    """Two parts with values: their vectors add up. Without values there is nothing to read."""
    w = world(Case("shaw(max_relative_position=2) + shaw(max_relative_position=2)"))
    both = tuple({"key": 0 * p["key"], "value": p["value"]} for p in w.params)
    once = {name: both[0][name] + both[1][name] for name in both[0]}
    one = w._replace(encoding=w.encoding.parts[0])
    run = jax.jit(lambda both, once: (forward(*w._replace(params=both)), forward(*one._replace(params=once))))
    close(*run(both, once))
    assert "read" in w.encoding.hooks
    assert "read" not in pj.parse("shaw(values=False)").hooks


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


def counting(site, npos=9, gate=50.0, scaled=True):
    """The bias of a CoPE whose row p holds p in its first channel, all of whose gates are open."""
    encoding = pj.encodings.cope(npos, scaled)
    table = jnp.zeros((npos, 4)).at[:, 0].set(jnp.arange(npos))
    q = jnp.zeros((len(site.segment), 1, 4)).at[:, :, 0].set(1.0)
    return np.asarray(jax.jit(lambda table, q: encoding.bias(table, q, site, gate * q, site))(table, q))[0]


def test_cope_counts_no_token_that_stands_nowhere():
    site = pj.sites(5)._replace(prefix=np.int32([1, 0, 0, 2, 0]))
    b = counting(site, scaled=False)
    standing = np.array([1, 2, 4])
    close(b[np.ix_(standing, standing)], [[1, 0, 0], [2, 1, 0], [3, 2, 1]])
    assert not np.any(b[[0, 3]])
    assert not np.any(b[:, [0, 3]])


@pytest.mark.parametrize(
    "spec",
    [
        "transformer_xl()",
        "transformer_xl(clamp_len=4)",
        "inkling(extent=4, stddev=1)",
        "shaw(max_relative_position=None, values=False)",
        "deberta(position_buckets=-1, max_relative_positions=5)",
    ],
)
def test_tokens_in_any_order_have_the_bias_of_a_line(spec):
    """Products on a line are computed by offset, others by their positions."""
    encoding, rng, length = pj.parse(spec), np.random.default_rng(0), 9
    params = encoding.init(jax.random.key(0), pj.Dims(16, 2, 8, length=length))
    x, q, k = (rng.normal(size=(length, *shape)).astype(np.float32) for shape in ((16,), (2, 8), (2, 8)))
    order = rng.permutation(length)

    def bias(places):
        site = pj.Site(np.arange(length, dtype=np.int32)[places])
        site = encoding.observe(params, x[places], site) if "observe" in encoding.hooks else site
        return encoding.bias(params, q[places], site, k[places], site)

    close(bias(order), np.asarray(bias(np.arange(length)))[:, order][:, :, order])
