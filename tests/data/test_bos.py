"""Every reader of text puts a BOS before it as its tokenizer does: prompts are in tests/test_checkpoints_of_text.py."""

import dataclasses
import json

import jax
import numpy as np
import optax
import pytest
from drawn import drawn
from worded import WORDS, write_tokenizer

import posjax as pj
from configs import decoder, encoder
from experiments.studies.engine import bos_text
from experiments.studies.long_context import Reader, text_loss
from posjax import data
from posjax.models import BlockConfig, Decoder
from posjax.training.long_task import LongDocuments
from posjax.training.tasks import make_task

_BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}


def _template(*pieces):
    """A post-processor that puts special tokens around a text, "$A"."""
    single = [
        {"Sequence": {"id": "A", "type_id": 0}} if piece == "$A" else {"SpecialToken": {"id": piece, "type_id": 0}}
        for piece in pieces
    ]
    tokens = {sign: {"id": sign, "ids": [token], "tokens": [sign]} for sign, token in (("<s>", 1), ("<unk>", 0))}
    return {"type": "TemplateProcessing", "single": single, "pair": [], "special_tokens": tokens}


PROCESSORS = {
    "none": None,
    "bytes": _BYTE_LEVEL,
    "before": _template("<s>", "$A"),
    "two before": _template("<s>", "<unk>", "$A"),
    "around": _template("<s>", "$A", "<unk>"),
    "after": _template("$A", "<s>"),
    "in a sequence": {"type": "Sequence", "processors": [_BYTE_LEVEL, _template("<s>", "$A")]},
    "BERT": {"type": "BertProcessing", "sep": ["<unk>", 0], "cls": ["<s>", 1]},
    "RoBERTa": {
        "type": "RobertaProcessing", "sep": ["<unk>", 0], "cls": ["<s>", 1], "trim_offsets": True, "add_prefix_space": True
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    return write_tokenizer(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two texts of words."""
    folder, rng = tmp_path_factory.mktemp("texts"), np.random.default_rng(0)
    for name, count in (("a", 300), ("b", 200)):
        (folder / f"{name}.txt").write_text(" ".join(rng.choice(WORDS, count)))
    return folder


def _stream(folder, tokenizer):
    return data.load_stream("mine", "train", files=str(folder), tokenizer=tokenizer)


@pytest.mark.parametrize("name", PROCESSORS)
def test_what_a_template_puts_before_a_text_is_what_the_library_adds(file, tmp_path, name):
    described = json.loads(file.read_text()) | {"post_processor": PROCESSORS[name]}
    (tmp_path / "tokenizer.json").write_text(json.dumps(described))
    tokenizer = data.load_tokenizer(tmp_path)
    with_all, without = (tokenizer.rust.encode("the way", add_special_tokens=each).ids for each in (True, False))
    before = next(n for n in range(len(with_all)) if with_all[n : n + len(without)] == without)
    assert tokenizer.bos == tuple(with_all[:before])
    assert tokenizer.encode([b"the way"])[0].tolist() == without
    assert data.load_tokenizer(tmp_path, bos=False).bos == ()


@pytest.mark.parametrize("name", ["before", "two before"])
def test_a_bos_that_a_text_spells_out_is_not_doubled(file, tmp_path, name):
    described = json.loads(file.read_text()) | {"post_processor": PROCESSORS[name]}
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False) | {"special": True}
    described["added_tokens"] = [{"id": i, "content": sign} | flags for i, sign in enumerate(("<unk>", "<s>"))]
    (tmp_path / "tokenizer.json").write_text(json.dumps(described))
    tokenizer = data.load_tokenizer(tmp_path)
    (tmp_path / "train.jsonl").write_text(json.dumps({"text": f"{tokenizer.decode(tokenizer.bos)} the way"}))
    assert _stream(tmp_path, tokenizer).tokens.tolist() == [*tokenizer.bos, *tokenizer.encode([b"the way"])[0]]


@pytest.mark.parametrize("positions", ["document", "window"])
@pytest.mark.parametrize("bos", [(1,), (1, 0)])
def test_windows_and_documents_begin_with_it_and_no_target_is_lost(file, folder, positions, bos):
    tokenizer = dataclasses.replace(data.load_tokenizer(file), bos=bos)
    text, plain = _stream(folder, tokenizer), _stream(folder, data.load_tokenizer(file, bos=False))
    assert len(text) == len(plain) + len(bos) * len(text.starts)
    given = dict(length=16, batch_size=3, positions=positions)
    sampled = data.text_batches(text, **given, seed=0)
    for batch in (*(sampled[step] for step in range(30)), *data.text_epoch(text, **given)):
        read = batch["segment"][:, 0] > 0
        assert (batch["tokens"][read, : len(bos)] == bos).all()
        opens = np.diff(batch["segment"], axis=1, prepend=batch["segment"][:, :1]) > 0
        assert (batch["tokens"][opens] == bos[0]).all()
        assert not np.isin(batch["targets"][:, : -len(bos)], bos[:1])[batch["weight"][:, : -len(bos)] > 0].any()
    # All that a plain stream scores, but what its documents begin with is scored as well.
    scored, before = (sum(each["weight"].sum() for each in data.text_epoch(t, **given)) for t in (text, plain))
    windows = len(text) // 16
    assert abs(scored - before - len(text.starts)) <= (len(bos) - 1) * (windows + 1) + len(bos)


@pytest.mark.parametrize("task", data.retrieval.TASKS)
def test_tasks_begin_with_it_at_the_same_length(file, task):
    given = dict(length=64, count=3, seed=0, depth=0.3, haystack=np.arange(2, 40))
    batches = [data.retrieval_batch(task, **given, tokenizer=data.load_tokenizer(file, bos)) for bos in (None, False)]
    assert (batches[0]["tokens"][:, 0] == 1).all()
    assert batches[0]["tokens"].shape == batches[1]["tokens"].shape == (3, 64)
    if task != "copy":  # whose answer is as long as there is room for
        assert batches[0]["weight"].sum() == batches[1]["weight"].sum()


@pytest.mark.slow
def test_a_document_is_scored_as_one_pass_behind_it_scores_it(file, folder):
    documents = data.load_documents("mine", "train", files=str(folder), tokenizer=data.load_tokenizer(file))
    (text, *_), length, bos = documents.texts, 64, documents.tokenizer.bos
    model = Decoder(documents.tokenizer.vocab_size, encoding="rope", block=BlockConfig(width=8, num_heads=2), depth=1)
    params = drawn(model.init, jax.random.key(0), *model.example())["params"]
    reader = Reader(model, params, batch=1, length=length)
    sizes = dict(stride=length, first=0, count=length)
    ids = np.append(np.int32(bos), text[1 : length + 1])[None]
    logits = jax.jit(model.apply)({"params": params}, ids[:, :-1], pj.sites(length))
    expected = optax.softmax_cross_entropy_with_integer_labels(logits, ids[:, 1:]).mean()
    assert text_loss(reader, params, [text], **sizes, bos=bos).chunked == pytest.approx(float(expected), abs=1e-5)
    assert text_loss(reader, params, [text], **sizes).chunked != pytest.approx(float(expected), abs=1e-3)


@pytest.mark.parametrize(("bos", "begins"), [(None, "<s>"), (False, "")])
def test_tasks_heed_the_template_and_the_switch_and_records_say_so(file, folder, bos, begins):
    config = decoder.get_config()
    config.data.update(files=str(folder), name="mine", tokenizer=str(file), length=64, eval_split="test", bos=bos)
    config.update(batch_size=4, eval_batch_size=4, eval_lengths=(16,), eval_tokens=None)
    config.data.retrieval = dict(share=0.5, weight=1.0, tasks=("passkey",))
    task = LongDocuments(config)
    first = task.batches(0)[0]["tokens"][:, 0]
    assert bool((first == 1).all()) == (bos is None)
    assert bos_text(task.tokenizer) == begins


def test_masked_windows_have_none(file, folder):
    config = encoder.get_config()
    config.data.update(files=str(folder), name="mine", tokenizer=str(file), length=16, eval_split="test")
    config.update(batch_size=4, eval_batch_size=4, eval_lengths=(16,), eval_tokens=None)
    assert make_task(config).tokenizer.bos == ()
