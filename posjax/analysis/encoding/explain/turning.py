"""Which channels of a model's rotary encodings ever turn: within the length of training, and at others."""

import json
import os
import pathlib
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Float

from posjax.analysis.encoding import probes
from posjax.analysis.encoding.explain.text import prose, short, table, title
from posjax.analysis.encoding.worlds import parts
from posjax.encoding import Dims, Encoding, Site
from posjax.pretrained.language.families import family_of
from posjax.spec import layers_text, parse_layers
from posjax.training.runs import is_run, load_run

_FULL = 2 * np.pi
_SAME = 1 + 1e-3  # turns of a scaled frequency that are as many as those in training


class Model(NamedTuple):
    """What of a decoder says how it sees positions.

    Attributes:
      encoding: its pattern over layers.
      depth: number of layers.
      head_dim, num_heads: of its attention.
      trained: tokens of a sequence in training; None where that is not told.
    """

    encoding: str
    depth: int
    head_dim: int
    num_heads: int
    trained: int | None


def model_of(path: str | os.PathLike, ignore: Collection[str] = ()) -> Model:
    """The decoder of a run, or of a folder of transformers, whose weights are not read.

    Args:
      ignore: keys of its config.json that are passed over.

    Raises:
      FileNotFoundError: there is neither.
      ValueError: it is no decoder, or of no known family.
    """
    if is_run(path):
        run = load_run(path)
        model, trained = run.model, run.config.data.get("length")
    else:
        beside = (pathlib.Path(path) if pathlib.Path(path).is_dir() else pathlib.Path(path).parent) / "config.json"
        config = json.loads(beside.read_text())
        model = family_of(config).made(config, ignore=ignore)
        trained = model.length
    if not hasattr(model, "vocab_size"):
        raise ValueError(f"{path} holds a {type(model).__name__}, not a decoder")
    text = layers_text(parse_layers(model.encoding))
    return Model(text, model.depth, model.block.turning_channels, model.num_heads, trained)


def explain_turning(
    model: Model, lengths: Sequence[int], at: Callable[[str, int], str] = lambda spec, n: spec
) -> list[str]:
    """Lines of at most 100 columns about each rotary encoding of a model.

    Args:
      lengths: tokens of sequences; that of training is added.
      at: (spec, length) -> the spec as it is read at that length.

    Raises:
      ValueError: the trained length is not known, or the spec cannot be read.
    """
    if model.trained is None:
        raise ValueError("the checkpoint does not say how long sequences in training were: give --trained_length")
    lengths = sorted({model.trained, *lengths})
    pattern = {length: parse_layers(at(model.encoding, length)) for length in lengths}
    count = len(pattern[model.trained])
    lines = prose(f"{model.encoding}: {model.depth} layers of {model.num_heads} heads with {model.head_dim} channels.")
    for index, encoding in enumerate(pattern[model.trained]):
        if encoding in pattern[model.trained][:index]:
            continue
        where = [l for l in range(model.depth) if pattern[model.trained][l % count] == encoding]
        lines += title(f"{encoding} (layers {_spans(where)})")
        rates = {length: rates_of(pattern[length][index], model, length) for length in lengths}
        if any(rate is None for rate in rates.values()):
            lines += prose("Nothing in it turns pairs of channels by an angle.")
        else:
            lines += _about(model, rates)
    return lines


def rates_of(
    encoding: Encoding, model: Model, length: int
) -> tuple[list[tuple[int, int]], Float[np.ndarray, " P"]] | None:
    """The pairs of channels that are turned, and by how many radians a position, in a document of `length` tokens.

    The first head stands for all. None where nothing is turned.
    """
    dims = Dims(model.head_dim * model.num_heads, model.num_heads, model.head_dim, length=length)
    position = np.array([0, 1, length - 1], np.int32)
    site = Site(position, np.ones_like(position), np.zeros_like(position))
    params = encoding.init(jax.random.key(0), dims)
    for part in parts(encoding, params, site):
        transform = probes.transform(part, dims)
        found = None if transform is None else probes.turns(transform.query)
        if found is not None and found.pairs:
            return found.pairs, np.abs(found.angle[1, 0] - found.angle[0, 0])
    return None


def _about(model: Model, rates: dict[int, Any]) -> list[str]:
    lengths, (pairs, trained) = list(rates), rates[model.trained]
    seen = trained * model.trained / _FULL  # turns
    turned = {length: rate * length / _FULL for length, (_, rate) in rates.items()}
    never = np.flatnonzero(seen < 1)
    first = f"pairs {_spans(never.tolist())} do not" if len(never) else "none is left that does not"
    lines = prose(
        f"Within the {model.trained:,} tokens of training {len(pairs) - len(never)} of {len(pairs)} pairs of channels turn "
        f"fully; {first}. Such a pair tells positions apart by angles of which training has shown a part only: in a longer "
        "sequence it meets new ones."
    )
    rows = []
    for length in lengths:
        new = (seen < 1) & (turned[length] > seen * _SAME)
        full, farthest = int((turned[length] >= 1).sum()), turned[length][never].max(initial=0)
        rows.append(
            [f"{length:,}", str(full), str(int(new.sum())), _spans(np.flatnonzero(new).tolist()), short(farthest)]
        )
    headers = ["tokens", "turn fully", "meet new angles", "which pairs", "most turns of those not full in training"]
    lines += ["", *table(headers, rows), "", *prose("Turns of each pair, by length:"), ""]
    shown = range(len(pairs)) if len(pairs) <= 64 else sorted({round(x) for x in np.linspace(0, len(pairs) - 1, 32)})
    rows = []
    for pair in shown:
        rate = trained[pair]
        wavelength = "never turns" if rate == 0 else short(_FULL / rate)
        cells = [short(turned[length][pair]) for length in lengths]
        rows.append([str(pair), "{}, {}".format(*pairs[pair]), wavelength, *cells])
    return [*lines, *table(["pair", "channels", "wavelength", *(f"@{length}" for length in lengths)], rows)]


def _spans(numbers: Sequence[int]) -> str:
    """[0, 1, 2, 5] as "0 to 2, 5"."""
    spans: list[list[int]] = []
    for each in numbers:
        if spans and each == spans[-1][1] + 1:
            spans[-1][1] = each
        else:
            spans.append([each, each])
    return ", ".join(str(a) if a == b else f"{a} to {b}" for a, b in spans) or "none"
