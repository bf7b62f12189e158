"""Files of weights, read without TensorFlow or torch, and never unpickled."""

import errno
import json
import math
import os
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import safetensors
import safetensors.numpy

from posjax.files import HEADER_ERRORS, naming, replace_file
from posjax.hub import local
from posjax.jsonl import parse_json

# Prefixes that DistributedDataParallel, torch.compile and PEFT put before every name.
_WRAPPERS = ("module.", "_orig_mod.", "base_model.model.")
_PICKLED = {".pt", ".pth", ".bin", ".ckpt", ".pkl", ".tar"}


class WeightsFile(Mapping[str, np.ndarray]):
    """The tensors of a file by name, read on access: views of the file if its format allows it, so copy what you keep.

        weights = WeightsFile.of("ViT-B_16.npz")

    `shapes` are known at once, `metadata` comes from the header, `config` and `preprocessor` from config.json and
    preprocessor_config.json beside the file ({} if missing).
    """

    def __init__(
        self,
        path: Path,
        shapes: Mapping[str, tuple[int, ...]],
        read: Callable[[str], np.ndarray],
        metadata: Mapping[str, str],
    ):
        self.path, self.shapes, self.metadata = path, dict(shapes), dict(metadata)
        self._read = read
        self.config = read_json(path.parent / "config.json")
        self.preprocessor = read_json(path.parent / "preprocessor_config.json")

    def __getitem__(self, name: str) -> np.ndarray:
        return self._read(name)

    def __contains__(self, name: object) -> bool:
        return name in self.shapes

    def __iter__(self) -> Iterator[str]:
        return iter(self.shapes)

    def __len__(self) -> int:
        return len(self.shapes)

    def renamed(self, names: Mapping[str, str]) -> "WeightsFile":
        """Returns some of the tensors under other names, {new: old}."""
        shapes = {new: self.shapes[old] for new, old in names.items()}
        return WeightsFile(self.path, shapes, lambda name: self[names[name]], self.metadata)

    @staticmethod
    def of(path: str | Path) -> "WeightsFile":
        """Opens an .npz or .safetensors file, or a folder that timm or transformers saved a model in (or its hub name).

        Raises:
          FileNotFoundError: the file is missing.
          ValueError: the file is pickled, of another kind, cut off or damaged.
        """
        path = local(path)
        if path.is_dir():
            path = _inside(path)
        if not path.exists():
            raise FileNotFoundError(f"there is no file of weights {str(path)!r}")
        if path.suffix in _PICKLED:
            raise ValueError(
                f"{path} is pickled, and reading it would run whatever code it holds: convert it where torch is, with "
                "safetensors.torch.save_file(torch.load(file, weights_only=True), 'weights.safetensors')"
            )
        if path.suffix not in _READERS:
            raise ValueError(f"weights are read from .npz and .safetensors files, and {path} is neither")
        weights = _READERS[path.suffix](path)
        if adapter := next((name for name in weights if ".lora_" in name), None):
            raise ValueError(f"{path} holds adapters ({adapter}): save peft_model.merge_and_unload()")
        for wrapper in _WRAPPERS * 2:
            if weights.shapes and all(name.startswith(wrapper) for name in weights):
                weights = weights.renamed({name.removeprefix(wrapper): name for name in weights})
        return weights


def write_safetensors(path: str | Path, tensors: Mapping[str, np.ndarray], metadata: Mapping[str, str]) -> None:
    """Writes a file; if that fails, an earlier file of this name stays.

    Raises:
      ValueError: the suffix is not .safetensors.
      OSError: the file cannot be written, for example on a full disk; the message names it.
    """
    path = Path(path)
    if path.suffix != ".safetensors":
        raise ValueError(f"weights are saved as .safetensors, got the name {str(path)!r}")
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f".{os.getpid()}-{path.name}")
    with naming(path, sum(tensor.nbytes for tensor in tensors.values())):
        try:
            new.touch()
            mode = new.stat().st_mode  # as the user's other files have it: safetensors lets nobody else read
            safetensors.numpy.save_file(dict(tensors), new, metadata=dict(metadata))
            new.chmod(mode)
            new.replace(path)
        except safetensors.SafetensorError as error:  # the system's error is only in its text
            full = "No space left" in str(error)
            raise OSError(
                errno.ENOSPC if full else errno.EIO, os.strerror(errno.ENOSPC) if full else str(error)
            ) from None
        finally:
            new.unlink(missing_ok=True)


def write_shards(folder: Path, tensors: Iterable[tuple[str, np.ndarray]], shard_bytes: int) -> None:
    """Writes model.safetensors, or several files and their index above `shard_bytes`, named as in transformers.

    One shard at a time is in memory. Older shards in the folder are removed, so two models never mix.
    """
    folder.mkdir(parents=True, exist_ok=True)
    shards: list[tuple[Path, list[str]]] = []
    total, held = 0, {}
    for name, tensor in tensors:
        if held and sum(each.nbytes for each in held.values()) + tensor.nbytes > shard_bytes:
            shards.append(_write_shard(folder, len(shards), held))
            held = {}
        held[name] = tensor
        total += tensor.nbytes
    shards.append(_write_shard(folder, len(shards), held))
    for old in (*folder.glob("model.safetensors*"), *folder.glob("model-*-of-*.safetensors")):
        old.unlink()
    if len(shards) == 1:
        shards[0][0].rename(folder / "model.safetensors")
        return
    index: dict[str, str] = {}
    for number, (path, names) in enumerate(shards, 1):
        final = f"model-{number:05}-of-{len(shards):05}.safetensors"
        path.rename(folder / final)
        index |= dict.fromkeys(names, final)
    text = json.dumps({"metadata": {"total_size": total}, "weight_map": dict(sorted(index.items()))}, indent=2)
    replace_file(folder / "model.safetensors.index.json", text.encode() + b"\n")


