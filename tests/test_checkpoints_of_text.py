"""Decoders as folders: trained here, exported, read back, tuned and continued by the commands."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from exported import write_llama

import posjax as pj
from experiments import export, generate, train
from experiments.cli import load
from experiments.studies import environment
from posjax import data, pretrained
from posjax.models.replacing import with_encoding
from posjax.training.runs import load_run


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    return write_llama(tmp_path_factory.mktemp("llama"))


def config(name, llama, **fields):
    made = load(f"configs/{name}")
    small = {"steps": 2, "batch_size": 4, "optimizer.warmup_steps": 1, "data.length": 32, "eval_lengths": (32,)}
    small |= {"data.name": "words", "data.files": f"{llama}/*.txt", "data.positions": "window", "eval_tokens": 129}
    made.update_from_flattened_dict(small | {key.replace("__", "."): value for key, value in fields.items()})
    return made


@pytest.fixture(scope="module")
def run(llama, tmp_path_factory):
    """A decoder with the blocks of Llama, trained here on tokens."""
    workdir = tmp_path_factory.mktemp("run")
    sizes = dict(model__width=16, model__depth=1, model__num_heads=2, data__tokenizer=str(llama / "tokenizer.json"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(environment, "compilation_cache", lambda directory: None)
        train.main(config("decoder.py:llama", llama, **sizes), workdir)
    return workdir


@pytest.fixture(scope="module")
def exported(run, tmp_path_factory):
    out = tmp_path_factory.mktemp("exported")
    assert export.main([f"--checkpoint={run}", f"--out={out}"]) == 0
    return out


@pytest.mark.slow
def test_what_is_exported_is_what_was_trained(run, exported, tmp_path, capsys):
    """Logits bit by bit, the length of training and the tokenizer; the record has its BOS."""
    before, (model, params) = load_run(run), pretrained.load(exported)
    tokens = np.arange(40, dtype=np.int32)[None]
    logits = jax.jit(before.model.apply)({"params": before.of(0)}, tokens, pj.sites(40))
    np.testing.assert_array_equal(jax.jit(model.apply)(params, tokens, pj.sites(40)), logits)
    assert model.length == 32
    record = json.loads((run / "result.jsonl").read_text())
    assert (record["unit"], record["bos"]) == ("token", "<s>")
    assert data.load_tokenizer(exported).digest == data.load_tokenizer(before.config.data.tokenizer).digest
    assert export.main([f"--checkpoint={run}", f"--out={tmp_path}", "--seed=7"]) == 2
    assert "seed 7 is not among those of" in capsys.readouterr().err


@pytest.mark.slow
def test_a_small_folder_of_a_run_is_read_as_the_run(run, tmp_path, capsys):
    assert export.main([f"--checkpoint={run}", f"--out={tmp_path}", "--small"]) == 0
    assert "seed 0 after 2 steps" in capsys.readouterr().out
    tokens = jnp.arange(40, dtype=jnp.int32)[None]
    whole, small = (
        each.model.apply({"params": each.of(0)}, tokens, pj.sites(40)) for each in map(load_run, (run, tmp_path))
    )
    np.testing.assert_allclose(small, whole, atol=5e-3)
    assert generate.main([f"--checkpoint={tmp_path}", "--prompt=the grass is", "--steps=4"]) == 0


@pytest.mark.slow
def test_a_folder_is_tuned_from_what_it_holds(llama, tmp_path, monkeypatch):
    monkeypatch.setattr(environment, "compilation_cache", lambda directory: None)
    fields = {"model__encoding": "{own} + window(8)", "optimizer__learning_rate": 1e-9}
    tuned = config("finetune.py", llama, init_from=str(llama), **fields)
    train.main(tuned, tmp_path)
    run, (_, params) = load_run(tmp_path), pretrained.load(llama)
    embedding = params["params"]["token_embedding"]["embedding"]
    np.testing.assert_allclose(run.of(0)["token_embedding"]["embedding"], embedding, atol=1e-6)
    assert run.model.block.mlp == "swiglu"
    assert run.config.data.tokenizer == str(llama / "tokenizer.json")
    assert run.model.encoding == "rope() + window(8)"


@pytest.mark.slow
def test_a_prompt_is_continued_as_the_whole_would_be(llama, capsys):
    """Token by token, each time with the likeliest one of a pass over everything before."""
    assert generate.main([f"--checkpoint={llama}", "--prompt=the grass is", "--steps=4", "--encoding={own}, none"]) == 0
    shown, err = capsys.readouterr()
    tokenizer = data.load_tokenizer(llama)
    model, params = pretrained.load(llama)
    model, params = with_encoding(
        model, params["params"], "rope, none", lambda it: it.init(jax.random.key(0), *it.example())["params"]
    )
    (tokens,) = tokenizer.encode([b"the grass is"])
    tokens = np.append(np.int32(tokenizer.bos), tokens)
    logits = jax.jit(lambda tokens: model.apply({"params": params}, tokens[None], pj.sites(8))[0])
    for _ in range(4):  # a causal model does not see what fills up its 8 tokens
        seen = np.pad(tokens, (0, 8 - len(tokens)))
        tokens = np.append(tokens, np.int32(logits(seen)[len(tokens) - 1].argmax()))
    assert shown == tokenizer.continuation(tokens[:4], tokens[4:]) + "\n"
    assert "4 tokens read, <s> before them among these, 4 added" in err
    assert generate.main([f"--checkpoint={llama}", "--prompt=the grass is", "--steps=1", "--no_bos"]) == 0
    assert "3 tokens read, 1 added" in capsys.readouterr().err
