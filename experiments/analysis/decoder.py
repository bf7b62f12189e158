"""Findings in a decoder: its heads, the frequencies that they use, and its loss when something of its positions changes.

Rows are readings of one model, metrics have a value for each text: {row: {metric: [N], or {at: [N]}}}.
"""

import math
from collections.abc import Collection, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import logging

from experiments.analysis import heads, removal
from experiments.analysis.frequencies import Waves, frequency_use, layer_waves, share_of_pairs
from experiments.analysis.layers import Layers, look, no_weights
from experiments.analysis.measured import Findings, Group, Metric, Rows
from experiments.analysis.removal import TextReader
from experiments.analysis.subject import OWN, Subject, Texts, repeated_tokens
from experiments.progress import bar, caption
from posjax import data
from posjax.encoding import Encoding, sites
from posjax.models.replacing import is_windowed
from posjax.spec import nearest

SCORED = 128  # tokens at the end of a text
LEAST = 128  # tokens of a text
LOSS, PASSKEY, HIDDEN = "loss", "pass key found", "change of hidden states"
SINKS, FIRST = "heads that are sinks", heads.FIRST
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

Found = Iterator[tuple[str, dict[str, Metric]]]
Arrays = dict[str, np.ndarray]


def measure_decoder(subject: Subject, texts: Texts, only: Collection[str] = ()) -> Findings:
    """Returns the findings; shows progress, one tick a text.

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
    rows: Rows = {OWN: {}}
    arrays: Arrays = {}
    with bar(len(texts.tokens) * (len(readings) + 25), "text") as progress:
        reader = TextReader(subject, min(SCORED, length), only, progress.update)
        for plan in plans:
            caption(progress, plan.__name__.strip("_").replace("_", " "))
            for row, metrics in plan(subject, texts, reader, arrays):
                rows.setdefault(row, {}).update(metrics)
        progress.total = progress.n  # the number of readings is an estimate: a model cannot be read under some
        progress.refresh()
    for row in only:
        if row not in rows:
            logging.warning("row %r is left out: this model cannot be read so", row)
    return Findings([Group("text", texts.titles, rows)], arrays)


def _heads(subject: Subject, texts: Texts, reader: TextReader, arrays: Arrays) -> Found:
    """Heads and frequencies, by layer (from 1) and over all layers of a kind."""
    length, depth = texts.tokens.shape[1] - 1, subject.model.depth
    windows = [encoding.mask().memory.last + 1 for _, encoding, _ in subject.layers]

    def score(layer: int, weights: jax.Array) -> dict[str, jax.Array]:
        scores = {
            "sink": heads.sink(weights),
            "previous": heads.previous(weights),
            "profile": heads.by_distance(weights),
        }
        return scores | ({"oldest": heads.oldest(weights, int(windows[layer]))} if windows[layer] < length else {})

    turning, site, numbers = layer_waves(subject, sites(8)), sites(length), []
    for text in texts.tokens:
        layers = look(subject.model, subject.params[0], text[None, :-1], site, score)
        numbers.append([_of_layer(subject, index, layers, turning[index]) for index in range(depth)])
        reader.tick(1)
    for name in ("profile", "use", "previous"):
        if len({np.shape(layer.get(name)) for layer in numbers[0]}) > 1 or name not in numbers[0][0]:
            continue  # layers with other pairs of channels, or without any, have no common figure
        arrays[name] = np.stack([np.mean([x[name] for x in layer], axis=0) for layer in zip(*numbers, strict=True)])
    if "use" in arrays:
        arrays["magnitude"] = np.stack([layer.magnitude[0] for layer in turning])
    by_head = {FIRST: "sink", OLDEST: "oldest", SLOW: "slow", GAINS: "gains", BAND: "band"}
    metrics: dict[str, Any] = {}
    scopes = removal.scopes([encoding for _, encoding, _ in subject.layers])
    for metric, name in by_head.items():
        measured = [index for index in range(depth) if name in numbers[0][index]]
        metrics[metric] = {i + 1: np.array([np.mean(text[i][name]) for text in numbers]) for i in measured}
        for kind, scope in scopes.items():  # of layers: all, and, where some have a window, those with and without one
            if own := [index for index in measured if scope(subject.layers[index][1])]:
                metrics[f"{metric}, {kind}"] = np.array([np.mean([text[i][name] for i in own]) for text in numbers])
    metrics[PREVIOUS] = {i + 1: np.array([text[i]["previous"].max() for text in numbers]) for i in range(depth)}
    for which in ("queries", "keys", "values"):
        for metric, name in ((MASSIVE, "massive"), (RATIO, "ratio")):
            metrics[f"{metric}, {which}"] = np.array([np.mean([x[name][which] for x in text]) for text in numbers])
    for metric, name in ((LEAD, "lead"), (f"{LEAD}, other heads", "lead of others")):
        leads = [[lead for layer in text if name in layer for lead in layer[name]] for text in numbers]
        if all(leads):
            metrics[metric] = np.array([np.mean(text) for text in leads])
    yield OWN, {name: value for name, value in metrics.items() if len(value)}


def _of_layer(subject: Subject, index: int, layers: Layers, turning: Waves | None) -> dict[str, Any]:
    """Returns the numbers of one layer of one text, [H] each unless they say else."""
    _, encoding, params = subject.layers[index]
    query, key, value = (np.asarray(x[index][0]) for x in (layers.query, layers.key, layers.value))
    numbers: dict[str, Any] = {name: np.asarray(scores[0]) for name, scores in layers.weights[index].items()}
    norms = {name: removal.channel_norms(x) for name, x in dict(queries=query, keys=key, values=value).items()}
    numbers["massive"] = {name: removal.is_massive(x).sum(axis=1).mean() for name, x in norms.items()}
    numbers["ratio"] = {name: (x.max(axis=1) / x.mean(axis=1)).mean() for name, x in norms.items()}
    if turning is None or subject.model.block.latent is not None:  # latent heads turn their last channels alone
        return numbers
    magnitude = np.broadcast_to(turning.magnitude, (query.shape[1], len(turning.pairs)))
    use = frequency_use(query[None], key[None], turning.pairs)
    numbers |= {"use": use / use.sum(axis=1, keepdims=True), "slow": share_of_pairs(use, magnitude, 0.25)}
    if (seen := min(subject.trained or math.inf, encoding.mask().memory.last + 1)) < math.inf:
        most = np.take_along_axis(magnitude, use.argmax(axis=1)[:, None], axis=1)
        numbers["band"] = np.log2(2 * np.pi / np.maximum(most, 1e-12) / seen)
    own = subject.params[0]["trunk"][f"block_{index}"]["attention"]
    if "query_norm" in own and own["query_norm"]["scale"].shape == (subject.dims.head_dim,):
        offset = subject.model.block.norm_offset
        gains = (offset + np.asarray(own[f"{name}_norm"]["scale"]) for name in ("query", "key"))
        gain_use = frequency_use(*(gain[None, None, None] for gain in gains), turning.pairs)
        numbers["gains"] = share_of_pairs(gain_use, magnitude[:1], 0.25)
    query, key = encoding.rotate(params, query, sites(len(query)), key, sites(len(key)))
    key = np.repeat(np.asarray(key), query.shape[1] // key.shape[1], axis=1)
    lead = heads.lead_of_previous(query, key, turning.pairs)
    share = share_of_pairs(lead, magnitude, -0.25)
    looks_back = numbers["previous"] > LOOKS_BACK
    return numbers | {"lead": share[looks_back], "lead of others": share[~looks_back & (lead.sum(axis=1) > 0)]}


def _random_copies(subject: Subject, texts: Texts, reader: TextReader, arrays: Arrays) -> Found:
    """The best induction head of each layer, on random tokens that stand twice."""
    copies, numbers = repeated_tokens(subject, len(texts.tokens), _COPIES), []
    for copy in copies:
        layers = look(subject.model, subject.params[0], copy[None], sites(len(copy)), _induction)
        numbers.append([float(scores.max()) for scores in layers.weights])
        reader.tick(1)
    yield OWN, {INDUCTION: dict(enumerate(np.array(numbers).T, 1))}


def _induction(layer: int, weights: jax.Array) -> jax.Array:
    return heads.induction_score(weights, _COPIES)


def both_sinks(layer: int, weights: jax.Array) -> jax.Array:
    """Returns the attention of the first 64 tokens on the first one and on the one in the middle, [B, H, 2]."""
    return jnp.stack([heads.sink(weights), heads.sink(weights, heads.SINK_TOKENS // 2)], axis=-1)


def _sinks(subject: Subject, texts: Texts, reader: TextReader, arrays: Arrays) -> Found:
    """Sinks, where the first tokens stand elsewhere, or are others."""
    middle, tokens, start = heads.SINK_TOKENS // 2, texts.tokens[:, : heads.SINK_TOKENS], sites(heads.SINK_TOKENS)
    rng = np.random.default_rng(0)
    words = np.stack([np.append(text[:1], rng.permutation(text[1:])) for text in tokens])
    rows = {OWN: (tokens, start), "words shuffled": (words, start)}
    if "learned" not in subject.encoding:
        rows["positions + 1000"] = tokens, sites(heads.SINK_TOKENS, 1000)
    if subject.tokenizer.bos:
        rows["without BOS"] = texts.tokens[:, 1 : heads.SINK_TOKENS + 1], start
        rows["BOS again in the middle"] = np.insert(tokens, middle, tokens[:, 0], axis=1)[:, :-1], start
    for row, (batch, site) in rows.items():
        if not reader.wants(row):
            continue
        layers = [look(subject.model, subject.params[0], text[None], site, both_sinks).weights for text in batch]
        first, second = np.moveaxis(np.array(layers)[:, :, 0], -1, 0)  # [N, L, H]
        yield row, {SINKS: (first > heads.SINK).mean((1, 2)), f"{FIRST}, all layers": first.mean((1, 2))}
        if row.startswith("BOS again"):
            yield row, {"attention on the second BOS": second.mean((1, 2))}


def _readings(subject: Subject, texts: Texts, reader: TextReader, arrays: Arrays) -> Found:
    """The loss under the readings of `removal`."""
    for reading in removal.readings(subject.pattern, texts.tokens.shape[1] - 1):
        if reader.wants(reading.label):
            yield reading.label, {LOSS: reader.losses(texts.tokens, reading.encodings)}


def _stretched(subject: Subject, texts: Texts, reader: TextReader, arrays: Arrays) -> Found:
    """The loss without windows, so that layers look further than ever in training, and with frequencies scaled for it."""
    length = texts.tokens.shape[1] - 1
    last = {layer.mask().memory.last + 1 for layer in subject.pattern if is_windowed(layer)}
    if len(last) != 1 or min(last) >= length:
        return
    factor, trained = length / min(last), int(min(last))
    scalings = {"": None, " and PI": f"linear(factor={factor})", " and NTK": f"ntk(factor={factor})"}
    scalings[" and YaRN"] = f"yarn(factor={factor}, original_length={trained})"
    for name, scaling in scalings.items():
        change = removal.unwindowed if scaling is None else removal.unwindowed_and_scaled(scaling)
        pattern, row = removal.changed(subject.pattern, is_windowed, change), f"no window{name}, windowed layers"
        if pattern is not None and reader.wants(row):
            yield row, {LOSS: reader.losses(texts.tokens, pattern)}


def _shifts(subject: Subject, texts: Texts, reader: TextReader, arrays: Arrays) -> Found:
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
        first, moved_to = (np.stack([read.hidden for read in reads]) for reads in (before, after))
        change = np.linalg.norm(moved_to - first, axis=-1) / np.linalg.norm(first, axis=-1)
        yield row, {LOSS: np.array([read.loss.mean() for read in after]), HIDDEN: change.mean(axis=1)}


def _pairs(subject: Subject, texts: Texts, reader: TextReader, arrays: Arrays) -> Found:
    """The loss, and the attention of the heads of the token before, where the fastest or slowest pairs do not turn."""
    encodings = [encoding for _, encoding, _ in subject.layers]
    turning = dict(zip(encodings, layer_waves(subject, sites(8)), strict=True))
    if _learns(subject) or "use" not in arrays or any(np.ptp(each.wave, axis=1).any() for each in turning.values()):
        return
    known, site = arrays["previous"] > LOOKS_BACK, sites(texts.tokens.shape[1] - 1)  # [L, H]
    patterns = {OWN: None, "fastest quarter still": _still(subject, turning, fastest=True)}
    patterns["slowest quarter still"] = _still(subject, turning, fastest=False)
    for row, pattern in patterns.items():
        if not reader.wants(row):
            continue
        model, params = subject.under(pattern)
        scores = []
        for text in texts.tokens if known.any() else ():
            layers = look(model, params, text[None, :-1], site, _previous)
            scores.append(np.array(layers.weights)[:, 0][known].mean())
            reader.tick(1)
        metrics = {f"{PREVIOUS}, its heads": np.array(scores)} if scores else {}
        yield row, metrics if pattern is None else {LOSS: reader.losses(texts.tokens, pattern), **metrics}


def _previous(layer: int, weights: jax.Array) -> jax.Array:
    return heads.previous(weights)


def _learns(subject: Subject) -> bool:
    return any(jax.tree.leaves(params) for *_, params in subject.layers)


def _still(subject: Subject, turning: dict[Encoding, Waves], fastest: bool) -> tuple[Encoding, ...]:
    """Returns the pattern with the fastest or slowest quarter of the pairs of each layer still."""
    pattern = []
    for encoding in subject.pattern:
        pairs, magnitude = turning[encoding].pairs, turning[encoding].magnitude[0]
        order = np.argsort(-magnitude if fastest else magnitude, kind="stable")[: round(len(pairs) / 4)]
        channels = tuple(sorted(channel for index in order for channel in pairs[index]))
        pattern.append(removal.stilled(encoding, channels))
    return tuple(pattern)


def _fixed(subject: Subject, texts: Texts) -> dict[str, tuple[Encoding, ...]]:
    """Returns {row: pattern of all layers} with massive channels, or as many others, at their mean over the first text."""
    site = sites(texts.tokens.shape[1] - 1)
    layers = look(subject.model, subject.params[0], texts.tokens[:1, :-1], site, no_weights)
    encodings, rng = tuple(encoding for _, encoding, _ in subject.layers), np.random.default_rng(0)
    rows = {"massive channels fixed": "massive", "as many others fixed": "other"}
    patterns = {row: removal.fixed_pattern(encodings, layers, which, rng) for row, which in rows.items()}
    return {row: pattern for row, pattern in patterns.items() if pattern != encodings}


def _massive(subject: Subject, texts: Texts, reader: TextReader, arrays: Arrays) -> Found:
    """The loss where massive channels of queries and keys, or as many others, are fixed."""
    for row, pattern in ({} if _learns(subject) else _fixed(subject, texts)).items():
        if reader.wants(row):
            yield row, {LOSS: reader.losses(texts.tokens, pattern)}


def _pass_keys(subject: Subject, texts: Texts, reader: TextReader, arrays: Arrays) -> Found:
    """Pass keys found, one text each, as loaded, without rope in some layers, and with massive channels fixed."""
    count, length = len(texts.tokens), texts.tokens.shape[1] - 1
    batch = data.retrieval_batch("passkey", length=length, count=count, seed=0, tokenizer=subject.tokenizer)
    whole, answer = np.append(batch["tokens"], batch["targets"][:, -1:], axis=1), batch["weight"] > 0
    patterns: dict[str, tuple[Encoding, ...] | None] = {OWN: None}
    for reading in removal.readings(subject.pattern, length):
        if reading.change == "no rope" and reading.layers != "all layers":
            patterns[reading.label] = reading.encodings
    patterns |= {} if _learns(subject) else _fixed(subject, texts)
    for row, pattern in patterns.items():
        if reader.wants(row):
            right = [reader.read(text, pattern).right for text in whole]
            named = [tokens[key[-reader.scored :]].all() for tokens, key in zip(right, answer, strict=True)]
            yield row, {PASSKEY: np.array(named, float)}
