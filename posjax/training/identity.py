"""Run.json, which identifies a run: written when the run begins, read by everything else.

hash          names the result: 12 hex digits over `fields` and `initial`
fields        the fields of the config that change the result, flat
seeds         of the ensemble
data_digest   of the data
initial       digest of the parameters that the run starts from, if they are not random
config        the whole config
files         of the user's code that defines the encoding, if there are any
environment   versions, commit and device
small         of a small run: the step, the digest and the times of its parameters
seal          hash of all the above
"""

import ast
import dataclasses
import functools
import importlib.util
import json
import os
import pathlib
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any

import jax
import numpy as np
from flax.traverse_util import flatten_dict
from ml_collections import ConfigDict

from posjax.data.containers import digest_of
from posjax.data.recipe import parse_augment
from posjax.environment import describe
from posjax.files import replace_file
from posjax.jsonl import config_hash, parse_json, strict
from posjax.spec import parse_layers
from posjax.training.checkpoints import CheckpointError
from posjax.training.tasks import Task

RUN = "run.json"
_INSTALLED = {sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")}
# Beginnings of fields that do not change the result: logging, paths, devices, and the start, whose parameters have a digest.
_NO_EFFECT = ("checkpoint_every", "data.data_dir", "data.stream", "data.workers", "eval_every", "init_", "keep_last")
_NO_EFFECT += ("log_every", "logger", "mesh.")


def flat_fields(config: dict[str, Any]) -> dict[str, Any]:
    """Returns {"model": {"width": 8}} as {"model.width": 8}."""
    return flatten_dict(config, sep=".")


def counting_fields(config: ConfigDict) -> dict[str, Any]:
    """Returns the fields of a config that change the result, flat: {"model.width": 8, ...}.

    With an encoding of the user's, "code" is a digest of the files that define it, and of the helpers beside them.
    """
    fields = flat_fields(config.to_dict())
    counting = {name: value for name, value in fields.items() if not name.startswith(_NO_EFFECT)}
    if "data.augment" in counting:
        counting["data.augment"] = str(parse_augment(counting["data.augment"])) or None  # however it is spelt
    files = user_files(config)
    return counting | ({"code": "-".join(sorted(map(digest_as_imported, files)))} if files else {})


def user_files(config: ConfigDict) -> list[str]:
    """Returns the files of the user's code that define the encoding of a config, and the helpers beside them."""
    return sorted(_files_of(parse_layers(flat_fields(config.to_dict()).get("model.encoding") or "none")))


def _files_of(part: Any) -> set[str]:
    """Returns the files outside posjax that define the classes of an encoding and of its parts."""
    if isinstance(part, tuple):
        return set().union(*map(_files_of, part))
    if not dataclasses.is_dataclass(part):
        return set()
    modules = filter(None, (sys.modules.get(each.__module__) for each in type(part).__mro__))
    files = set().union(*map(_with_helpers, modules))
    return _files_of(tuple(getattr(part, field.name) for field in dataclasses.fields(part))) | files


@functools.cache
def _with_helpers(module: ModuleType) -> frozenset[str]:
    """Returns the file of a module outside posjax, and the files beside it that it imports, and these in turn."""
    root, found, left = _root(module), set(), [module]
    while left:
        each = left.pop()
        file = getattr(each, "__file__", None) or ""
        if each.__name__.startswith("posjax.") or not file.endswith(".py") or file in found or _root(each) != root:
            continue
        found.add(file)
        if root not in _INSTALLED:
            left += filter(None, map(sys.modules.get, _imports(each)))
    return frozenset(found)


def _root(module: ModuleType) -> str:
    """Returns the folder in which Python found a module, or the package that holds it."""
    top = sys.modules.get(module.__name__.partition(".")[0], module)
    return os.path.dirname(next(iter(getattr(top, "__path__", ())), getattr(top, "__file__", None) or ""))


def _imports(module: ModuleType) -> Iterator[str]:
    """Yields the names that the imports of a module may have loaded."""
    for node in ast.walk(ast.parse(pathlib.Path(module.__file__).read_text())):
        names = [alias.name for alias in getattr(node, "names", ()) if isinstance(alias, ast.alias)]
        if isinstance(node, ast.ImportFrom):
            base = importlib.util.resolve_name("." * node.level + (node.module or ""), module.__package__)
            names = [f"{base}.{name}" for name in names]
        yield from ((".".join(name.split(".")[:end])) for name in names for end in range(1, name.count(".") + 2))


@functools.cache
def digest_as_imported(file: str) -> str:
    """Returns the digest of a file, read once a process: a study runs the code that it imported, not a later edit."""
    return digest_of(np.fromfile(file, np.uint8))


# A field counts in a hash where it is not at its default, which is None if it is not named here. So a new field whose default
# is None leaves all hashes as they are, and needs no entry.
_DEFAULTS = {"data.text_field": "text", "model.kind": "decoder", "model.remat": "none", "model.scan": False}
_DEFAULTS |= {"data.ladder.schedule": "linear", "data.ladder.start": 32, "data.ladder.steps": 0}
# For ever as in the hashes of committed results: fields that count at None too, and earlier names.
_COUNTED = {"eval_tokens", "trained_length"}
_COUNTED |= {f"data.{name}" for name in ("image_size", "images_per_row", "min_patches", "symbols", "tokens")}
_COUNTED |= {f"model.{name}" for name in ("attention_dtype", "embedding_scale", "layer_scale", "length", "mlp_bias")}
_COUNTED |= {f"model.{name}" for name in ("mlp_dim", "num_kv_heads", "pre_logits", "resnet", "variant", "vocab_size")}
_NAMES = {"model.kind": "architecture", "model.resnet": "model.stem", "model.resnet_width": "model.stem_width"}


# Operations of data.augment that committed results name by fields of their own, in the order in which they act.
_LOOSE = {"resized_crop": ("least_area",), "shift": ("crop_padding", "padding"), "flip": ("flip",), "mixup": ("mixup",)}
_NONE = {"crop_padding": 0, "flip": False, "least_area": 1.0, "mixup": 0.0, "padding": "black"}


def _loose(augment: str | None) -> dict[str, Any]:
    """Returns the earlier fields for data.augment; its text where it says more than these could."""
    operations = parse_augment(augment).operations
    names = [operation.spec_name for operation in operations]
    if names != [name for name in _LOOSE if name in names]:
        return {"data.augment": augment}
    given = {}
    for name, operation in zip(names, operations, strict=True):
        given |= zip(_LOOSE[name], dataclasses.astuple(operation) or (True,), strict=True)
    return {f"data.{name}": value for name, value in (_NONE | given).items()}


def _with_augment(fields: Any, prefix: str = "") -> Any:
    """Returns fields of a run.json with `augment` in place of the earlier ones; others as they are."""
    if not isinstance(fields, dict) or not {prefix + name for name in _NONE} <= fields.keys():
        return fields
    was = {name: fields[prefix + name] for name in _NONE}
    acts = [name for name, own in _LOOSE.items() if was[own[0]] != _NONE[own[0]]]
    text = " + ".join(f"{name}({', '.join(repr(was[own]) for own in _LOOSE[name] if own != 'flip')})" for name in acts)
    rest = {name: value for name, value in fields.items() if name.removeprefix(prefix) not in _NONE}
    return rest | {f"{prefix}augment": str(parse_augment(text or None)) or None}


def identity(config: ConfigDict) -> dict[str, Any]:
    """Returns the content of a config's hash: its `counting_fields` that are not at their defaults."""
    fields = counting_fields(config)
    if "data.augment" in fields:
        fields |= _loose(fields.pop("data.augment"))
    counted = _COUNTED | ({"data.files"} if "data.retrieval.share" in fields else set())
    # Models of texts had no such field when their results were committed.
    if fields.get("task") != "algorithmic" and fields.get("model.kind") != "init_from":
        counted -= {"model.vocab_size"}
    kept = {name: value for name, value in fields.items() if name in counted or value != _DEFAULTS.get(name)}
    return {_NAMES.get(name, name): value for name, value in kept.items()}


def digest(params: Any) -> str:
    """Returns a short sha256 of a tree of parameters: their values in order, and their shapes."""
    return digest_of(*map(np.asarray, jax.tree.leaves(params)))


def describe_run(task: Task, config: ConfigDict, seeds: tuple[int, ...], initial: Any = None) -> dict[str, Any]:
    """Returns the contents of run.json; `initial` are the parameters that the run starts from, None for random ones."""
    start = {} if initial is None else {"initial": digest(initial)}
    about = {"hash": config_hash(identity(config) | start), "fields": counting_fields(config), "seeds": seeds}
    about |= {"data_digest": task.digest, **start, "config": config.to_dict(), "environment": describe()}
    files = user_files(config)
    return strict(about | ({"files": files} if files else {}))


def write_run(workdir: str | os.PathLike, about: Mapping[str, Any]) -> None:
    """Writes run.json, sealed."""
    path = pathlib.Path(workdir) / RUN
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, json.dumps({**about, "seal": config_hash(about)}, indent=2, sort_keys=True).encode() + b"\n")


