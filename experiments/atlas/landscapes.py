"""Attention under each encoding: pictures of it, and the differences between any two.

One compiled program for each encoding gives the mean logits of a few words with themselves, attention among different words,
and the same at far positions, both exact and rounded to bfloat16.
"""

import base64
import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float

import posjax as pj
from experiments.report.families import family_of
from posjax.describe.catalogue import documentation, parameter_shapes, summary
from posjax.describe.probes import layer_logits, observed
from posjax.describe.scorecard.measures import softmax
from posjax.describe.scorecard.specs import every_name, measured_spec
from posjax.describe.worlds import Part, awake, grid_width, with_relation
from posjax.encoding import Dims, Encoding, Params, Site, grid, sites
from posjax.spec import layers_text, parse_layers

LENGTH, SIDE = 48, 7  # tokens of a line, and of a side of a grid
WORDS = 8  # words over which a picture is the mean
FAR = 2**20
DIMS = Dims(width=256, num_heads=8, head_dim=32)  # the scorecard's sizes, which the specs fit
SCORED = 256  # tokens on which the committed scorecard was measured
# Measures of the scorecard that a comparison shows.
MEASURES = ("U_coll", "U_coll_bf16", "X_range", "X_mass", "X_ent", "X_phase", "rho_same")
# jaxlib 0.10's newer code generator for CPUs takes up to four times as long as the older one, and each program runs once.
_QUICK = {"xla_cpu_use_fusion_emitters": False, "xla_cpu_parallel_codegen_split_count": 1}
_OTHER_KEYS = "other keys are seen"
_SAME = 1e-3  # tolerance relative to the mean norm: rows of attention that count as equal
_NOTHING = 1e-5  # share of the attention that moves by rounding errors
_HIDDEN = -1e8  # lower logits belong to keys that a head does not see
_UNSEEN = 255


class Look(NamedTuple):
    """Attention among some tokens; logits as in `weighed_logits`.

    Attributes:
      like: mean logits of words with themselves, all tokens being one word.
      text: logits of different tokens.
      seen: mask of the keys that a query sees, without causality.
    """

    like: Float[np.ndarray, "H T T"]
    text: Float[np.ndarray, "H T T"]
    seen: Bool[np.ndarray, "T T"]


class Landscape(NamedTuple):
    """One encoding's attention: near 0, far out, and far out with positions rounded to bfloat16.

    Attributes:
      weights: attention among different words here, on a line causal. A sink or another normalisation may leave row sums
        below 1.
      operations: counted in the program before any optimisation.
      parameters: learned numbers.
    """

    encoding: Encoding
    grid: tuple[int, int] | None
    here: Look
    far: Look
    rounded: Look
    weights: Float[np.ndarray, "H T T"]
    operations: float
    parameters: int


def landscapes(
    scored: Mapping[str, Any], compare: Sequence[str] = (), on_part: Callable[[str], None] = str
) -> dict[str, Any]:
    """Returns pictures and comparisons of all registered encodings, and of the user's own specs.

    Args:
      scored: the cards of the scorecard, by spec.
      compare: specs, and patterns over layers.
      on_part: called with the name of each encoding before it is computed.

    Raises:
      ValueError: a spec cannot be read, takes neither a line nor a grid, or its layers take both.
    """
    own = []
    for text in compare:  # first, so a mistake is reported at once
        on_part(text)
        encodings = parse_layers(text)
        if len({_sizes(encoding) for encoding in encodings}) > 1:
            raise ValueError(
                f"{text}: its layers take different tokens, a line or grids; compare layers that take the same"
            )
        own.append((layers_text(encodings), tuple(map(landscape, encodings))))
    known, refused = [], {}
    for name in every_name():
        on_part(name)
        spec = measured_spec(name, LENGTH)
        try:
            if spec is None:
                raise ValueError("it needs arguments that cannot be made up")
            known.append((name, (landscape(pj.parse(spec)),)))
        except ValueError as error:  # one misfit does not lose the site
            refused[name] = str(error)
    rows = [_row(name, layers, scored.get(measured_spec(name, SCORED))) for name, layers in known]
    rows += [_row(name, layers, scored.get(name)) for name, layers in own]
    weights = [np.mean([each.weights for each in layers], axis=0) for _, layers in known + own]
    about = {"words": WORDS, "heads": DIMS.num_heads, "length": LENGTH, "far": FAR, "scored": SCORED}
    return about | {
        "pictures": rows,
        "apart": [[moved_attention(a, b) for b in weights] for a in weights],
        "own": [name for name, _ in own],
        "refused": refused,
    }


