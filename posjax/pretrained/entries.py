"""A map between the tensors of a file and our parameters, as data; its inverse writes Llama, GPT-2 and timm's ViT.

    Entry("blocks.0.attn.qkv.weight", "trunk/block_0/attention/qkv/kernel", "(x h d) m -> m h x d")
    Entry(("w1.weight", "w2.weight"), "pair/kernel", "o i -> i n o")
    Entry("attn_pool.kv.weight", heads("map/attention/{}/kernel"), "(s h d) m -> m h d")

The first says that a tensor [3 H D, M] of the file is our parameter [M, H, 3, D], the second that two tensors of the file are
slices of one parameter along its axis n, the third that slices of one tensor along s are two parameters.

    Entry(("q.weight", "k.weight", "v.weight"), "qkv/kernel", "(k n d) m -> m k n d", counts=(4, 1, 1))
    Entry("qkv_proj.weight", "qkv/kernel", "(k n d) m -> m k n d", counts=(4, 1, 1))

Here queries, keys and values have several slices along n each, numbered by `counts`: four query heads for each key head.
They are three tensors of the file, or follow one another along the first axis of one tensor.
"""

import difflib
import math
import mmap
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from posjax.spec import nearest

_GROUP = re.compile(r"\(([^)]*)\)|(\S+)")
_Groups = list[list[str]]  # letters of the axes of an array; several letters are laid out in one axis


class Entry(NamedTuple):
    """One line of a map.

    Args:
      theirs: name in the file. Several names are slices along the parameter's axis "n", or, without an "n", follow one
        another along its first axis.
      ours: path of the parameter. Several paths are stacked along the tensor's axis "s".
      axes: "tensor's axes -> parameter's axes": letters, (groups) laid out in one axis, and 1 for an axis of length 1. "h"
        is the number of heads, "x" is 3 (query, key and value).
      optional: a file may lack the tensor, or some of its slices along "n"; the parameter is then zeros, and zeros need not
        be written.
      without: (index, count) of the parameter's rows that the file lacks; they are zeros.
      counts: number of slices along "n" in each part, for axes with "n" on both sides.
      beyond: number of the tensor's first rows that the parameter lacks; they are dropped.
      turned: whether the parameter's first axis runs from the last to the first.
    """

    theirs: str | tuple[str, ...]
    ours: str | tuple[str, ...]
    axes: str
    optional: bool = False
    without: tuple[int, int] = (0, 0)
    counts: tuple[int, ...] = ()
    beyond: int = 0
    turned: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        return (self.theirs,) if isinstance(self.theirs, str) else self.theirs

    @property
    def paths(self) -> tuple[str, ...]:
        return (self.ours,) if isinstance(self.ours, str) else self.ours


def torch_linear(theirs: str, ours: str, *, bias: bool = True) -> list[Entry]:
    """Returns the entries of a torch.nn.Linear, whose weight is [outputs, inputs]."""
    kernel = Entry(f"{theirs}.weight", f"{ours}/kernel", "o i -> i o")
    return [kernel, *([Entry(f"{theirs}.bias", f"{ours}/bias", "o -> o")] if bias else [])]


def norm(theirs: str, ours: str, *, bias: bool = True) -> list[Entry]:
    scale = Entry(f"{theirs}.weight", f"{ours}/scale", "c -> c")
    return [scale, *([Entry(f"{theirs}.bias", f"{ours}/bias", "c -> c")] if bias else [])]


def heads(ours: str, which: Sequence[str] = ("query", "key", "value")) -> tuple[str, ...]:
    return tuple(ours.replace("{}", name) for name in which)


def layered(entries: Iterable[Entry], depth: int) -> list[Entry]:
    """Repeats entries with {l} in names and paths for each layer, whose number it becomes."""
    return [
        entry._replace(
            theirs=tuple(name.format(l=layer) for name in entry.names),
            ours=tuple(path.format(l=layer) for path in entry.paths),
        )
        for entry in entries
        for layer in range(depth if "{l}" in entry.names[0] else 1)
    ]


def respelt(name: str, renames: Iterable[tuple[str, str]]) -> str:
    """Returns a name after each (regular expression, its replacement) in turn."""
    for old, new in renames:
        name = re.sub(old, new, name)
    return name


