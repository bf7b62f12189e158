"""Calls a rotation of another framework: NumPy arrays in and out, in the caller's order of axes."""

import inspect
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
from jaxtyping import Bool

MakeArray = Callable[[np.ndarray], Any]
Rotation = Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]  # x [T, H, D], position [T, A] -> (q, k)
_MAKERS = {"torch": "as_tensor", "mlx.core": "array", "jax.numpy": "asarray"}


def to_numpy(x: Any) -> np.ndarray:
    """An array of any framework as float64. A tensor of PyTorch may need a gradient, be of bfloat16 or on a device."""
    if type(x).__module__.partition(".")[0] == "torch":
        return x.detach().cpu().double().numpy()
    if type(x).__module__.partition(".")[0] == "mlx":
        return np.array(x.astype(sys.modules["mlx.core"].float32), np.float64)
    return np.asarray(x).astype(np.float64)


def mask_of(mask: Any, length: int, make: MakeArray | None) -> Bool[np.ndarray, "H T T"]:
    """The mask: an array, or a function of T = `length`, or of indices (query [T, 1], key [1, T]), with (batch, head) before.

    Raises:
      ValueError: for a function of another number of arguments, one that does not take arrays, or another shape.
    """
    if callable(mask) and (count := len(inspect.signature(mask).parameters)) == 1:
        mask = mask(length)
    elif callable(mask):
        if count not in (2, 4):
            raise ValueError(f"a mask is mask(T), mask(q, k) or mask(b, h, q, k), and this one takes {count} arguments")
        place, make = np.arange(length), make or make_of(mask)
        try:
            mask = mask(*[0] * (count - 2), make(place[:, None]), make(place[None]))
        except (ValueError, RuntimeError) as error:  # of NumPy and JAX, of PyTorch
            raise ValueError(f"mask must take arrays of indices: `&` in place of `and` ({error})") from None
    seen = np.asarray(to_numpy(mask) != 0)
    if seen.ndim not in (2, 3, 4) or seen.shape[-1] != seen.shape[-2]:
        raise ValueError(f"a mask has shape [tokens, tokens] or [heads, tokens, tokens]; got {seen.shape}")
    return seen[None] if seen.ndim == 2 else seen[0] if seen.ndim == 4 else seen


def make_of(function: Callable) -> MakeArray:
    """The function that makes arrays for a caller's function: of the first framework that its file has imported.

    Nothing is imported here. A function whose file names no framework gets NumPy arrays.
    """
    called = inspect.unwrap(function)
    called = getattr(called, "__func__", called)
    used = getattr(called, "__globals__", None) or getattr(type(called).__call__, "__globals__", {})
    names = {value.__name__ if inspect.ismodule(value) else type(value).__module__ for value in used.values()}
    roots = {name.partition(".")[0] for name in names}
    for module, maker in _MAKERS.items():
        if module.partition(".")[0] in roots and module in sys.modules:
            return getattr(sys.modules[module], maker)
    return np.asarray


def adapted(rotate: Callable, order: str, make: MakeArray) -> Rotation:
    """The caller's function, as one of NumPy arrays x [T, H, D] and positions.

    Args:
      rotate: rotate(q, k, position) -> (q, k), or rotate(x, position) -> x.
      order: of the axes of q and k, the letters T, H and D, and B for a batch of one.
      make: makes the caller's arrays of NumPy's.

    Raises:
      ValueError: for another order, another number of arguments or another result.
    """
    if sorted(order.replace("B", "")) != ["D", "H", "T"] or order.count("B") > 1:
        raise ValueError(f"order={order!r}: give the axes of q and k, as in order='BHTD', of the letters B, T, H and D")
    count = _required(rotate)
    letters = order.replace("B", "")

    def outward(x: np.ndarray) -> Any:
        x = np.ascontiguousarray(x.transpose(["THD".index(letter) for letter in letters]), np.float32)
        return make(np.expand_dims(x, order.index("B")) if "B" in order else x)

    def inward(x: Any, like: np.ndarray) -> np.ndarray:
        try:
            out = to_numpy(x)
        except (TypeError, ValueError):
            raise ValueError(f"rotate returned {x!r:.60}, expected an array of numbers") from None
        out = out.squeeze(order.index("B")) if "B" in order and out.ndim == len(order) else out
        if out.ndim != 3 or (out := out.transpose([letters.index(letter) for letter in "THD"])).shape != like.shape:
            raise ValueError(
                f"rotate was given q and k in order={order!r} and returned an array of shape {getattr(x, 'shape', ())}"
            )
        if not np.isfinite(out).all():
            raise ValueError("rotate returned numbers that are not finite")
        return out

    def rotation(x: np.ndarray, position: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        where = make(position[:, 0] if position.shape[1] == 1 else position)
        results = rotate(outward(x), outward(x), where) if count == 3 else [rotate(outward(x), where)] * 2
        if not isinstance(results, (tuple, list)) or len(results) != 2:
            raise ValueError(f"rotate(q, k, position) must return (q, k), got a {type(results).__name__}")
        return inward(results[0], x), inward(results[1], x)

    return rotation


def _required(rotate: Callable) -> int:
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = inspect.signature(rotate).parameters.values()
    count = sum(each.kind in kinds and each.default is inspect.Parameter.empty for each in parameters)
    if count not in (2, 3):
        raise ValueError(f"rotate must take (q, k, position) or (x, position), and this one takes {count} arguments")
    return count