def read_run(workdir: str | os.PathLike) -> dict[str, Any]:
    """Returns the contents of run.json.

    Raises:
      CheckpointError: there is none, or it is not as it was written.
    """
    path = pathlib.Path(workdir) / RUN
    mend = "put back a copy of it, or move the directory away to start afresh"
    try:
        about = parse_json(path.read_bytes(), RUN)
        is_whole = about.pop("seal") == config_hash(about)
    except (OSError, ValueError, KeyError, RecursionError) as error:
        raise CheckpointError(f"{path} cannot be read ({error}): {mend}") from error
    if not is_whole:
        raise CheckpointError(f"{path} differs from what was written: {mend}")
    about["fields"] = _with_augment(about["fields"], "data.")
    about["config"]["data"] = _with_augment(about["config"]["data"])
    return about


def refuse_other_run(workdir: str | os.PathLike, about: Mapping[str, Any]) -> None:
    """Refuses to go on with the checkpoints of another run: of other seeds, data, start or fields that change the result.

    Raises:
      CheckpointError: names all that differ.
    """
    before, now = ({**run, **run["fields"]} for run in (read_run(workdir), about))
    names = sorted((before["fields"].keys() | now["fields"].keys()) | {"data_digest", "initial", "seeds"})
    if differ := [name for name in names if before.get(name) != now.get(name)]:
        was = ", ".join(f"{name} was {before.get(name)}" for name in differ)
        are = ", ".join(f"{f'{name} ' * (len(differ) > 1)}is {now.get(name)}" for name in differ)
        raise CheckpointError(
            f"{was} in {pathlib.Path(workdir) / RUN}, but {are} in this run; use the config that its checkpoints were saved "
            "with, or another workdir for this one"
        )
