"""The audit gives encodings their specs back, and names the published bug of a function that has one."""

import functools
import json
import pathlib
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import HEADS, world
from members import LINE, MEMBERS

import posjax as pj
from experiments.atlas.breaks import TEXTS
from posjax import cli
from posjax.audits.arrays import adapted
from posjax.audits.probe import matrices, probe_positions
from posjax.encodings.bias import T5, alibi_slopes
from posjax.encodings.rotary import Rotary
from posjax.spec import registered

REPO = pathlib.Path(__file__).parents[2]
LENGTH = 256
ROTARY = [name for name in pj.names() if issubclass(registered(name), Rotary)]
# Their frequencies are fitted whatever the arguments are; the others are known with their usual arguments.
FITTED = ["rope", "p_rope", "hope", "axial_rope", "mrope", "lerope"]
FIRST = [MEMBERS[name].variants[0] for name in FITTED]
OTHERS = [MEMBERS[name].variants[0] for name in ROTARY if name not in FITTED]
MORE = [case for name in FITTED for case in MEMBERS[name].variants[1:4] if isinstance(pj.parse(case.spec), Rotary)]


def rotation(encoding, params=()):
    @jax.jit
    def rotate(q, k, position):
        site = pj.Site(position, jnp.ones(len(position), jnp.int32))
        return encoding.rotate(params, q, site, k, site)

    return rotate


@pytest.mark.parametrize(
    "case", [*FIRST, *(pytest.param(case, marks=pytest.mark.slow) for case in OTHERS + MORE)], ids=str
)
def test_a_rotary_encoding_gets_its_function_back(case):
    """The found spec has the same matrices at all probed positions, to float32's precision."""
    w = world(case)
    num_axes = 1 if case.kind == LINE else 2
    rotate = rotation(w.encoding, w.params)
    found = pj.audit(rotate, head_dim=8, num_axes=num_axes, length=LENGTH, num_heads=HEADS)
    scaling = w.encoding.scaling
    has_name = scaling is None or (case.kind == LINE and not getattr(scaling, "length_dependent", False))
    if w.encoding.spec_name in FITTED and has_name:
        assert found.spec is not None, str(found)
    of_no_spec = "heads are rotated differently", "keys are not rotated as queries"
    if found.spec is None or any(words in finding for words in of_no_spec for finding in found.findings):
        assert not found.ok
        return
    assert not [finding for finding in found.findings if "not rotated" not in finding]
    position = probe_positions(LENGTH, num_axes)
    sizes = dict(length=LENGTH) if num_axes == 1 else dict(grid=(LENGTH, LENGTH))
    params = found.encoding.init(jax.random.key(0), pj.Dims(24, HEADS, 8, **sizes))
    both = [
        matrices(adapted(one, "THD", jnp.asarray), 8, position, HEADS)
        for one in (rotate, rotation(found.encoding, params))
    ]
    np.testing.assert_allclose(*both, rtol=0, atol=2e-4)


SPECS = [
    "rope(scaling=linear(factor=8))",
    "rope(scaling=ntk(factor=4))", "rope(scaling=yarn(factor=4, original_length=4096))",
    "rope(base=150000, scaling=yarn(factor=32, original_length=4096, truncate=False))", "rope(base=500000, scaling=llama3())",
    "rope(scaling=ntk_by_parts(factor=4, original_length=2048))", "p_rope(base=1000000, proportion=0.25)",
    "rope(base=8000000, layout='interleaved', fraction=0.5)",
    "rope(scaling=yarn(factor=40, original_length=4096, attention_factor=1.25))",
]  # fmt: skip


@pytest.mark.parametrize("spec", SPECS)
def test_a_published_setting_gets_its_spec_back(spec):
    found = pj.audit(rotation(pj.parse(spec)), head_dim=128)
    assert (found.spec, found.findings) == (spec, ())
    assert found.residual < 1e-5


