"""Measures of a decoder: its heads, the frequencies that they use, and its loss when something of its positions changes.

Rows are readings of one model, metrics have a value for each text: {row: {metric: [N], or {at: [N]}}}.
"""

import math
from collections.abc import Collection, Iterator
from typing import Any

import jax
import numpy as np
from absl import logging
from tqdm import tqdm

from experiments.analysis.frequencies import Waves, frequency_use, share_of_pairs, waves
from experiments.analysis.language import heads, massive, removal
from experiments.analysis.language.heads import LayerValues
from experiments.analysis.language.subject import OWN, TextModel, TextReader, Texts, repeated_tokens
from experiments.analysis.measured import Metric, Rows
from experiments.progress import bar, caption
from posjax import data
from posjax.encoding import Encoding, sites
from posjax.models.replacing import is_windowed
from posjax.spec import nearest

SCORED = 128  # tokens at the end of a text
LEAST = 128  # tokens of a text
LOSS, PASSKEY, HIDDEN = "loss", "pass key found", "change of hidden states"
SINKS, FIRST = "heads that are sinks", "attention on the first token"
PREVIOUS, INDUCTION, OLDEST = "attention on the token before", "induction score", "attention on the oldest token"
SLOW, GAINS, LEAD = "share of the slowest quarter", "share of the slowest quarter, gains", "fastest quarter's lead"
BAND = "wavelength of the most used pair over the tokens seen, octaves"
MASSIVE, RATIO = "massive channels", "largest norm of a channel"
LOOKS_BACK = 0.3  # least score of a head that counts as one of the token before
_SHIFTS, _GAPS, _DILATIONS = (1, 1000, 16384), (1000,), (2,)
OTHER_ROWS = (
    *(f"no window{scaling}, windowed layers" for scaling in ("", " and PI", " and NTK", " and YaRN")),
    *(f"positions + {shift}" for shift in _SHIFTS),
    *(f"positions + {gap} behind the first token" for gap in _GAPS),
    *(f"positions x {factor}" for factor in _DILATIONS),
    *("fastest quarter still", "slowest quarter still", "massive channels fixed", "as many others fixed"),
    *("without BOS", "BOS again in the middle", "words shuffled"),
)  # beside those of `removal.readings`
_COPIES = 128  # random tokens that stand twice


def measure_decoder(subject: TextModel, texts: Texts, only: Collection[str] = ()) -> tuple[Rows, dict[str, np.ndarray]]:
    """Returns the rows, and the arrays of figures, by name; shows progress, one tick a text.

    Args:
      only: rows to measure beside the model as loaded; () for all; the model as loaded alone is read for its loss only.
    """
    if (length := texts.tokens.shape[1] - 1) < LEAST:
        raise ValueError(f"texts of {length} tokens are too short for pass keys: take --length={LEAST} or more")
    plans = [_heads, _random_copies, _sinks, _readings, _stretched, _shifts, _pairs, _massive, _pass_keys]
    if [*only] == [OWN]:
        plans = [_readings]
    readings = [*removal.readings(subject.pattern, length)]
    known = [*(reading.label for reading in readings), *OTHER_ROWS]
    if unknown := [row for row in only if row not in known]:
        raise ValueError(f"there is no row {unknown[0]!r} of this model; {nearest(unknown[0], known)}")
    total = len(texts.tokens) * (len(readings) + 25)
    rows: Rows = {OWN: {}}
    arrays: dict[str, np.ndarray] = {}
    with bar(total, "text") as progress:
        reader = TextReader(subject, min(SCORED, length), only, progress.update)
        for plan in plans:
            caption(progress, plan.__name__.strip("_").replace("_", " "))
            for row, metrics in plan(subject, texts, reader, arrays):
                rows.setdefault(row, {}).update(metrics)
        _finish(progress)
    for row in only:
        if row not in rows:
            logging.warning("row %r is left out: this model cannot be read so", row)
    return rows, arrays


