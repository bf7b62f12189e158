"""A map between the tensors of a file and our parameters, as data: it reads and, turned round, writes.

    Entry("blocks.0.attn.qkv.weight", "trunk/block_0/attention/qkv/kernel", "(x h d) m -> m h x d")
    Entry(("w1.weight", "w2.weight"), "pair/kernel", "o i -> i n o")
    Entry("attn_pool.kv.weight", heads("map/attention/{}/kernel"), "(s h d) m -> m h d")

The first says that a tensor [3 H D, M] of the file is our parameter [M, H, 3, D], the second that two tensors of the file are
slices of one of ours along its axis n, and the third that one tensor holds two parameters of ours, its slices along s.
"""

import difflib
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from posjax.spec import nearest

_GROUP = re.compile(r"\(([^)]*)\)|(\S+)")


class Entry(NamedTuple):
    """One line of a map.

    Args:
      theirs: name in the file; or several, whose tensors are slices along axis "n" of ours, or, where ours has no "n", follow
        one another along its first axis.
      ours: path of the parameter; or several, stacked along axis "s" of theirs.
      axes: "their axes -> our axes": letters, (groups) laid out in one axis, and 1 for an axis of length 1. "h" is the number
        of heads, and "x" is 3: query, key and value.
      optional: a file may lack it, or some of its slices along "n", and then ours is zeros; zeros need not be written.
      without: (index, count) of rows of ours that the file does not have; they are zeros.
    """

    theirs: str | tuple[str, ...]
    ours: str | tuple[str, ...]
    axes: str
    optional: bool = False
    without: tuple[int, int] = (0, 0)

    @property
    def names(self) -> tuple[str, ...]:
        return (self.theirs,) if isinstance(self.theirs, str) else self.theirs

    @property
    def paths(self) -> tuple[str, ...]:
        return (self.ours,) if isinstance(self.ours, str) else self.ours


def dense(theirs: str, ours: str, *, optional_bias: bool = False) -> list[Entry]:
    """A linear map of torch's, whose weight is [outputs, inputs]."""
    return [
        Entry(f"{theirs}.weight", f"{ours}/kernel", "o i -> i o"),
        Entry(f"{theirs}.bias", f"{ours}/bias", "o -> o", optional_bias),
    ]


def norm(theirs: str, ours: str) -> list[Entry]:
    return [Entry(f"{theirs}.weight", f"{ours}/scale", "c -> c"), Entry(f"{theirs}.bias", f"{ours}/bias", "c -> c")]


def heads(ours: str, which: Sequence[str] = ("query", "key", "value")) -> tuple[str, ...]:
    return tuple(ours.replace("{}", name) for name in which)


def layered(entries: Iterable[Entry], depth: int) -> list[Entry]:
    """Entries whose names and paths hold an {l}, for each layer."""
    return [
        entry._replace(
            theirs=tuple(name.format(l=layer) for name in entry.names),
            ours=tuple(path.format(l=layer) for path in entry.paths),
        )
        for entry in entries
        for layer in range(depth)
    ]


def read(
    entries: Iterable[Entry],
    tensors: Mapping[str, np.ndarray],
    expected: Mapping[str, tuple[int, ...]],
    num_heads: int,
    ignored: str = r"(?!)",
    unread: str = r"(?!)",
) -> dict[str, np.ndarray]:
    """Our parameters by path, from tensors of a file.

    Where several entries are for one parameter, the first one whose names are all there is read.

    Args:
      expected: path: shape of all parameters that the model has.
      ignored: regular expression of the names that may be left over.
      unread: likewise of paths that a file may hold and the model need not have.

    Raises:
      ValueError: for a tensor that no entry reads or that has another shape, for a parameter that no tensor gives.
    """
    found: dict[str, np.ndarray] = {}
    used: set[str] = set()
    for entry in entries:
        there = [name for name in entry.names if name in tensors]
        if found.keys() & set(entry.paths) or not there or not (entry.optional or len(there) == len(entry.names)):
            continue
        used |= set(there)
        given = [tensors[name] if name in there else np.zeros_like(tensors[there[0]]) for name in entry.names]
        found |= zip(entry.paths, _ours(entry, given, num_heads), strict=True)
    for entry in entries:
        missing = [path for path in entry.paths if path in expected and path not in found]
        if entry.optional:
            found |= {path: np.zeros(expected[path], np.float32) for path in missing}
    _refuse_missing(entries, tensors, expected, found)
    found = {path: array for path, array in found.items() if path in expected or not re.fullmatch(unread, path)}
    left = sorted(name for name in tensors.keys() - used if not re.fullmatch(ignored, name))
    unknown = sorted(found.keys() - expected.keys())
    if left or unknown:
        names = left or [name for entry in entries if set(entry.paths) & set(unknown) for name in entry.names]
        raise ValueError(
            f"the file holds {len(names)} tensors that this ViT has no place for: {_some(names)}; nothing is read in part"
        )
    for path, array in found.items():
        if tuple(array.shape) != tuple(expected[path]):
            name = next(entry.theirs for entry in entries if path in entry.paths)
            raise ValueError(
                f"{path} is {list(expected[path])} in a model of these sizes, but {name} of the file gives "
                f"{list(array.shape)}"
            )
    return found


