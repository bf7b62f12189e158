"""Attention by distance, of the class token, and rollout against numbers by hand."""

import jax.numpy as jnp
import numpy as np
import pytest

from experiments.analysis.patches import (
    attention_by_distance,
    attention_distance,
    attention_of_prefix,
    distances,
    patch_index,
    rollout,
    rollout_map,
    share_of_prefix,
    spread,
)
from posjax import grid


def softmax_of(shape, seed=0):
    weights = np.exp(np.random.default_rng(seed).standard_normal(shape))
    return weights / weights.sum(axis=-1, keepdims=True)


def test_distances_are_those_between_centres_in_pixels():
    expected = [[0, 4, 4], [4, 0, np.hypot(4, 4)], [4, np.hypot(4, 4), 0]]
    np.testing.assert_allclose(distances(grid(2, 2), patch_size=4)[:3, :3], expected)
    assert distances(grid(1, 3))[0].tolist() == [0, 1, 2]


def test_patches_are_found_wherever_they_stand_in_the_row():
    site = grid(2, 3, prefix=1)
    assert patch_index(site).tolist() == [[1, 2, 3], [4, 5, 6]]
    order = [5, 0, 1, 6, 2, 3, 4]
    turned = type(site)(site.position[order], site.segment[order], site.prefix[order])
    assert np.array(order)[patch_index(turned)].tolist() == [[1, 2, 3], [4, 5, 6]]


def test_uniform_attention_on_two_by_two_patches():
    """Four keys: the query's own, two a side away, and one a diagonal."""
    site, expected = grid(2, 2), (0 + 1 + 1 + np.sqrt(2)) / 4
    weights = jnp.full((3, 2, 4, 4), 0.25)
    np.testing.assert_allclose(attention_distance(weights, site), [expected] * 2, rtol=1e-6)
    np.testing.assert_allclose(attention_distance(weights, site, patch_size=16), [16 * expected] * 2, rtol=1e-6)


def test_attention_to_oneself_goes_nowhere_and_heads_are_told_apart():
    oneself, next_column = np.eye(6), np.roll(np.eye(6), 1, axis=1)
    weights = np.stack([oneself, next_column])[None]
    # On a grid of 2x3 the next patch is a column on, but for the end of a row: one up or down and two to the left.
    expected = (4 * 1 + 2 * np.hypot(1, 2)) / 6
    np.testing.assert_allclose(attention_distance(weights, grid(2, 3)), [0, expected])


def test_what_goes_to_the_class_token_is_left_out_and_the_rest_counts_whole():
    site = grid(2, 2, prefix=2)
    weights = np.zeros((1, 2, 6, 6))
    weights[0, :, :, 0] = 0.6  # to the class token
    weights[0, 0, :, 2:] = 0.1
    weights[0, 1, range(6), range(6)] += 0.4
    uniform = (2 + np.sqrt(2)) / 4
    np.testing.assert_allclose(attention_distance(weights, site), [uniform, 0])
    np.testing.assert_allclose(share_of_prefix(weights, site), [0.6, 0.6])
    weights[0, 1, 2:] = np.eye(6)[0]  # all of it goes to the class token
    with np.errstate(invalid="raise"):
        found = attention_distance(weights, site)
    assert found[0] == pytest.approx(uniform)
    assert np.isnan(found[1])


def test_rollout_is_the_product_of_the_layers_the_last_one_first():
    first, second = softmax_of((1, 2, 3, 3), 0), softmax_of((1, 2, 3, 3), 1)
    mixed = [0.5 * layer.mean(axis=1)[0] + 0.5 * np.eye(3) for layer in (first, second)]
    np.testing.assert_allclose(rollout([first, second])[0], mixed[1] @ mixed[0])


def test_the_map_is_that_of_the_token_that_is_read():
    flow = softmax_of((2, 7, 7))
    site = grid(2, 3, prefix=1)
    by_class = rollout_map(flow, site, token=0)
    np.testing.assert_allclose(by_class[1].ravel(), flow[1, 0, 1:] / flow[1, 0, 1:].sum())
    by_mean = flow[1, 1:, 1:].mean(axis=0)
    np.testing.assert_allclose(rollout_map(flow, site)[1].ravel(), by_mean / by_mean.sum())


def test_what_tokens_without_position_read():
    """A class token that reads one patch, and a register that reads two, one of them two columns further, in any order."""
    site = grid(1, 3, prefix=2)
    weights = np.zeros((1, 1, 5, 5))
    weights[0, 0, 0, [0, 3]] = 0.8, 0.2
    weights[0, 0, 1, [2, 4]] = 0.5
    shares = attention_of_prefix(weights, site)
    assert shares.tolist() == [[[[[0, 1, 0]], [[0.5, 0, 0.5]]]]]
    np.testing.assert_allclose(spread(shares, patch_size=4)[0, 0], [[0, 0], [4, np.log(2)]], atol=1e-12)
    order = [4, 1, 3, 0, 2]
    turned = type(site)(site.position[order], site.segment[order], site.prefix[order])
    assert attention_of_prefix(weights[:, :, order][..., order], turned).tolist() == shares.tolist()


def test_attention_by_distance():
    """Uniform attention is the same at every distance, and a head that looks one patch to the right has it at 1."""
    uniform = attention_by_distance(np.full((2, 4, 7, 7), 1 / 7), grid(2, 3, prefix=1))
    np.testing.assert_allclose(uniform, np.full((2, 4, 3), 1 / 6))
    weights = np.zeros((1, 1, 6, 6))
    weights[0, 0, range(6), [token + (token % 3 < 2) for token in range(6)]] = 1
    found = attention_by_distance(weights, grid(2, 3))[0, 0]
    np.testing.assert_allclose(found, [2 / 6, 4 / 22, 0])  # of the 6, 22 and 8 pairs so far apart
