"""The channels of a model's rotary encodings that ever turn: within the length of training, and at others.

A query meets angles at the offsets of the keys that it sees, which its mask and its views bound at any length.
"""

import os
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from posjax.attention import slots_needed
from posjax.attention.dense import visible
from posjax.describe import probes
from posjax.describe.explain.text import digits, prose, spans, table, title
from posjax.describe.worlds import evenly, placed_parts
from posjax.encoding import Dims, Encoding, Params, Placed, Site, Sum
from posjax.encodings.views import Viewed
from posjax.models.replacing import scaled_ropes
from posjax.pretrained.language.families import find_family
from posjax.pretrained.language.loading import configuration
from posjax.spec import layers_text, parse_layers
from posjax.training.initial import of_own
from posjax.training.runs import is_run, load_run

_FULL = 2 * np.pi
_SAME = 1 + 1e-3  # turns of a scaled frequency that are as many as those in training
_QUERIES = 32  # whose offsets are looked at where views change them: half of them the last, half spread over the rest


class RotaryModel(NamedTuple):
    """The fields of a decoder that decide about positions.

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


class Turning(NamedTuple):
    """The turning of queries and keys in a document of some length; the first head stands for all.

    Attributes:
      pairs: channels that are turned together.
      rates: radians a position, for each pair.
      offsets: keys that a causal query sees are less than so many positions before it, as the encoding shows them.
      cached: tokens that a cache keeps.
    """

    pairs: list[tuple[int, int]]
    rates: Float[np.ndarray, " P"]
    offsets: float
    cached: int

    @property
    def turns(self) -> Float[np.ndarray, " P"]:
        """The number of turns of each pair over the offsets."""
        return self.rates * self.offsets / _FULL


def model_of(path: str | os.PathLike, ignore: Collection[str] = ()) -> RotaryModel:
    """Returns the decoder of a run, or of a folder of transformers, whose weights are not read; see `explain_checkpoint`."""
    if is_run(path):
        run = load_run(path)
        model, trained = run.model, run.config.data.get("length")
    else:
        if not (config := configuration(path)):
            raise FileNotFoundError(f"{path} holds no run and no config.json")
        model = find_family(config).made(config, ignore=ignore)
        trained = model.length
    if not hasattr(model, "vocab_size"):
        raise ValueError(f"{path} holds a {type(model).__name__}, not a decoder")
    text = layers_text(parse_layers(model.encoding))
    return RotaryModel(text, model.depth, model.block.turning_channels, model.block.num_heads, trained)


def explain_checkpoint(
    path: str | os.PathLike,
    *,
    spec: str | None = None,
    lengths: Sequence[int] = (),
    trained_length: int | None = None,
    scaling: str | None = None,
    ignore: Collection[str] = (),
) -> list[str]:
    """Lines of at most 100 columns about the rotary encodings of a decoder, or about another encoding in their place.

    Args:
      path: a run, or a folder of transformers.
      spec: encoding in place of its own, which is {own} in it.
      lengths: tokens of sequences.
      trained_length: tokens of a sequence in training; None: the checkpoint says it.
      scaling: "linear", "ntk", "yarn" or "llama3" scales the ropes by the factor of each length.
      ignore: keys of config.json to skip.

    Raises:
      FileNotFoundError: the path holds no run and no config.json.
      ValueError: the model is no decoder, the trained length is not known, or the spec cannot be read.
    """
    model = model_of(path, ignore)
    model = model._replace(trained=trained_length or model.trained)
    if spec is not None:
        model = model._replace(encoding=of_own(spec, model.encoding))

    def at(text: str, length: int) -> str:
        factor = max(1.0, length / model.trained)
        return (
            text if scaling is None else layers_text(scaled_ropes(parse_layers(text), scaling, factor, model.trained))
        )

    return explain_turning(model, lengths, at)


def explain_turning(
    model: RotaryModel, lengths: Sequence[int], at: Callable[[str, int], str] = lambda spec, n: spec
) -> list[str]:
    """Lines of at most 100 columns about each rotary encoding of a model.

    Args:
      lengths: tokens of sequences; the trained length is added.
      at: (spec, length) -> the spec as it is read at that length.
    """
    if model.trained is None:
        raise ValueError("the checkpoint does not say how long sequences in training were: give --trained-length")
    lengths = sorted({model.trained, *lengths})
    pattern = {length: parse_layers(at(model.encoding, length)) for length in lengths}
    count = len(pattern[model.trained])
    lines = prose(f"{model.encoding}: {model.depth} layers of {model.num_heads} heads with {model.head_dim} channels.")
    for index, encoding in enumerate(pattern[model.trained]):
        if encoding in pattern[model.trained][:index]:
            continue
        where = [l for l in range(model.depth) if pattern[model.trained][l % count] == encoding]
        lines += title(f"{encoding} (layers {spans(where, ' to ')})")
        turning = {length: turning_of(pattern[length][index], model, length) for length in lengths}
        if None in turning.values():
            lines += prose("Nothing in it turns pairs of channels by an angle.")
        else:
            lines += _about(model, turning)
    return lines


def turning_of(encoding: Encoding, model: RotaryModel, length: int) -> Turning | None:
    """Measures how an encoding turns channels in a document of `length` tokens; None where nothing is turned."""
    dims = Dims(model.head_dim * model.num_heads, model.num_heads, model.head_dim, length=length)
    position = np.array([0, 1, length - 1], np.int32)
    site = Site(position, np.ones_like(position), np.zeros_like(position))
    params = encoding.init(jax.random.key(0), dims)
    for part in placed_parts(encoding, params, site):
        transform = probes.linear_rotation(part, dims)
        found = None if transform is None else probes.turns(transform.query)
        if found is not None and found.pairs:
            rates = np.abs(found.angle[1, 0] - found.angle[0, 0])
            unit = abs(float(np.diff(np.asarray(part.site.position[:2]))[0])) or 1.0  # a map may have scaled it
            offsets = _offsets(encoding, params, part.encoding, length, unit)
            return Turning(found.pairs, rates, offsets, slots_needed(encoding, site, length))
    return None


def _offsets(encoding: Encoding, params: Params, rotary: Encoding, length: int, unit: float) -> float:
    """`Turning.offsets`: by the mask's memory or, where views give pairs positions of their own, by looking at pairs."""
    if not _has_views(encoding):
        last, first = encoding.mask().memory
        return length if first else min(length, last)
    middle = np.linspace(0, length - 1, _QUERIES // 2, dtype=np.int32)
    some = np.unique(np.append(middle, np.arange(max(0, length - _QUERIES // 2), length, dtype=np.int32)))
    queries, keys = (Site(at, np.ones_like(at), np.zeros_like(at)) for at in (some, np.arange(length, dtype=np.int32)))
    placed = [encoding.place(params, site) for site in (queries, keys)]
    seen = visible(encoding, *placed, queries.position, keys.position)
    ruler, params = _with_ruler(encoding, params, rotary)
    placed = [ruler.place(params, site) for site in (queries, keys)]
    q, k = (jnp.zeros((len(site.segment), 1, 1)) for site in (queries, keys))
    away = ruler.bias(params, q, placed[0], k, placed[1])[0] / unit
    return 1 + float(jnp.max(away, where=seen, initial=0))


def _with_ruler(encoding: Encoding, params: Params, rotary: Encoding) -> tuple[Encoding, Params] | None:
    """Returns the maps in front of a member, with an encoding that measures offsets in the member's place."""
    if isinstance(encoding, Sum):
        each = (_with_ruler(part, p, rotary) for part, p in zip(encoding.parts, params, strict=True))
        return next((found for found in each if found), None)
    if isinstance(encoding, Placed) and (inner := _with_ruler(encoding.encoding, params[1], rotary)):
        return encoding.position_map >> inner[0], (params[0], inner[1])
    return (probes.Ruler(), ()) if encoding is rotary else None


def _has_views(encoding: Encoding) -> bool:
    return isinstance(encoding, Viewed) or any(map(_has_views, getattr(encoding, "members", ())))


def _about(model: RotaryModel, turning: dict[int, Turning]) -> list[str]:
    lengths, trained = list(turning), turning[model.trained]
    pairs, seen = trained.pairs, trained.turns
    turned = {length: each.turns for length, each in turning.items()}
    never = np.flatnonzero(seen < 1)
    first = f"pairs {spans(never, ' to ')} do not" if len(never) else "none is left that does not"
    lines = prose(
        f"Within the {model.trained:,} tokens of training {len(pairs) - len(never)} of {len(pairs)} pairs of channels turn "
        f"fully; {first}: a query sees keys less than {trained.offsets:,.6g} positions before it. Such a pair tells "
        "positions apart by angles of which training has shown a part only: at a larger offset it meets new ones."
    )
    rows = []
    for length in lengths:
        new = (seen < 1) & (turned[length] > seen * _SAME)
        full, farthest = int((turned[length] >= 1).sum()), turned[length][never].max(initial=0)
        counts = [f"{length:,}", f"{turning[length].offsets:,.6g}", f"{turning[length].cached:,}", str(full)]
        rows.append([*counts, str(int(new.sum())), spans(np.flatnonzero(new), " to ") or "none", digits(farthest)])
    headers = [
        "tokens",
        "offsets below",
        "cached",
        "turn fully",
        "meet new angles",
        "which pairs",
        "most turns of these",
    ]
    lines += ["", *table(headers, rows), "", *prose("Turns of each pair, by length:"), ""]
    shown = range(len(pairs)) if len(pairs) <= 64 else evenly(len(pairs), 32)
    rows = []
    for pair in shown:
        rate = trained.rates[pair]
        wavelength = "never turns" if rate == 0 else digits(_FULL / rate)
        cells = [digits(turned[length][pair]) for length in lengths]
        rows.append([str(pair), "{}, {}".format(*pairs[pair]), wavelength, *cells])
    return [*lines, *table(["pair", "channels", "wavelength", *(f"@{length}" for length in lengths)], rows)]
