"""The subject of an analysis: a language model of a run or of published weights, and texts that are chosen by a hash."""

import functools
import hashlib
import pathlib
from collections.abc import Callable, Collection
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int, Int32

from experiments.analysis.noise import with_noise
from posjax import data, pretrained
from posjax.encoding import Dims, Encoding, Params, sites
from posjax.gguf import SUFFIX
from posjax.hub import local
from posjax.models import Decoder, Encoder
from posjax.models.replacing import with_encoding
from posjax.models.transformer import layer_hosts
from posjax.spec import layers_text, parse_layers
from posjax.training.identity import digest, read_run
from posjax.training.long_task import decoding_task
from posjax.training.runs import is_run, load_run

OWN = "as loaded"  # the row of a model as it is


class TextModel(NamedTuple):
    """A model with its parameters and tokenizer.

    Attributes:
      trained: tokens of the sequences in training; None if unknown.
      hash: names the weights.
    """

    name: str
    model: Decoder | Encoder
    params: Any
    tokenizer: data.Tokenizer
    trained: int | None
    hash: str

    @property
    def pattern(self) -> tuple[Encoding, ...]:
        """The encodings of the layers, as a pattern that repeats."""
        return parse_layers(self.model.encoding)

    @property
    def encoding(self) -> str:
        return layers_text(self.pattern)

    @property
    def layers(self) -> list[tuple[Encoding, Params]]:
        """The encoding of every layer, with its parameters."""
        hosts = layer_hosts(self.pattern, self.model.depth, self.model.injection)
        return [(encoding, self.params["trunk"].get(name, ())) for name, encoding in hosts]

    @property
    def dims(self) -> Dims:
        block = self.model.block
        return Dims(block.width, block.num_heads, block.turning_channels, length=self.model.length)

    def under(self, encodings: tuple[Encoding, ...] | None) -> tuple[Decoder | Encoder, Any]:
        """Returns the model under other encodings, a pattern over the layers, and its parameters.

        Raises:
          ValueError: the encodings learn something else than the model's own.
        """
        if encodings is None:
            return self.model, self.params

        def init(changed: Any) -> Any:
            return changed.init(jax.random.key(0), *changed.example())["params"]

        return with_encoding(self.model, self.params, encodings, init)


def holds_text_model(checkpoint: pathlib.Path) -> bool:
    """Says whether a checkpoint holds a language model; a path that does not exist may be a hub's name."""
    if is_run(checkpoint):
        return read_run(checkpoint)["config"].get("task") != "classification"
    return pretrained.reads_text(checkpoint)


def load_text_model(checkpoint: pathlib.Path, noise: bool = False) -> TextModel:
    """Loads a decoder or an encoder, of a run (its first seed), a folder of transformers, a hub's name or a GGUF file.

    Args:
      noise: whether the parameters get noise, see `with_noise`; the model's name then says so.

    Raises:
      ValueError: the checkpoint holds no language model.
    """
    if is_run(checkpoint):
        run = load_run(checkpoint, task_of=decoding_task)
        name, model, params = checkpoint.name, run.model, run.of(0)
        tokenizer, trained = run.task.tokenizer, run.config.data.length
    else:
        path = local(checkpoint)
        model, variables = pretrained.load(path)
        name, params, trained = path.stem, variables["params"], getattr(model, "length", None)
        tokenizer = data.load_tokenizer(path if path.is_dir() or path.suffix == SUFFIX else path.parent)
    if not isinstance(model, Decoder | Encoder):
        raise ValueError(f"{checkpoint} holds a {type(model).__name__}, which this command does not read text with")
    params = with_noise(params) if noise else params
    return TextModel(f"{name} with noise" if noise else name, model, params, tokenizer, trained, digest(params)[:12])


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
    named = hashlib.sha256(tokens.tobytes()).hexdigest()[:24]
    return Texts(tuple(title for _, title, _ in chosen), tokens, named)


def repeated_tokens(subject: TextModel, count: int, length: int) -> Int32[np.ndarray, "N T"]:
    """Returns sequences of a BOS and `length` random tokens that stand twice, one copy behind the other."""
    rng = np.random.default_rng(0)
    drawn = rng.integers(len(subject.tokenizer.bos), subject.model.vocab_size, (count, length))
    bos = np.tile(np.asarray(subject.tokenizer.bos, np.int32), (count, 1))
    return np.concatenate([bos, drawn, drawn], axis=1).astype(np.int32)


class Read(NamedTuple):
    """The scores of the last tokens of a text, and all its hidden states."""

    loss: Float[np.ndarray, " S"]  # nats
    right: Bool[np.ndarray, " S"]  # whether the likeliest token is the target
    hidden: Float[np.ndarray, "T M"]


class TextReader:
    """Reads texts one by one, and scores the last `scored` tokens of each.

    Args:
      only: rows to read beside the model as loaded; () for all.
      tick: is called with the number of texts read.
    """

    def __init__(
        self,
        subject: TextModel,
        scored: int,
        only: Collection[str] = (),
        tick: Callable[[int], Any] = lambda count: None,
    ):
        self.subject, self.scored, self.only, self.tick, self._programs = subject, scored, only, tick, {}

    def wants(self, row: str) -> bool:
        """Says whether a row is to be read."""
        return not self.only or row in (OWN, *self.only)

    def losses(self, tokens: Int32[np.ndarray, "N T1"], encodings: tuple[Encoding, ...] | None = None) -> np.ndarray:
        """Returns the mean loss of each text, [N], under other encodings or, for None, the model's own."""
        return np.array([self.read(text, encodings).loss.mean() for text in tokens])

    def read(
        self,
        text: Int32[np.ndarray, " T1"],
        encodings: tuple[Encoding, ...] | None = None,
        position: Int[np.ndarray, " T"] | None = None,
    ) -> Read:
        """Reads a text with its tokens at these positions, or from 0 on."""
        if encodings not in self._programs:
            model, params = self.subject.under(encodings)
            self._programs[encodings] = jax.jit(functools.partial(self._read, model)), params
        program, params = self._programs[encodings]
        site = sites(len(text) - 1)
        site = site if position is None else site._replace(position=np.asarray(position, np.int32))
        found = Read(*map(np.asarray, program(params, text, site)))
        self.tick(1)
        return found

    def _read(self, model, params, text, site):
        x, _ = model.apply({"params": params}, text[None, :-1], site, method=model.features)
        logits = model.apply({"params": params}, x[:, -self.scored :], method=model.logits)[0]
        targets = text[-self.scored :]
        own = jnp.take_along_axis(logits, targets[:, None], axis=-1)[:, 0]
        return jax.nn.logsumexp(logits, axis=-1) - own, jnp.argmax(logits, axis=-1) == targets, x[0]