def _finish(progress: tqdm) -> None:
    """Brings the bar to its end: the number of readings is an estimate where a model cannot be read under some."""
    progress.total = progress.n
    progress.refresh()


Found = Iterator[tuple[str, dict[str, Metric]]]


def _waves(subject: TextModel) -> list[Waves | None]:
    """Returns the frequencies of each layer; layers with one encoding that learns nothing share them."""
    known, found = {}, []
    for encoding, params in subject.layers:
        if encoding not in known or jax.tree.leaves(params):
            known[encoding] = waves(encoding, params, subject.dims, sites(8))
        found.append(known[encoding])
    return found


def _heads(subject: TextModel, texts: Texts, reader: TextReader, arrays: dict[str, np.ndarray]) -> Found:
    """Heads and frequencies, by layer (from 1) and over all layers of a kind."""
    length = texts.tokens.shape[1] - 1
    windows = [encoding.mask().memory.last + 1 for encoding, _ in subject.layers]

    def score(layer: int, weights: jax.Array) -> dict[str, jax.Array]:
        scores = {
            "sink": heads.sink(weights),
            "previous": heads.previous(weights),
            "profile": heads.by_distance(weights),
        }
        return scores | ({"oldest": heads.oldest(weights, int(windows[layer]))} if windows[layer] < length else {})

    look, turning, kinds = heads.look_into(subject.model, score), _waves(subject), _kinds(subject)
    site, found = sites(length), []
    for text in texts.tokens:
        seen = look(subject.params, text[:-1], site)
        found.append([_of_layer(subject, index, layer, turning[index]) for index, layer in enumerate(seen)])
        reader.tick(1)
    for name in ("profile", "use", "previous", "sink"):
        if len({np.shape(layer.get(name)) for layer in found[0]}) > 1 or name not in found[0][0]:
            continue  # layers with other pairs of channels, or without any, have no common figure
        arrays[name] = np.stack([np.mean([layer[name] for layer in each], axis=0) for each in zip(*found, strict=True)])
    if "use" in arrays:
        arrays["magnitude"] = np.stack([each.magnitude[0] for each in turning])
    by_head = {FIRST: "sink", OLDEST: "oldest", SLOW: "slow", GAINS: "gains", BAND: "band"}
    metrics: dict[str, Any] = {}
    for metric, name in by_head.items():
        layers = [index for index in range(subject.model.depth) if name in found[0][index]]
        metrics[metric] = {i + 1: np.array([np.mean(each[i][name]) for each in found]) for i in layers}
        for kind, own in kinds.items():
            if own := [index for index in own if name in found[0][index]]:
                metrics[f"{metric}, {kind}"] = np.array([np.mean([each[i][name] for i in own]) for each in found])
    layers = range(subject.model.depth)
    metrics[PREVIOUS] = {i + 1: np.array([each[i]["previous"].max() for each in found]) for i in layers}
    for which in ("queries", "keys", "values"):
        for metric, name in ((MASSIVE, "massive"), (RATIO, "ratio")):
            metrics[f"{metric}, {which}"] = np.array([np.mean([x[name][which] for x in each]) for each in found])
    for metric, name in ((LEAD, "lead"), (f"{LEAD}, other heads", "lead of others")):
        leads = [[lead for layer in each if name in layer for lead in layer[name]] for each in found]
        if all(leads):
            metrics[metric] = np.array([np.mean(each) for each in leads])
    yield OWN, {name: value for name, value in metrics.items() if len(value)}


