"""What holds for every encoding, whatever it is: the properties of a case are computed by one program (tests/properties.py).

Tests of one case run one after the other, so that they share what it gives.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from cases import CASES, HEAD_DIM, HEADS, each_case, forward, inner_jaxprs, params_of, params_of_long, world
from members import GRID, LINE, MEMBERS, VALUES, Case
from properties import LATER, ORDER, PACKED, PADDING, Further, Sides, further, sides, variants

import posjax as pj
from posjax.encoding import Needs

# Of float32 attention with outputs of size 1 to 10: two programs were seen to differ by 7.6e-6 at most, and from the formula
# in float64 by 4e-6.
CLOSE = 1e-5


def close(a, b, atol=CLOSE):
    np.testing.assert_allclose(np.asarray(a, np.float32), np.asarray(b, np.float32), rtol=0, atol=atol)


@pytest.fixture(scope="module", params=params_of(), ids=str)
def case(request):
    return request.param


@pytest.fixture(scope="module")
def both(case) -> Sides:
    """Both sides of the properties of the case."""
    return sides(case)


@pytest.fixture(scope="module", params=params_of_long(), ids=str)
def deep_case(request):
    """Of which the properties that cost more are looked at."""
    return request.param


@pytest.fixture(scope="module")
def deep(deep_case) -> Further:
    """Both sides of the properties that cost more."""
    return further(deep_case)


def test_every_encoding_is_a_member():
    assert sorted(MEMBERS) == pj.names(), "give a new encoding its entry in tests/members"
    for name, member in MEMBERS.items():
        assert member.variants
        assert all(name in case.spec for case in member.variants)


@pytest.mark.parametrize("name", VALUES)
def test_every_value_is_in_a_case(name):
    assert any(f"={name}(" in case.spec for case in CASES), f"give an encoding a variant with {name}(...)"


@pytest.mark.parametrize("name", pj.names())
def test_dimensions_are_as_declared(name):
    """A position of one more axis, or one less, is refused, by the name of the encoding."""
    encoding = pj.parse(MEMBERS[name].variants[0].spec)
    declared = [case for case in MEMBERS[name].variants if pj.parse(case.spec) == encoding]
    assert {1 if case.kind == LINE else 2 for case in declared} <= {*encoding.dimensions}
    w = world(declared[0])
    for num_axes in {1, 2, 3} - {*encoding.dimensions}:
        position = w.site.position.reshape(len(w.x), -1)[:, :1] + np.zeros((1, num_axes), np.int32)
        elsewhere = w._replace(site=w.site._replace(position=position if num_axes > 1 else position[:, 0]))
        with pytest.raises(ValueError, match="axes"):
            jax.eval_shape(functools.partial(forward, *elsewhere))


def test_jit_is_eager(deep_case, deep):
    eager = forward(*world(deep_case)._replace(site=variants(deep_case)["documents"].site), causal=True)
    close(deep.batch[True]["documents"], eager)


@pytest.mark.parametrize("causal", [False, True])
def test_known_sites_are_as_traced_ones(both, causal):
    """Known while tracing, as a ViT has them, and traced, as a packed decoder has them."""
    close(both.known["documents"][causal], both.batch[causal]["documents"])


@pytest.mark.parametrize("causal", [False, True])
def test_attention_by_the_paper(case, both, causal):
    w, (x, site) = world(case), variants(case)["documents"]
    expected = oracle.attention(w.encoding, w.params, x, site, w.weights, causal=causal)
    close(both.known["documents"][causal], expected)


@each_case(params_of_long())
def test_any_part_of_a_site_may_be_data(case):
    """The rest known while tracing, as of padded rows of one grid; traced only."""
    w = world(case)
    for fields in [("segment",), ("prefix",), ("position",), ("segment", "prefix")]:
        data = {field: getattr(w.site, field) for field in fields}
        out = jax.eval_shape(lambda data: forward(*w._replace(site=w.site._replace(**data))), data)
        assert out.shape == (len(w.x), HEADS, HEAD_DIM)


def test_vmap_is_a_loop(deep):
    """Rows of a batch stand at different sites: other orders, other documents."""
    for name in deep.loop:
        np.testing.assert_allclose(deep.batch[0][name], deep.loop[name], rtol=0, atol=CLOSE, err_msg=name)


def test_tokens_and_sites_permute_together(both):
    close(both.batch[0]["permuted"], both.batch[0]["plain"][ORDER])


def test_relative_means_shift_invariant(case, both):
    """Between tokens that stand somewhere: a rotated patch is seen by an unrotated class token as it stands."""
    moved, standing = both.batch[0]["moved"], both.batch[0]["standing"]
    if world(case).encoding.relative:
        close(moved, standing, atol=2e-5)
    else:
        assert np.abs(moved - standing).max() > 1e-2


def test_whole_positions_are_exact_wherever_they_are(case, both):
    """Also where float32 holds every 64th whole number only."""
    if not case.spec.startswith("xpos"):  # counts from a middle, in float32
        close(both.batch[0]["remote"], both.batch[0]["standing"], atol=2e-5)


@pytest.mark.parametrize("causal", [False, True])
def test_packed_documents_are_alone(both, causal):
    packed, first = both.batch[causal]["packed"], PACKED[0]
    close(packed[:first], both.batch[causal]["first"][:first])  # alone but for padding
    close(packed[first:], both.known["second"][causal])


@pytest.mark.parametrize("causal", [False, True])
def test_packed_documents_do_not_see_where_others_stand(both, causal):
    """Class tokens in them, by which a statistic of the row instead of the document is seen."""
    beside, apart = (both.batch[causal][name] for name in ("beside", "apart"))
    close(beside[PACKED[0] :], apart[PACKED[0] :])


def test_causal_queries_see_no_later_tokens(case, both):
    if Needs.BOTH_DIRECTIONS not in world(case).encoding.needs:
        close(both.batch[1]["later"][:LATER], both.batch[1]["plain"][:LATER])


@pytest.mark.parametrize("causal", [False, True])
def test_padding_is_invisible_wherever_it_stands(both, causal):
    padded, pad = both.batch[causal]["padded"], PACKED[0]
    close(padded[pad:], both.known["second"][causal])
    assert not np.any(padded[:pad])


@pytest.mark.parametrize("causal", [False, True])
def test_gradients_are_finite_and_pass_through_nobody(deep_case, deep, causal):
    """Two tokens at one place, prefix tokens, padding, and a query that sees nothing."""
    params, x, position, weights = deep.gradients[causal]["stacked"]
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves((params, x, position, weights)))
    assert not np.any(x[PADDING]), "padding got a gradient"
    assert np.any(x[PADDING + 1])
    trained = [] if Needs.CONSTANT_PARAMS in world(deep_case).encoding.needs else jax.tree.leaves(params)
    assert all(np.any(leaf) for leaf in trained), "a parameter that nothing depends on"


def test_blockwise_is_dense(deep_case, deep):
    """Values and gradients, under vmap, in tiles of 5 of 14 tokens, with documents and padding; causal on lines only."""
    causal = deep_case.kind == LINE
    out, gradients = deep.tiled
    close(out, deep.batch[causal]["blocks"])
    for got, wanted in zip(*map(jax.tree.leaves, (gradients, deep.gradients[causal]["blocks"])), strict=True):
        close(got, wanted, atol=CLOSE * max(3, np.abs(wanted).max(initial=0)))


@pytest.mark.parametrize("implementation", ["dense", "blockwise"])
def test_grouped_queries_share_a_key(deep, implementation):
    """Three query heads and one key head: as if it was repeated."""
    close(deep.grouped[implementation], deep.grouped["repeated"])


def test_token_by_token(deep_case, deep):
    """Cached decoding is the full causal pass."""
    if deep.cached is None:
        return
    (out, left), full = deep.cached, deep.batch[1]["plain"]
    assert not np.any(left[len(out) :])
    if Needs.DOCUMENT_LENGTH not in world(deep_case).encoding.needs:
        return close(out, full)
    for past in (
        *deep.short.values(),
        full,
    ):  # a token sees the past as a full pass over no more than the past shows it
        close(out[len(past) - 1], past[-1])


def test_another_head_dim_is_declared(case):
    """Caches and sums need to know; a product of one's own goes with it."""
    w = world(case)
    q = jnp.zeros((len(w.x), HEADS, HEAD_DIM))

    def rotated(params, q):
        site = w.encoding.observe(params, w.x, w.placed)
        return w.encoding.rotate(params, q, site, q, site)

    shapes = {x.shape[-1] for x in jax.eval_shape(rotated, w.params, q)}
    declared = shapes != {HEAD_DIM} or "product" in w.encoding.hooks
    assert declared == (Needs.HEAD_DIM in w.encoding.needs)


