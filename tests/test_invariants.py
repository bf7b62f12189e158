"""Five invariants of every kind of model, under encodings that are computed in different ways.

* decoding: logits of a prompt, and of the tokens behind it on a cache, are those of the full pass;
* packing: a document or an image is read as if it stood alone, whatever else is in its row;
* padding: the same behind padding, and for padding anywhere in a row of patches;
* causality: later tokens change nothing in a decoder;
* tiles: blockwise attention gives what dense attention gives.

All runs of a model are one program. Each encoding in each way of computing attention: tests/encodings/test_properties.py.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from drawn import drawn

import posjax as pj
from posjax.models import Decoder, Encoder, EncoderDecoder, ViT

VOCABULARY, FIRST, PROMPT, LENGTH = 11, 4, 5, 9  # the first of two documents has FIRST tokens
RNG = np.random.default_rng(0)
TOKENS = RNG.integers(0, VOCABULARY, LENGTH).astype(np.int32)
SIZES = dict(width=16, depth=1, num_heads=4, num_kv_heads=2, length=LENGTH, softcap=3.0, attention_gate="head")
LATENT = "latent(kv_lora_rank=6, qk_nope_head_dim=4, qk_rope_head_dim=8, v_head_dim=5)"


def text_rows():
    """{name: (tokens, segment, position)}: one document; two in a row; the second one alone, and behind padding."""
    second, changed = TOKENS[FIRST:], (TOKENS + 1) % VOCABULARY
    line, behind, nothing = np.arange(LENGTH), np.arange(LENGTH - FIRST), np.zeros(FIRST)
    return {
        "whole": (TOKENS, line >= 0, line),
        "later": (np.append(TOKENS[:PROMPT], changed[PROMPT:]), line >= 0, line),
        "packed": (TOKENS, 1 + (line >= FIRST), np.append(line[:FIRST], behind)),
        "alone": (np.append(second, nothing), line < len(second), np.append(behind, nothing)),
        "padded": (np.append(nothing, second), line >= FIRST, np.append(nothing, behind)),
    }


ROWS, SEGMENT, POSITION = (np.stack(leaves).astype(np.int32) for leaves in zip(*text_rows().values(), strict=True))


def text(start=0, stop=LENGTH):
    """Some tokens of each row, and their site."""
    site = pj.Site(POSITION, SEGMENT, np.zeros_like(SEGMENT))
    return jnp.asarray(ROWS[:, start:stop]), jax.tree.map(lambda leaf: leaf[:, start:stop], site)


def decoded(model, variables, *memory):
    """The logits of a prompt, and of the tokens behind it by two and two."""
    logits, caches = model.apply(variables, *text(0, PROMPT), *memory, cache_size=LENGTH, method="prefill")

    def extend(caches, new):
        out, caches = model.apply(variables, *new, *memory, caches, method="extend")
        return caches, out

    pairs = [text(start, start + 2) for start in range(PROMPT, LENGTH, 2)]
    _, outs = jax.lax.scan(extend, caches, jax.tree.map(lambda *leaves: jnp.stack(leaves), *pairs))
    return jnp.concatenate([logits, *outs], axis=1)


def gap(a, b):
    return float(np.max(np.abs(np.asarray(a) - np.asarray(b)), initial=0))


def check_text(model, *memory, tiles, causal=True):
    """Compares rows of logits.

    Args:
      memory: the source of an encoder-decoder, and its site.
      tiles: whether prompts, or all of an encoder's tokens, go through blockwise attention.
    """
    variables = drawn(model.init, jax.random.key(0), *memory, *text(), encoding=model.encoding)

    @jax.jit
    def run(variables):
        outs = {"dense": model.apply(variables, *memory, *text())}
        other = model.with_fields(implementation="blockwise") if tiles else model
        if causal:
            read = [model.apply(variables, *memory, method="encode")] if memory else []
            return outs | {"decoding": decoded(other, variables, *read)}
        return outs | {"tiles": other.apply(variables, *memory, *text())}

    outs = {name: np.where(SEGMENT[..., None] > 0, out, 0) for name, out in run(variables).items()}
    dense = outs.pop("dense")
    gaps = {name: gap(out, dense) for name, out in outs.items()}
    whole, later, packed, alone, padded = dense
    gaps["packing"] = gap(packed[FIRST:], alone[: LENGTH - FIRST])
    gaps["padding"] = gap(padded[FIRST:], alone[: LENGTH - FIRST])
    if causal:
        gaps["causality"] = gap(later[:PROMPT], whole[:PROMPT])
    if causal and not memory:
        gaps["packing of the first"] = gap(packed[:FIRST], whole[:FIRST])
    assert {name: size for name, size in gaps.items() if not size < 1e-4} == {}
    assert gap(packed[FIRST:], whole[FIRST:]) > 1e-3
    assert gap(later[PROMPT:], whole[PROMPT:]) > 1e-3


DECODERS = {
    "codes, float positions, a bias of offsets": "learned + (interpolate(factor=2) >> rope) + t5",
    "content, values and a sink": "shaw + value_rotary + learned_sink(stddev=1)",
    "a window, state and a sink of each query": "window(3) + fox + token_sink(stddev=1)",
    "counts": "cope",
    "a product": "self_extend(window=3, group=2) >> rope",
}


@pytest.mark.parametrize(
    "name", [*DECODERS][:2] + [pytest.param(name, marks=pytest.mark.slow) for name in [*DECODERS][2:]]
)
def test_decoders(name):
    model = Decoder.from_config(SIZES, vocab_size=VOCABULARY, encoding=DECODERS[name])
    check_text(model, tiles=name == "content, values and a sink")


@pytest.mark.slow
def test_latent_decoders():
    sizes = SIZES | dict(latent=LATENT, num_kv_heads=None)
    spec = "self_extend(window=3, group=2) >> (rope + t5 + stick_breaking)"
    check_text(Decoder.from_config(sizes, vocab_size=VOCABULARY, encoding=spec), tiles=False)


@pytest.mark.parametrize(
    "spec", [pytest.param("learned + rope + fox", marks=pytest.mark.slow), "deberta(position_buckets=4, shared=True)"]
)
def test_encoders(spec):
    check_text(Encoder.from_config(SIZES, vocab_size=VOCABULARY, encoding=spec), tiles=True, causal=False)


@pytest.mark.slow
def test_encoder_decoders():
    """The decoder's tokens see the source of their document, here the same rows; no source has the later tokens."""
    model = EncoderDecoder.from_config(
        SIZES, vocab_size=VOCABULARY, encoding="alibi", decoder_encoding="rope", tied_embedding=False
    )
    tokens, site = text()
    check_text(model, tokens.at[1].set(TOKENS), site, tiles=False)


