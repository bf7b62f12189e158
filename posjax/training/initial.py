"""The start of a fine-tune: the model and the parameters of a run, or of pretrained weights."""

import functools
import os
import pathlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from posjax import pretrained
from posjax.data.tokens import BYTES
from posjax.data.tokens import FILE as TOKENIZER
from posjax.gguf import SUFFIX
from posjax.hub import local
from posjax.models import resize_params
from posjax.models.decoder import Decoder
from posjax.models.kinds import KINDS
from posjax.models.replacing import with_encoding
from posjax.models.transformer import BlockModel
from posjax.models.vit import ViT, image_channels
from posjax.pretrained.fields import json_fields
from posjax.pretrained.parameters import is_encoding, paths_of, tree_of
from posjax.remote import local_copy
from posjax.spec import nearest, parse_layers
from posjax.training.identity import digest
from posjax.training.runs import is_run, load_run
from posjax.training.tasks import Task

AS_INIT = "init_from"  # a kind of model: the one that config.init_from names
HEADS, ENCODINGS = ["keep", "new", "means"], ["keep", "keep_or_new", "new"]
_TASKS = {"language_model": Decoder, "classification": ViT}  # tasks whose model `init_from` can give
_CONFIGS = {Decoder: "configs/finetune.py", ViT: "configs/finetune.py:vit"}
# Fields in which a model may differ from the start's: its heads, its encoding, sizes of its data, and how it is computed.
_FREE_TO_DIFFER = {"kind", "encoding", "length", "image_size", "num_classes", "num_pair_classes", "pooler"}
_FREE_TO_DIFFER |= {"head", "head_bias", "head_dense_bias", "dropout", "drop_path", "patch_dropout", "scan", "remat"}
_FREE_TO_DIFFER |= {"implementation", "dtype", "attention_dtype", "param_dtype"}
OWN = "{own}"  # in a spec: the encoding of the start


class Start:
    """The run or the weights that `config.init_from` names, read once.

    Args:
      path: a workdir, or anything that `posjax.pretrained.load` reads, also at an address in a bucket.
      ignore: keys of a configuration to pass over, with commas between; `config.init_ignore`.

    Attributes:
      run: of a workdir; else None.
    """

    def __init__(self, path: str | os.PathLike, ignore: str | None = None):
        self._ignore = {"ignore": ignore.split(",")} if ignore else {}
        path = local_copy(os.fspath(path))
        self.path, self.run = (path, load_run(path)) if is_run(path) else (local(path), None)

    @functools.cached_property
    def _loaded(self) -> tuple[Any, Any]:
        if self.run is not None:
            return self.run.model, None
        model, params = pretrained.load(self.path, **self._ignore)
        return model, params["params"]

    @property
    def model(self) -> Any:
        """The model of the run, or of the weights."""
        return self._loaded[0]

    def of_seeds(self, seeds: tuple[int, ...]) -> list[Any]:
        """Returns the parameters of each seed; all seeds of a file, and of a run with one seed, have the same.

        Raises:
          ValueError: the run lacks a seed.
        """
        if self.run is None:
            return [self._loaded[1]] * len(seeds)
        known = self.run.seeds
        if len(known) == 1:
            return [self.run.of(0)] * len(seeds)
        if unknown := [seed for seed in seeds if seed not in known]:
            there = ", ".join(map(str, known))
            raise ValueError(f"seed {unknown[0]} is not among those of {self.path}, {there}: start from one of them")
        return [self.run.of(known.index(seed)) for seed in seeds]

    @functools.cached_property
    def digest(self) -> str:
        """The digest of its parameters, of all seeds."""
        return digest(self._loaded[1] if self.run is None else self.run.params)

    @property
    def bos(self) -> bool | None:
        """The start's `config.data.bos`; None for a file, where the template of its tokenizer says it."""
        return self.run.config.data.get("bos") if self.run is not None else None

    @property
    def images(self) -> dict[str, Any]:
        """The fields of `config.data` for images as the model takes them."""
        params = self.of_seeds(self.run.seeds[:1] if self.run else (0,))[0]
        about = self.run.config.data if self.run is not None else pretrained.info(self.path)
        size = tuple(self.model.image_size)
        return dict(image_size=size, channels=image_channels(params), mean=tuple(about.mean), std=tuple(about.std))

    @property
    def tokenizer(self) -> str:
        """The start's `config.data.tokenizer`: of the run, or the file beside the weights.

        Raises:
          ValueError: there is no such file.
        """
        if self.run is not None:
            return self.run.config.data.get("tokenizer") or BYTES.name
        path = pathlib.Path(self.path)
        if path.suffix == SUFFIX:
            return str(path)
        beside = (path if path.is_dir() else path.parent) / TOKENIZER
        if not beside.is_file():
            raise ValueError(f"{self.path} has no {TOKENIZER}: set config.data.tokenizer, {BYTES.name!r} for bytes")
        return str(beside)