def test_frequencies_of_a_dynamic_scaling_are_told_to_be_of_one_length():
    found = pj.audit(rotation(pj.parse("rope(scaling=dynamic_ntk(factor=2, original_length=1024))")), head_dim=64)
    assert "frequencies depend on the length of the document: these are of 4096 tokens" in found.facts


# Functions in NumPy, as their ports write them.


def inverse_frequencies(base=10_000.0, size=64):
    return (1 / base ** (np.arange(0, size, 2) / size)).astype(np.float32)


def bf16(x):
    return np.asarray(x, np.float32).astype(jnp.bfloat16).astype(np.float32)


def rotate_half(x):
    a, b = np.split(x, 2, axis=-1)
    return np.concatenate([-b, a], axis=-1)


def twice(x):
    return np.concatenate([x, x], axis=-1)


def same(x):
    return x


def port(inv_freq=None, *, doubled=twice, turned=rotate_half, placed=same, rounded=same, keys=same):
    inv_freq = inverse_frequencies() if inv_freq is None else inv_freq

    def turn(x, position):
        angle = doubled(rounded(placed(position).astype(np.float32)[:, None] * inv_freq))[:, None]
        size = angle.shape[-1]
        out = x[..., :size] * np.cos(angle) + turned(x[..., :size]) * np.sin(angle)
        return np.concatenate([out, x[..., size:]], axis=-1)

    return lambda q, k, position: (turn(q, position), turn(k, keys(position)))


def permuted_rows(q, k, position):
    rows = np.concatenate([np.arange(0, 32, 2), np.arange(1, 32, 2), np.arange(32, 64)])  # of another number of heads
    return tuple(x[..., np.argsort(rows)] for x in port()(q[..., rows], k[..., rows], position))


def yarn_without_its_factor(q, k, position):
    turned = rotation(pj.parse("rope(scaling=yarn(factor=4, original_length=4096))"))(q, k, position)
    return tuple(np.asarray(x) / (0.1 * np.log(4) + 1) for x in turned)


def alibi(slopes, size=300):
    return -np.asarray(slopes)[:, None, None] * np.abs(np.arange(size) - np.arange(size)[:, None])


def falcon(size=300):
    slopes, place = bf16(alibi_slopes(8))[:, None, None], bf16(np.arange(size))
    return bf16(slopes * place * np.ones((1, size, 1)))


def t5_bias(encoding, offset):
    table = np.random.default_rng(0).normal(size=(encoding.num_buckets, 4))
    return table[np.asarray(encoding.steps().at(jnp.asarray(offset)))].transpose(2, 0, 1)


OFFSET = np.arange(300) - np.arange(300)[:, None]
LLAMA = {"model_type": "llama", "hidden_size": 256, "num_attention_heads": 4, "num_hidden_layers": 2, "rope_theta": 5e5}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA |= {"rope_scaling": LLAMA3 | {"original_max_position_embeddings": 8192}}
PROPORTIONAL = {"rope_type": "proportional", "rope_theta": 10_000.0, "partial_rotary_factor": 0.5}
GEMMA3 = {
    "model_type": "gemma3_text",
    "hidden_size": 256,
    "head_dim": 64,
    "num_attention_heads": 4,
    "num_hidden_layers": 6,
}
GEMMA3 |= {"sliding_window": 512, "rope_theta": 1e6, "rope_local_base_freq": 10_000.0}
GEMMA3 |= {
    "layer_types": ["sliding_attention"] * 5 + ["full_attention"],
    "rope_scaling": {"rope_type": "linear", "factor": 8.0},
}

