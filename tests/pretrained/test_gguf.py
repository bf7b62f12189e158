"""GGUF files made as llama.cpp's converter makes them equal their folders; tokenizers."""

import json
import math

import numpy as np
import pytest
import safetensors.numpy
from goldens.language_cases import written

from posjax import pretrained
from posjax.data.tokens import load_tokenizer
from posjax.pretrained.language.gguf import open_gguf
from posjax.pretrained.language.saving import resolved
from posjax.pretrained.parameters import paths_of

gguf = pytest.importorskip("gguf", reason="the package gguf (extra gguf) is not installed")
F32, F16, Q8_0 = (gguf.GGMLQuantizationType[name] for name in ("F32", "F16", "Q8_0"))

# Changes of the cases' configurations to what GGUF files can say.
PLAIN = {"rope_parameters": {"rope_theta": 5000.0, "rope_type": "default"}}
WITHOUT_WINDOW = dict(use_sliding_window=False, sliding_window=None, layer_types=["full_attention"] * 2)
FAST = ["llama", "gemma3", "gpt2"]
FILES = {
    "llama": {},
    "qwen2": PLAIN | WITHOUT_WINDOW,
    "qwen3": {},
    "gemma2": dict(query_pre_attn_scalar=12),
    "gemma3": dict(query_pre_attn_scalar=12),
    "gpt2": {},
    "phi3": {},
    "phi3 window": {},
}
KEYS = {
    **{
        "hidden_size": "embedding_length",
        "num_hidden_layers": "block_count",
        "intermediate_size": "feed_forward_length",
    },
    **{"num_attention_heads": "attention.head_count", "num_key_value_heads": "attention.head_count_kv"},
    **{"max_position_embeddings": "context_length", "rms_norm_eps": "attention.layer_norm_rms_epsilon"},
    **{"head_dim": "attention.key_length", "sliding_window": "attention.sliding_window", "vocab_size": "vocab_size"},
    **{name: name for name in ("attn_logit_softcapping", "final_logit_softcapping")},
    **{"n_embd": "embedding_length", "n_layer": "block_count", "n_inner": "feed_forward_length"},
    **{"n_head": "attention.head_count", "n_positions": "context_length"},
    **{"layer_norm_epsilon": "attention.layer_norm_epsilon"},
}


def scaled(rope, channels):
    """Llama 3's divisors of the frequencies, as the converter writes them."""
    high, low = (rope["original_max_position_embeddings"] / rope[f"{name}_freq_factor"] for name in ("high", "low"))
    divisors = []
    for c in range(channels):
        length = 2 * math.pi * rope["rope_theta"] ** (c / channels)
        smooth = (rope["original_max_position_embeddings"] / length - rope["low_freq_factor"]) / (
            rope["high_freq_factor"] - rope["low_freq_factor"]
        )
        between = 1 / ((1 - smooth) / rope["factor"] + smooth)
        divisors.append(1.0 if length < high else rope["factor"] if length > low else between)
    return np.float32(divisors)