def start_of(config: ConfigDict) -> Start | None:
    """Returns the start that `config.init_from` names; None to start at random."""
    path, ignore = config.get("init_from"), config.get("init_ignore")
    return None if path is None else Start(path, ignore)


def as_started(config: ConfigDict, start: Start | None) -> ConfigDict:
    """Returns the config with its model spelled out: the model of the start, where `config.model.kind` is "init_from".

    Fields of `config.model` that are not None hold instead of the start's. Text gets the start's tokenizer and bos, unless
    `config.data.tokenizer` and `config.data.bos` are set; images become as the start takes them (size, channels, mean and
    deviation), unless `config.data` says otherwise.

    Raises:
      ValueError: there is no start, or it is of another task.
    """
    wanted = _TASKS.get(config.task)
    if wanted is None or config.model.get("kind") != AS_INIT:
        return config
    if start is None:
        raise ValueError(f"config.model.kind={AS_INIT!r} needs config.init_from: set that to a run or weights")
    if not isinstance(start.model, wanted):
        other = next((config for model, config in _CONFIGS.items() if isinstance(start.model, model)), None)
        raise ValueError(
            f"{start.path} holds a {type(start.model).__name__}, not the {wanted.__name__} that {config.task} trains"
            + (f": --config={other} fine-tunes it" if other else "")
        )
    made = ConfigDict(config.to_dict())
    given = {name: value for name, value in config.model.items() if value is not None and name != "kind"}
    fields = fields_of(start.model)
    if wanted is Decoder:
        shapes = paths_of(jax.eval_shape(lambda: start.model.init(jax.random.key(0), *start.model.example())))
        if not any(start.model.length in leaf.shape for name, leaf in shapes.items() if is_encoding(name)):
            fields["length"] = None  # without a table it says how long training was, and nothing of the model
    if "encoding" in given:
        given["encoding"] = of_own(given["encoding"], fields["encoding"])
    if wanted is ViT:
        fields = {name: value for name, value in fields.items() if name not in ("image_size", "num_classes")}
        own = start.images
        if config.data.mode == "native":
            del own["image_size"]
        made.data = ConfigDict(made.data.to_dict() | {k: v for k, v in own.items() if made.data.get(k) is None})
    made.model = ConfigDict(fields | given)
    if wanted is Decoder and config.data.get("tokenizer") is None:
        made.data.tokenizer = start.tokenizer
    if config.data.get("bos") is None and start.bos is not None:
        made.data.bos = start.bos
    return made.lock()


def fields_of(model: Any) -> dict[str, Any]:
    """Returns the `config.model` of which `posjax.models.kinds.make_model` makes this model with blocks, in terms of JSON."""
    return {"kind": next(name for name, known in KINDS.items() if type(model) is known), **json_fields(model)}


def of_own(spec: str, own: str) -> str:
    """Returns the spec with {own} replaced by the encoding `own` of a model, layer by layer if that is a pattern.

    Raises:
      ValueError: both are patterns.
    """
    layers = [str(encoding) for encoding in parse_layers(own)]
    if OWN not in spec or len(layers) == 1:
        return spec.replace(OWN, layers[0])
    if len(parse_layers(spec.replace(OWN, "none"))) > 1:
        raise ValueError(f"{spec!r} is a pattern over layers, and so is {OWN}, {own!r}: write each layer out")
    return ", ".join(spec.replace(OWN, layer) for layer in layers)


def options_of(config: ConfigDict) -> dict[str, Any]:
    """Returns the options of `initial_params` in a config."""
    names = {"init_head": "head", "init_encoding": "encoding", "init_resize": "method"}
    return {option: config[name] for name, option in names.items() if name in config}