def read_entries(
    entries: Iterable[Entry],
    tensors: Mapping[str, np.ndarray],
    expected: Mapping[str, tuple[int, ...]],
    sizes: Mapping[str, int],
    *,
    ignored: str = r"(?!)",
    unread: str = r"(?!)",
    put: Callable[[str, np.ndarray], Any] = lambda path, array: array,
) -> dict[str, Any]:
    """Our parameters by path, from tensors of a file; each is read once.

    Of several entries for one parameter, the first whose names all exist is read. Names are checked before any tensor is
    read.

    Args:
      expected: path: shape of all parameters that the model has.
      sizes: of letters in the entries' axes, as "h", the number of heads.
      ignored: regular expression of the names that may be left over.
      unread: likewise of paths that a file may hold and the model need not have.
      put: what becomes of a parameter as soon as it is made: it may lie on another device before the next one is read.

    Raises:
      ValueError: a tensor has no entry or another shape, or a parameter has no tensor.
    """
    entries = list(entries)
    plan = _planned(entries, tensors)
    promised = {path for entry, _ in plan for path in entry.paths}
    zeros = {path for entry in entries if entry.optional for path in entry.paths if path in expected} - promised
    _refuse_missing(entries, tensors, expected, promised | zeros)
    used = {name for _, there in plan for name in there}
    left = sorted(name for name in tensors.keys() - used if not re.fullmatch(ignored, name))
    unknown = {path for path in promised - expected.keys() if not re.fullmatch(unread, path)}
    if left or unknown:
        names = left or [name for entry, _ in plan if unknown & set(entry.paths) for name in entry.names]
        raise ValueError(f"the file holds {len(names)} tensors that this model has no place for: {_some(names)}")
    found = {path: put(path, np.zeros(expected[path], np.float32)) for path in zeros}
    for entry, there in plan:
        if not expected.keys() & set(entry.paths):
            continue
        given = [tensors[name] if name in there else np.zeros_like(tensors[there[0]]) for name in entry.names]
        for path, array in zip(entry.paths, _ours(entry, given, sizes), strict=True):
            if path not in expected:
                continue
            if tuple(array.shape) != tuple(expected[path]):
                raise ValueError(f"{path} is {list(expected[path])}, but {entry.theirs} gives {list(array.shape)}")
            found[path] = put(path, array)
    return found


def _planned(entries: Iterable[Entry], tensors: Mapping[str, Any]) -> list[tuple[Entry, list[str]]]:
    plan: list[tuple[Entry, list[str]]] = []
    promised: set[str] = set()
    for entry in entries:
        there = [name for name in entry.names if name in tensors]
        if promised & set(entry.paths) or not there or not (entry.optional or len(there) == len(entry.names)):
            continue
        promised |= set(entry.paths)
        plan.append((entry, there))
    return plan


def write_entries(
    entries: Iterable[Entry], params: Mapping[str, Any], sizes: Mapping[str, int]
) -> Iterator[tuple[str, np.ndarray]] | None:
    """Yields the tensors of a file by name from our parameters by path; returns None if a parameter has no entry.

    Of several entries for one parameter, the first is written.
    """
    chosen: list[Entry] = []
    placed: set[str] = set()
    for entry in entries:
        if placed & set(entry.paths) or not set(entry.paths) <= params.keys():
            continue
        index, count = entry.without
        if count and not all(_is_zero(params[path][index : index + count]) for path in entry.paths):
            continue
        placed |= set(entry.paths)
        chosen.append(entry)
    if placed != params.keys():
        return None
    return (tensor for entry in chosen for tensor in _written(entry, params, sizes))


def _written(entry: Entry, params: Mapping[str, Any], sizes: Mapping[str, int]) -> Iterator[tuple[str, np.ndarray]]:
    arrays = [np.asarray(params[path]) for path in entry.paths]
    if not (entry.optional and all(map(_is_zero, arrays))):
        yield from zip(entry.names, _theirs(entry, arrays, sizes), strict=True)


def _is_zero(array: Any) -> bool:
    return not np.ascontiguousarray(array).view(np.uint8).any()  # compare bytes: -0 must not become 0