def permuted(rows, heads):
    """The converter's `permute`."""
    return rows.reshape(heads, 2, len(rows) // heads // 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def stored(config, name, array):
    """A tensor of transformers in the form of llama.cpp."""
    kind = config["model_type"]
    if kind == "llama" and (".q_proj." in name or ".k_proj." in name):
        return permuted(array, config["num_attention_heads" if ".q_proj." in name else "num_key_value_heads"])
    if kind.startswith("gemma") and name.endswith("norm.weight"):
        return array + 1
    transposed = kind == "gpt2" and name.endswith(("c_attn.weight", "c_proj.weight", "c_fc.weight"))
    return np.ascontiguousarray(array.T) if transposed else array


def add_fields(writer, arch, config):
    add = lambda key, value: (  # noqa: E731
        writer.add_uint32
        if isinstance(value, int)
        else writer.add_float32
        if isinstance(value, float)
        else writer.add_array
    )(f"{arch}.{key}", value)
    for name, key in KEYS.items():
        if config.get(name) is not None:
            add(key, config[name])
    rope = config.get("rope_parameters", {})
    if "full_attention" in rope:
        add("rope.freq_base", rope["full_attention"]["rope_theta"])
        add("rope.freq_base_swa", rope["sliding_attention"]["rope_theta"])
        writer.add_string(f"{arch}.rope.scaling.type", "linear")
        add("rope.scaling.factor", rope["full_attention"]["factor"])
        add("attention.sliding_window_pattern", [kind == "sliding_attention" for kind in config["layer_types"]])
    elif rope:
        add("rope.freq_base", rope["rope_theta"])
    if rope.get("rope_type") == "llama3":
        writer.add_tensor("rope_freqs.weight", scaled(rope, config["head_dim"] // 2))
    if rope.get("rope_type") == "longrope":
        add("rope.scaling.original_context_length", rope["original_max_position_embeddings"])
        for length in ("short", "long"):
            writer.add_tensor(f"rope_factors_{length}.weight", np.float32(rope[f"{length}_factor"]))
    if rope.get("partial_rotary_factor", 1.0) != 1.0:
        add("rope.dimension_count", int(config["head_dim"] * rope["partial_rotary_factor"]))


def finish(writer):
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def converted(folder, path, kind=F32, **fields):
    """The GGUF file of a folder; matrices whose rows are whole blocks are stored as `kind`."""
    config = json.loads((folder / "config.json").read_text())
    arch = {"gemma3_text": "gemma3"}.get(config["model_type"], config["model_type"])
    writer = gguf.GGUFWriter(path, arch)
    add_fields(writer, arch, config)
    for key, value in fields.items():
        writer.add_uint32(key.replace("__", "."), value)
    depth = config.get("num_hidden_layers") or config["n_layer"]
    names = gguf.get_tensor_name_map(getattr(gguf.MODEL_ARCH, arch.upper()), depth)
    for name, array in safetensors.numpy.load_file(folder / "model.safetensors").items():
        array = stored(config, name, array)
        blocks = array.ndim == 2 and array.shape[1] % 32 == 0
        own = kind if kind == F16 or blocks else F32
        own = F32 if array.ndim == 1 else own
        theirs = names.get_name(name, try_suffixes=(".weight", ".bias"))
        writer.add_tensor(theirs, gguf.quants.quantize(array, own), raw_dtype=own)
    finish(writer)
    return path


@pytest.mark.parametrize("case", [pytest.param(c, marks=[] if c in FAST else pytest.mark.slow) for c in FILES])
def test_a_file_is_the_folder_that_it_was_made_of(case, tmp_path):
    folder = written(case, tmp_path / "folder", **FILES[case])
    one, params = pretrained.load(folder)
    other, found = pretrained.load(converted(folder, tmp_path / "model.gguf"))
    left, right = paths_of(params), paths_of(found)
    assert left.keys() == right.keys()
    for path, leaf in left.items():  # a norm's w + 1 - 1 is rounded
        np.testing.assert_allclose(right[path], leaf, rtol=0, atol=2e-7 if path.endswith("scale") else 0)
    fields = [
        {n: round(v, 6) if isinstance(v, float) else v for n, v in resolved(model).items() if n != "encoding"}
        for model in (one, other)
    ]
    assert fields[0] == fields[1]
    assert resolved(one)["encoding"] == resolved(other)["encoding"]


@pytest.mark.parametrize(("kind", "bound"), [(F16, 1e-3), (Q8_0, 1e-2)])
def test_quantised_tensors_are_near(kind, bound, tmp_path):
    folder = written("gpt2", tmp_path / "folder")
    tensors = safetensors.numpy.load_file(folder / "model.safetensors")
    weights = open_gguf(converted(folder, tmp_path / "model.gguf", kind))
    for name in ("transformer.wte.weight", "transformer.h.0.mlp.c_fc.weight"):
        assert 0 < np.abs(weights[name] - tensors[name]).max() < bound * np.abs(tensors[name]).max()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"llama__rope__scaling__yarn_beta_fast": 3}, "field llama.rope.scaling.yarn_beta_fast .* is not known here"),
        ({"llama__attention__value_length": 3}, "attention.value_length=3 beside heads of 12"),
        ({"split__count": 2}, "is one of 2 shards"),
    ],
)
def test_fields_that_are_not_computed_are_refused(fields, message, tmp_path):
    path = converted(written("llama", tmp_path / "folder"), tmp_path / "model.gguf", **fields)
    with pytest.raises(ValueError, match=message):
        pretrained.load(path)