def initial_params(
    start: Start | str | os.PathLike,
    task: Task,
    seeds: tuple[int, ...],
    *,
    head: str = "keep",
    encoding: str = "keep",
    method: str | None = None,
) -> Any:
    """Returns parameters [R, ...] of `task.model` that another model of the same sizes has learned.

    Tables are resized to the images of the task, as for fine-tuning at a higher resolution (Dosovitskiy et al. 2020, section
    3.2). Another encoding takes over the parameters of the start's encoding where it has the same ones.

    Args:
      start: a workdir, whose seeds start their namesakes (an only seed starts all); or anything that
        `posjax.pretrained.load` reads, the same for all seeds.
      head: "keep", which makes a head of another number of classes new; "new": zeros; or "means": see `class_means`.
      encoding: "keep"; "new": the encoding's parameters are dropped, and the task's encoding starts as each seed draws it; or
        "keep_or_new": the latter where the task's encoding learns something else.
      method: of resizing, by name; None for the method of a file's authors, and "torch_bicubic" for a run.

    Raises:
      ValueError: the run lacks a seed; a model of other sizes or of another injection, MLP or norm; pixels that are scaled
        otherwise; an encoding that learns something else; an unknown head or method; a start that cannot be read.
    """
    for name, given, known in (("init_head", head, HEADS), ("init_encoding", encoding, ENCODINGS)):
        if given not in known:
            raise ValueError(f"no {name} is named {given!r}; {nearest(given, known)}")
    start = start if isinstance(start, Start) else Start(start)
    wanted = jax.eval_shape(lambda: task.init(jax.random.key(0)))
    found, model = start.of_seeds(seeds), start.model
    if isinstance(model, BlockModel) and isinstance(task.model, type(model)):
        _refuse_unlike(start.path, model, found[0], task.model, wanted)
        if model.reads == "images":
            model, found = _resized(start, found, task, method)
        if encoding != "new":
            try:
                found, encoding = [_under(model, params, task.model, wanted) for params in found], "keep"
            except ValueError:
                if encoding == "keep":
                    raise
        if encoding != "keep":
            keys = [jax.random.split(jax.random.key(seed))[0] for seed in seeds]  # as `init_state` draws them
            found = [
                renewed(params, functools.partial(task.init, key)) for params, key in zip(found, keys, strict=True)
            ]
    made = [_matched(start.path, each, wanted, head) for each in found]
    if head == "means":
        made = [{**params, "head": class_means(task, params)} for params in made]
    return jax.tree.map(lambda *leaves: np.stack(leaves), *made)


def class_means(task: Task, params: Any) -> dict[str, np.ndarray]:
    """Returns a head that takes the class with the nearest mean feature, as Mensink et al. (2013), without training.

    The logit of a class is m f - m m / 2, for a feature f and the mean m of the features of the class's training images.

    Raises:
      ValueError: the features do not reach a single head as they are.
    """
    if not isinstance(task.model, ViT) or task.model.pre_logits or task.model.distillation_token:
        raise ValueError("init_head='means' is for a vision transformer with one head, right behind its features")
    headless = task.model.clone(num_classes=0)

    @jax.jit
    def sums(params: Any, batch: Any) -> tuple[jax.Array, jax.Array]:
        shown = jax.nn.one_hot(batch["label"], task.classes) * batch["weight"][..., None]
        features = task.outputs(headless, params, batch).astype(shown.dtype)
        return jnp.einsum("...c,...m->mc", shown, features), jnp.einsum("...c->c", shown)

    body = {name: leaf for name, leaf in params.items() if name != "head"}
    parts = [jax.device_get(sums(body, batch)) for batch in task.epoch(task.train_data)]
    total, count = (np.sum(part, axis=0, dtype=np.float64) for part in zip(*parts, strict=True))
    kernel = total / np.maximum(count, 1)
    return {"kernel": np.float32(kernel), "bias": np.float32(-0.5 * (kernel**2).sum(axis=0))}


def _resized(start: Start, found: list[Any], task: Task, method: str | None) -> tuple[Any, list[Any]]:
    model = start.model
    if start.run is not None:  # of a file it may be no more than what its family has
        _refuse_scale(start.path, start.run.config.data, task.scale)
    if model.image_size == task.model.image_size:
        return model, found
    if method is None and start.run is None:
        method = pretrained.info(start.path).method
    method = method or "torch_bicubic"
    resized = [resize_params(model, params, task.model.image_size, method) for params in found]
    return resized[0][0], [params for _, params in resized]


