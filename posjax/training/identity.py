"""Run.json, which identifies a run: written when the run begins, read by everything else.

hash          names the result: 12 hex digits over `fields` and `initial`
fields        the fields of the config that change the result, flat
seeds         of the ensemble
data_digest   of the data
initial       digest of the parameters that the run starts from, if they are not random
config        the whole config
environment   versions, commit and device
seal          hash of all the above
"""

import json
import os
import pathlib
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from flax.traverse_util import flatten_dict
from ml_collections import ConfigDict

from posjax.data.containers import digest_of
from posjax.files import replace_file
from posjax.jsonl import config_hash, strict
from posjax.training.checkpoints import CheckpointError
from posjax.training.environment import describe
from posjax.training.tasks import Task

RUN = "run.json"
# Beginnings of fields that do not change the result: logging, paths, devices, and the start, whose parameters have a digest.
_NO_EFFECT = ("checkpoint_every", "data.data_dir", "eval_every", "init_", "keep_last", "log_every", "logger", "mesh.")


def flat_fields(config: dict[str, Any]) -> dict[str, Any]:
    """Returns {"model": {"width": 8}} as {"model.width": 8}."""
    return flatten_dict(config, sep=".")


def identity(config: ConfigDict) -> dict[str, Any]:
    """Returns the fields of a config that change the result, flat: {"model.width": 8, ...}; `config_hash` names them."""
    fields = flat_fields(config.to_dict())
    return _as_committed({name: value for name, value in fields.items() if not name.startswith(_NO_EFFECT)})


# Hashes in committed results are older than these names and fields.
_COMMITTED = {"model.kind": "architecture", "model.resnet": "model.stem", "model.resnet_width": "model.stem_width"}
_ABSENT = {"data.bos": None, "data.channels": None, "data.tokenizer": None, "model.latent": None}
_ABSENT |= {
    "data.text_field": "text",
    "data.ladder.schedule": "linear",
    "data.ladder.start": 32,
    "data.ladder.steps": 0,
}


def _as_committed(fields: dict[str, Any]) -> dict[str, Any]:
    """Names the fields as hashes in committed results do: by their first names, without later fields at their defaults."""
    has_retrieval = any(name.startswith("data.retrieval.") for name in fields)
    absent = _ABSENT | ({} if has_retrieval else {"data.files": None})
    absent |= {"model.kind": "decoder"}
    kept = {name: value for name, value in fields.items() if name not in absent or value != absent[name]}
    return {_COMMITTED.get(name, name): value for name, value in kept.items()}


def digest(params: Any) -> str:
    """Returns a short sha256 of a tree of parameters: their values in order, and their shapes."""
    return digest_of(*map(np.asarray, jax.tree.leaves(params)))


def describe_run(task: Task, config: ConfigDict, seeds: tuple[int, ...], initial: Any = None) -> dict[str, Any]:
    """Returns the contents of run.json; `initial` are the parameters that the run starts from, None for random ones."""
    fields, start = identity(config), {} if initial is None else {"initial": digest(initial)}
    about = {"hash": config_hash(fields | start), "fields": fields, "seeds": seeds, "data_digest": task.digest}
    return strict({**about, **start, "config": config.to_dict(), "environment": describe()})


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
        about = json.loads(path.read_bytes())
        seal = about.pop("seal")
    except (OSError, ValueError, AttributeError, TypeError, KeyError) as error:
        raise CheckpointError(f"{path} cannot be read ({error}): {mend}") from error
    if seal != config_hash(about):
        raise CheckpointError(f"{path} differs from what was written: {mend}")
    return about


def refuse_other_run(workdir: str | os.PathLike, about: Mapping[str, Any]) -> None:
    """Refuses to go on with the checkpoints of another run: of other seeds, data, start or fields that change the result.

    Raises:
      CheckpointError: names the first that differs.
    """
    before, now = ({**run, **run["fields"]} for run in (read_run(workdir), about))
    for name in sorted((before["fields"].keys() | now["fields"].keys()) | {"data_digest", "initial", "seeds"}):
        if before.get(name) != now.get(name) or (name in before) != (name in now):
            was, is_now = (run.get(name, "not there") for run in (before, now))
            raise CheckpointError(
                f"{name} was {was} in {pathlib.Path(workdir) / RUN}, but is {is_now} in this run; use the config that its "
                "checkpoints were saved with, or another workdir for this one"
            )
