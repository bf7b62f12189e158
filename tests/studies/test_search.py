"""LongRoPE's search: factors that ascend, never worse than where it starts, and read as longrope reads them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from posjax.encoding import sites
from posjax.encodings import rope
from posjax.models import Decoder
from posjax.studies.long_context import read_tokens
from posjax.studies.search import Budget, known_factors, loss_of_factors, search_factors

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


def test_what_a_search_starts_from_is_checked():
    with pytest.raises(ValueError, match=r"must not decrease and lie in 1..4, got \[2.0, 1.0\]"):
        search_factors(sum, [np.array([2.0, 1.0])], 4.0, budget=BUDGET)
    with pytest.raises(ValueError, match="needs starts and parents"):
        search_factors(sum, [], 4.0, budget=BUDGET)


def test_known_factors_are_those_of_their_scalings():
    pi, ntk, yarn = known_factors(rope(base=100.0), 4, 8.0, 16)
    np.testing.assert_allclose(pi, 8.0)
    np.testing.assert_allclose(ntk, 8 ** (np.arange(4) / 3), rtol=1e-6)
    assert yarn[0] == 1
    assert yarn[-1] == pytest.approx(8)


def test_factors_that_are_tried_are_read_as_longrope_reads_them():
    model = Decoder(vocab_size=7, encoding="rope", width=8, depth=1, num_heads=1)
    params = jax.jit(model.init)(jax.random.key(0), *model.example())["params"]
    windows, factors = np.arange(2 * 33, dtype=np.int32).reshape(2, 33) % 7, (1.0, 1.5, 2.0, 4.0)
    score = loss_of_factors(model, jax.tree.map(lambda leaf: leaf[None], params), windows, 4.0, 8)
    spec = f"rope(scaling=longrope(short_factor=(1.,1.,1.,1.), long_factor={factors}, factor=4, original_length=8))"
    read = jax.jit(
        lambda params: read_tokens(model.clone(encoding=spec), params, *map(jnp.asarray, pairs), sites(32))[0]
    )
    pairs = windows[:, :-1], windows[:, 1:]
    assert score(np.array(factors)) == pytest.approx(float(read(params).mean()), rel=1e-5)
    assert score(np.ones(4)) != pytest.approx(score(np.array(factors)), rel=1e-5)