# Published bugs; docs/errata.md and the requests of peers have their sources. (arguments, spec, words of the finding)
BUGS = {
    "lanes of proportional RoPE as in GPT-NeoX": (
        {"rotate": port(inverse_frequencies(size=64)), "head_dim": 128, "config": LLAMA | {"rope_scaling": PROPORTIONAL}},
        "rope(fraction=0.5)", "partial lanes as in GPT-NeoX, where it means proportional"),
    "rows permuted as for another number of heads": (
        {"rotate": permuted_rows, "head_dim": 64}, None, "rows of the weights were permuted"),
    "a scaling that is not applied": (
        {"rotate": port(inverse_frequencies(5e5)), "config": LLAMA}, "rope(base=500000)", "its scaling is not applied"),
    "a base that a cache kept": (
        {"inv_freq": inverse_frequencies(), "config": LLAMA}, "rope()", "base is 10000 instead of 500000"),
    "linear scaling in all layers": (
        {"rotate": port(inverse_frequencies() / 8), "config": GEMMA3, "layer": 0},
        "rope(scaling=linear(factor=8))", "scales so in layers 5 only"),
    "the full layers' base in all layers": (
        {"rotate": port(inverse_frequencies(1e6) / 8), "config": GEMMA3, "layer": 0},
        "rope(base=1000000, scaling=linear(factor=8))", "measured is its encoding of layers 5"),
    "positions in bfloat16": (
        {"rotate": port(placed=bf16), "head_dim": 64}, "rope()",
        r"positions in bfloat16: wrong by .* by more than 0.1 from position 257 on"),
    "angles in bfloat16": (
        {"rotate": port(rounded=bf16), "head_dim": 64}, "rope()", "angles in bfloat16: wrong by .* rad at position"),
    "angles in bfloat16, beyond the numbers of float16": (
        {"rotate": port(rounded=bf16), "head_dim": 64, "length": 65_600}, "rope()", "angles in bfloat16: wrong by"),
    "frequencies in bfloat16": (
        {"rotate": port(bf16(inverse_frequencies())), "head_dim": 64}, "rope()", "inv_freq in bfloat16"),
    "positions counted anew in each call": (
        {"rotate": port(placed=lambda p: np.arange(len(p))), "head_dim": 64}, "rope()", "positions are ignored"),
    "a table read past its end": (
        {"rotate": port(placed=lambda p: np.minimum(p, 999)), "head_dim": 64}, "rope()", "beyond 999 get its angles"),
    "angles in turns under rotate_half": (
        {"rotate": port(doubled=lambda x: np.repeat(x, 2, -1)), "head_dim": 64}, None, "each angle twice in turn"),
    "rotate_half without its minus": (
        {"rotate": port(turned=lambda x: np.roll(x, 32, -1)), "head_dim": 64}, None, "rotate_half lacks its minus"),
    "rotation by -p": ({"rotate": port(turned=lambda x: -rotate_half(x)), "head_dim": 64}, "rope()", "by -p instead of p"),
    "keys that are not rotated": (
        {"rotate": port(keys=np.zeros_like), "head_dim": 64}, "rope()", "keys are not rotated as queries are"),
    "positions from 1 on": ({"rotate": port(placed=lambda p: p + 1), "head_dim": 64}, "rope()", "counted from 1 on"),
    "exponents over C - 1": (
        {"inv_freq": 1e4 ** (-np.arange(32) / 31)}, "rope(base=13459.6)", "exponents divide by 31 instead of 32"),
    "YaRN without its attention factor": (
        {"rotate": yarn_without_its_factor, "head_dim": 64},
        "rope(scaling=yarn(factor=4, original_length=4096, attention_factor=1))", "without its attention factor, 1.139"),
    "ALiBi's slopes of twelve heads as a power of the head": (
        {"bias": alibi(2.0 ** (-8 * np.arange(1, 13) / 12))}, "alibi()", "no power of two"),
    "ALiBi on each tensor-parallel rank": (
        {"bias": alibi(np.tile(alibi_slopes(4), 2))}, "alibi()", "restart at head 4: as if on 2 tensor-parallel ranks"),
    "ALiBi in bfloat16": ({"bias": falcon()}, "alibi()", "beyond 128 tokens .* half precision"),
    "a decoder's T5 buckets of query - key": (
        {"bias": t5_bias(T5(bidirectional=False), -OFFSET)}, "t5(bidirectional=False)", "query - key instead of key - query"),
}  # fmt: skip