def renewed(params: Any, init: Callable[[], Any]) -> dict[str, Any]:
    """Returns the parameters of a model by path, with another encoding, which starts anew.

    Args:
      params: of the model; leaves may have further leading axes, which the leaves of `init` then have too.
      init: makes parameters of the model with the other encoding; the encoding's alone are computed.
    """
    anew = jax.jit(lambda: {name: leaf for name, leaf in paths_of(init()).items() if is_encoding(name)})()
    return {name: leaf for name, leaf in paths_of(params).items() if not is_encoding(name)} | anew


def _refuse_unlike(path: Any, model: BlockModel, params: Any, target: BlockModel, wanted: Any) -> None:
    """Refuses a model whose sizes or parts differ from the start's; names all that differ."""
    was, is_now = _counting(model, params), _counting(target, wanted)
    names = [name for name, value in was.items() if value != is_now[name]]
    # Fields that follow from others are not named beside them.
    named = [
        n for n in names if any(one.fields.get(n.removeprefix("model."), True) is not None for one in (model, target))
    ]
    names = named or names
    if names:
        differing = "; ".join(f"{name} is {was[name]!r} there, but {is_now[name]!r} in this model" for name in names)
        mends = " ".join(f"config.{name}={was[name]}" for name in names)
        whole = f", or take all from it: --config={_CONFIGS[type(model)]}" if type(model) in _CONFIGS else ""
        raise ValueError(f"{path} holds another model, {differing}: set {mends}{whole}")


def _counting(model: BlockModel, params: Any) -> dict[str, Any]:
    """Returns the fields in which a model must equal the start's, None resolved, by their names in a config."""
    block = model.block
    fields = {name: value for name, value in fields_of(model).items() if name not in _FREE_TO_DIFFER}
    fields |= dict(num_kv_heads=block.key_heads, head_dim=block.channels, mlp_dim=block.mlp_channels)
    fields |= dict(mlp_bias=block.has_mlp_bias, attention_bias=tuple(sorted(block.attention_bias)))
    fields |= dict(layer_scale=None if model.block.layer_scale is None else 1e-5)  # its start says nothing any more
    if isinstance(model, ViT):
        fields |= dict(pooling="map" if model.pooling == "map" else "cls" if model.has_cls else "mean")
        fields |= {} if model.resnet is not None else dict(resnet_width=None)
    named = {f"model.{name}": value for name, value in fields.items()}
    return named | ({"data.channels": image_channels(params)} if isinstance(model, ViT) else {})


def _refuse_scale(path: Any, was: ConfigDict, is_now: tuple[tuple[float, ...], tuple[float, ...]]) -> None:
    mean, std = tuple(was.mean), tuple(was.std)
    if not (np.allclose(mean, is_now[0]) and np.allclose(std, is_now[1])):
        raise ValueError(f"{path} scales pixels otherwise: set config.data.mean={mean} and config.data.std={std}")


def _under(model: Any, params: Any, target: Any, wanted: Any) -> Any:
    if model.encoding == target.encoding:
        return params
    example = model.example(image_channels(wanted)) if model.reads == "images" else model.example()

    def init(changed: Any) -> Any:
        return changed.init(jax.random.key(0), *example)["params"]

    try:
        return with_encoding(model, params, target.encoding, init)[1]
    except ValueError as error:
        raise ValueError(f"{error}; or drop what was learned: config.init_encoding=new, =keep_or_new of rows") from None


def _matched(path: Any, params: Any, wanted: Any, head: str) -> Any:
    """Returns the parameters in the form `wanted`, with new heads where needed."""
    leaves, shapes = paths_of(params), {name: leaf.shape for name, leaf in paths_of(wanted).items()}
    found = {name: np.shape(leaf) for name, leaf in leaves.items()}
    for name in sorted(shapes.keys() | found.keys()):
        if name.split("/")[0] in ("head", "head_distillation") and (
            head != "keep" or found.get(name) != shapes.get(name)
        ):
            leaves[name] = np.zeros(shapes.get(name, ()))
        elif found.get(name) != shapes.get(name):
            was, needed = (each.get(name, "not there") for each in (found, shapes))
            raise ValueError(f"{name} is {was} in {path}, but {needed} here: config.model must be the one there")
    return jax.tree.map(lambda leaf, like: np.asarray(leaf, like.dtype), tree_of(wanted, leaves), wanted)
