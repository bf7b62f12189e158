"""The tokenizer inside a GGUF file, as the content of a tokenizer.json.

Two kinds are read. "llama" is SentencePiece's BPE: the file has a score for each piece, and pieces merge in the order of the
scores of their results. "gpt2" is BPE over bytes: the file has merges, and names the expression that cuts text into words.
Source: llama-vocab.cpp of ggml-org/llama.cpp.
"""

from collections.abc import Mapping, Sequence
from typing import Any

_NORMAL, _UNKNOWN, _CONTROL, _USER, _BYTE = 1, 2, 3, 4, 6  # types of tokens
_SPACE = "▁"
_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# Expressions that cut text into words, by `tokenizer.ggml.pre`; None is GPT-2's, which the library has.
_WORDS = {"gpt-2": None, "llama-bpe": _LLAMA3, "llama3": _LLAMA3, "qwen2": _LLAMA3.replace("{1,3}", "")}


def tokenizer_of(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a tokenizer.json of the fields of a GGUF file.

    Raises:
      ValueError: the file has no tokenizer, or one of another kind.
    """
    tokens, kind = fields.get("tokenizer.ggml.tokens"), fields.get("tokenizer.ggml.model")
    if not tokens:
        raise ValueError("it holds no tokenizer: give a tokenizer.json")
    if kind not in _KINDS:
        raise ValueError(f"its tokenizer is of the kind {kind!r}, which is not read: give a tokenizer.json")
    types = fields.get("tokenizer.ggml.token_type") or [_NORMAL] * len(tokens)
    made = {"version": "1.0", "truncation": None, "padding": None, "pre_tokenizer": None, "normalizer": None}
    made["added_tokens"] = [
        dict(id=i, content=tokens[i], special=kind in (_UNKNOWN, _CONTROL), normalized=False)
        | dict.fromkeys(("single_word", "lstrip", "rstrip"), False)
        for i, kind in enumerate(types)
        if kind in (_UNKNOWN, _CONTROL, _USER)
    ]
    made |= _KINDS[kind](fields, tokens)
    begins = fields.get("tokenizer.ggml.bos_token_id")
    adds = fields.get("tokenizer.ggml.add_bos_token", kind == "llama")
    made["post_processor"] = _beginning(begins, tokens[begins]) if adds and begins is not None else None
    return made


def _of_pieces(fields: Mapping[str, Any], tokens: Sequence[str]) -> dict[str, Any]:
    spaced = fields.get("tokenizer.ggml.add_space_prefix", True)
    unknown = fields.get("tokenizer.ggml.unknown_token_id")
    spaces = {"type": "Replace", "pattern": {"String": " "}, "content": _SPACE}
    back = [
        {"type": "Replace", "pattern": {"String": _SPACE}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    model = dict(type="BPE", vocab={token: i for i, token in enumerate(tokens)}, byte_fallback=True, fuse_unk=True)
    model |= dict(unk_token=None if unknown is None else tokens[unknown])
    model["merges"] = _merges(tokens, fields.get("tokenizer.ggml.scores") or [0.0] * len(tokens), model["vocab"])
    if not spaced:
        return {"model": model, "normalizer": spaces, "decoder": {"type": "Sequence", "decoders": back}}
    normalizers = [{"type": "Prepend", "prepend": _SPACE}, spaces]
    back.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    return {
        "model": model,
        "normalizer": {"type": "Sequence", "normalizers": normalizers},
        "decoder": {"type": "Sequence", "decoders": back},
    }


def _merges(tokens: Sequence[str], scores: Sequence[float], vocab: Mapping[str, int]) -> list[list[str]]:
    """Returns the pairs that make each piece, the best score first; pairs of one piece in the order of their tokens."""
    found = []
    for token, score in zip(tokens, scores, strict=True):
        pairs = [(token[:at], token[at:]) for at in range(1, len(token))]
        pairs = [(vocab[left], vocab[right]) for left, right in pairs if left in vocab and right in vocab]
        found += [(-score, *pair) for pair in sorted(pairs)]
    found.sort(key=lambda each: (each[0], -len(tokens[each[1]]), -len(tokens[each[2]])))
    return [[tokens[left], tokens[right]] for _, left, right in found]


def _of_bytes(fields: Mapping[str, Any], tokens: Sequence[str]) -> dict[str, Any]:
    name = fields.get("tokenizer.ggml.pre", "gpt-2")
    if name not in _WORDS:
        raise ValueError(f"its tokenizer cuts text by {name!r}, not by {', '.join(_WORDS)}: give a tokenizer.json")
    merges = [merge.split(" ") for merge in fields.get("tokenizer.ggml.merges", [])]
    model = dict(type="BPE", vocab={token: i for i, token in enumerate(tokens)}, merges=merges, unk_token=None)
    model["ignore_merges"] = _WORDS[name] == _LLAMA3
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": _WORDS[name] is None}
    cut = {"type": "Split", "pattern": {"Regex": _WORDS[name]}, "behavior": "Isolated", "invert": False}
    pieces = {"type": "Sequence", "pretokenizers": [cut, level]} if _WORDS[name] else level
    return {
        "model": model,
        "pre_tokenizer": pieces,
        "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": True},
        "normalizer": {"type": "NFC"} if name == "qwen2" else None,
    }


_KINDS = {"llama": _of_pieces, "gpt2": _of_bytes}


def _beginning(number: int, token: str) -> dict[str, Any]:
    """Returns the template that puts a token before a text."""
    first = {"SpecialToken": {"id": token, "type_id": 0}}
    return {
        "type": "TemplateProcessing",
        "single": [first, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [first, {"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
        "special_tokens": {token: {"id": token, "ids": [number], "tokens": [token]}},
    }