def test_place_keeps_sites_well_formed(case):
    w = world(case)
    leaves = jax.tree.leaves(w.placed)
    assert {leaf.dtype for leaf in leaves} <= {np.dtype(np.int32), np.dtype(np.float32)}
    assert all(leaf.shape[0] == len(w.x) for leaf in leaves)
    np.testing.assert_array_equal(w.placed.segment, w.site.segment)
    np.testing.assert_array_equal(w.placed.prefix, w.site.prefix)


def test_half_precision_tokens_far_out(deep_case, deep):
    """bfloat16 counts to 256 only: tokens may be rounded to it, positions never."""
    exact = deep.loop["far"]
    assert deep.half.dtype == jnp.bfloat16
    close(deep.half, exact, atol=0.05 * np.abs(exact).max())
    w, (x, site) = world(deep_case), variants(deep_case)["far"]
    traced = jax.make_jaxpr(lambda x, site: forward(*w._replace(x=x, site=site)))(x.astype(jnp.bfloat16), site)
    for jaxpr, _ in inner_jaxprs(traced):
        waves = [eqn for eqn in jaxpr.eqns if eqn.primitive.name in ("sin", "cos")]
        assert all(eqn.invars[0].aval.dtype == jnp.float32 for eqn in waves)


def test_prefix_tokens_stand_nowhere(case, both):
    """Their position is not looked at; which of them they are may matter."""
    if case.kind == GRID:
        close(both.batch[0]["nowhere"], both.batch[0]["plain"])


def test_none_counts_only_under_causality():
    w = world(Case("none()"))
    flipped = w._replace(x=w.x[::-1])
    close(forward(*flipped)[::-1], forward(*w))
    assert np.abs(forward(*flipped, causal=True)[::-1] - forward(*w, causal=True)).max() > 1e-2
