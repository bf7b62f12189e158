"""Intervals and measures of the scorecard beside numbers that are worked out by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import posjax as pj
from experiments.analysis.vision.positions import frequency_use
from experiments.report.statistics import Interval
from posjax.describe.probes import Operator, logits, make_probe
from posjax.describe.scorecard import measures as measures
from posjax.describe.scorecard import parts as scorecard_parts
from posjax.describe.worlds import box

DIMS = pj.Dims(width=16, num_heads=2, head_dim=8, length=128)


def test_an_interval_in_a_unit_that_runs_the_other_way():
    assert Interval(0.25, 0.5).scaled(-2) == Interval(-0.5, 1.0)


@pytest.mark.parametrize(
    ("half_width", "text"), [(0.0004, "<0.001"), (0.0005, "0.001"), (0.0007, "0.001"), (0.0, "0.000")]
)
def test_only_what_would_round_to_zero_is_below_the_last_digit(half_width, text):
    assert Interval(1.0, half_width).text(3) == f"1.000 ± {text}"


def test_use_is_the_mean_of_products_and_not_the_product_of_means():
    """Queries and keys are long in the same image: (1 * 1 + 3 * 3) / 2 = 5, not 2 * 2."""
    x = np.ones((2, 4, 1, 2)) / np.sqrt(2)
    x[1] *= 3
    found = frequency_use(x, x, [(0, 1)])
    np.testing.assert_allclose((found.query, found.key, found.product), np.reshape([2, 2, 5], (3, 1, 1)))


def probe(spec, extent=(32,)):
    encoding = pj.parse(spec)
    return make_probe(encoding, encoding.init(jax.random.key(0), DIMS), DIMS, extent, seed=0)


def test_the_gap_is_that_of_the_nearest_two_places():
    tile = logits(probe("alibi"), box((32,)))
    weights = np.asarray(jax.nn.softmax(jnp.asarray(tile.value), axis=-1), np.float64)
    rows = np.moveaxis(weights, 2, 0).reshape(32, -1)
    apart = np.linalg.norm(rows[:, None] - rows[None], axis=-1)[np.triu_indices(32, 1)]
    found = measures.uniqueness(probe("alibi"), tile, rows, (64,))
    for name in ("U_gap", "U_code"):
        assert found[name].value == pytest.approx(apart.min() / np.linalg.norm(rows, axis=1).mean(), rel=1e-4)
    assert measures.distance_summary(np.array([[0.0, 0.0], [3.0, 4.0]])) == (2.5, 5.0)


def test_attention_without_an_encoding_spreads_evenly_over_what_was_never_seen():
    """Three quarters of 128 keys lie further back than 32 places reach; the entropy is that of 128 equal shares."""
    plain, rows = probe("none"), np.array([5, 60, 127])
    far = logits(plain, box((128,)), rows)
    found = measures.extrapolation(plain, logits(plain, box((32,))), (128,), far, rows)
    assert found["X_mass"].value == pytest.approx(0.75, rel=1e-5)
    assert found["X_ent"].value == pytest.approx(np.log(128) / np.log(32), rel=1e-5)


def test_alibi_falls_all_the_way():
    found = measures.decay(probe("alibi"), logits(probe("alibi"), box((32,))))
    assert found["monotone"].value == 1
    assert max(found["rho_same"].value, found["rho_other"].value) < -0.999


def test_offsets_are_read_on_other_pairs_than_those_that_were_fitted():
    """A line explains some of the noise that it was fitted to, and nothing else."""
    noise = np.random.default_rng(0).normal(size=(8, 16, 128, 128)).astype(np.float32)
    found = measures.decodability(Operator(noise, np.ones((128, 128), bool)), probe("none", (128,)))
    assert -0.2 < found.value < 0


def test_a_phase_is_unseen_that_makes_no_whole_turn():
    """RoPE's four frequencies are 1, 0.1, 0.01 and 0.001: in 32 tokens the first alone turns once."""
    found = scorecard_parts.rotation(probe("rope"))
    assert found["X_phase"].value == 3 / 4
    assert found["R_group"].value < 1e-5


def test_a_shift_of_a_code_is_judged_where_it_was_not_fitted():
    """Random rows have no matrix that leads from one to the next, though some matrix fits half of them."""
    assert scorecard_parts.linear_relation(probe("sinusoidal"), (128,)).value > 0.99
    assert scorecard_parts.linear_relation(probe("learned(stddev=1)"), (128,)).value < 0