PATCH = 2
IMAGES = [RNG.normal(size=(PATCH * h, PATCH * w, 3)).astype(np.float32) for h, w in ((3, 3), (2, 5))]


def row_of(images, prefix, total):
    """A packed row of images: patches, whose prefix tokens and padding are NaN, and the site."""
    patches, sites = [], []
    for number, image in enumerate(images, 1):
        h, w = (side // PATCH for side in image.shape[:2])
        cut = image.reshape(h, PATCH, w, PATCH, 3).swapaxes(1, 2).reshape(h * w, PATCH, PATCH, 3)
        patches.append(np.pad(cut, [(prefix, 0)] + [(0, 0)] * 3, constant_values=np.nan))
        site = pj.grid(h, w, prefix)
        sites.append(site._replace(segment=site.segment * number))
    lack = total - sum(map(len, patches))
    patches.append(np.full((lack, PATCH, PATCH, 3), np.nan, np.float32))
    sites.append(pj.Site(np.full((lack, 2), 3, np.int32), np.zeros(lack, np.int32), np.zeros(lack, np.int32)))
    return np.concatenate(patches), jax.tree.map(lambda *leaves: np.concatenate(leaves), *sites)


NATIVE = {  # with a way of pooling
    "learned(resize='torch_bicubic') + rope_mixed": "cls",
    "dinov3": "cls_mean",
    "(fit_grid(3, 3) >> sincos2d_mae) + peg + alibi": "map",
}


@pytest.mark.parametrize("spec", [*NATIVE][:1] + [pytest.param(spec, marks=pytest.mark.slow) for spec in [*NATIVE][1:]])
def test_vits_on_native_aspect_ratios(spec):
    """Two images in a row, in order and shuffled, and each alone, whose grid is known while tracing.

    timm 1.0.31 fails where it computes rotary angles on the largest grid of a batch. No gradient is NaN: neither that of the
    slots that hold no patch, nor that of a third image, which is not there.
    """
    sizes = dict(width=16, depth=1, num_heads=2, image_size=(6, 6), patch_size=PATCH, num_registers=1)
    model = ViT.from_config(sizes, num_classes=5, encoding=spec, pooling=NATIVE[spec])
    variables = drawn(model.init, jax.random.key(0), jnp.zeros((1, 6, 6, 3)), model.sites(6, 6))
    patches, site = row_of(IMAGES, model.num_prefix, 26)
    stretched = site._replace(position=np.minimum(site.position * (2, 1), 3).astype(np.int32))
    order = np.random.default_rng(1).permutation(26)
    leaves = jax.tree.map(lambda a, b: np.stack([a, a[order], b]), (patches, site), (patches, stretched))
    together = model.with_fields(implementation="blockwise") if "alibi" in spec else model

    @jax.jit
    def run(variables):
        def loss(variables):
            logits = together.apply(variables, *leaves, num_images=3)
            return jnp.sin(logits[:, :2]).sum(), logits

        out = jax.value_and_grad(loss, has_aux=True)(variables) if "learned" in spec else (loss(variables), ())
        return *out, [model.apply(variables, x[None], model.sites(*x.shape[:2]))[0] for x in IMAGES]

    (_, (ordered, shuffled, moved)), gradient, alone = run(variables)
    np.testing.assert_allclose(np.stack([ordered[:2], shuffled[:2]]), np.stack([alone, alone]), atol=2e-5, rtol=1e-5)
    assert gap(moved[:2], np.stack(alone)) > 1e-3
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))
    assert all(np.any(leaf != 0) for leaf in jax.tree.leaves(gradient and gradient["params"]["trunk"]["encoding"]))
