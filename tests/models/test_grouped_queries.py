"""Models whose query heads share keys and values."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from drawn import drawn

import posjax as pj
from posjax.models import BlockConfig, Decoder, ViT

SITE = pj.sites(5)
TOKENS = jnp.asarray(np.random.default_rng(0).integers(0, 9, (2, 5)), jnp.int32)


def decoder(num_kv_heads, **options):
    return Decoder.from_config(
        options, vocab_size=9, encoding="rope + alibi", width=16, depth=1, num_heads=4, num_kv_heads=num_kv_heads
    )


def shapes(model, *inputs):
    params = jax.eval_shape(model.init, jax.random.key(0), *inputs)["params"]["trunk"]["block_0"]["attention"]
    return {name: params[name]["kernel"].shape for name in params}


@pytest.mark.parametrize(("num_kv_heads", "heads"), [(None, 4), (4, 4), (2, 2), (1, 1)])
def test_keys_and_values_have_heads_of_their_own(num_kv_heads, heads):
    expected = {"qkv": (16, heads, 4 // heads + 2, 4), "out": (4, 4, 16)}  # of each key head its queries, key and value
    assert shapes(decoder(num_kv_heads), TOKENS, SITE) == expected
    vit = ViT(3, image_size=(8, 8), block=BlockConfig(width=16, num_heads=4, num_kv_heads=num_kv_heads), depth=1)
    assert shapes(vit, jnp.zeros((1, 8, 8, 1)), vit.sites(8, 8)) == expected


@pytest.mark.slow
def test_shared_keys_are_keys_repeated():
    """Compares with a model with a key head for each query head, equal within a group; the cache holds one for each group."""
    few, all_ = decoder(2), decoder(None)
    params = drawn(few.init, jax.random.key(0), TOKENS, SITE)["params"]
    repeated = jax.tree.map(lambda x: x, params)
    layer = repeated["trunk"]["block_0"]["attention"]["qkv"]
    for name, leaf in layer.items():  # [..., K, 2 queries, key and value, D]
        pairs = [np.concatenate([leaf[..., i : i + 1, :], leaf[..., 2:, :]], axis=-2) for i in range(2)]
        layer[name] = np.stack(pairs, axis=-3).reshape(*leaf.shape[:-3], 4, 3, 4)

    prefill = functools.partial(jax.jit, static_argnums=0)(
        lambda model, params: model.apply({"params": params}, TOKENS, SITE, cache_size=6, method=Decoder.prefill)
    )
    out, (cache,) = prefill(few, params)
    expected, (whole,) = prefill(all_, repeated)
    np.testing.assert_allclose(out, expected, rtol=0, atol=1e-5)
    np.testing.assert_allclose(np.repeat(cache.key, 2, axis=1), whole.key, rtol=0, atol=1e-5)
    step = (TOKENS[:, :1], pj.sites(1, start=5))
    extend = functools.partial(jax.jit, static_argnums=0)(
        lambda model, params, cache: model.apply({"params": params}, *step, [cache], method=Decoder.extend)
    )
    out, _ = extend(few, params, cache)
    expected, _ = extend(all_, repeated, whole)
    np.testing.assert_allclose(out, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("num_kv_heads", [3, 0, 8])
def test_heads_that_cannot_share_evenly_are_refused(num_kv_heads):
    message = rf"num_kv_heads {num_kv_heads} does not divide num_heads 4: it may be one of \[1, 2, 4\]"
    with pytest.raises(ValueError, match=message):
        shapes(decoder(num_kv_heads), TOKENS, SITE)