def test_other_divisors_of_frequencies_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(f"{__name__}.scaled", lambda rope, channels: np.linspace(1, 2, channels, dtype=np.float32))
    path = converted(written("llama", tmp_path / "folder"), tmp_path / "model.gguf")
    with pytest.raises(ValueError, match="are not those of Llama 3's scaling"):
        pretrained.load(path)


def test_a_missing_field_is_named_as_the_file_names_it(tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "x.gguf", "llama")
    for key in ("context_length", "block_count", "attention.head_count"):
        writer.add_uint32(f"llama.{key}", 4)
    finish(writer)
    with pytest.raises(ValueError, match=r"the field llama\.embedding_length is missing"):
        pretrained.load(tmp_path / "x.gguf")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    return converted(written("gpt2", folder / "folder"), folder / "model.gguf").read_bytes()


@pytest.mark.parametrize("share", [0.001, 0.1, 0.99])
def test_a_file_that_is_cut_off_is_refused(share, whole, tmp_path):
    (tmp_path / "cut.gguf").write_bytes(whole[: int(share * len(whole))])
    with pytest.raises(ValueError, match=r"cut off or damaged|is not a GGUF"):
        pretrained.load(tmp_path / "cut.gguf")


def tokenizer(path, **fields):
    writer = gguf.GGUFWriter(path, "llama")
    for key, value in fields.items():
        add = {str: writer.add_string, list: writer.add_array, bool: writer.add_bool, int: writer.add_uint32}[
            type(value)
        ]
        add(f"tokenizer.ggml.{key}", value)
    writer.add_tensor("x", np.zeros(4, np.float32))
    finish(writer)
    return load_tokenizer(path)


def test_pieces_merge_by_the_scores_of_their_results(tmp_path):
    """SentencePiece's BPE: "ab" before "bc", so that "abc" is ab + c; unknown characters are bytes."""
    tokens = ["<unk>", "<s>", "a", "b", "c", "bc", "ab", "\u2581", "\u2581a", "<0xC3>", "<0xA4>"]
    scores = [0.0, 0.0, -9.0, -9.0, -9.0, -2.0, -1.0, -9.0, -3.0, 0.0, 0.0]
    made = tokenizer(
        tmp_path / "t.gguf",
        model="llama",
        tokens=tokens,
        scores=scores,
        token_type=[2, 3, *[1] * 7, 6, 6],
        bos_token_id=1,
        unknown_token_id=0,
        add_space_prefix=False,
    )
    assert made.bos == (1,)
    assert [made.encode([text])[0].tolist() for text in (b"abc", b"bc a", "\u00e4".encode())] == [
        [6, 4],
        [5, 8],
        [9, 10],
    ]
    assert made.decode([6, 4, 8, 9, 10]) == "abc a\u00e4"


def test_bytes_merge_by_the_files_merges(tmp_path):
    tokens = ["a", "b", "\u0120", "ab", "\u0120a", "<|end|>"]
    made = tokenizer(
        tmp_path / "t.gguf",
        model="gpt2",
        pre="qwen2",
        tokens=tokens,
        merges=["a b", "\u0120 a"],
        token_type=[1, 1, 1, 1, 1, 3],
        bos_token_id=5,
        add_bos_token=True,
    )
    assert made.bos == (5,)
    assert made.encode([b"ab ab a"])[0].tolist() == [3, 2, 3, 4]
    with pytest.raises(ValueError, match="cuts text by 'mine'"):
        tokenizer(tmp_path / "u.gguf", model="gpt2", pre="mine", tokens=tokens)
    with pytest.raises(ValueError, match="holds no tokenizer"):
        tokenizer(tmp_path / "v.gguf", model="gpt2")
