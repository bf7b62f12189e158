"""The subject of an analysis, a trained model of text or of images, and the texts and pictures that it reads."""

import hashlib
import math
import pathlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Int32
from ml_collections import ConfigDict

from experiments.analysis.noise import with_noise
from posjax import data, pretrained
from posjax.encoding import Dims, Encoding, Params
from posjax.gguf import SUFFIX
from posjax.hub import local
from posjax.models import Decoder, Encoder, ViT
from posjax.models.replacing import with_encoding
from posjax.models.transformer import layer_hosts
from posjax.models.vit import image_channels
from posjax.spec import layers_text, parse_layers
from posjax.training.identity import digest, read_run
from posjax.training.long_task import decoding_task
from posjax.training.runs import is_run, load_run

OWN = "as loaded"  # the row of a model as it is
_METHOD = "torch_bicubic"  # method of resizing tables of models that were trained here


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A model with the parameters of each seed, and what it needs to read texts or images.

    Attributes:
      params: a tree for each seed; files of weights have one.
      about: origin of the model, in a line.
      tokenizer: of a model of text.
      trained: tokens of the sequences in training; None if unknown.
      mean, std: scale of the pixels.
      data: the fields of the run's config that describe its data; None for a file.
      classes: names of the classes of images; None if unknown.
      method: method of resizing tables.
    """

    name: str
    model: Decoder | Encoder | ViT
    params: list[Any]
    seeds: tuple[int, ...] = (0,)
    about: str = ""
    tokenizer: data.Tokenizer | None = None
    trained: int | None = None
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    data: ConfigDict | None = None
    classes: tuple[str, ...] | None = None
    method: str = _METHOD

    @property
    def hash(self) -> str:
        """Names the weights."""
        return digest(self.params)[:12]

    @property
    def pattern(self) -> tuple[Encoding, ...]:
        """The encodings of the layers, as a pattern that repeats."""
        return parse_layers(self.model.encoding)

    @property
    def encoding(self) -> str:
        return layers_text(self.pattern)

    @property
    def layers(self) -> list[tuple[str, Encoding, Params]]:
        """The encoding of every layer with its parameters of the first seed, and the name that layers share with them."""
        hosts = layer_hosts(self.pattern, self.model.depth, self.model.injection)
        return [(name, encoding, self.params[0]["trunk"].get(name, ())) for name, encoding in hosts]

    @property
    def dims(self) -> Dims:
        """The sizes of the model for its encodings; `head_dim` is the number of a head's channels that may rotate."""
        model, block = self.model, self.model.block
        sizes = (
            dict(grid=model.patches(*model.image_size), prefix=model.num_prefix)
            if isinstance(model, ViT)
            else dict(length=model.length)
        )
        return Dims(block.width, block.num_heads, block.turning_channels, **sizes)

    @property
    def channels(self) -> int:
        return image_channels(self.params[0])

    def normalised(self, images: np.ndarray) -> jax.Array:
        """Scales uint8 pixels for the model; a single mean or std is for all channels, and grey takes the first one."""
        mean, std = (each if len(each) == self.channels else each[:1] * self.channels for each in (self.mean, self.std))
        return data.normalise(images, mean, std)

    def under(self, encodings: tuple[Encoding, ...] | None) -> tuple[Decoder | Encoder, Any]:
        """Returns the model under other encodings, a pattern over the layers, and its parameters.

        Raises:
          ValueError: the encodings learn something else than the model's own.
        """
        if encodings is None:
            return self.model, self.params[0]

        def init(changed: Any) -> Any:
            return changed.init(jax.random.key(0), *changed.example())["params"]

        return with_encoding(self.model, self.params[0], encodings, init)


def reads_text(checkpoint: pathlib.Path) -> bool:
    """Says whether a checkpoint holds a language model; a path that does not exist may be a hub's name."""
    if is_run(checkpoint):
        return read_run(checkpoint)["config"].get("task") != "classification"
    return pretrained.reads_text(checkpoint)