def _of_layer(subject: TextModel, index: int, layer: LayerValues, turning: Waves | None) -> dict[str, Any]:
    """Returns the numbers of one layer of one text, [H] each unless they say else."""
    encoding, params = subject.layers[index]
    found: dict[str, Any] = {name: np.asarray(scores) for name, scores in layer.weights.items()}
    tensors = {"queries": layer.query, "keys": layer.key, "values": layer.value}
    norms = {name: massive.channel_norms(x) for name, x in tensors.items()}
    found["massive"] = {name: massive.is_massive(x).sum(axis=1).mean() for name, x in norms.items()}
    found["ratio"] = {name: (x.max(axis=1) / x.mean(axis=1)).mean() for name, x in norms.items()}
    if turning is None or subject.model.block.latent is not None:  # latent heads turn their last channels alone
        return found
    magnitude = np.broadcast_to(turning.magnitude, (subject.model.block.num_heads, len(turning.pairs)))
    use = frequency_use(layer.query[None], layer.key[None], turning.pairs).product
    found |= {"use": use / use.sum(axis=1, keepdims=True), "slow": share_of_pairs(use, magnitude, 0.25)}
    if (seen := min(subject.trained or math.inf, encoding.mask().memory.last + 1)) < math.inf:
        most = np.take_along_axis(magnitude, use.argmax(axis=1)[:, None], axis=1)
        found["band"] = np.log2(2 * np.pi / np.maximum(most, 1e-12) / seen)
    own = subject.params["trunk"][f"block_{index}"]["attention"]
    if "query_norm" in own and own["query_norm"]["scale"].shape == (subject.dims.head_dim,):
        gains = [
            subject.model.block.norm_offset + np.asarray(own[f"{name}_norm"]["scale"]) for name in ("query", "key")
        ]
        use = frequency_use(*(gain[None, None, None] for gain in gains), turning.pairs).product
        found["gains"] = share_of_pairs(use, magnitude[:1], 0.25)
    site = sites(len(layer.query))
    query, key = encoding.rotate(params, layer.query, site, layer.key, site)
    key = np.repeat(np.asarray(key), query.shape[1] // key.shape[1], axis=1)
    lead = heads.lead_of_previous(query, key, turning.pairs)
    share = share_of_pairs(lead, magnitude, -0.25)
    looks_back = found["previous"] > LOOKS_BACK
    return found | {"lead": share[looks_back], "lead of others": share[~looks_back & (lead.sum(axis=1) > 0)]}


def _kinds(subject: TextModel) -> dict[str, list[int]]:
    """Returns the layers of each kind: all, and, where some have a window, those with and without one."""
    layers = [encoding for encoding, _ in subject.layers]
    scopes = removal.scopes(layers)
    return {name: [i for i, layer in enumerate(layers) if scope(layer)] for name, scope in scopes.items()}


def _random_copies(subject: TextModel, texts: Texts, reader: TextReader, arrays: dict[str, np.ndarray]) -> Found:
    """The best induction head of each layer, on random tokens that stand twice."""
    copies = repeated_tokens(subject, len(texts.tokens), _COPIES)
    look = heads.look_into(subject.model, lambda layer, weights: heads.induction_score(weights, _COPIES))
    site, found = sites(copies.shape[1]), []
    for copy in copies:
        layers = look(subject.params, copy, site)
        found.append([float(layer.weights.max()) for layer in layers])
        reader.tick(1)
    yield OWN, {INDUCTION: dict(enumerate(np.array(found).T, 1))}


def _sinks(subject: TextModel, texts: Texts, reader: TextReader, arrays: dict[str, np.ndarray]) -> Found:
    """Sinks, where the first tokens stand elsewhere, or are others."""
    middle, tokens = heads.SINK_TOKENS // 2, texts.tokens[:, : heads.SINK_TOKENS]
    look = heads.look_into(subject.model, lambda layer, weights: (heads.sink(weights), heads.sink(weights, middle)))
    again, start = np.insert(tokens, middle, tokens[:, 0], axis=1)[:, :-1], sites(heads.SINK_TOKENS)
    rng = np.random.default_rng(0)
    words = np.stack([np.append(text[:1], rng.permutation(text[1:])) for text in tokens])
    rows = {OWN: (tokens, start), "words shuffled": (words, start)}
    if "learned" not in subject.encoding:
        rows["positions + 1000"] = tokens, sites(heads.SINK_TOKENS, 1000)
    if subject.tokenizer.bos:
        rows["without BOS"] = texts.tokens[:, 1 : heads.SINK_TOKENS + 1], start
        rows["BOS again in the middle"] = again, start
    for row, (given, site) in rows.items():
        if not reader.wants(row):
            continue
        scores = np.array([[layer.weights for layer in look(subject.params, text, site)] for text in given])
        first, second = scores[:, :, 0], scores[:, :, 1]  # [N, L, H]
        yield row, {SINKS: (first > heads.SINK).mean((1, 2)), f"{FIRST}, all layers": first.mean((1, 2))}
        if row.startswith("BOS again"):
            yield row, {"attention on the second BOS": second.mean((1, 2))}


def _readings(subject: TextModel, texts: Texts, reader: TextReader, arrays: dict[str, np.ndarray]) -> Found:
    """The loss under the readings of `removal`."""
    for reading in removal.readings(subject.pattern, texts.tokens.shape[1] - 1):
        if reader.wants(reading.label):
            yield reading.label, {LOSS: reader.losses(texts.tokens, reading.encodings)}


def _stretched(subject: TextModel, texts: Texts, reader: TextReader, arrays: dict[str, np.ndarray]) -> Found:
    """The loss without windows, so that layers look further than ever in training, and with frequencies scaled for it."""
    length = texts.tokens.shape[1] - 1
    last = {layer.mask().memory.last + 1 for layer in subject.pattern if is_windowed(layer)}
    open_layers = removal.changed(subject.pattern, is_windowed, removal.unwindowed)
    if len(last) != 1 or open_layers is None or min(last) >= length:
        return
    factor, trained = length / min(last), int(min(last))
    scalings = {"PI": f"linear(factor={factor})", "NTK": f"ntk(factor={factor})"}
    scalings["YaRN"] = f"yarn(factor={factor}, original_length={trained})"
    patterns = {"no window, windowed layers": open_layers}
    for name, scaling in scalings.items():
        change = removal.scaled(scaling)
        opened = removal.changed(
            subject.pattern, is_windowed, lambda layer, change=change: change(removal.unwindowed(layer))
        )
        patterns |= {} if opened is None else {f"no window and {name}, windowed layers": opened}
    for row, pattern in patterns.items():
        if reader.wants(row):
            yield row, {LOSS: reader.losses(texts.tokens, pattern)}


def _shifts(subject: TextModel, texts: Texts, reader: TextReader, arrays: dict[str, np.ndarray]) -> Found:
    """The loss and the hidden states where all tokens are moved, moved away from the first one, or apart."""
    position = np.arange(texts.tokens.shape[1] - 1)
    moved = {f"positions + {shift}": position + shift for shift in _SHIFTS}
    moved |= {f"positions + {gap} behind the first token": np.append(0, position[1:] + gap) for gap in _GAPS}
    moved |= {f"positions x {factor}": position * factor for factor in _DILATIONS}
    table = "learned" in subject.encoding
    before = [reader.read(text) for text in texts.tokens]
    for row, where in moved.items():
        if not reader.wants(row) or (table and where.max() >= subject.model.length):
            continue
        after = [reader.read(text, position=where) for text in texts.tokens]
        change = [
            np.mean(np.linalg.norm(b.hidden - a.hidden, axis=1) / np.linalg.norm(a.hidden, axis=1))
            for a, b in zip(before, after, strict=True)
        ]
        yield row, {LOSS: np.array([each.loss.mean() for each in after]), HIDDEN: np.array(change)}


def _pairs(subject: TextModel, texts: Texts, reader: TextReader, arrays: dict[str, np.ndarray]) -> Found:
    """The loss, and the attention of the heads of the token before, where the fastest or slowest pairs do not turn."""
    turning = dict(zip((encoding for encoding, _ in subject.layers), _waves(subject), strict=True))
    learned = any(jax.tree.leaves(params) for _, params in subject.layers)
    if learned or "use" not in arrays or any(np.ptp(each.wave, axis=1).any() for each in turning.values()):
        return
    known, site = arrays["previous"] > LOOKS_BACK, sites(texts.tokens.shape[1] - 1)  # [L, H]
    patterns = {OWN: None, "fastest quarter still": _still(subject, turning, fastest=True)}
    patterns["slowest quarter still"] = _still(subject, turning, fastest=False)
    for row, pattern in patterns.items():
        if not reader.wants(row):
            continue
        model, params = subject.under(pattern)
        look, scores = heads.look_into(model, lambda layer, weights: heads.previous(weights)), []
        for text in texts.tokens if known.any() else ():
            scores.append(np.array([layer.weights for layer in look(params, text[:-1], site)])[known].mean())
            reader.tick(1)
        metrics = {f"{PREVIOUS}, its heads": np.array(scores)} if scores else {}
        yield row, metrics if pattern is None else {LOSS: reader.losses(texts.tokens, pattern), **metrics}


def _still(subject: TextModel, turning: dict[Encoding, Waves], fastest: bool) -> tuple[Encoding, ...]:
    """Returns the pattern with the fastest or slowest quarter of the pairs of each layer still."""
    made = []
    for encoding in subject.pattern:
        pairs, magnitude = turning[encoding].pairs, turning[encoding].magnitude[0]
        order = np.argsort(-magnitude if fastest else magnitude, kind="stable")[: round(len(pairs) / 4)]
        channels = tuple(sorted(channel for index in order for channel in pairs[index]))
        made.append(removal.stilled(encoding, channels))
    return tuple(made)


def _fixed(subject: TextModel, texts: Texts) -> dict[str, tuple]:
    """Returns {row: pattern of all layers} with massive channels, or as many others, at their mean over the first text."""
    seen = heads.look_into(subject.model)(subject.params, texts.tokens[0, :-1], sites(texts.tokens.shape[1] - 1))
    layers, rng = [encoding for encoding, _ in subject.layers], np.random.default_rng(0)
    rows = {"massive channels fixed": "massive", "as many others fixed": "other"}
    made = {row: massive.fixed_pattern(layers, seen, which, rng) for row, which in rows.items()}
    return {row: pattern for row, pattern in made.items() if pattern != tuple(layers)}


def _massive(subject: TextModel, texts: Texts, reader: TextReader, arrays: dict[str, np.ndarray]) -> Found:
    """The loss where massive channels of queries and keys, or as many others, are fixed."""
    if any(jax.tree.leaves(params) for _, params in subject.layers):
        return
    for row, pattern in _fixed(subject, texts).items():
        if reader.wants(row):
            yield row, {LOSS: reader.losses(texts.tokens, pattern)}


def _pass_keys(subject: TextModel, texts: Texts, reader: TextReader, arrays: dict[str, np.ndarray]) -> Found:
    """Pass keys found, one text each, as loaded, without rope in some layers, and with massive channels fixed."""
    count, length = len(texts.tokens), texts.tokens.shape[1] - 1
    batch = data.retrieval_batch("passkey", length=length, count=count, seed=0, tokenizer=subject.tokenizer)
    whole, answer = np.append(batch["tokens"], batch["targets"][:, -1:], axis=1), batch["weight"] > 0
    patterns: dict[str, tuple | None] = {OWN: None}
    for reading in removal.readings(subject.pattern, length):
        if reading.change == "no rope" and reading.layers != "all layers":
            patterns[reading.label] = reading.encodings
    if not any(jax.tree.leaves(params) for _, params in subject.layers):
        patterns |= _fixed(subject, texts)
    for row, pattern in patterns.items():
        if not reader.wants(row):
            continue
        right = [reader.read(text, pattern).right for text in whole]
        found = [each[asked[-reader.scored :]].all() for each, asked in zip(right, answer, strict=True)]
        yield row, {PASSKEY: np.array(found, float)}
