"""Tokens of a tokenizer.json are told from bytes, and tables give their documents one by one."""

import gzip
import hashlib
import json
import pathlib
import re

import numpy as np
import pytest
from worded import WORDS, write_tokenizer

from posjax import data
from posjax.data.retrieval import words_of

ROWS = [{"text": f"{WORDS[i]} {WORDS[i + 1]} {WORDS[i + 2]}", "page": i} for i in range(20)]
TEXTS = [row["text"].encode() for row in ROWS]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return data.load_tokenizer(write_tokenizer(tmp_path_factory.mktemp("tokenizer")))


def test_tokens_are_those_of_the_file_and_come_back_as_text(tokenizer):
    (tokens,) = tokenizer.encode([b"the way of the key"])
    known = json.loads(pathlib.Path(tokenizer.name).read_text())["model"]["vocab"]
    assert tokens.tolist() == [known[word] for word in ("the", "way", "of", "the", "key")]
    assert tokens.dtype == np.int32
    assert tokenizer.decode(tokens) == "the way of the key"
    assert tokenizer.vocab_size == 1 + max(known.values())
    assert tokenizer.digest == hashlib.sha256(pathlib.Path(tokenizer.name).read_bytes()).hexdigest()


_SPACES = {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}
_STRIP = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
_FUSED = {"type": "Sequence", "decoders": [_SPACES, {"type": "ByteFallback"}, {"type": "Fuse"}, _STRIP]}
_PREPEND = {"type": "Sequence", "normalizers": [
    {"type": "Prepend", "prepend": "▁"}, {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
]}  # fmt: skip
_METASPACE = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": True}
_BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
SPACED = {  # what each tokenizer does with spaces: (normalizer, pre_tokenizer, decoder)
    "Llama-2": (_PREPEND, None, _FUSED),
    "Metaspace": (None, _METASPACE, _METASPACE),
    "GPT-2": (None, _BYTES, _BYTES),
}  # fmt: skip


@pytest.mark.parametrize("name", [*SPACED, "bytes"])
def test_a_prompt_and_its_continuation_are_the_whole_text(name, tmp_path):
    tokenizer, text = data.BYTES, "the way é on"
    if name != "bytes":
        vocab = dict.fromkeys(["<unk>", *"▁ĠtheéwayonÃ©", *(f"<0x{byte:02X}>" for byte in range(256))])
        model = {"type": "BPE", "vocab": {each: i for i, each in enumerate(vocab)}, "merges": [], "unk_token": "<unk>"}
        parts = dict(zip(("normalizer", "pre_tokenizer", "decoder"), SPACED[name], strict=True))
        made = {"version": "1.0", "model": model | {"byte_fallback": True}, "added_tokens": [], **parts}
        (tmp_path / "tokenizer.json").write_text(json.dumps(made))
        tokenizer = data.load_tokenizer(tmp_path)
    (tokens,) = tokenizer.encode([text.encode()])
    for cut in range(len(tokens)):
        before = tokenizer.decode(tokens[:cut])
        assert before.rstrip("\ufffd") + tokenizer.continuation(tokens[:cut], tokens[cut:]) == text


def test_bytes_are_tokens_without_a_file():
    assert data.load_tokenizer(None) is data.load_tokenizer("bytes") is data.BYTES
    (tokens,) = data.BYTES.encode(["ä".encode()])
    assert (tokens.tolist(), data.BYTES.decode(tokens), data.BYTES.decode([195])) == ([195, 164], "ä", "\ufffd")


def test_half_a_character_at_a_cut_is_left_out(tokenizer):
    (whole,), (cut,) = (tokenizer.encode([each]) for each in (b"the way", "the way ä".encode()[:-1]))
    assert whole.tolist() == cut.tolist()


def test_what_is_no_tokenizer_is_told(tmp_path):
    with pytest.raises(FileNotFoundError, match="tokenizer"):
        data.load_tokenizer(tmp_path)
    lacking = {"model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "[UNK]"}}  # its own unknown token
    rust = '{"model": {"type": "BPE"}}'  # an error of its own
    for content in ("{", "{}", rust, json.dumps({"version": "1.0", "added_tokens": [], **lacking})):
        (tmp_path / "tokenizer.json").write_text(content)
        with pytest.raises(ValueError, match=r"tokenizer\.json"):
            data.load_tokenizer(tmp_path)


def write_table(path, rows):
    if path.suffix == ".parquet":
        pyarrow, parquet = (pytest.importorskip(name) for name in ("pyarrow", "pyarrow.parquet"))
        parquet.write_table(pyarrow.Table.from_pylist(rows), path, row_group_size=7)
    elif path.suffix == ".arrow":
        pyarrow = pytest.importorskip("pyarrow")
        table = pyarrow.Table.from_pylist(rows)
        with pyarrow.OSFile(str(path), "wb") as file, pyarrow.ipc.new_stream(file, table.schema) as stream:
            stream.write_table(table)
    else:
        content = "".join(json.dumps(row) + "\n" for row in rows).encode()
        path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


def texts(split, **more):
    return [bytes(text) for text in data.load_documents("mine", split, **more).texts]


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.parquet", "a.arrow"])
def test_rows_of_a_table_are_documents_and_its_last_tenth_is_held_out(tmp_path, name):
    write_table(tmp_path / name, [*ROWS, {"text": "", "page": 0}, {"text": None, "page": 0}])
    train, held = (texts(split, files=str(tmp_path)) for split in ("train", "validation"))
    assert (train, held) == (TEXTS[:18], TEXTS[18:])
    assert data.load_documents("mine", "test", files=str(tmp_path)).titles == (f"{name}:19", f"{name}:20")


@pytest.mark.parametrize(
    "names", [("train-00000-of-00001.parquet", "validation.parquet"), ("train/data-0.arrow", "validation/data-0.arrow")]
)
def test_tables_named_by_a_split_belong_to_it(tmp_path, names):
    for name, rows in zip(names, (ROWS[:3], ROWS[3:5]), strict=True):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        write_table(tmp_path / name, rows)
    (tmp_path / "README.md").write_text("what it is")
    assert [texts(split, files=str(tmp_path)) for split in ("train", "validation")] == [TEXTS[:3], TEXTS[3:5]]
    with pytest.raises(ValueError, match="has no split 'test', only train, validation"):
        texts("test", files=str(tmp_path))


@pytest.mark.parametrize("name", ["a.jsonl", "a.parquet"])
def test_a_field_that_is_not_there_is_told_with_those_that_are(tmp_path, name):
    write_table(tmp_path / name, [{"content": "a", "page": 1}, {"content": "b", "page": 2}])
    assert texts("train", files=str(tmp_path), field="content") == [b"a"]
    with pytest.raises(ValueError, match=r"'text' but content, page: set data\.text_field"):
        texts("train", files=str(tmp_path))
    with pytest.raises(ValueError, match="'page'"):
        texts("train", files=str(tmp_path), field="page")


def test_a_damaged_table_is_told(tmp_path):
    for name, content, message in (
        ("a.jsonl", b'{"text": "a"}\n{"text":', "a.jsonl, line 2"),
        ("a.jsonl", b'{"text": 3}', "'text' holds int"),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ValueError, match=message):
            texts("train", files=str(tmp_path / name))


def test_windows_of_tokens_know_their_documents(tmp_path, tokenizer):
    write_table(tmp_path / "a.jsonl", ROWS)
    stream = data.load_stream("mine", "train", files=str(tmp_path), tokenizer=tokenizer)
    assert (stream.vocab_size, stream.tokenizer) == (tokenizer.vocab_size, tokenizer.digest)
    batch = next(data.text_epoch(stream, length=8, batch_size=1, positions="document"))
    begun = [np.append(tokenizer.bos, text) for text in tokenizer.encode(TEXTS[:2])]
    assert batch["tokens"].tolist() == [np.concatenate(begun).tolist()]
    assert batch["segment"].tolist() == [[1, 1, 1, 1, 2, 2, 2, 2]]
    assert batch["position"].tolist() == [[0, 1, 2, 3, 0, 1, 2, 3]]
    assert batch["weight"].tolist() == [[1, 1, 1, 0, 1, 1, 1, 0]]
    assert stream.digest != data.load_stream("mine", "train", files=str(tmp_path)).digest


@pytest.mark.parametrize("task", ["passkey", "needle", "recall", "induction", "copy"])
def test_retrieval_is_written_in_any_vocabulary(tokenizer, task):
    """The answer stands before the question, without unknown tokens."""
    haystack = tokenizer.encode([b" ".join(TEXTS)])[0]
    given = dict(length=120, count=4, seed=0, depth=0.5, haystack=haystack, tokenizer=tokenizer)
    batch = data.retrieval_batch(task, **given)
    assert (batch["tokens"].shape, batch["tokens"].max() < tokenizer.vocab_size) == ((4, 120), True)
    for tokens, targets, weight in zip(batch["tokens"], batch["targets"], batch["weight"], strict=True):
        answer = targets[weight > 0]
        assert len(answer) > 0
        if task in ("passkey", "needle"):
            windows = np.lib.stride_tricks.sliding_window_view(tokens[: -len(answer)], len(answer))
            assert (windows == answer).all(axis=1).any()
            assert tokenizer.decode(answer).replace(" ", "").isdigit()
        else:
            assert np.isin(answer, tokens).all()
        assert not np.isin(tokens, tokenizer.encode([b"UNKNOWN"])[0]).any()


def test_a_vocabulary_without_letters_is_told(tokenizer):
    words = words_of(tokenizer)
    assert len({*words.letters, *words.symbols, *words.noise, *words.rare, *words.end}) == sum(map(len, words[1:]))
    few = data.Tokenizer("few", 3, "digest", rust=type("Rust", (), {"encode_batch": nothing})())
    with pytest.raises(ValueError, match="leave copy out: it takes 2 letters of one token, few has less"):
        data.retrieval_batch("copy", length=40, count=1, seed=0, tokenizer=few)


def nothing(self, texts, **options):
    return [type("Encoding", (), {"ids": [0, 1]}) for _ in texts]


def test_a_space_may_be_joined_with_an_answer():
    """Tokens then differ from the tokens of question and answer apart."""

    def encode(self, texts, **options):
        return [
            type("Encoding", (), {"ids": [hash(part) % 997 for part in re.findall(r" ?\d\d?|.", text)]})
            for text in texts
        ]

    joined = data.Tokenizer("joined", 997, "digest", rust=type("Rust", (), {"encode_batch": encode})())
    whole, answers = words_of(joined).question(b"The key is ", b"12345")
    assert answers == 3
    assert whole[-3:].tolist() == [hash(part) % 997 for part in (" 12", "34", "5")]


def test_what_is_unknown_is_in_no_alphabet():
    def encode(self, texts, **options):
        return [type("Encoding", (), {"ids": [{"~": 7, "|": 7}.get(text, ord(text[0]) + 100)]}) for text in texts]

    words = words_of(data.Tokenizer("few", 997, "digest", rust=type("Rust", (), {"encode_batch": encode})()))
    assert 7 in words.rare
    assert words.end.tolist() == []
