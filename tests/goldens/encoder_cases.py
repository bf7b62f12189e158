"""Folders of encoders as transformers saves them: encoders.npz says the names, `made` the numbers."""

import functools
import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import safetensors.numpy

import posjax as pj
from goldens.check import load
from goldens.encoder_settings import LONG, SHORT, VOCABULARY
from goldens.language_cases import error
from goldens.pretrained_weights import made

FILE = load("encoders")
CASES: dict[str, Any] = {case: told for case, told in json.loads(str(FILE["json"])).items() if case != "versions"}


def weights_of(case: str) -> dict[str, np.ndarray]:
    return {name: made(name, tuple(shape)) for name, shape in CASES[case]["names"].items()}


def written(case: str, folder: Path, tensors: dict[str, np.ndarray] | None = None, **config: Any) -> Path:
    """A folder with the weights that transformers' model had, or others; `config` changes keys of its configuration."""
    folder.mkdir(exist_ok=True)
    safetensors.numpy.save_file(weights_of(case) if tensors is None else tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(CASES[case]["config"] | config))
    return folder


def tokens_of(length: int = LONG) -> np.ndarray:
    """None of them is the token of padding."""
    return np.random.RandomState(0).randint(3, VOCABULARY, LONG)[:length].astype(np.int32)


def types_of(length: int, count: int) -> np.ndarray:
    return (np.arange(length) * count // length).astype(np.int32)


def batch_of(*rows: tuple[int, int, int]) -> tuple[np.ndarray, pj.Site]:
    """Rows of (tokens of padding before, tokens, tokens of padding behind): their tokens and sites."""
    each = [
        ([0] * before + [*range(length)] + [0] * behind, [0] * before + [1] * length + [0] * behind)
        for before, length, behind in rows
    ]
    tokens = [np.pad(tokens_of(length), (before, behind), constant_values=1) for before, length, behind in rows]
    position, segment = (np.array([row[i] for row in each], np.int32) for i in (0, 1))
    return np.stack(tokens), pj.Site(position, segment, 0 * segment)


def errors(case: str, model: Any, params: Any) -> dict[str, float]:
    """The largest error, over the largest value, of features and logits: `errors_of_t5`, or the errors of one stack.

    "short" and "long" are of a line of tokens alone, "padded" of both in batches with padding before and behind them.
    """
    if case.startswith("t5"):
        return errors_of_t5(case, model, params)

    @jax.jit
    def run(params, tokens, site, types):
        features = model.apply(params, tokens, site, types, method="features")
        return features, features if model.head is None else model.apply(params, features, method="logits")

    found = {"padded": 0.0}
    for what, length in (("short", SHORT), ("long", LONG)):
        golden = [FILE[f"{case} {what} {name}"] for name in ("features", "logits" if model.head else "features")]
        rows = [(0, length, 0), (LONG - length, length, 2), (0, length, LONG - length + 2)]
        for which, batch in ((what, rows[:1]), ("padded", rows[1:])):
            types = [np.pad(types_of(length, model.num_types), (before, behind)) for before, _, behind in batch]
            out = run(params, *batch_of(*batch), np.stack(types) if model.num_types else None)
            for ours, theirs in zip(out, golden, strict=True):
                for row, (before, _, _) in zip(ours, batch, strict=True):
                    found[which] = max(found.get(which, 0.0), error(row[before : before + length], theirs))
    return found


def errors_of_t5(case: str, model: Any, params: Any) -> dict[str, float]:
    """The encoder's features and the decoder's logits; "decoded" is token by token behind a prompt of the short length.

    The source is the long line, in a batch padded before and behind; the decoder reads the lines turned round.
    """
    source, source_site = batch_of((3, LONG, 0), (0, LONG, 3))
    short, long = FILE[f"{case} short logits"], FILE[f"{case} long logits"]
    turned = {length: np.stack([tokens_of(length)[::-1]] * 2) for length in (SHORT, LONG)}
    site = jax.tree.map(lambda leaf: np.stack([leaf] * 2), pj.sites(LONG))
    first = jax.tree.map(lambda leaf: leaf[:, :SHORT], site)
    memory = jax.jit(functools.partial(model.apply, method="encode"))(params, source, source_site)
    prefill = jax.jit(functools.partial(model.apply, method="prefill", cache_size=LONG))
    extend = jax.jit(functools.partial(model.apply, method="extend"))
    full = jax.jit(model.apply)(params, source, source_site, turned[LONG], site)
    found = {"short": max(error(row, short) for row in prefill(params, turned[SHORT], first, memory)[0])}
    found["padded"] = found["long"] = max(error(row, long) for row in full)
    rows = [memory[0][0, 3:], memory[0][1, :-3]]
    found["padded"] = max(found["padded"], *(error(row, FILE[f"{case} long features"]) for row in rows))
    _, caches = prefill(params, turned[LONG][:, :SHORT], first, memory)
    decoded = []
    for t in range(SHORT, LONG):
        here = jax.tree.map(lambda leaf, t=t: leaf[:, t : t + 1], site)
        logits, caches = extend(params, turned[LONG][:, t : t + 1], here, memory, caches)
        decoded.append(logits[:, 0])
    return found | {"decoded": max(error(row, long[SHORT:]) for row in np.stack(decoded, 1))}
