"""Lets the standard tensorflow-datasets builders write their sets without TensorFlow.

All of TFDS reaches TensorFlow through one lazily imported module object. While a set is prepared, a stand-in replaces it,
with the few functions that builders use (file access, PNG encoding). The stand-in never enters `sys.modules`, is removed
afterwards, and is not used if TensorFlow is installed.
"""

import contextlib
import functools
import glob
import importlib.util
import io
import os
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import numpy as np


class TensorFlowNeeded(AttributeError):
    """A builder asked for a part of TensorFlow that has no stand-in."""


_ERRORS = ("UnimplementedError", "ResourceExhaustedError", "NotFoundError")  # which TFDS names in `except` clauses


class _Module(SimpleNamespace):
    def __getattr__(self, attribute: str):
        raise TensorFlowNeeded(f"tensorflow's {attribute!r} has no stand-in")


class _Encoded(bytes):
    """PNG bytes with the `.numpy()` of an eager tensor."""

    def numpy(self) -> bytes:
        return bytes(self)


def encode_png(image: np.ndarray) -> _Encoded:
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(image[..., 0] if image.shape[-1] == 1 else image).save(buffer, format="png")
    return _Encoded(buffer.getvalue())


def _open(path, mode="r"):
    # TensorFlow's GFile reads and writes text as UTF-8 whatever the locale.
    return open(path, mode, encoding=None if "b" in mode else "utf-8")


def _local(function: Callable) -> Callable:
    """Refuses gs:// and other remote paths, which would otherwise look like missing files."""

    def checked(path, *args, **kwargs):
        if "://" in os.fspath(path):
            raise TensorFlowNeeded(f"reading {os.fspath(path)}")
        return function(path, *args, **kwargs)

    return checked


def _stand_in() -> _Module:
    gfile = _Module(
        GFile=_local(_open),
        exists=_local(os.path.exists),
        glob=_local(glob.glob),
        isdir=_local(os.path.isdir),
        listdir=_local(os.listdir),
        makedirs=_local(functools.partial(os.makedirs, exist_ok=True)),
        remove=_local(os.remove),
        walk=_local(os.walk),
    )
    return _Module(
        __version__="0",
        compat=_Module(as_text=os.fsdecode),
        errors=SimpleNamespace(**{name: type(name, (Exception,), {}) for name in _ERRORS}),
        executing_eagerly=lambda: True,
        image=_Module(encode_png=encode_png),
        io=_Module(gfile=gfile),
    )


@contextlib.contextmanager
def without_tensorflow() -> Iterator[None]:
    """Within this context TFDS's lazy TensorFlow module resolves to the stand-in, unless TensorFlow is installed."""
    if importlib.util.find_spec("tensorflow") is not None:
        yield
        return
    from tensorflow_datasets.core.utils import lazy_imports_utils

    # The lazy module keeps its target in its instance dictionary; absent means not resolved yet.
    resolved = vars(lazy_imports_utils.tensorflow)
    before = resolved.get("_module")
    resolved["_module"] = _stand_in()
    try:
        yield
    finally:
        if before is None:
            del resolved["_module"]
        else:
            resolved["_module"] = before
