"""Latent attention beside the paper's formulas; its cache of latents changes no number."""

import contextlib
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from drawn import drawn
from members import LINE, MEMBERS

import posjax as pj
from posjax.encoding import HOOKS
from posjax.encodings.decoupled import decoupled
from posjax.hosting import Hosted
from posjax.models import BlockConfig, Decoder, Latent
from posjax.models.latent import LatentAttention

SIZES = dict(kv_lora_rank=6, qk_nope_head_dim=4, qk_rope_head_dim=8, v_head_dim=5)
LATENT, COMPRESSED = Latent(**SIZES), Latent(**SIZES, q_lora_rank=7)
WIDTH, HEADS, LENGTH, PROMPT = 12, 2, 9, 4
X = jnp.asarray(np.random.default_rng(0).normal(size=(2, LENGTH, WIDTH)), jnp.float32)


def attention(latent=LATENT, width=WIDTH, num_heads=HEADS, **fields):
    return LatentAttention(BlockConfig(width=width, num_heads=num_heads, latent=latent, **fields), causal=True)


def whole_and_cached(module, params, x, encoding, site=None, prompt=PROMPT):
    """Outputs of the full pass, and of a prompt and the tokens behind it: one, and then all others at once."""
    site = pj.sites(x.shape[1]) if site is None else site
    axis = site.segment.ndim - 1

    def hosted(start, stop):
        return Hosted(
            encoding, (), jax.tree.map(lambda leaf: leaf[(slice(None),) * axis + (slice(start, stop),)], site)
        )

    @jax.jit
    def run(params, x):
        def of(start, stop, **told):
            return module.apply({"params": params}, x[:, start:stop], hosted(start, stop), **told)

        whole, _ = of(0, None)
        first, cache = of(0, prompt, cache_size=x.shape[1])
        second, cache = of(prompt, prompt + 1, cache=cache)
        third, cache = of(prompt + 1, None, cache=cache)
        return whole, jnp.concatenate([first, second, third], axis=1), cache

    return run(params, x)


class Paper:
    """Equations 37 to 47 of DeepSeek-V2 in float64, token by token, with norms where the code has them."""

    def __init__(self, latent, params):
        self.latent, self.p = latent, jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)

    def norm(self, name, x):
        return x / np.sqrt((x**2).mean() + 1e-6) * self.p[name]["scale"]

    def turned(self, x, position):
        pairs = x.shape[-1] // 2
        z = x[..., :pairs] + 1j * x[..., pairs:]
        z = z * np.exp(1j * position * 10_000.0 ** (-np.arange(pairs) / pairs))
        return np.concatenate([z.real, z.imag], axis=-1)

    def query(self, h, position):
        p = self.p
        if "query" in p:
            q = np.einsum("m,mhd->hd", h, p["query"]["kernel"]) + p["query"].get("bias", 0)
        else:
            down = self.norm("query_norm", h @ p["query_down"]["kernel"] + p["query_down"].get("bias", 0))
            q = np.einsum("m,mhd->hd", down, p["query_up"]["kernel"])
        content, turning = np.split(q, [self.latent.qk_nope_head_dim], axis=1)
        return np.concatenate([content, self.turned(turning, position)], axis=1)

    def key_and_value(self, h, position):
        both = h @ self.p["kv_down"]["kernel"] + self.p["kv_down"].get("bias", 0)
        c, shared = np.split(both, [self.latent.kv_lora_rank])
        c = self.norm("kv_norm", c)
        content = np.einsum("l,lhn->hn", c, self.p["key_up_kernel"])
        shared = np.tile(self.turned(shared, position), (len(content), 1))
        return np.concatenate([content, shared], axis=1), np.einsum("l,lhe->he", c, self.p["value_up_kernel"])

    def __call__(self, x):
        out = np.zeros((len(x), self.p["out"]["kernel"].shape[-1]))
        keys, values = zip(*(self.key_and_value(h, t) for t, h in enumerate(x)), strict=True)
        for t, h in enumerate(x):
            q = self.query(h, t)
            for head in range(len(q)):
                logits = np.array([q[head] @ keys[j][head] for j in range(t + 1)]) / math.sqrt(self.latent.head_dim)
                weights = np.exp(logits - logits.max())
                read = sum(w * values[j][head] for j, w in enumerate(weights / weights.sum()))
                out[t] += read @ self.p["out"]["kernel"][head]
        return out + self.p["out"].get("bias", 0)


