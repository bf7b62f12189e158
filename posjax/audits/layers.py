"""Judges the layers of a model: which tell positions apart, and how far each sees."""

import itertools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from posjax.audits.arrays import MakeArray, make_of, to_numpy
from posjax.encoding import Encoding

_EQUAL = 1e-3  # a change of the output, relative to its size, that rounding explains


class Layer(NamedTuple):
    """How a layer treats places.

    Attributes:
      ordered: whether the last token's output changes if the tokens that it sees change places.
      reach: the tokens before the last one that it sees.
      causal: whether later tokens leave an output alone.
    """

    ordered: bool
    reach: int
    causal: bool


def judge_layers(
    layers: Sequence[Callable], width: int, length: int, array: MakeArray | None, meant: Sequence[Encoding] = ()
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Returns a fact for each run of layers that do the same, and a finding for each layer that differs from its encoding.

    Args:
      layers: each a function of tokens [1, T, width] that returns the same shape.
      width: channels of a token.
      length: T.
      array: makes an array for a layer of one of NumPy.
      meant: the encoding of each layer by a configuration, one where all are alike.

    Raises:
      ValueError: for a layer that returns another shape, or another number of layers than the configuration has.
    """
    if len(meant) > 1 and len(meant) != len(layers):
        raise ValueError(f"the configuration has {len(meant)} layers, and layers has {len(layers)}")
    found = [_judged(layer, width, length, array or make_of(layer)) for layer in layers]
    facts = []
    for kind, run in itertools.groupby(enumerate(found), key=lambda each: each[1]):
        first, *_, last = [number for number, _ in run] * 2
        name = f"layer {first}" if first == last else f"layers {first} to {last}"
        order = "positions" if kind.ordered else "no positions"
        sees = f"sees {kind.reach} tokens back" if kind.reach < length - 1 else f"sees all {length} tokens"
        facts.append(f"{name}: {order}, {sees}, {'causal' if kind.causal else 'both directions'}")
    wrong = [
        f"layer {number} has {'' if kind.ordered else 'no '}positions, config.json means {encoding}"
        for number, (kind, encoding) in enumerate(zip(found, itertools.cycle(meant), strict=False))
        if kind.ordered != bool({"rotate", "bias"} & encoding.hooks)
    ]
    return tuple(facts), tuple(wrong)


def _judged(layer: Callable, width: int, length: int, make: MakeArray) -> Layer:
    rng = np.random.default_rng(0)
    x, other = rng.normal(size=(2, length, width)).astype(np.float32)

    def outputs(x: Float[np.ndarray, "T M"]) -> Float[np.ndarray, "T M"]:
        out = to_numpy(layer(make(x[None])))
        if out.shape != (1, *x.shape):
            raise ValueError(
                f"a layer of [1, {length}, {width}] must return the same shape, and returned {list(out.shape)}"
            )
        return out[0]

    expected = outputs(x)

    def differs(changed: Float[np.ndarray, "T M"], token: int) -> bool:
        return bool(np.abs(outputs(changed)[token] - expected[token]).max() > _EQUAL * np.abs(expected[token]).max())

    causal = not differs(np.concatenate([x[:-1], other[-1:]]), -2)
    least, most = 0, length - 1  # the bounds of how many tokens back the last token sees
    while least < most:
        middle = (least + most + 1) // 2
        far = np.arange(length)[:, None] <= length - 1 - middle
        least, most = (middle, most) if differs(np.where(far, other, x), -1) else (least, middle - 1)
    seen = np.arange(length - 1 - least, length - 1)
    moved = x.copy()
    moved[seen] = x[rng.permutation(seen)]
    return Layer(differs(moved, -1), least, causal)