def holds_weights(checkpoint: pathlib.Path) -> bool:
    """Whether a checkpoint is a file of weights or a folder with such files, and not a run."""
    return not is_run(checkpoint) and (checkpoint.is_file() or any(local(checkpoint).glob("*.safetensors*")))


def load_subject(
    checkpoint: pathlib.Path, *, data_dir: str | None = None, noise: bool = False, **options: Any
) -> Subject:
    """Loads the model of a workdir, a file or folder of pretrained weights, or a hub's name.

    Args:
      data_dir: directory of sets, if it differs from the run's.
      noise: whether the parameters get noise, see `with_noise`; the subject's name then says so.
      options: arguments of `posjax.pretrained.load` that a file of images' weights does not show; None is ignored.

    Raises:
      ValueError: `options` is given for a run, or the file cannot be read.
      FileNotFoundError: the checkpoint is missing.
    """
    options = {name: value for name, value in options.items() if value is not None}
    if reads_text(checkpoint) and not is_run(checkpoint):
        fields = _of_text(local(checkpoint))
    elif not checkpoint.exists():
        raise FileNotFoundError(f"there is no checkpoint {checkpoint}: give a workdir, or a file of weights")
    elif holds_weights(checkpoint):
        fields = _of_images(checkpoint, options)
    elif options:
        flags = ", ".join(f"--{name}" for name in options)
        raise ValueError(f"{flags}: for files of weights, but the run {checkpoint} knows its own, leave it out")
    else:
        fields = _of_run(checkpoint, data_dir)
    if noise:
        fields |= dict(name=f"{fields['name']} with noise", params=[with_noise(params) for params in fields["params"]])
    return Subject(**fields)


def _of_run(workdir: pathlib.Path, data_dir: str | None) -> dict[str, Any]:
    run = load_run(workdir, data_dir=data_dir, task_of=decoding_task)
    fields = dict(name=workdir.name, model=run.model, data=run.config.data)
    if not isinstance(run.model, ViT):
        return fields | dict(params=[run.of(0)], tokenizer=run.task.tokenizer, trained=run.config.data.length)
    fields |= dict(params=[run.of(index) for index in range(len(run.seeds))], seeds=run.seeds)
    fields["about"] = f"{workdir}: step {run.step} of {len(run.seeds)} seeds, {run.model.encoding}"
    classes = run.task.train_data.classes or None
    return fields | dict(mean=tuple(run.config.data.mean), std=tuple(run.config.data.std), classes=classes)


def _of_text(path: pathlib.Path) -> dict[str, Any]:
    model, variables = pretrained.load(path)
    tokenizer = data.load_tokenizer(path if path.is_dir() or path.suffix == SUFFIX else path.parent)
    trained = getattr(model, "length", None)
    return dict(name=path.stem, model=model, params=[variables["params"]], tokenizer=tokenizer, trained=trained)


def _of_images(path: pathlib.Path, options: dict[str, Any]) -> dict[str, Any]:
    info = pretrained.info(path, **options)
    model, variables = pretrained.load(path, **options)
    sizes = f"width {model.block.width}, {model.depth} layers of {model.block.num_heads} heads, {model.encoding}"
    scale = dict(mean=info.mean, std=info.std, classes=info.labels, method=info.method)
    about = f"{path.name}: {info.origin}, {sizes}"
    return dict(name=path.stem, model=model, params=[variables["params"]], about=about, **scale)


class Texts(NamedTuple):
    """Pieces of documents, [N, T + 1] tokens each, that begin with the model's BOS if it has one."""

    titles: tuple[str, ...]
    tokens: Int32[np.ndarray, "N T1"]
    digest: str