@functools.cache
def audited(bug):
    return pj.audit(**BUGS[bug][0])


@pytest.mark.parametrize("name", BUGS)
def test_a_published_bug_is_named(name):
    _, spec, words = BUGS[name]
    found = audited(name)
    assert found.spec == spec
    assert len(found.findings) in (1, 2)
    assert re.search(words, found.findings[0]), str(found)


# Bugs of the atlas whose page names the audit: {name in breaks.toml: name here}.
IN_THE_ATLAS = {
    "every_call_starts_at_zero": "positions counted anew in each call",
    "tables_by_size_alone": "a base that a cache kept",
    "pairs_of_a_prefix": "lanes of proportional RoPE as in GPT-NeoX",
    "rows_of_keys": "rows permuted as for another number of heads",
    "positions_in_bfloat16": "positions in bfloat16",
    "bias_in_bfloat16": "ALiBi in bfloat16",
    "slopes_by_the_head": "ALiBi's slopes of twelve heads as a power of the head",
    "slopes_of_each_rank": "ALiBi on each tensor-parallel rank",
}


def test_the_atlas_names_the_audit_where_it_finds_the_bug():
    assert {name for name, texts in TEXTS.items() if "audit" in texts} == IN_THE_ATLAS.keys()
    for name, bug in IN_THE_ATLAS.items():
        assert TEXTS[name]["finds"] in audited(bug).findings[0]


@pytest.mark.parametrize("arguments", [
    {"rotate": port(), "head_dim": 64},
    {"rotate": port(inverse_frequencies(1e6) / 8), "config": GEMMA3, "layer": 5},
    {"bias": alibi(alibi_slopes(12, 16))},
    {"bias": alibi([*alibi_slopes(6), 0, 0])},
    {"bias": falcon(100)},
], ids=["rope", "gemma 3", "exponent", "heads", "alibi in halves"])  # fmt: skip
def test_sound_code_has_no_findings(arguments):
    assert pj.audit(**arguments).findings == ()


def blocks(q, k, position):
    """Rotates each half of the channels by itself, in the half layout."""
    halves = [
        port(inverse_frequencies(size=32))(q[..., part], k[..., part], position) for part in (slice(32), slice(32, 64))
    ]
    return tuple(np.concatenate(both, axis=-1) for both in zip(*halves, strict=True))


def along_both(q, k, position):
    """Turns all pairs of channels along one direction of the plane."""
    return port(placed=lambda p: p @ np.float32([0.9, 0.4]))(q, k, position)


def mixed(q, k, position):
    """Rotates twice, in pairs of two layouts."""
    return port(doubled=lambda x: np.repeat(x, 2, -1), turned=rotate_neighbours)(*port()(q, k, position), position)


def rotate_neighbours(x):
    return np.stack([-x[..., 1::2], x[..., ::2]], axis=-1).reshape(x.shape)


@pytest.mark.parametrize(("arguments", "words"), [
    ({"inv_freq": np.linspace(1, 0.1, 32)}, "the spec lists them one by one"),
    ({"rotate": along_both, "head_dim": 64, "num_axes": 2}, "no known encoding has these frequencies"),
    ({"rotate": blocks, "head_dim": 64}, "half layout within blocks of 32 channels"),
    ({"rotate": mixed, "head_dim": 64}, "channel .* is mixed with"),
    ({"bias": np.tile(np.sin(OFFSET), (2, 1, 1))}, "neither slopes nor buckets"),
    ({"bias": alibi(alibi_slopes(8) / 8)}, "slopes are 0.125 times the published ones: a bias before logits are scaled"),
    ({"bias": alibi(np.array([0.7, 0.2, 0.1]))}, "slopes .* are not the published"),
    ({"bias": np.tile(np.sin(OFFSET * np.arange(300)), (2, 1, 1))}, "depends on more than the offset"),
], ids=["frequencies", "directions", "blocks", "mixed channels", "bias", "scaled", "slopes", "content"])  # fmt: skip
def test_what_no_encoding_explains_is_unknown_and_not_wrong(arguments, words):
    found = pj.audit(**arguments)
    assert (found.findings, found.ok) == ((), False)
    assert re.search(words, *found.unknown)
    assert "  UNKNOWN: " in str(found)
    assert "WRONG" not in str(found)
    assert "nothing wrong" not in str(found)


