"""What stands beside the arrays of a checkpoint: the record of every leaf and the seal over every file.

Used by `posjax.training.checkpoints`, whose docstring shows the layout.
"""

import dataclasses
import hashlib
import json
import pathlib
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp

RECORD, SEAL = "record.json", "seal.json"
SCALARS = (bool, int, float)
Leaves = dict[str, Any]  # tree path, as jax.tree_util.keystr writes it -> leaf


class CheckpointError(ValueError):
    """A checkpoint cannot be used as asked; the message says which, why, and what to do."""


class DamagedError(Exception):
    """The bytes of a step are not those that were written."""


def flatten(tree: Any) -> Leaves:
    """The leaves of `tree` by path, in tree order; ValueError if two of them have the same path."""
    leaves: Leaves = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        name = jax.tree_util.keystr(path)
        if name in leaves:
            raise ValueError(f"two leaves share the path {name}; give their pytree node keys that differ")
        leaves[name] = leaf
    return leaves


def describe(path: str, leaf: Any) -> dict[str, Any]:
    """{"dtype", "shape"} of an array, an abstract array or a Python number; TypeError for anything else."""
    if type(leaf) in SCALARS:
        return {"dtype": type(leaf).__name__, "shape": []}
    if isinstance(leaf, (jax.Array, jax.ShapeDtypeStruct)) or (is_numpy(leaf) and leaf.dtype.kind not in "OSUMm"):
        return {"dtype": str(leaf.dtype), "shape": list(leaf.shape)}
    raise TypeError(
        f"{path} is {leaf!r:.80} of type {type(leaf).__name__}, which a checkpoint cannot hold; use arrays or Python "
        "bool/int/float, and put text into metadata"
    )


def check_storable(leaves: Leaves) -> None:
    """Raises for what orbax would only refuse in its background thread, where a failure can hang the exit."""
    if not leaves:
        raise ValueError("the tree has no leaves; there is nothing to save")
    for path, leaf in leaves.items():
        shape = describe(path, leaf)["shape"]
        if isinstance(leaf, jax.ShapeDtypeStruct):
            raise TypeError(f"{path} is abstract ({leaf}); save the array itself")
        if 0 in shape:
            raise ValueError(f"{path} has no elements (shape {tuple(shape)}), which orbax cannot store; leave it out")
        if isinstance(leaf, int) and not -(2**63) <= leaf < 2**63:
            raise ValueError(f"{path} is {leaf}, which does not fit into 64 bits")


def digest(leaf: Any) -> str | None:
    """sha256 over the dtype, shape and host bytes of a leaf; None if other processes hold parts of it."""
    if type(leaf) in SCALARS:
        return hashlib.sha256(repr(leaf).encode()).hexdigest()
    if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable:
        return None
    content = hashlib.sha256(f"{leaf.dtype}{leaf.shape}".encode())
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = jax.random.key_data(leaf)
    content.update(np.ascontiguousarray(leaf).reshape(-1).view(np.uint8))
    return content.hexdigest()


def is_numpy(leaf: Any) -> bool:
    return isinstance(leaf, (np.ndarray, np.generic))


def read(directory: pathlib.Path, wanted: Leaves) -> Leaves:
    """The leaves of the step in `directory`, as `wanted` describes them and in its order.

    Raises:
      DamagedError: a file or a value is not what was written.
      CheckpointError: the checkpoint is sound but holds another tree than `wanted`.
    """
    record = unseal(directory)
    _check_same_tree(directory, record["leaves"], wanted)
    for name, sha256 in _read_seal(directory).items():
        _check_file(directory, name, sha256)
    with ocp.Checkpointer(ocp.StandardCheckpointHandler()) as checkpointer:
        targets = {path: _target(leaf) for path, leaf in wanted.items()}
        found = checkpointer.restore(directory / "tree", args=ocp.args.StandardRestore(targets))
    leaves = {path: found[path][()] if isinstance(leaf, np.generic) else found[path] for path, leaf in wanted.items()}
    for path, leaf in leaves.items():
        expected = record["leaves"][path]["digest"]
        if expected is not None and digest(leaf) not in (expected, None):
            raise DamagedError(f"{path} does not have the content that was saved")
    return leaves


def _target(leaf: Any) -> Any:
    """How to ask orbax for a leaf like this one."""
    if type(leaf) in SCALARS:
        return leaf
    is_key = jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    # 64-bit values come back as numpy when jax, with x64 off, would cut them in two.
    if is_numpy(leaf) or (not is_key and jax.dtypes.canonicalize_dtype(leaf.dtype) != leaf.dtype):
        return np.empty(leaf.shape, leaf.dtype)
    sharding = leaf.sharding or jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)


def _check_same_tree(directory: pathlib.Path, saved: Mapping[str, Mapping], wanted: Leaves) -> None:
    mend = "use the config it was saved with, or another directory for this one"
    for path, leaf in wanted.items():
        if path not in saved:
            raise CheckpointError(f"{path} is not in the checkpoint {directory}, but this run has it; {mend}")
        described = describe(path, leaf)
        for aspect in ("shape", "dtype"):
            if saved[path][aspect] != described[aspect]:
                raise CheckpointError(
                    f"{path} has {aspect} {saved[path][aspect]} in the checkpoint {directory}, but "
                    f"{described[aspect]} in this run; {mend}"
                )
    for path in saved:
        if path not in wanted:
            raise CheckpointError(f"the checkpoint {directory} has {path}, but this run has not; {mend}")


class RecordHandler(ocp.CheckpointHandler):
    """Writes the record; `finalize`, which orbax calls once the tree's files are final, seals both."""

    def save(self, directory, args: "RecordArgs"):
        if jax.process_index() == 0:
            (pathlib.Path(directory) / RECORD).write_text(args.text)

    def restore(self, directory, args=None):
        raise NotImplementedError("records are read by posjax, which checks the seal first")

    def finalize(self, directory):
        directory = pathlib.Path(directory)
        step = directory.parent
        seal = {str(path.relative_to(step)): _sha256(path) for path in (step / "tree").rglob("*") if path.is_file()}
        seal[f"record/{RECORD}"] = _sha256(directory / RECORD)
        (directory / SEAL).write_text(json.dumps(seal, indent=1))


@ocp.args.register_with_handler(RecordHandler, for_save=True, for_restore=True)
@dataclasses.dataclass
class RecordArgs(ocp.args.CheckpointArgs):
    text: str


def _sha256(path: pathlib.Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _read_seal(directory: pathlib.Path) -> dict[str, str]:
    try:
        seal = json.loads((directory / "record" / SEAL).read_text())
    except (OSError, ValueError) as error:
        raise DamagedError(f"record/{SEAL} cannot be read ({error})") from error
    if not isinstance(seal, dict) or f"record/{RECORD}" not in seal:
        raise DamagedError(f"record/{SEAL} does not list record/{RECORD}")
    return seal


def _check_file(directory: pathlib.Path, name: str, digest: str) -> None:
    try:
        same = _sha256(directory / name) == digest
    except (OSError, ValueError) as error:  # ValueError: a flipped bit made the name impossible
        raise DamagedError(f"{name} cannot be read ({error})") from error
    if not same:
        raise DamagedError(f"{name} differs from what was written")


def unseal(directory: pathlib.Path) -> dict[str, Any]:
    """The record of one step, after checking that it is the one written."""
    _check_file(directory, f"record/{RECORD}", _read_seal(directory)[f"record/{RECORD}"])
    return json.loads((directory / "record" / RECORD).read_text())