def draw_texts(documents: data.Documents, count: int, length: int) -> Texts:
    """Returns `count` pieces of `length` tokens and a target: of all pieces, those whose hash of title and place is lowest.

    Raises:
      ValueError: the documents have fewer pieces.
    """
    bos = np.asarray(documents.tokenizer.bos, np.int32)
    own = length + 1 - len(bos)
    pieces = [
        (hashlib.sha256(f"{title} {start}".encode()).hexdigest(), f"{title}, token {start}", text[start : start + own])
        for title, text in zip(documents.titles, documents.texts, strict=True)
        for start in range(0, len(text) - own + 1, own)
    ]
    if len(pieces) < count:
        raise ValueError(
            f"{documents.name!r} has {len(pieces)} pieces of {length:,} tokens, and {count} texts are asked for: give more "
            "text, or a smaller --num_texts or --length"
        )
    chosen = sorted(pieces)[:count]
    tokens = np.stack([np.concatenate([bos, piece]).astype(np.int32) for _, _, piece in chosen])
    return Texts(tuple(title for _, title, _ in chosen), tokens, hashlib.sha256(tokens.tobytes()).hexdigest()[:24])


def repeated_tokens(subject: Subject, count: int, length: int) -> Int32[np.ndarray, "N T"]:
    """Returns sequences of a BOS and `length` random tokens that stand twice, one copy behind the other."""
    drawn = np.random.default_rng(0).integers(len(subject.tokenizer.bos), subject.model.vocab_size, (count, length))
    bos = np.tile(np.asarray(subject.tokenizer.bos, np.int32), (count, 1))
    return np.concatenate([bos, drawn, drawn], axis=1).astype(np.int32)


class Pictures(NamedTuple):
    """Images that a subject was not trained on.

    Attributes:
      pixels: [N, h, w, C] uint8.
      labels: labels; None if their classes are not the model's.
      padding: padding of moved images.
      about: name of the images, in a line.
      originals: the first pictures as they are stored, see `choose_pictures`.
      digest: names the images.
    """

    subject: Subject
    pixels: np.ndarray
    labels: np.ndarray | None
    padding: str
    about: str
    originals: Sequence[Any]
    digest: str

    @property
    def size(self) -> tuple[int, int]:
        return self.pixels.shape[1:3]

    @property
    def site(self):
        return self.subject.model.sites(*self.size)

    @property
    def grid(self) -> tuple[int, int]:
        return self.subject.model.patches(*self.size)

    @property
    def patch(self) -> int:
        return self.subject.model.cell


def choose_pictures(
    subject: Subject,
    name: str | None,
    split: str | None,
    directory: str | None,
    count: int,
    padding: str | None = None,
    kept: int = 0,
) -> Pictures:
    """Draws so many images from seed 0, or takes all; None for the run's own evaluation.

    Args:
      name: name of the set; a file of weights has no set of its own.
      kept: number of images that are kept as they are stored, too.

    Raises:
      ValueError: the set is unknown.
    """
    own, size, mode, note = subject.data, tuple(subject.model.image_size), "crop", ""
    if own is not None:
        name, split = name or own.name, split or own.eval_split
        shifts = (each for each in data.parse_augment(own.augment).device if each.spec_name == "shift")
        padding = padding or next((shift.fill for shift in shifts), "black")  # as in training
        directory, mode = own.data_dir, own.mode
    if mode == "native":  # its model.image_size is the size of its tables, not of an image
        size, mode = (subject.model.patch_size * math.isqrt(own.max_patches),) * 2, "crop"
        note = f", squares of as many patches as it was trained on ({own.max_patches} at most)"
    split, channels = split or "test", subject.channels
    images = data.open_images(name, split, directory, channels=channels)
    chosen = np.random.default_rng(0).permutation(len(images))[:count]
    pixels = np.stack([data.preprocess(images[int(i)], size, mode, channels=channels) for i in chosen])
    labels = np.asarray(images.label)[chosen] if images.num_classes == subject.model.num_classes else None
    sha = hashlib.sha256(pixels.tobytes()).hexdigest()[:24]
    originals = [data.read_image(images[int(index)], channels=channels) for index in chosen[:kept]]
    return Pictures(subject, pixels, labels, padding or "edge", f"{name}, {split}{note}", originals, sha)
