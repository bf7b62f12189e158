"""The measures of an embedding model, on a small one with a table, and its page."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import posjax as pj
from experiments.analysis.language import encoder
from experiments.analysis.language.subject import TextModel, draw_texts
from experiments.analysis.measured import About, write_records
from experiments.records import read_study
from posjax import data
from posjax.models import BlockConfig, Encoder


def subject(encoding):
    block = BlockConfig(width=32, num_heads=2, placement="post")
    model = Encoder(vocab_size=256, encoding=encoding, length=512, block=block, depth=1, head=None)
    params = model.init(jax.random.key(0), jnp.zeros((1, 8), jnp.int32), pj.sites(8))["params"]
    params = jax.tree.map(lambda leaf: 3 * leaf, params)
    return TextModel("tiny", model, params, data.load_tokenizer(None), 512, "0")


@pytest.mark.slow
@pytest.mark.parametrize("encoding", ["learned", "rope"])
def test_measures_of_an_encoder(encoding, tmp_path, monkeypatch):
    """A table moves with its positions, an encoding of differences does not and has no table."""
    monkeypatch.setattr(encoder, "LENGTHS", (256, 768))
    own, rng = subject(encoding), np.random.default_rng(0)
    documents = data.Documents("books", ("a",), (rng.integers(0, 256, 3000).astype(np.uint8),))
    texts = draw_texts(documents, 4, 128)
    rows, facts, walks, arrays = encoder.measure_encoder(own, texts)
    moved = rows["positions + 64"][encoder.MOVED]
    assert (moved > 1e-4).all() if encoding == "learned" else (moved < 1e-6).all()
    assert ((rows["as loaded"][f"{encoder.FIRST}, all layers"] > 0) & (rows["as loaded"][encoder.SINKS] <= 1)).all()
    assert set(rows["truncated"][encoder.FOUND]) == {256, 768}
    assert set(arrays) == ({"table", "walk"} if facts else set())
    assert bool(facts) == (encoding == "learned")
    about = About("tiny", encoding, "0", 1, "books", "x", "token", "text", texts.titles)
    machine = {"device": "cpu", "versions": {"cpus": 2}}
    records = write_records(tmp_path, rows, about, 1.0, machine)
    records += write_records(tmp_path, facts, about._replace(each="table", titles=[""]), 0.0, machine)
    records += write_records(tmp_path, walks, about._replace(each="random walk"), 0.0, machine)
    encoder.write_encoder_page(tmp_path, records, arrays, "A page", {}, "a command")
    assert set(read_study(tmp_path).studies["tiny"].rows) == {*rows, *facts, *walks}
    page = (tmp_path / "README.md").read_text()
    assert ("## The table of positions" in page) == bool(facts)
    assert "| positions + 64 |" in page