@functools.cache
def beside_the_paper(latent, attention_bias):
    module, encoding = attention(latent, attention_bias=attention_bias), pj.parse("rope")
    params = drawn(
        lambda key: module.init(key, X, Hosted(encoding, (), pj.sites(LENGTH)))["params"], jax.random.key(0), spread=0.6
    )
    whole, cached, cache = whole_and_cached(module, params, X, encoding)
    return np.stack([Paper(latent, params)(np.asarray(x, np.float64)) for x in X]), whole, cached, cache, params


@pytest.mark.slow
@pytest.mark.parametrize(
    ("latent", "attention_bias"),
    [(COMPRESSED, ()), (LATENT, ("query", "key", "value", "out"))],
    ids=["compressed queries", "plain queries, biases"],
)
def test_both_forms_are_the_papers(latent, attention_bias):
    """Keys and values of every head, and latents as the one key that all heads share."""
    expected, whole, cached, cache, params = beside_the_paper(latent, attention_bias)
    np.testing.assert_allclose(whole, expected, rtol=0, atol=2e-5)
    np.testing.assert_allclose(cached, expected, rtol=0, atol=2e-5)
    assert np.abs(expected).max() > 1
    assert ("bias" in params["kv_down"]) == ("key" in attention_bias)


def test_a_cache_holds_the_latent_and_the_rotated_key_once():
    *_, cache, _ = beside_the_paper(COMPRESSED, ())
    kept = {name: getattr(cache, name).shape for name in ("key", "value")}
    assert kept == {"key": (2, 1, LENGTH, 6 + 8), "value": (2, 1, 0, LENGTH)}


def shapes(spec):
    """Shapes of the parameters of a decoder with this encoding."""
    sizes = dict(width=16, num_heads=2, depth=1, length=20, latent=str(LATENT))
    model = Decoder.from_config(sizes, vocab_size=11, encoding=spec)
    return jax.eval_shape(model.init, jax.random.key(0), jnp.zeros((2, LENGTH), jnp.int32), pj.sites(LENGTH))


# Content that biases read, values that are transformed, codes that go through a layer's matrices.
REFUSED = {"cope", "dape", "deberta", "grape_a", "shaw", "transformer_xl", "value_rotary"}


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("cope + rope", r"reads the content of queries or keys in its bias"),
        ("value_rotary + rope", r"transforms values \(`value`\)"),
        ("deberta(shared=True)", r"projects codes by the layer's own matrices"),
        ("self_extend(window=3, group=2) >> (rope + ssmax)", r"an encoding that needs whole heads"),
    ],
)
def test_what_a_latent_cannot_host_is_refused(spec, message):
    with pytest.raises(ValueError, match=rf"{message}.*leave `latent` or this encoding out"):
        shapes(spec)


def test_what_stands_behind_passes_every_hook_on():
    behind = decoupled(pj.parse("self_extend(window=3, group=2) >> (rope + stick_breaking)"), 4)
    assert all(getattr(type(behind), hook) is not getattr(pj.Encoding, hook) for hook in HOOKS)
    logits, site = jax.random.normal(jax.random.key(0), (2, LENGTH, LENGTH)), pj.sites(LENGTH)
    params = behind.init(jax.random.key(1), pj.Dims(8, 2, 4))
    site = behind.place(params, site)
    weights = behind.weigh(params, logits, np.tri(LENGTH, dtype=bool), site, site)
    assert not np.any(weights[:, 0]), "a stick gives the first token nothing, a softmax all"


@pytest.mark.thorough
def test_every_encoding_is_hosted_or_refused():
    for name, member in MEMBERS.items():
        if spec := member.on(LINE):
            refusal = pytest.raises(ValueError, match="leave `latent` or this encoding out")
            with refusal if name in REFUSED else contextlib.nullcontext():
                shapes(spec)


def test_sizes_are_read_as_they_are_written():
    assert Latent.read(str(COMPRESSED)) == COMPRESSED
    assert Decoder.from_config({"latent": str(LATENT)}, vocab_size=7).block.latent == LATENT
    assert Decoder(7, block=BlockConfig(latent=LATENT)).block.scale == 12**-0.5
    with pytest.raises(ValueError, match=r"latent has no argument 'kv_rank'; did you mean 'kv_lora_rank'"):
        Latent.read("latent(kv_rank=4)")
