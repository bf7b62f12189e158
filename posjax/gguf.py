"""Reads GGUF files, the format of llama.cpp: fields and tensors, the latter dequantised by the package `gguf`.

    file = GGUF("gemma-3-270m.gguf")
    file.fields["general.architecture"], file["token_embd.weight"]

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, versions 2 and 3.
"""

import math
import mmap
import struct
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from posjax.extras import require

SUFFIX = ".gguf"
# Codes of struct by the kind of a value.
_SCALARS = {**dict(enumerate("BbHhIif?")), 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY, _FLOAT32 = 8, 9, 6


class Stored(NamedTuple):
    """A tensor in the file: shape (last axis contiguous), type of ggml, and its bytes."""

    shape: tuple[int, ...]
    kind: int
    start: int
    size: int


class GGUF(Mapping[str, np.ndarray]):
    """The fields of a file, and its tensors by name, float32, dequantised on access.

    Args:
      path: the file.

    Attributes:
      fields: {key: number, text, bool or list}. Numbers of 32 bits are the shortest decimals that round to them.
      tensors: {name: `Stored`}.

    Raises:
      ImportError: the package `gguf` is missing.
      ValueError: the file is not GGUF, or cut off.
    """

    def __init__(self, path: Path):
        require(str(path), "gguf")
        self.path = path
        with path.open("rb") as file:
            if file.read(4) != b"GGUF":
                raise ValueError(f"{path} is not a GGUF file")
            self._bytes = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        try:
            self.fields, self.tensors = _header(self._bytes)
        except (_Damaged, UnicodeDecodeError) as error:
            raise ValueError(f"{path} is cut off or damaged ({error}): fetch it again") from None

    def __getitem__(self, name: str) -> np.ndarray:
        from gguf import GGMLQuantizationType, quants

        stored = self.tensors[name]
        kind = GGMLQuantizationType(stored.kind)
        data = np.frombuffer(self._bytes, np.uint8, stored.size, stored.start)
        try:
            found = quants.dequantize(data.view(_PLAIN.get(kind.name, np.uint8)), kind)
        except NotImplementedError:
            raise ValueError(f"{name} of {self.path} is {kind.name}, which the package gguf cannot read") from None
        return np.asarray(found, np.float32).reshape(stored.shape)

    def names_of(self, theirs: Iterable[str], depth: int) -> dict[str, str]:
        """Returns {name in transformers: name here} of the tensors that the file holds, for a model of so many layers."""
        from gguf import MODEL_ARCH_NAMES, get_tensor_name_map

        architecture = self.fields["general.architecture"]
        table = get_tensor_name_map(next(key for key, name in MODEL_ARCH_NAMES.items() if name == architecture), depth)
        found = {name: table.get_name(name, try_suffixes=(".weight", ".bias")) for name in theirs}
        return {name: own for name, own in found.items() if own in self.tensors}

    def __iter__(self) -> Iterator[str]:
        return iter(self.tensors)

    def __len__(self) -> int:
        return len(self.tensors)


_PLAIN = {"F32": np.float32, "F16": np.float16, "F64": np.float64}


class _Damaged(Exception):
    pass


class _Reader:
    """Reads values one after the other, each within the file."""

    def __init__(self, content: memoryview, at: int):
        self.content, self.at = content, at

    def take(self, size: int) -> memoryview:
        if size > len(self.content) - self.at:
            raise _Damaged(f"{size:,} bytes are announced at {self.at:,} of {len(self.content):,}")
        self.at += size
        return self.content[self.at - size : self.at]

    def number(self, code: str) -> Any:
        return struct.unpack("<" + code, self.take(struct.calcsize("<" + code)))[0]

    def text(self) -> str:
        return str(self.take(int.from_bytes(self.take(8), "little")), "utf-8")

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.text()
        if kind == _ARRAY:
            return self.array()
        if kind not in _SCALARS:
            raise _Damaged(f"a value is of the unknown kind {kind}")
        found = self.number(_SCALARS[kind])
        return float(str(np.float32(found))) if kind == _FLOAT32 else found

    def array(self) -> list:
        kind, count = self.number("I"), self.number("Q")
        if kind == _STRING:
            return [self.text() for _ in range(count)]
        if kind not in _SCALARS:
            raise _Damaged(f"an array is of kind {kind}")
        code = np.dtype(_SCALARS[kind]).newbyteorder("<")
        return np.frombuffer(self.take(code.itemsize * count), code).tolist()


def _header(content: memoryview) -> tuple[dict[str, Any], dict[str, Stored]]:
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

    reader = _Reader(content, 4)
    version, tensor_count, field_count = reader.number("I"), reader.number("Q"), reader.number("Q")
    if version not in (2, 3):
        raise _Damaged(f"version {version} is not read, 2 and 3 are")
    fields: dict[str, Any] = {}
    for _ in range(field_count):
        key = reader.text()
        fields[key] = reader.value(reader.number("I"))
    headers: dict[str, tuple[tuple[int, ...], int, int]] = {}
    for _ in range(tensor_count):
        name, axes = reader.text(), reader.number("I")
        shape = tuple(reader.number("Q") for _ in range(axes))[::-1]
        headers[name] = shape, reader.number("I"), reader.number("Q")
    step = fields.get("general.alignment", 32)
    first = -(-reader.at // step) * step
    sizes = {int(kind): GGML_QUANT_SIZES[kind] for kind in GGMLQuantizationType}
    tensors = {}
    for name, (shape, kind, offset) in headers.items():
        if kind not in sizes:
            raise _Damaged(f"the tensor {name!r} is of the unknown type {kind}")
        block, bytes_of_block = sizes[kind]
        size = math.prod(shape) // block * bytes_of_block
        if first + offset + size > len(content):
            raise _Damaged(f"the tensor {name!r} of {size:,} bytes does not lie within the file's {len(content):,}")
        tensors[name] = Stored(shape, kind, first + offset, size)
    return fields, tensors