def write(entries: Iterable[Entry], params: Mapping[str, np.ndarray], num_heads: int) -> dict[str, np.ndarray] | None:
    """The tensors of a file, from our parameters by path; None where the entries have no place for all of them.

    Of several entries for one parameter the first is written.
    """
    tensors: dict[str, np.ndarray] = {}
    placed: set[str] = set()
    for entry in entries:
        if placed & set(entry.paths) or not set(entry.paths) <= params.keys():
            continue
        arrays = [params[path] for path in entry.paths]
        index, count = entry.without
        if count and not all(_is_zero(array[index : index + count]) for array in arrays):
            continue
        placed |= set(entry.paths)
        if not (entry.optional and all(_is_zero(array) for array in arrays)):
            tensors |= zip(entry.names, _theirs(entry, arrays, num_heads), strict=True)
    return tensors if placed == params.keys() else None


def _is_zero(array: np.ndarray) -> bool:
    return not np.ascontiguousarray(array).view(np.uint8).any()  # bytes: -0 is not to become 0


def _ours(entry: Entry, tensors: list[np.ndarray], num_heads: int) -> list[np.ndarray]:
    index, count = entry.without
    parts = list(zip(*(_rearranged(entry, tensor, num_heads) for tensor in tensors), strict=True))
    if (slices := _slices(entry)) is not None:
        joined = [np.stack(part, slices) for part in parts]
    else:
        joined = [np.concatenate(part) if len(part) > 1 else part[0] for part in parts]
    return [np.insert(part, [index] * count, 0, axis=0) if count else part for part in joined]


def _slices(entry: Entry) -> int | None:
    """The axis of ours along which tensors of the file are slices, if there is one."""
    _, ours = _sides(entry.axes)
    return ours.index(["n"]) if ["n"] in ours else None


def _rearranged(entry: Entry, tensor: np.ndarray, num_heads: int) -> list[np.ndarray]:
    """A tensor of the file as our arrays, one for each slice along s."""
    theirs, ours = _sides(entry.axes)
    ours = [group for group in ours if group != ["n"]]
    sizes = _sizes(entry, theirs, tensor.shape, num_heads)
    flat = [letter for group in theirs for letter in group]
    full = tensor.reshape([sizes[letter] for letter in flat])
    order = [letter for group in ours for letter in group]
    shape = [math.prod(sizes[letter] for letter in group) for group in ours]
    if "s" not in flat:
        return [full.transpose([flat.index(letter) for letter in order]).reshape(shape)]
    stacked = full.transpose([flat.index(letter) for letter in ["s", *order]])
    return [stacked[i].reshape(shape) for i in range(sizes["s"])]


def _theirs(entry: Entry, arrays: list[np.ndarray], num_heads: int) -> list[np.ndarray]:
    """The inverse of `_ours`."""
    index, count = entry.without
    arrays = [np.delete(array, range(index, index + count), axis=0) for array in arrays]
    if (axis := _slices(entry)) is None:
        return [_put_back(entry, arrays, num_heads)]
    numbers = range(len(entry.names))
    return [_put_back(entry, [array.take(number, axis) for array in arrays], num_heads) for number in numbers]


def _put_back(entry: Entry, arrays: list[np.ndarray], num_heads: int) -> np.ndarray:
    """The inverse of `_rearranged`."""
    theirs, ours = _sides(entry.axes)
    ours = [group for group in ours if group != ["n"]]
    sizes = _sizes(entry, ours, arrays[0].shape, num_heads) | {"s": len(arrays)}
    letters = [letter for group in ours for letter in group]
    full = np.stack([array.reshape([sizes[letter] for letter in letters]) for array in arrays])
    wanted = [letter for group in theirs for letter in group]
    if "s" in wanted:
        letters = ["s", *letters]
    else:
        full = full[0]
    full = full.transpose([letters.index(letter) for letter in wanted])
    return np.ascontiguousarray(full.reshape([math.prod(sizes[letter] for letter in group) for group in theirs]))


def _sides(axes: str) -> tuple[list[list[str]], ...]:
    """The groups of letters on either side; an axis of length 1 is an empty group."""
    return tuple(
        [(inside or letter).replace("1", "").split() for inside, letter in _GROUP.findall(side)]
        for side in axes.split("->")
    )


def _sizes(entry: Entry, groups: list[list[str]], shape: Sequence[int], num_heads: int) -> dict[str, int]:
    sizes = {"h": num_heads, "s": len(entry.paths), "x": 3}
    fits = len(groups) == len(shape)
    for group, size in zip(groups, shape, strict=False):
        known = math.prod(sizes[letter] for letter in group if letter in sizes)
        unknown = [letter for letter in group if letter not in sizes]
        fits &= size % known == 0 and (bool(unknown) or size == known)
        sizes |= dict.fromkeys(unknown, size // known)
    if not fits:
        raise ValueError(
            f"{' and '.join(entry.names)} has the shape {list(shape)}, which is not {entry.axes.split(' -> ')[0]!r} with "
            f"{num_heads} heads (num_heads=... says how many there are)"
        )
    return sizes


def _refuse_missing(entries: Iterable[Entry], tensors, expected, found) -> None:
    missing = sorted(expected.keys() - found.keys())
    if not missing:
        return
    named = [name for path in missing for name in _first_names(entries, path) if name not in tensors]
    if not named:
        raise ValueError(f"no tensor of the file holds {_some(missing)}, which a model of this form has")
    raise ValueError(
        f"the file lacks {_some(list(dict.fromkeys(named)))}; {nearest(named[0], likest(named[0], tensors))}"
    )


def likest(name: str, names: Iterable[str]) -> list[str]:
    """The few of many names that are most like this one."""
    return difflib.get_close_matches(name, list(names), n=8, cutoff=0.4)


def _first_names(entries: Iterable[Entry], path: str) -> tuple[str, ...]:
    return next((entry.names for entry in entries if path in entry.paths), ())


def _some(names: Sequence[str], most: int = 6) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
