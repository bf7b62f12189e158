"""Shards hold the tokens that texts have, are read as one stream without being loaded, and are made once."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
from worded import WORDS, write_tokenizer

from experiments.prepare import main
from posjax import data
from posjax.data import tokenising
from posjax.data.containers import Text, Tokens
from posjax.data.token_shards import FORMATS, header, starts_path

GPT2, LLAMA3 = FORMATS


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    return write_tokenizer(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture
def texts(tmp_path, monkeypatch):
    """A folder of two splits whose tokens fill several shards."""
    folder, rng = tmp_path / "texts", np.random.default_rng(0)
    folder.mkdir()
    for name, count in (("train-0", 60), ("train-1", 40), ("validation", 30)):
        rows = [" ".join(rng.choice(WORDS, size)) for size in rng.integers(0, 40, count)]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps({"text": row}) + "\n" for row in rows))
    monkeypatch.setattr(tokenising, "SHARD", 2000)
    monkeypatch.setattr(tokenising, "GROUP", 5000)
    monkeypatch.setattr(tokenising, "BATCH", 500)
    return folder


def prepare(texts, file, out):
    return main([f"--files={texts}", f"--tokenizer={file}", f"--out={out}", "--processes=1"])


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != ".lock"}


def assert_same(one, other):
    np.testing.assert_array_equal(one.tokens, other.tokens)
    np.testing.assert_array_equal(one.starts, other.starts)
    assert (one.vocab_size, one.tokenizer, one.bos) == (other.vocab_size, other.tokenizer, other.bos)


@pytest.mark.parametrize("what", ["words", "bytes"])
def test_tokens_of_shards_are_those_of_the_texts(texts, file, tmp_path, what, capsys):
    given, out = (str(file) if what == "words" else "bytes"), tmp_path / "out"
    assert prepare(texts, given, out) == 0
    assert "tokens of" in capsys.readouterr().out
    tokenizer = data.load_tokenizer(out if what == "words" else "bytes")
    for split, shards in (("train", 3), ("valid", 1)):
        made, plain = (
            data.load_stream("mine", split, files=str(folder), tokenizer=tokenizer) for folder in (out, texts)
        )
        assert_same(made, plain)
        assert len([*out.glob(f"{split}*.bin")]) >= shards
        np.testing.assert_array_equal(
            np.concatenate(data.load_documents("mine", split, files=str(out), tokenizer=tokenizer).texts),
            np.concatenate(data.load_documents("mine", split, files=str(texts), tokenizer=tokenizer).texts),
        )
    digests = {
        data.load_stream("mine", split, files=str(out), tokenizer=tokenizer).digest for split in ("train", "dev")
    }
    assert len(digests) == 2


def test_a_killed_preparation_goes_on(texts, file, tmp_path):
    """Whole shards are kept, others are made again, and the end is the same."""
    assert prepare(texts, file, tmp_path / "whole") == 0
    out, left = tmp_path / "out", [7, 9, 18]

    def killed(total):
        count = iter(range(left.pop(0)))

        def advance(read):
            if next(count, None) is None:
                raise KeyboardInterrupt

        return advance

    kept = {}
    while left:
        with pytest.raises(KeyboardInterrupt):
            tokenising.tokenise(str(texts), out, str(file), processes=1, begin=killed)
        assert kept.items() <= {path.name: path.stat().st_mtime_ns for path in out.glob("[!.]*.bin")}.items()
        kept = {path.name: path.stat().st_mtime_ns for path in out.glob("[!.]*.bin")}
        with pytest.raises(ValueError, match="not all there"):
            data.load_stream("mine", "train", files=str(out), tokenizer=data.load_tokenizer(file))
    assert len(kept) > 1
    total = sum(path.stat().st_size for path in texts.iterdir())
    read = []
    tokenising.tokenise(str(texts), out, str(file), processes=1, begin=lambda size: read.append(-size) or read.append)
    assert (-read[0], sum(read), read[1] > 0) == (total, 0, True)  # whole groups are not read again
    assert contents(out) == contents(tmp_path / "whole")
    assert kept.items() <= {path.name: path.stat().st_mtime_ns for path in out.glob("[!.]*.bin")}.items()


def test_a_prepared_folder_belongs_to_its_texts_and_tokenizer(texts, file, tmp_path, capsys):
    out = tmp_path / "out"
    assert prepare(texts, file, out) == 0
    before = contents(out)
    assert prepare(texts, file, out) == 0
    assert contents(out) == before
    assert prepare(texts, "bytes", out) == 2
    assert "differ in their tokenizer: give another --out" in capsys.readouterr().err
    assert prepare(out, "bytes", tmp_path / "other") == 2
    assert "names shards of tokens: give texts" in capsys.readouterr().err
    one = f"--files={texts}/validation.jsonl"
    assert main([one, "--field=x", f"--tokenizer={file}", f"--out={tmp_path / 'field'}"]) == 2
    assert "has no text 'x' but text" in capsys.readouterr().err
    assert main([one, f"--tokenizer={file}", f"--out={tmp_path / 'field'}"]) == 0
    for tokenizer, message in (
        (data.BYTES, r"were made by .*tokenizer\.json, not by bytes: set data\.tokenizer"),
        (data.load_tokenizer(file, bos=False), r"begin with \[1\], so data\.bos cannot leave it out"),
    ):
        with pytest.raises(ValueError, match=message):
            data.load_stream("mine", "train", files=str(out), tokenizer=tokenizer)
    shard = min(out.glob("train*.bin"))
    np.save(starts_path(shard), np.zeros(1, np.int64))
    with pytest.raises(ValueError, match=r"is not as index\.json says"):
        data.load_stream("mine", "train", files=str(out), tokenizer=data.load_tokenizer(file))


def test_windows_of_many_arrays_are_those_of_one():
    rng = np.random.default_rng(0)
    whole = rng.integers(1000, size=300).astype(np.uint16)
    parts = Tokens(np.split(whole, [1, 40, 40, 43, 200]))
    starts = np.array([0, 7, 40, 41, 190])
    given = dict(length=16, batch_size=5, seed=3)
    one, many = (data.text_batches(Text("t", tokens, starts, "", 1000), **given) for tokens in (whole, parts))
    for step in range(8):
        for name, values in one[step].items():
            np.testing.assert_array_equal(many[step][name], values)
    for first, stop in ((0, 300), (40, 43), (39, 41), (0, 1), (199, 300), (50, 50), (299, 400), (300, 300), (9, 5)):
        np.testing.assert_array_equal(np.asarray(parts[first:stop]), whole[first:stop])
        assert len(parts[first:stop]) == len(whole[first:stop])


def write_shard(path, tokens, kind=GPT2):
    path.write_bytes(header(len(tokens), kind.dtype) + np.array(tokens, kind.dtype).tobytes())


@pytest.mark.parametrize("kind", FORMATS)
def test_shards_of_others_are_read_as_they_are(tmp_path, kind):
    """llm.c cuts a document where a shard is full."""
    first, second, last = [kind.opens, 5, 6, kind.opens, 7], [8, 9, kind.opens, 1], [3, kind.opens, *range(60)]
    for name, tokens in (("a_train_000001", first), ("a_train_000002", second), ("a_val_000000", last)):
        write_shard(tmp_path / f"{name}.bin", tokens, kind)
    text = data.load_stream("mine", "train", files=str(tmp_path))
    assert (np.asarray(text.tokens).tolist(), text.starts.tolist()) == (first + second, [0, 3, 7])
    assert (text.vocab_size, text.tokenizer, text.bos) == (kind.vocab_size, kind.name, ())
    batch = next(data.text_epoch(text, length=8, batch_size=1))
    assert batch["tokens"].dtype == np.int32
    assert batch["position"].tolist() == [[0, 1, 2, 0, 1, 2, 3, 0]]
    assert [each.tolist() for each in data.load_documents("mine", "dev", files=str(tmp_path)).texts] == [
        last[:1],
        last[1:],
    ]
    again = data.load_stream("mine", "train", files=str(tmp_path))
    assert again.digest == text.digest
    shard = tmp_path / "a_train_000002.bin"
    write_shard(shard, [8, kind.opens, 1, 1], kind)  # of the same size: its documents are searched for again
    os.utime(shard, ns=(1, 1))
    changed = data.load_stream("mine", "train", files=str(tmp_path))
    assert (changed.starts.tolist(), changed.digest == text.digest) == ([0, 3, 6], False)


def test_the_last_tenth_of_shards_without_a_split_is_held_out(tmp_path):
    for i in range(2):
        write_shard(tmp_path / f"part{i}.bin", [GPT2.opens, *range(49)])
    (tmp_path / "README.txt").write_text("what it is")
    train, held = (data.load_stream("mine", split, files=str(tmp_path)) for split in ("train", "validation"))
    assert [len(train), len(held)] == [90, 10]
    assert (train.starts.tolist(), held.starts.tolist()) == ([0, 50], [0])
    assert np.asarray(held.tokens).tolist() == [*range(39, 49)]
    assert len({train.digest, held.digest, data.load_stream("mine", "10% of train", files=str(tmp_path)).digest}) == 3


def test_shards_that_cannot_be_are_refused(tmp_path, file):
    path = tmp_path / "train.bin"
    write_shard(path, [GPT2.opens, 1, 2])
    with pytest.raises(
        ValueError, match=r"50,257, and .* has .*: set data\.tokenizer to None or to the tokenizer\.json of GPT-2"
    ):
        data.load_stream("mine", "train", files=str(tmp_path), tokenizer=data.load_tokenizer(file))
    write_shard(tmp_path / "train_2.bin", [1], LLAMA3)
    with pytest.raises(ValueError, match="mixes shards of"):
        data.load_stream("mine", "train", files=str(tmp_path))
    (tmp_path / "train_2.bin").unlink()
    write_shard(path, [GPT2.opens, 60_000])
    with pytest.raises(ValueError, match="holds the token 60000"):
        data.load_stream("mine", "train", files=str(tmp_path))
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ValueError, match="1,027 bytes, and 1,028 by its header of 2 tokens: copy it again"):
        data.load_stream("mine", "train", files=str(tmp_path))
    path.write_bytes(np.arange(2000, dtype=np.uint16).tobytes())  # as nanoGPT writes them
    with pytest.raises(ValueError, match=r"names no text file: .*\.bin \(with a header of llm\.c\)"):
        data.load_stream("mine", "train", files=str(tmp_path))


def test_tokens_without_a_tokenizer_have_no_text(tmp_path):
    write_shard(tmp_path / "test.bin", [GPT2.opens, 1, 2])
    documents = data.load_documents("mine", "test", files=str(tmp_path))
    for use in (lambda: documents.tokenizer.decode([1]), lambda: documents.tokenizer.encode([b"a"])):
        with pytest.raises(ValueError, match=r"the text of GPT-2's tokens is not known: give its tokenizer.json"):
            use()


@pytest.mark.slow
def test_several_processes_make_the_same_shards(texts, file, tmp_path):
    for count in (1, 2):
        out = f"--out={tmp_path / str(count)}"
        command = [sys.executable, "-m", "experiments.prepare", f"--files={texts}", f"--tokenizer={file}", out]
        subprocess.run([*command, f"--processes={count}"], check=True)
    assert contents(tmp_path / "1") == contents(tmp_path / "2")
    (texts / "train-1.jsonl").write_text("{")
    command[-1] = f"--out={tmp_path / 'damaged'}"
    done = subprocess.run([*command, "--processes=2"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "train-1.jsonl, line 1 is not JSON" in done.stderr
