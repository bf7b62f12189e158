"""What holds for every encoding, whatever it is."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import CASES, HEAD_DIM, HEADS, each_case, forward, inner_jaxprs, joined, moved, rows, world
from members import GRID, LINE, MEMBERS, VALUES, Case

import posjax as pj

pytestmark = pytest.mark.usefixtures("quick_compilation")
every_case = each_case()
sample = each_case(sample=True)  # of every case, in time


def close(a, b, atol=5e-6):
    np.testing.assert_allclose(np.asarray(a, np.float32), np.asarray(b, np.float32), rtol=0, atol=atol)


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
        with pytest.raises(ValueError, match="axes"):
            forward(*w._replace(site=w.site._replace(position=position if num_axes > 1 else position[:, 0])))


@every_case
def test_jit_is_eager(case):
    """With sites known while tracing, as a ViT has them, on grids; not known, as a packed decoder has them, on lines."""
    w = world(case)
    if case.kind == GRID:
        out = jax.jit(lambda params, x: forward(w.encoding, params, x, w.site, w.weights))(w.params, w.x)
    else:
        out = jax.jit(lambda params, x, site: forward(w.encoding, params, x, site, w.weights))(w.params, w.x, w.site)
    close(out, forward(*w))


@every_case
def test_any_part_of_a_site_may_be_data(case):
    """The rest known while tracing, as of padded rows of one grid; traced only."""
    w = world(case)
    for fields in [("segment",), ("prefix",), ("position",), ("segment", "prefix")]:
        data = {field: getattr(w.site, field) for field in fields}
        out = jax.eval_shape(lambda data: forward(*w._replace(site=w.site._replace(**data))), data)
        assert out.shape == (len(w.x), HEADS, HEAD_DIM)


@sample
def test_vmap_is_a_loop(case):
    """Rows of a batch stand at different sites: other orders, other documents."""
    w = world(case)
    orders = [np.random.default_rng(seed).permutation(len(w.x)) for seed in range(3)]
    batch = [rows(w.site, order) for order in orders]
    batch[1] = batch[1]._replace(segment=batch[1].segment * (np.arange(len(w.x)) > 3))
    xs = jnp.stack([w.x, 2 * w.x, w.x[::-1]])
    sites = jax.tree.map(lambda *leaves: np.stack(leaves), *batch)
    loop = [forward(w.encoding, w.params, x, site, w.weights) for x, site in zip(xs, batch, strict=True)]
    close(jax.vmap(lambda x, site: forward(w.encoding, w.params, x, site, w.weights))(xs, sites), jnp.stack(loop))


@every_case
def test_tokens_and_sites_permute_together(case):
    w = world(case)
    order = np.random.default_rng(0).permutation(len(w.x))
    close(forward(*w._replace(x=w.x[order], site=rows(w.site, order))), forward(*w)[order])


@every_case
def test_relative_means_shift_invariant(case):
    """Between tokens that stand somewhere: a rotated patch is seen by an unrotated class token as it stands."""
    w = world(case)
    w = w._replace(site=w.site._replace(prefix=np.zeros_like(w.site.prefix)))
    shifted = w._replace(site=moved(w.site, case, line=5, grid=(2, 3)))
    if w.encoding.relative:
        close(forward(*shifted), forward(*w), atol=2e-5)
    else:
        assert np.abs(forward(*shifted) - forward(*w)).max() > 1e-2


@sample
@pytest.mark.parametrize("causal", [False, True])
def test_packed_documents_are_alone(case, causal):
    w = world(case)
    first, second = (rows(w.site, slice(count)) for count in (5, 9))
    packed = joined(first, second._replace(segment=np.full(9, 2, np.int32)))
    out = forward(*w._replace(site=packed), causal=causal)
    close(out[:5], forward(*w._replace(x=w.x[:5], site=first), causal=causal))
    close(out[5:], forward(*w._replace(x=w.x[5:], site=second), causal=causal))


@sample
@pytest.mark.parametrize("causal", [False, True])
def test_padding_is_invisible_wherever_it_stands(case, causal):
    w = world(case)
    pad, tokens = (rows(w.site, slice(count)) for count in (5, 9))
    pad = pad._replace(position=pad.position - np.int32(9), segment=np.zeros(5, np.int32))
    x = w.x.at[:5].mul(1e3)
    out = forward(*w._replace(x=x, site=joined(pad, tokens)), causal=causal)
    close(out[5:], forward(*w._replace(x=x[5:], site=tokens), causal=causal))
    assert not np.any(out[:5])


@sample
def test_gradients_are_finite_and_pass_through_nobody(case):
    """Two tokens at one place, prefix tokens, padding, and a query that sees nothing."""
    w = world(case)
    stacked = w.site.position.copy()
    stacked[4] = stacked[5]
    segment = np.where(np.arange(len(w.x)) == 7, 0, 1).astype(np.int32)
    floats = not w.encoding.whole_positions

    def loss(params, x, position, weights):
        site = w.site._replace(position=position if floats else stacked, segment=segment)
        return jnp.sum(jnp.sin(forward(w.encoding, params, x, site, weights)))

    grads = jax.grad(loss, argnums=(0, 1, 2, 3))(w.params, w.x, jnp.asarray(stacked, jnp.float32), w.weights)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(grads))
    assert not np.any(grads[1][7]), "padding got a gradient"
    assert np.any(grads[1][8])
    trained = [] if w.encoding.constant_params else jax.tree.leaves(grads[0])
    assert all(np.any(leaf) for leaf in trained), "a parameter that nothing depends on"


@every_case
def test_place_keeps_sites_well_formed(case):
    w = world(case)
    leaves = jax.tree.leaves(w.placed)
    assert {leaf.dtype for leaf in leaves} <= {np.dtype(np.int32), np.dtype(np.float32)}
    assert all(leaf.shape[0] == len(w.x) for leaf in leaves)
    np.testing.assert_array_equal(w.placed.segment, w.site.segment)
    np.testing.assert_array_equal(w.placed.prefix, w.site.prefix)


@sample
def test_half_precision_tokens_far_out(case):
    """bfloat16 counts to 256 only: tokens may be rounded to it, positions never."""
    w = world(case)
    if not w.encoding.whole_positions and w.encoding.reach > 2**18:
        w = w._replace(site=moved(w.site, case, line=2**17, grid=(2**17, 3)))
    exact = forward(*w)
    rough = forward(*w._replace(x=w.x.astype(jnp.bfloat16)))
    assert rough.dtype == jnp.bfloat16
    close(rough, exact, atol=0.05 * np.abs(exact).max())
    traced = jax.make_jaxpr(lambda x, site: forward(*w._replace(x=x, site=site)))(w.x.astype(jnp.bfloat16), w.site)
    for jaxpr, _ in inner_jaxprs(traced):
        waves = [eqn for eqn in jaxpr.eqns if eqn.primitive.name in ("sin", "cos")]
        assert all(eqn.invars[0].aval.dtype == jnp.float32 for eqn in waves)


@each_case(lambda case: case.kind == GRID)
def test_prefix_tokens_stand_nowhere(case):
    """Their position is not looked at; which of them they are may matter."""
    w = world(case)
    position = w.site.position.copy()
    position[:2] = [[1, 2], [2, 0]]
    close(forward(*w._replace(site=w.site._replace(position=position))), forward(*w))


def test_none_counts_only_under_causality():
    w = world(Case("none()"))
    flipped = w._replace(x=w.x[::-1])
    close(forward(*flipped)[::-1], forward(*w))
    assert np.abs(forward(*flipped, causal=True)[::-1] - forward(*w, causal=True)).max() > 1e-2
