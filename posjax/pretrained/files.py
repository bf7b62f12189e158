"""Files of weights: what they hold, read without TensorFlow or torch, and never unpickled."""

import json
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import safetensors
import safetensors.numpy

_PICKLED = {".pt", ".pth", ".bin", ".ckpt", ".pkl", ".tar"}


class Weights(Mapping[str, np.ndarray]):
    """The tensors of a file by name, read when asked for; `shapes` are known at once.

        weights = Weights.of("ViT-B_16.npz")

    `metadata` is the header's, `config` and `preprocessor` are the config.json and preprocessor_config.json beside it
    ({} without).
    """

    def __init__(self, path: Path, shapes: Mapping[str, tuple[int, ...]], read, metadata: Mapping[str, str]):
        self.path, self.shapes, self.metadata = path, dict(shapes), dict(metadata)
        self._read = read
        self.config = _json(path.parent / "config.json")
        self.preprocessor = _json(path.parent / "preprocessor_config.json")

    def __getitem__(self, name: str) -> np.ndarray:
        return self._read(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.shapes)

    def __len__(self) -> int:
        return len(self.shapes)

    @staticmethod
    def of(path: str | Path) -> "Weights":
        """Opens an .npz or .safetensors file, or a folder that timm or transformers saved a model in.

        Raises:
          FileNotFoundError: if there is none.
          ValueError: for a pickled file, one of another kind, or one that is cut off.
        """
        path = Path(path)
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
        return _READERS[path.suffix](path)


def write_safetensors(path: str | Path, tensors: Mapping[str, np.ndarray], metadata: Mapping[str, str]) -> None:
    path = Path(path)
    if path.suffix != ".safetensors":
        raise ValueError(f"weights are saved as .safetensors, got the name {str(path)!r}")
    path.parent.mkdir(parents=True, exist_ok=True)
    safetensors.numpy.save_file(dict(tensors), path, metadata=dict(metadata))


def _inside(folder: Path) -> Path:
    names = ["model.safetensors", "model.safetensors.index.json"]
    for name in names:
        if (folder / name).exists():
            return folder / name
    raise ValueError(f"{folder} holds neither {' nor '.join(names)}; give the file of weights itself")


def _json(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        return json.loads(path.read_text())
    except ValueError as error:
        raise ValueError(f"{path} is no JSON: {error}") from None


def _safetensors(path: Path) -> Weights:
    try:
        file = safetensors.safe_open(path, framework="np")
    except safetensors.SafetensorError as error:
        raise ValueError(f"{path} is cut off or no safetensors file ({error}): fetch it again") from None
    names = file.keys()
    shapes = {name: tuple(file.get_slice(name).get_shape()) for name in names}
    return Weights(path, shapes, file.get_tensor, file.metadata() or {})


def _shards(path: Path) -> Weights:
    """Several safetensors files and a JSON index, as large models are saved."""
    index = _json(path).get("weight_map")
    if not index:
        raise ValueError(f"{path} has no weight_map: it is no index of safetensors files")
    files = {name: _safetensors(path.parent / name) for name in sorted(set(index.values()))}
    if lacking := sorted(name for name, file in index.items() if name not in files[file].shapes):
        raise ValueError(f"{path} promises {lacking[0]} in {index[lacking[0]]}, which does not hold it")
    shapes = {name: files[file].shapes[name] for name, file in index.items()}
    return Weights(path, shapes, lambda name: files[index[name]][name], {})


def _npz(path: Path) -> Weights:
    try:
        with zipfile.ZipFile(path) as archive:
            members = [name for name in archive.namelist() if name.endswith(".npy")]
            shapes = {name.removesuffix(".npy"): _npy_shape(archive, name) for name in members}
    except (zipfile.BadZipFile, EOFError) as error:
        raise ValueError(f"{path} is cut off or no .npz file ({error}): fetch it again") from None

    def read(name: str) -> np.ndarray:
        try:
            with np.load(path, allow_pickle=False) as file:
                array = file[name]
        except zipfile.BadZipFile as error:
            raise ValueError(f"{path} is damaged at {name} ({error}): fetch it again") from None
        # numpy does not know bfloat16 and brings it back as two raw bytes.
        return array.view(ml_dtypes.bfloat16) if array.dtype == np.dtype("V2") else array

    return Weights(path, shapes, read, {})


def _npy_shape(archive: zipfile.ZipFile, name: str) -> tuple[int, ...]:
    with archive.open(name) as member:
        version = np.lib.format.read_magic(member)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = read(member)
    if dtype.hasobject:
        raise ValueError(f"{name.removesuffix('.npy')} is pickled, and reading it would run whatever code it holds")
    return shape


_READERS = {".npz": _npz, ".safetensors": _safetensors, ".json": _shards}