def _sizes(encoding: Encoding) -> tuple[int, int] | None:
    """Returns the grid for an encoding's picture; None: a line."""
    if 1 in encoding.dimensions:
        return None
    if 2 in encoding.dimensions:
        return SIDE, grid_width(encoding) or SIDE
    raise ValueError(f"{encoding} takes neither a line nor a grid: it cannot be compared")


def landscape(encoding: Encoding) -> Landscape:
    """Computes attention among 48 tokens on a line, or among 7 x 7 patches if the encoding takes no line.

    Raises:
      ValueError: the encoding takes neither.
    """
    sizes = _sizes(encoding)
    if sizes is None:
        dims, site = DIMS._replace(length=8 * LENGTH), sites(LENGTH)
    else:
        dims, site = DIMS._replace(grid=sizes), grid(*sizes)
    site = with_relation(encoding, site)
    params = initial(encoding, dims)
    lowered = jax.jit(functools.partial(look, encoding, dims)).lower(params, site)
    operations = float((lowered.cost_analysis() or {}).get("flops", math.nan))  # before any optimisation
    run = compile_quickly(lowered)
    far = site._replace(position=site.position + np.int32(FAR))
    rounded = far._replace(position=np.asarray(jnp.asarray(far.position, jnp.bfloat16), np.int32))
    looks = [Look(*map(np.asarray, run(params, at))) for at in (site, far, rounded)]
    learned = sum(math.prod(shape) for shape in parameter_shapes(encoding, dims).values())
    _, text, seen = looks[0]
    seen = np.tril(seen) if sizes is None else seen
    if "weigh" in encoding.hooks:  # `text` has the logs of its weights
        weights = np.where(seen, np.exp(text), 0.0)
    else:
        read = observed(Part(encoding, params, encoding.place(params, site)), dims)  # a sink may read its query
        weights = np.asarray(encoding.weigh(params, text, seen, read, read))
    return Landscape(encoding, sizes, *looks, weights, operations, learned)


def compile_quickly(lowered: jax.stages.Lowered) -> Callable[..., Any]:
    """Compiles a small program that runs a few times; there are hundreds."""
    return lowered.compile(_QUICK if jax.__version__.startswith("0.10.") else None)


def initial(encoding: Encoding, dims: Dims) -> Params:
    """Returns an encoding's initial parameters, with random numbers for parameters that start at zero."""
    key = jax.random.key(0)
    run = compile_quickly(jax.jit(functools.partial(encoding.init, dims=dims)).lower(key))
    return awake(run(key))[0]


def look(encoding: Encoding, dims: Dims, params: Params, site: Site) -> Look:
    """Returns the attention among tokens at `site`; may be traced."""
    words, weights = _content(dims, len(site.segment))
    found, seen = jax.lax.map(lambda each: layer_logits(encoding, params, *each, site), (words, weights))
    return Look(jnp.mean(found[:-1], axis=0), found[-1], seen[-1])


def _content(dims: Dims, count: int) -> tuple[Float[np.ndarray, "N T M"], Float[np.ndarray, "N 2 M H D"]]:
    """Returns texts of one repeated word with equal queries and keys, and last a text of different words."""
    rng = np.random.default_rng(0)
    words = np.broadcast_to(rng.normal(size=(WORDS, 1, dims.width)), (WORDS, count, dims.width))
    weights = rng.normal(size=(2, dims.width, dims.num_heads, dims.head_dim)) * dims.width**-0.5
    text = rng.normal(size=(1, count, dims.width))
    alike = np.broadcast_to(weights[0], (WORDS, *weights.shape))
    return np.float32(np.concatenate([words, text])), np.float32(np.concatenate([alike, weights[None]]))


