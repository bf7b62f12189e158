"""The audit judges every registered bias and mask rightly, wherever a row has padding, documents or a constant."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask
from members import LINE, MEMBERS

import posjax as pj
from posjax.attention.dense import visible
from posjax.describe.worlds import awake
from posjax.encoding import Needs

HEADS, TOKENS = 3, 32
# Found whatever their arguments are; the others, which are learned or made of hashes, are UNKNOWN where not found.
FOUND = ("alibi(", "window(", "dilated(", "chunked(", "longformer(", "sinks(", "t5()", "bam(start='alibi')")
UNKNOWN = ("before=", "direction='split', heads=")  # of these masks the audit says that no encoding is known


def cases():
    """All cases of a kind that the audit finds, and the first case of each other bias or mask."""
    for member in MEMBERS.values():
        of_a_line = [case for case in member.variants if case.kind == LINE]
        judged = [
            case
            for case in of_a_line
            if {"bias", "mask"} & (encoding := pj.parse(case.spec)).hooks and Needs.RELATION not in encoding.needs
        ]
        found = [case for case in judged if case.spec.startswith(FOUND)]
        yield from (pytest.param(case, id=case.spec) for case in found)
        yield from (pytest.param(case, id=case.spec, marks=pytest.mark.slow) for case in judged[:1] if not found)


ROWS = {
    "two documents": pj.packed([20, 12]),
    "padding left": pj.padded(np.arange(TOKENS) >= 7),
}


def logits_of(encoding, site, causal):
    """The bias [H, T, T] of random tokens, -inf where a key is hidden."""
    bias, seen = _logits_of(encoding, _params_of(encoding, len(site.segment)), site, causal)
    return np.where(seen, np.broadcast_to(np.asarray(bias, np.float64), (HEADS, *seen.shape)), -np.inf)


@functools.cache
def _params_of(encoding, length):
    dims = pj.Dims(8 * HEADS, HEADS, 8, length=length)
    return awake(jax.jit(encoding.init, static_argnums=1)(jax.random.key(0), dims))[0]


@functools.partial(jax.jit, static_argnums=(0, 3))
def _logits_of(encoding, params, site, causal):
    count = len(site.segment)
    rng = np.random.default_rng(0)
    x, q, k = (jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in [(count, 24), *[(count, HEADS, 8)] * 2])
    placed = encoding.observe(params, x, encoding.place(params, site))
    order = np.arange(count, dtype=np.int32) if causal else None
    return encoding.bias(params, q, placed, k, placed), visible(encoding, placed, placed, order, order)


def as_softmax_sees(bias):
    bias = np.where(bias < -1e8, -np.inf, bias)
    real = np.isfinite(bias).any(axis=(0, 2))
    bias = bias[:, real][:, :, real]
    return bias - np.diagonal(bias, axis1=1, axis2=2)[:, :, None]


@pytest.mark.parametrize("case", [*cases()])
def test_no_registered_bias_or_mask_is_accused(case):
    """A spec that is found has the same bias and mask, but for T5's table."""
    causal = len(case.spec) % 2 == 0
    encoding = pj.parse(case.spec)
    for row, site in ROWS.items():
        bias = logits_of(encoding, site, causal)
        found = pj.audit(bias=bias + np.arange(HEADS)[:, None, None])
        accused = [each for each in found.findings if "does not depend on the position" not in each]
        assert not accused, (row, str(found))
        told = case.spec.startswith(FOUND) and not any(each in case.spec for each in UNKNOWN)
        assert found.ok or not told, (row, str(found))
        chunks = "chunked" in case.spec and row == "two documents"  # which may be documents
        if found.ok and not found.params and not chunks:
            theirs, ours = (as_softmax_sees(each) for each in (logits_of(found.encoding, site, causal), bias))
            np.testing.assert_allclose(theirs, ours, atol=2e-4, err_msg=f"{row}: {found}")
        if found.findings:  # a bias of zeros and no mask
            assert np.ptp(bias[np.isfinite(bias)]) == 0


OFFSET = np.arange(64) - np.arange(64)[:, None]
CAUSAL = np.where(OFFSET > 0, -np.inf, 0.0)
MISTRAL = {"model_type": "mistral", "n_embd": 64, "n_head": 4, "num_hidden_layers": 2, "sliding_window": 16}


@pytest.mark.parametrize(
    ("size", "words"), [(15, "size is 15 instead of 16"), (16, None), (17, "size is 17 instead of 16")]
)
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_a_window_is_compared_with_that_of_the_configuration(size, words, dtype):
    """The mask is additive, with the dtype's least number, as transformers makes it."""
    seen = (OFFSET <= 0) & (OFFSET + size > 0)
    mask = np.where(~seen, float(jnp.finfo(dtype).min), 0).astype(dtype)[None]
    found = pj.audit(bias=mask, config=MISTRAL)
    assert found.spec == f"window(size={size})"
    assert (found.findings == ()) == (words is None)
    assert words is None or words in found.findings[0]
    short = pj.audit(bias=mask[:, :12, :12], config=MISTRAL)
    assert (short.spec, short.ok) == ("none()", True), "12 tokens do not reach the window"