def _write_shard(folder: Path, number: int, tensors: Mapping[str, np.ndarray]) -> tuple[Path, list[str]]:
    path = folder / f".{os.getpid()}-{number}.safetensors"
    write_safetensors(path, tensors, {"format": "pt"})
    return path, list(tensors)


def _inside(folder: Path) -> Path:
    whole, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    named = read_json(index).get("weight_map")
    if whole.exists() and isinstance(named, dict) and whole.name not in named.values():
        raise ValueError(f"{folder} holds {whole.name} and {index.name} of other files: remove one, or give a file")
    for path in (index, whole):
        if path.exists():
            return path
    raise ValueError(f"{folder} holds neither {whole.name} nor {index.name}; give the file of weights itself")


def read_json(path: Path) -> dict[str, Any]:
    """Reads the object of a JSON file; {} if the file is missing.

    Raises:
      ValueError: the file is not a JSON object.
    """
    if not path.exists():
        return {}
    return parse_json(path.read_bytes(), path, strict=True)


# Types of tensors by their names in the header of a safetensors file.
_DTYPES = {
    **{"BF16": ml_dtypes.bfloat16, "F16": np.float16, "F32": np.float32, "F64": np.float64, "BOOL": np.bool_},
    **{"I8": np.int8, "I16": np.int16, "I32": np.int32, "I64": np.int64},
    **{"U8": np.uint8, "U16": np.uint16, "U32": np.uint32, "U64": np.uint64},
}


def _safetensors(path: Path) -> WeightsFile:
    if not path.is_file():
        raise ValueError(f"{path} is not a file")
    try:
        # It checks the header: tensors lie within the file, without gaps, and their bytes match their shapes.
        file = safetensors.safe_open(path, framework="np")
    except (safetensors.SafetensorError, OSError) as error:
        raise ValueError(f"{path} is cut off or no safetensors file ({error}): fetch it again") from None
    with path.open("rb") as opened:
        length = int.from_bytes(opened.read(8), "little")
        header = json.loads(opened.read(length))
    names = file.keys()

    def read(name: str) -> np.ndarray:
        kind, shape, (start, _) = (header[name][key] for key in ("dtype", "shape", "data_offsets"))
        if kind not in _DTYPES:
            raise ValueError(f"{name} of {path} is of type {kind}, which is not read; known: {', '.join(_DTYPES)}")
        if not math.prod(shape):
            return np.zeros(shape, _DTYPES[kind])
        if not shape:
            return np.memmap(path, _DTYPES[kind], "r", 8 + length + start, (1,)).reshape(())
        return np.memmap(path, _DTYPES[kind], "r", 8 + length + start, tuple(shape))

    shapes = {name: tuple(header[name]["shape"]) for name in names}
    return WeightsFile(path, shapes, read, file.metadata() or {})


def _shards(path: Path) -> WeightsFile:
    """Opens several safetensors files by their JSON index, the format of large models."""
    index = read_json(path).get("weight_map")
    if not index or not isinstance(index, dict):
        raise ValueError(f"{path} has no weight_map: it is not an index of safetensors files")
    for name in index.values():
        if not isinstance(name, str) or Path(name).name != name:
            raise ValueError(f"the weight_map of {path} has {name!r}, which is not the name of a file beside it")
    files = {name: _safetensors(path.parent / name) for name in sorted(set(index.values()))}
    if lacking := sorted(name for name, file in index.items() if name not in files[file].shapes):
        raise ValueError(f"{path} promises {lacking[0]} in {index[lacking[0]]}, which does not hold it")
    shapes = {name: files[file].shapes[name] for name, file in index.items()}
    return WeightsFile(path, shapes, lambda name: files[index[name]][name], {})


# Errors of a damaged zip, or of a damaged .npy in it.
_DAMAGED = (zipfile.BadZipFile, zlib.error, struct.error, EOFError, OSError, NotImplementedError, RuntimeError)


def _npz(path: Path) -> WeightsFile:
    shapes, pickled = {}, []
    try:
        with zipfile.ZipFile(path) as archive:
            for name in filter(lambda name: name.endswith(".npy"), archive.namelist()):
                with archive.open(name) as member:
                    is_first = np.lib.format.read_magic(member) == (1, 0)
                    header = np.lib.format.read_array_header_1_0 if is_first else np.lib.format.read_array_header_2_0
                    shapes[name.removesuffix(".npy")], _, dtype = header(member)
                    pickled += [name] if dtype.hasobject else []
    except (*_DAMAGED, *HEADER_ERRORS) as error:
        raise ValueError(f"{path} is cut off or no .npz file ({error}): fetch it again") from None
    if pickled:
        raise ValueError(f"{pickled[0]} of {path} is pickled, and reading it would run whatever code it holds")

    def read(name: str) -> np.ndarray:
        try:
            with zipfile.ZipFile(path) as archive, archive.open(f"{name}.npy") as member:
                array = np.lib.format.read_array(member, allow_pickle=False)
                member.read(1)  # the end of the file verifies the checksum
        except (*_DAMAGED, ValueError) as error:
            raise ValueError(f"{path} is damaged at {name} ({error}): fetch it again") from None
        # numpy does not know bfloat16 and reads it as two raw bytes.
        return array.view(ml_dtypes.bfloat16) if array.dtype == np.dtype("V2") else array

    return WeightsFile(path, shapes, read, {})


_READERS = {".npz": _npz, ".safetensors": _safetensors, ".json": _shards}