def _row(name: str, layers: tuple[Landscape, ...], card: Any) -> dict[str, Any]:
    """Returns the picture and the facts of an encoding, or of a pattern: means over its layers, or the worst layer's."""
    encoding, text = layers[0].encoding, layers_text([each.encoding for each in layers])
    about = summary(documentation(type(encoding))) if encoding.spec_name else "A composition."
    if len(layers) > 1:
        about = f"A pattern over {len(layers)} layers; the picture is the mean of those that see a key."
    # Mean logits of the first head; for a pattern, each key's mean over the layers that see it.
    like = np.stack([each.here.like[0] for each in layers])
    seen = np.stack([each.here.seen for each in layers]) & np.isfinite(like) & (like > _HIDDEN)
    count = seen.sum(axis=0)
    mean = np.where(seen, like, 0.0).sum(axis=0) / np.maximum(count, 1)
    measures = (card or {}).get("measures", {})
    return {
        "name": name,
        "spec": text,
        "family": family_of(text),
        "summary": about,
        "grid": layers[0].grid,
        "layers": len(layers),
        **as_bytes(mean, count > 0),
        "by_distance": by_distance(mean, count > 0, layers[0].grid),
        "shift": _worst(_change(each.far, each.here) for each in layers),
        "bf16": _worst(_change(each.rounded, each.far) for each in layers),
        "same": _worst(_same(each) for each in layers),
        "operations": float(np.mean([each.operations for each in layers])),
        "parameters": sum(each.parameters for each in layers),
        "measures": {each: measures[each] for each in MEASURES if each in measures},
    }


def by_distance(
    values: Float[np.ndarray, "T T"], seen: Bool[np.ndarray, "T T"], sizes: tuple[int, int] | None
) -> list[float | None]:
    """Returns logits by the distance 0, 1, ... of the key, None if it is not seen.

    On a line of tokens the last one looks back; on a grid the first patch looks along its row.
    """
    at = (-1, slice(None, None, -1)) if sizes is None else (0, slice(sizes[1]))
    return [float(value) if shown else None for value, shown in zip(values[at], seen[at], strict=True)]


def as_bytes(values: Float[np.ndarray, "T S"], seen: Bool[np.ndarray, "T S"]) -> dict[str, Any]:
    """A matrix in a byte for each cell: {"size", "low", "high", "cells"}, 255 for hidden pairs."""
    shown = seen & np.isfinite(values) & (values > _HIDDEN)
    low, high = (float(f(values[shown])) if shown.any() else 0.0 for f in (np.min, np.max))
    scaled = np.rint((np.where(shown, values, low) - low) / ((high - low) or 1.0) * (_UNSEEN - 1))
    cells = np.where(shown, scaled, _UNSEEN).astype(np.uint8)
    return {"size": len(values), "low": low, "high": high, "cells": base64.b64encode(cells.tobytes()).decode()}


def _change(after: Look, before: Look) -> float | str | None:
    """Returns the largest change of a logit over the standard deviation of logits; None if nothing exists so far out."""
    if not (after.seen == before.seen).all():
        return _OTHER_KEYS
    a, b = (each.text[:, np.tril(each.seen)].astype(np.float64) for each in (after, before))
    if not np.isfinite(a).all() or not np.isfinite(b).all():
        return None
    return float(np.abs(np.where(a == b, 0.0, a - b)).max() / before.text[:, before.seen].std())


def _same(of: Landscape) -> float:
    """Returns the per cent of pairs of places that attend alike if all tokens are one word, later keys included."""
    found = softmax(np.where(of.here.seen, of.here.like, -np.inf))
    rows = np.moveaxis(found, 1, 0).reshape(len(of.here.seen), -1)
    norm = float(np.linalg.norm(rows, axis=1).mean())
    first, second = np.triu_indices(len(rows), 1)
    return float(100 * np.mean(np.linalg.norm(rows[first] - rows[second], axis=1) < _SAME * norm))


def _worst(values: Iterable[float | str | None]) -> float | str | None:
    """The largest number; nan if there is one."""
    found = list(values)
    return None if None in found else _OTHER_KEYS if _OTHER_KEYS in found else max(found)


def moved_attention(a: Float[np.ndarray, "H T T"], b: Float[np.ndarray, "H S S"]) -> int | None:
    """Returns the per mille of attention that goes to other keys, mean over heads and queries; None if the tokens differ.

    The rest of a query's attention up to 1 counts as a key of its own. Rounded up, so that 0 is nothing but rounding errors.
    """
    if a.shape != b.shape:
        return None
    left = np.abs(a.sum(axis=-1) - b.sum(axis=-1))
    moved = float((np.abs(a - b).sum(axis=-1) + left).mean() / 2)
    return math.ceil(1000 * (moved - _NOTHING))