def _ours(entry: Entry, tensors: list[np.ndarray], sizes: Mapping[str, int]) -> list[np.ndarray]:
    """Turns tensors of the file into our arrays, one for each path."""
    theirs, ours = _sides(entry.axes)
    axis, inner = _slices(theirs, ours)
    tensors = [tensor[entry.beyond :] for tensor in tensors] if entry.beyond else tensors
    if entry.counts and len(tensors) == 1:
        tensors = np.split(tensors[0], _borders(entry, tensors[0], sizes))
    before, after = (theirs, inner) if not _stacks(theirs) else (theirs, [["s"], *inner])
    moved = (_moved(entry, tensor, before, after, sizes) for tensor in tensors)
    parts = list(zip(*(moved if _stacks(theirs) else ([array] for array in moved)), strict=True))
    if entry.counts:
        joined = [contiguous(part, ours.index(["n"])) for part in parts]
    elif axis is not None:
        joined = [np.stack(part, axis) for part in parts]
    else:
        joined = [np.concatenate(part) if len(part) > 1 else part[0] for part in parts]
    joined = [part[::-1] for part in joined] if entry.turned else joined
    index, count = entry.without
    return [np.insert(part, [index] * count, 0, axis=0) if count else part for part in joined]


def _theirs(entry: Entry, arrays: list[np.ndarray], sizes: Mapping[str, int]) -> list[np.ndarray]:
    """Turns our arrays into the tensors of a file: the inverse of `_ours` in the formats that are written."""
    theirs, ours = _sides(entry.axes)
    axis, inner = _slices(theirs, ours)
    index, count = entry.without
    arrays = [np.delete(array, range(index, index + count), axis=0) if count else array for array in arrays]

    def put_back(arrays: Sequence[np.ndarray]) -> np.ndarray:
        one, groups = (np.stack(arrays), [["s"], *inner]) if _stacks(theirs) else (arrays[0], inner)
        return np.ascontiguousarray(_moved(entry, one, groups, theirs, sizes))

    if entry.counts:
        ends = np.cumsum(entry.counts)[:-1]
        return [put_back(part) for part in zip(*(np.split(a, ends, ours.index(["n"])) for a in arrays), strict=True)]
    if axis is None:
        return [put_back(arrays)]
    return [put_back([array.take(number, axis) for array in arrays]) for number in range(len(entry.names))]


def _moved(entry: Entry, array: np.ndarray, before: _Groups, after: _Groups, sizes: Mapping[str, int]) -> np.ndarray:
    """Returns an array with axes `before`, laid out with axes `after`."""
    sizes = _sizes(entry, before, array.shape, sizes)
    letters, order = ([letter for group in groups for letter in group] for groups in (before, after))
    full = array.reshape([sizes[letter] for letter in letters]).transpose([letters.index(letter) for letter in order])
    return full.reshape([math.prod(sizes[letter] for letter in group) for group in after])


def _stacks(theirs: _Groups) -> bool:
    return any("s" in group for group in theirs)


def _slices(theirs: _Groups, ours: _Groups) -> tuple[int | None, _Groups]:
    """Returns the parameter's axis along which tensors of the file are slices, or None, and the other axes."""
    if ["n"] not in ours or any("n" in group for group in theirs):
        return None, ours
    return ours.index(["n"]), [group for group in ours if group != ["n"]]


_BLOCK = 256  # rows per block


def contiguous(parts: Sequence[np.ndarray], axis: int = 0) -> np.ndarray:
    """Concatenates arrays along an axis into one array in C order, which JAX takes over on CPUs without another copy.

    A transposed matrix is copied block by block, since copying it by rows misses the cache: numpy alone took 14 times as long
    for [1024, 128256]. Types that numpy does not know, such as bfloat16, are copied as bits.
    """
    shape = list(parts[0].shape)
    shape[axis : axis + 1] = [sum(part.shape[axis] for part in parts)] if shape else []
    dtype = parts[0].dtype
    space = np.empty(math.prod(shape) * dtype.itemsize + 64, np.uint8)
    start = -space.ctypes.data % 64
    out = space[start : start + len(space) - 64].view(dtype).reshape(shape)
    at = 0
    for part in parts:
        place = [slice(None)] * len(shape)
        if shape:
            place[axis] = slice(at, at := at + part.shape[axis])
        _copy(part, out[(*place, ...)])  # an array, also without axes
    return out