@pytest.mark.parametrize("num_heads", [1, 12])
def test_alibi_is_recognised_with_its_window(num_heads):
    bias = np.where((OFFSET > 0) | (OFFSET <= -64), -np.inf, alibi(alibi_slopes(num_heads), 300))
    found = pj.audit(bias=bias)
    assert (found.spec, found.findings, "causal" in found.facts) == ("alibi() + window(size=64)", (), True)
    symmetric = pj.audit(bias=lambda size: alibi(alibi_slopes(num_heads), size))
    assert (symmetric.spec, symmetric.facts[1:]) == ("alibi()", ())


@pytest.mark.parametrize("encoding", [T5(16, 128), T5(32, 256, False)])
def test_t5_gets_its_buckets_and_its_table_back(encoding):
    bias = t5_bias(encoding, OFFSET)
    found = pj.audit(bias=bias)
    assert found.spec == str(encoding)
    q = jnp.zeros((300, 4, 8))
    ours = found.encoding.bias(found.params, q, pj.sites(300), q, pj.sites(300))
    np.testing.assert_allclose(ours, bias, atol=1e-5)


@pytest.mark.parametrize(
    ("doubled", "stored"),
    [(same, same), (twice, bf16), (lambda x: np.repeat(x, 2, -1), same)],
    ids=["once", "bf16", "in turn"],
)
def test_tables(doubled, stored):
    angle = doubled(np.arange(512)[:, None] * inverse_frequencies(5e5))
    found = pj.audit(table=(stored(np.cos(angle)), stored(np.sin(angle))), head_dim=64)
    layout = "" if doubled in (same, twice) else ", layout='interleaved'"
    assert (found.spec, found.findings) == (f"rope(base=500000{layout})", ())
    assert any("half precision" in fact for fact in found.facts) == (stored is bf16)


def test_the_command(tmp_path, capsys):
    (tmp_path / "mine.py").write_text("def rotate(q, k, position):\n    return q, k\n")
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    np.save(tmp_path / "inv_freq.npy", inverse_frequencies())
    assert cli.main(["audit", f"{tmp_path}/mine.py:rotate", "--head-dim", "64"]) == 1
    assert "WRONG: queries and keys are not rotated" in capsys.readouterr().out
    assert cli.main(["audit", f"{tmp_path}/config.json", "--inv-freq", f"{tmp_path}/inv_freq.npy"]) == 1
    assert "config.json means rope(base=500000, scaling=llama3())" in capsys.readouterr().out
    assert cli.main(["audit", "--inv-freq", f"{tmp_path}/inv_freq.npy"]) == 0
    np.save(tmp_path / "odd.npy", np.linspace(1, 0.1, 32))
    assert cli.main(["audit", "--inv-freq", f"{tmp_path}/odd.npy"]) == 3
    assert "UNKNOWN: frequencies follow no series" in capsys.readouterr().out
    for wrong in ([f"{tmp_path}/mine.py:other"], ["mine.txt"], [f"{tmp_path}/none.json"], []):
        assert cli.main(["audit", *wrong]) == 2
        assert capsys.readouterr().err.count("\n") == 1


def test_the_examples_of_the_guide_print_what_it_shows(capsys):
    guide = (REPO / "docs/audit.md").read_text()
    examples = re.findall(r"```python\n(.*?)```\n\n```text\n(.*?)```", guide, re.DOTALL)
    assert len(examples) == 2
    names = {"__name__": "guide"}
    for code, printed in examples:
        exec(code, names)
        assert capsys.readouterr().out == printed
