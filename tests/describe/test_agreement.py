"""One implementation of attention against another: layers, compared arrays, and detection of a wrong one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import posjax as pj
from posjax.describe.agreement import differences, make_layer, two_documents, with_gradients

SIZES = dict(num_heads=2, kv_heads=1, head_dim=8)


def test_documents_have_padding_gaps_and_registers():
    site = two_documents(23, registers=True)
    assert [int((site.segment == n).sum()) for n in (0, 1, 2)] == [6, 9, 8]
    assert np.diff(site.position[site.segment == 2]).tolist() == [7] * 7
    assert site.prefix.sum() == 2
    assert two_documents(23, registers=False).prefix.sum() == 0


@pytest.mark.parametrize(
    ("spec", "axes", "causal"), [("rope()", 1, True), ("peg()", 1, False), ("axial_rope()", 2, False)]
)
def test_a_layer_suits_its_encoding(spec, axes, causal):
    layer = make_layer(pj.parse(spec), 16, num_axes=axes, **SIZES)
    assert layer.site.position.reshape(16, -1).shape[1] == axes
    assert layer.causal == causal


def test_one_wrong_implementation_is_seen_in_its_own_group():
    layer = make_layer(pj.parse("t5(num_buckets=4, max_distance=8)"), 16, **SIZES)
    given = (layer.params, layer.x, layer.weights)
    exact, half = (
        jax.jit(with_gradients(layer, "dense", dtype, given=jnp.bfloat16))(*given)
        for dtype in (jnp.float32, jnp.bfloat16)
    )
    assert max(differences(exact, exact).values()) == 0
    assert set(differences(exact, exact)) == {"output", "parameters", "tokens", "projections"}
    assert 1e-4 < max(differences(half, exact).values()) < 3e-2
    out, (params, x, weights) = exact
    wrong = differences((out, (jax.tree.map(lambda leaf: 1.1 * leaf, params), x, weights)), exact)
    assert wrong == pytest.approx({"output": 0, "parameters": 0.1, "tokens": 0, "projections": 0}, abs=1e-6)
    assert np.isnan(differences((out.at[0].set(jnp.nan), (params, x, weights)), exact)["output"])