def _copy(source: np.ndarray, out: np.ndarray) -> None:
    # np.concatenate of memmaps gives a memmap without a filename
    of_file = isinstance(source, np.memmap) and source.filename is not None
    if of_file and source.flags.c_contiguous and out.flags.c_contiguous:
        return _read_into(out, source)
    if source.dtype.kind == "V":
        source, out = (array.view(f"u{source.dtype.itemsize}") for array in (source, out))
    if not source.ndim:
        out[...] = source
        return
    axis = int(np.argmax(source.strides))
    for start in range(0, source.shape[axis], _BLOCK):
        place = (slice(None),) * axis + (slice(start, start + _BLOCK),)
        out[place] = source[place]


def _read_into(out: np.ndarray, source: np.memmap) -> None:
    """Reads a part of a mapped file into an array: faster than by its pages, which would also count as this process's."""
    mapped = source
    while isinstance(mapped, np.ndarray):
        mapped = mapped.base
    whole = np.frombuffer(mapped, np.uint8)  # the mapping begins at a page of the file
    start = source.offset - source.offset % mmap.ALLOCATIONGRANULARITY + source.ctypes.data - whole.ctypes.data
    into = memoryview(out.reshape(-1).view(np.uint8))
    with Path(source.filename).open("rb", buffering=0) as file:
        file.seek(start)
        while into and (count := file.readinto(into)):
            into = into[count:]
    if into:
        raise ValueError(f"{source.filename} was cut off while it was read: fetch it again")


def _borders(entry: Entry, tensor: np.ndarray, sizes: Mapping[str, int]) -> list[int]:
    """The ends of a tensor's parts along its first axis, but for the last."""
    theirs, _ = _sides(entry.axes)
    each = _sizes(entry, theirs, tensor.shape, sizes | {"n": sum(entry.counts)})
    rows = math.prod(each[letter] for letter in theirs[0] if letter != "n")
    return [int(end) * rows for end in np.cumsum(entry.counts)[:-1]]


def _sides(axes: str) -> tuple[_Groups, ...]:
    """Returns the groups of letters on either side; an axis of length 1 is an empty group."""
    return tuple(
        [(inside or letter).replace("1", "").split() for inside, letter in _GROUP.findall(side)]
        for side in axes.split("->")
    )


def _sizes(entry: Entry, groups: _Groups, shape: Sequence[int], known: Mapping[str, int]) -> dict[str, int]:
    """Returns the size of every letter, from the known sizes and the shape of an array."""
    sizes = {"s": len(entry.paths), "x": 3, **known}
    fits = len(groups) == len(shape)
    for group, size in zip(groups, shape, strict=False):
        product = math.prod(sizes[letter] for letter in group if letter in sizes)
        unknown = [letter for letter in group if letter not in sizes]
        fits &= size % product == 0 and (bool(unknown) or size == product)
        sizes |= dict.fromkeys(unknown, size // product)
    if not fits:
        given = ", ".join(f"{letter}={size}" for letter, size in known.items())
        raise ValueError(f"{' and '.join(entry.names)} has the shape {list(shape)}, not {entry.axes} with {given}")
    return sizes


def _refuse_missing(entries: Iterable[Entry], tensors, expected, found: set[str]) -> None:
    missing = sorted(expected.keys() - found)
    if not missing:
        return
    first = (next((entry.names for entry in entries if path in entry.paths), ()) for path in missing)
    named = [name for names in first for name in names if name not in tensors]
    if not named:
        raise ValueError(f"no tensor of the file holds {_some(missing)}, which a model of this form has")
    raise ValueError(
        f"the file lacks {_some(list(dict.fromkeys(named)))}; {nearest(named[0], likest(named[0], tensors))}"
    )


def likest(name: str, names: Iterable[str]) -> list[str]:
    """Returns the few names that are most like a name."""
    return difflib.get_close_matches(name, list(names), n=8, cutoff=0.4)


def _some(names: Sequence[str], most: int = 6) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
