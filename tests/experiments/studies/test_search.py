"""Searches for factors: they ascend, are never worse than where they start, and are read as longrope reads them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.studies.long_context import read_tokens
from experiments.studies.search import (
    Budget,
    critical_frequencies,
    known_factors,
    loss_of_factors,
    search_critical,
    search_factors,
)
from posjax.encoding import sites
from posjax.encodings import rope
from posjax.models import BlockConfig, Decoder

BUDGET = Budget(population=8, rounds=12, mutations=6, crossovers=6, parents=4)


def test_the_search_finds_ascending_factors_near_the_best():
    wanted, met = np.array([1.0, 1.3, 3.0, 6.5]), []

    def score(factors):
        met.append(factors)
        return np.nan if factors[1] > 4 else np.abs(factors - wanted).sum()

    starts = [np.full(4, 8.0), 8 ** np.linspace(0, 1, 4)]
    found, best = search_factors(score, starts, 8.0, budget=BUDGET, seed=1)
    assert best == min(score(each) for each in list(met) if each[1] <= 4) == score(found)
    assert best < 0.5 * min(score(starts[1]), 99)
    assert all(np.all(np.diff(each) >= 0) and each[0] >= 1 and each[-1] <= 8 for each in met)
    assert len({tuple(each) for each in met}) <= 8 + 12 * 12
    again, _ = search_factors(score, starts, 8.0, budget=BUDGET, seed=1)
    np.testing.assert_array_equal(found, again)


def test_a_critical_frequency_is_found_with_the_factors_beyond_it():
    """Below it they are NTK's by its factor, beyond it they ascend from the growth to twice that: LongRoPE2, algorithm 2."""
    wanted, met = np.concatenate([5.5 ** (np.arange(3) / 3), [5.5, 6.0, 7.9]]), []

    def score(factors):
        met.append(factors)
        return np.abs(np.log(factors / wanted)).sum()

    found, best = search_critical(score, range(2, 5), 6, 4.0, budget=BUDGET._replace(mutations=12, crossovers=0))
    assert best == score(found) < 0.5
    for factors in met:
        critical = next(d for d in range(2, 5) if factors[d] >= 4)
        np.testing.assert_allclose(factors[:critical], factors[critical] ** (np.arange(critical) / critical))
        assert np.all(np.diff(factors) >= 0)
        assert factors[-1] <= 8


def test_critical_frequencies_are_the_papers():
    """Phi-3 mini's 31st and Llama 3's 35th are those that turn once in the trained length."""
    assert critical_frequencies(rope(), 48, 2048) == range(19, 32)
    assert critical_frequencies(rope(base=5e5), 64, 8192)[-1] == 35
    assert critical_frequencies(rope(base=2), 8, 10**6) == range(7, 8)


def test_known_factors_are_those_of_their_scalings():
    pi, ntk, yarn = known_factors(rope(base=100.0), 4, 8.0, 16)
    np.testing.assert_allclose(pi, 8.0)
    np.testing.assert_allclose(ntk, 8 ** (np.arange(4) / 3), rtol=1e-6)
    assert yarn[0] == 1
    assert yarn[-1] == pytest.approx(8)


@pytest.mark.slow
def test_factors_that_are_tried_are_read_as_longrope_reads_them():
    model = Decoder(vocab_size=7, encoding="rope", block=BlockConfig(width=8, num_heads=1), depth=1)
    params = jax.jit(model.init)(jax.random.key(0), *model.example())["params"]
    windows, factors = np.arange(2 * 33, dtype=np.int32).reshape(2, 33) % 7, (1.0, 1.5, 2.0, 4.0)
    pairs = windows[:, :-1], windows[:, 1:]
    batch = {"tokens": pairs[0], "targets": pairs[1], "weight": np.ones((2, 32), np.float32)}
    score = loss_of_factors(model, jax.tree.map(lambda leaf: leaf[None], params), batch, 4.0, 8)
    spec = f"rope(scaling=longrope(short_factor=(1.,1.,1.,1.), long_factor={factors}, factor=4, original_length=8))"
    read = jax.jit(
        lambda params: read_tokens(model.clone(encoding=spec), params, *map(jnp.asarray, pairs), sites(32))[0]
    )
    assert score(np.array(factors)) == pytest.approx(float(read(params).mean()), rel=1e-5)
    assert score(np.ones(4)) != pytest.approx(score(np.array(factors)), rel=1e-5)