@pytest.mark.parametrize("constant", [0.0, 3.0])
def test_a_bias_without_position_is_no_encoding(constant):
    bias = np.full((2, 64, 64), constant)
    found = pj.audit(bias=bias)
    assert (found.spec, len(found.findings)) == ("none()", 1)
    assert "does not depend on the position" in found.findings[0]
    assert pj.audit(bias=bias + CAUSAL).ok
    assert "config.json means alibi()" in pj.audit(bias=bias + CAUSAL, config={"model_type": "bloom"}).findings[0]


@pytest.mark.parametrize("knee", [5, 61])
def test_distances_that_are_cut_off_are_no_half_precision(knee):
    bias = -pj.encodings.alibi().constants((), 4)[:, :, None] * np.minimum(np.abs(OFFSET), knee)
    found = pj.audit(bias=bias + CAUSAL)
    assert (found.spec, found.ok) == (f"rerope(window={knee}) >> alibi()", True)


def test_padding_that_sees_all_is_left_out():
    """transformers lets queries of left padding see all keys, for some kernels."""
    hidden = (OFFSET > 0) | (np.arange(64) < 6)
    hidden[:6] = False
    found = pj.audit(bias=np.where(hidden, -np.inf, 0.0)[None])
    assert (found.spec, found.facts[1:]) == ("none()", ("causal", "6 tokens are padding"))


@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize(("code", "ok"), [("t5()", False), ("t5(bidirectional=False)", True)])
def test_a_t5_configuration_needs_no_argument(code, ok, masked):
    """A causal bias is a decoder's; an encoder's buckets in it are a bug."""
    bias = logits_of(pj.parse(code), pj.sites(64), False)
    bias = bias + CAUSAL if masked else bias
    assert pj.audit(bias=bias, config={"model_type": "t5"}).ok == (ok or not masked)


def test_falcons_scaled_alibi_is_sound_beside_its_configuration():
    bias = logits_of(pj.parse("interpolate(factor=4) >> alibi()"), pj.sites(TOKENS), True)
    falcon = {"model_type": "falcon", "alibi": True, "hidden_size": 48, "num_attention_heads": 3}
    assert pj.audit(bias=bias, config=falcon).ok
    assert not pj.audit(bias=bias).ok


WINDOWS = {  # docs/answers/sliding_window.md: what libraries hide, for a W of 16
    "window(size=16)": lambda m, n: (n <= m) & (n > m - 16),
    "window(size=17)": lambda b, h, m, n: (m >= n) & (m - n <= 16),
    "window(size=9)": lambda m, n: abs(m - n) <= 16 // 2,
    "window(size=5, ahead=2)": lambda m, n: (n >= m - 4) & (n <= m + 2),
    "longformer(window=16)": lambda m, n: (abs(m - n) <= 8) | (m < 1) | (n < 1),
    "chunked(size=16)": lambda m, n: (n <= m) & (m // 16 == n // 16),
    "sinks(window=12)": lambda m, n: (n <= m) & ((m - n < 12) | (n < 4)),
}


@pytest.mark.parametrize("spec", WINDOWS)
def test_a_mask_function_is_named(spec):
    found = pj.audit(mask=WINDOWS[spec], length=64)
    assert (found.spec, found.ok) == (spec, True)


def test_masks_of_libraries_here():
    local = splash_attention_mask.LocalMask((64, 64), (16, 16), 0)[:, :]
    assert pj.audit(mask=local).spec == "window(size=17)", "splash counts the keys beside the query's own"
    assert pj.audit(mask=local & np.tri(64, dtype=bool)).facts[1] == (
        "a query sees up to 17 keys, itself counted: to 16 before it and 0 after it"
    )
    assert pj.audit(mask=WINDOWS["window(size=16)"], config=MISTRAL, length=64).ok
    assert not pj.audit(mask=WINDOWS["window(size=17)"], config=MISTRAL, length=64).ok
    assert pj.audit(mask=lambda m, n: n <= m, length=64).spec == "none()"


@pytest.mark.parametrize(
    ("mask", "words"),
    [
        (lambda m, n: n <= m and m - n < 4, "in place of `and`"),
        (lambda m: m, "shape"),
        (lambda a, m, n: m >= n, "3 arguments"),
        (np.stack([np.eye(16), np.ones((16, 16))]), "heads"),
    ],
)
def test_what_is_no_mask_is_refused(mask, words):
    with pytest.raises(ValueError, match=words):
        pj.audit(mask=mask, length=16)
