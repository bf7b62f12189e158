"""Where training starts, if not at random: the parameters of a run, or of a file of pretrained weights."""

import os
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from posjax import pretrained
from posjax.models import resize_params
from posjax.models.replacing import with_encoding
from posjax.models.transformer import OfBlocks
from posjax.models.vit import image_channels
from posjax.spec import nearest
from posjax.training.runs import is_run, load_run
from posjax.training.tasks import Task

HEADS = ["keep", "new"]
# What no shape tells: a model that differs in these takes the same parameters and computes something else.
_UNSEEN = ("injection", "logit_scale", "mlp", "norm", "norm_epsilon", "norm_after_pooling", "norm_offset", "num_heads")
_UNSEEN += ("patch_size", "placement", "softcap")


def initial_params(
    path: str | os.PathLike,
    task: Task,
    seeds: tuple[int, ...],
    *,
    head: str = "keep",
    method: str | None = None,
) -> Any:
    """Parameters [R, ...] of `task.model` that another model of the same sizes has learned.

    Tables are resized to the images of the task, as for fine-tuning at a higher resolution (Dosovitskiy et al. 2020, section
    3.2); another encoding than the one that learned takes over its parameters where it has the same ones.

    Args:
      path: a workdir: each seed takes its own weights, or all take those of its only seed;
        or whatever `posjax.pretrained.load` reads, the same for all seeds.
      head: "keep", or "new": zeros. A head of another number of classes is made new in any case.
      method: of resizing, by name; None for that of a file's authors, and "torch_bicubic" for a run.

    Raises:
      ValueError: a seed that the run has not, a model of other sizes or of another injection, MLP or norm, pixels that
        are scaled otherwise, an unknown head or method, or what cannot be read.
    """
    if head not in HEADS:
        raise ValueError(f"no init_head is named {head!r}; {nearest(head, HEADS)}")
    wanted = jax.eval_shape(lambda: task.init(jax.random.key(0)))
    if is_run(path):
        run = load_run(path)
        model, found = run.model, [run.of(_index(run.seeds, seed, path)) for seed in seeds]
    else:
        model, params = pretrained.load(path)
        found, method = [params["params"]] * len(seeds), method or pretrained.info(path).method
    if isinstance(model, OfBlocks) and isinstance(task.model, type(model)):
        _refuse_unlike(path, model, task.model)
        if is_run(path):  # of a file it may be no more than what its family has
            _refuse_scale(path, run.config.data, task.scale)
        if model.image_size != task.model.image_size:
            resized = [
                resize_params(model, params, task.model.image_size, method or "torch_bicubic") for params in found
            ]
            model, found = resized[0][0], [params for _, params in resized]
        found = [_adapted(model, params, task.model, wanted) for params in found]
    return jax.tree.map(lambda *leaves: np.stack(leaves), *(_matched(path, params, wanted, head) for params in found))


def _refuse_unlike(path: Any, model: OfBlocks, target: OfBlocks) -> None:
    for name in _UNSEEN:
        was, is_now = (getattr(each, name, None) for each in (model, target))
        if was != is_now:
            raise ValueError(
                f"{name} is {was!r} in {path}, but {is_now!r} in this model: set config.model.{name}={was}"
            )


def _refuse_scale(path: Any, was: ConfigDict, is_now: tuple[tuple[float, ...], tuple[float, ...]]) -> None:
    mean, std = tuple(was.mean), tuple(was.std)
    if not (np.allclose(mean, is_now[0]) and np.allclose(std, is_now[1])):
        raise ValueError(
            f"pixels are scaled by mean {mean} and std {std} in {path}, but by {is_now[0]} and {is_now[1]} here: set "
            f"config.data.mean={mean} and config.data.std={std}"
        )


def _index(seeds: tuple[int, ...], seed: int, path: Any) -> int:
    if seed in seeds:
        return seeds.index(seed)
    if len(seeds) == 1:
        return 0
    raise ValueError(f"seed {seed} is not among those of {path}, {', '.join(map(str, seeds))}: start from one of them")


def _adapted(model: Any, params: Any, target: Any, wanted: Any) -> Any:
    """What a model has learned, as one with another encoding takes it over."""
    if model.encoding == target.encoding:
        return params
    example = model.example(image_channels(wanted))
    return with_encoding(model, params, target.encoding, lambda it: it.init(jax.random.key(0), *example)["params"])[1]


def _matched(path: Any, params: Any, wanted: Any, head: str) -> Any:
    """The parameters in the form `wanted`, heads made new where they have to be."""
    there = {_name(key): leaf for key, leaf in jax.tree_util.tree_leaves_with_path(params)}
    shapes = {_name(key): leaf.shape for key, leaf in jax.tree_util.tree_leaves_with_path(wanted)}
    found = {name: np.shape(leaf) for name, leaf in there.items()}
    fresh = {name for name in shapes if _is_head(name) and (head == "new" or found.get(name) != shapes[name])}
    for name in sorted(shapes.keys() | found.keys()):
        if not _is_head(name) and found.get(name) != shapes.get(name):
            was, needed = (each.get(name, "not there") for each in (found, shapes))
            raise ValueError(
                f"{name} is {was} in {path}, but {needed} in this model: config.model must be as it was trained there"
            )

    def taken(key: Any, leaf: jax.ShapeDtypeStruct) -> np.ndarray:
        name = _name(key)
        return np.zeros(leaf.shape, leaf.dtype) if name in fresh else np.asarray(there[name], leaf.dtype)

    return jax.tree_util.tree_map_with_path(taken, wanted)


def _name(key: Any) -> str:
    return jax.tree_util.keystr(key, simple=True, separator="/")


def _is_head(name: str) -> bool:
    return name.split("/")[0] in ("head", "head_distillation")
