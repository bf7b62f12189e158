"""Folders of language models as transformers saves them: language.npz says the names, `made` the numbers."""

import functools
import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import safetensors.numpy

import posjax as pj
from goldens.check import load
from goldens.language_settings import LONG, SHORT, TRAINED, VOCABULARY
from goldens.pretrained_weights import made
from posjax.pretrained.parameters import paths_of

FILE = load("language")
CASES: dict[str, Any] = {case: told for case, told in json.loads(str(FILE["json"])).items() if case != "versions"}


def weights_of(case: str) -> dict[str, np.ndarray]:
    return {name: made(name, tuple(shape)) for name, shape in CASES[case]["names"].items()}


def written(case: str, folder: Path, **config: Any) -> Path:
    """A folder that holds the weights which transformers' model had; `config` changes keys of its configuration."""
    folder.mkdir(exist_ok=True)
    safetensors.numpy.save_file(weights_of(case), folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(CASES[case]["config"] | config))
    return folder


def tokens_of(length: int = LONG) -> np.ndarray:
    return np.random.RandomState(0).randint(0, VOCABULARY, LONG)[:length].astype(np.int32)


def error(ours: Any, theirs: np.ndarray) -> float:
    """The largest difference, over the largest logit."""
    return float(np.abs(np.asarray(ours) - theirs).max() / np.abs(theirs).max())


def padded(length: int, pad: int) -> pj.Site:
    """One line of `length` tokens behind `pad` of padding."""
    position = np.maximum(np.arange(length + pad) - pad, 0).astype(np.int32)
    segment = (np.arange(length + pad) >= pad).astype(np.int32)
    return pj.Site(position[None], segment[None], np.zeros_like(segment)[None])


def errors(case: str, model: Any, params: Any) -> dict[str, float]:
    """The error of each way to compute the logits of a line.

    "beyond" is one pass over a line longer than the trained length, "padded" that over its start behind padding, which is
    cached, and "decoded" goes on from there token by token. Where angles depend on the length of the whole line, what deeper
    layers keep of tokens is what a shorter line gave: LongRoPE, which changes once, is decoded from behind that, and dynamic
    scaling, which changes with every token, is not comparable.
    """
    tokens, long = tokens_of()[None], FILE[f"{case} long"]
    start = TRAINED if "longrope" in model.encoding else SHORT
    behind = np.concatenate([np.zeros((1, 3), np.int32), tokens[:, :start]], axis=1)
    prefill = jax.jit(functools.partial(model.apply, method=model.prefill, cache_size=LONG + 3))
    logits, caches = prefill(params, behind, padded(start, 3))
    start_of_long = FILE[f"{case} short"] if start == SHORT else long[:start]
    found = dict(beyond=error(jax.jit(model.apply)(params, tokens, pj.sites(LONG))[0], long))
    found["padded"] = error(logits[0, 3:], start_of_long)
    if start != SHORT:  # below the length at which LongRoPE changes, too
        short = jax.jit(model.apply)(params, tokens[:, :SHORT], pj.sites(SHORT))[0]
        found["full"] = error(short, FILE[f"{case} short"])
    if "dynamic" in model.encoding:
        return found
    extend, decoded = jax.jit(functools.partial(model.apply, method=model.extend)), []
    for t in range(start, LONG):
        site = jax.tree.map(lambda leaf: leaf[None], pj.sites(1, start=t))
        logits, caches = extend(params, tokens[:, t : t + 1], site, caches)
        decoded.append(logits[0, 0])
    return found | dict(decoded=error(np.stack(decoded), long[start:]))


def assert_same(params, others):
    """Two trees of parameters are equal bit by bit."""
    one, other = paths_of(params), paths_of(others)
    assert one.keys() == other.keys()
    for path, leaf in one.items():
        assert leaf.dtype == other[path].dtype, path
        assert np.asarray(leaf).tobytes() == np.asarray(other[path]).tobytes(), path
