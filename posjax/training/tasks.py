"""Tasks: a model, its data, its loss and its scores, for one run (seed); the step vmaps over runs."""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh
from ml_collections import ConfigDict

from posjax import data
from posjax.data.tokens import tokenizer_of
from posjax.data.windows import Ladder
from posjax.encoding import Site, sites
from posjax.models.kinds import make_model
from posjax.spec import nearest
from posjax.training.algorithmic import Algorithmic
from posjax.training.classification import make_classification, once
from posjax.training.losses import token_loss, token_losses
from posjax.training.mesh import WHOLE, Share, context_of, mesh_of

Batch = Mapping[str, Any]
_DTYPES = ["bfloat16", "float16", "float32"]
_VOCABULARY = 50_257  # of synthetic tokens: GPT-2's
LARGEST_TABLE = 2**16  # positions of a table that nobody asked for by name


@runtime_checkable
class Evaluated(Protocol):
    """A task as evaluation sees it."""

    def evaluation(self) -> dict[str | None, Iterator[Batch]]:
        """Returns the evaluation sets by name (None where there is only one), each a pass in order."""

    def score(self, params: Any, batch: Batch) -> dict[str, jax.Array]:
        """Returns sums over a batch, by metric; "weight" divides them."""


@runtime_checkable
class Task(Evaluated, Protocol):
    """A task as the loop sees it."""

    headline: str  # the metric by which the best checkpoint is kept
    headline_mode: str  # "max" or "min"
    digest: str  # of the data: a run does not go on with others
    mesh: Mesh  # the devices that train it

    def batches(self, seed: int, share: Share = WHOLE):
        """Returns ds with ds[step] = the batch of that step, or this process's share of it."""

    def init(self, key: jax.Array) -> Any:
        """Returns the parameters of a seed."""

    def loss(self, params: Any, batch: Batch, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Returns (sum of losses, sum of weights) of a batch in training."""


class LanguageModel:
    """A decoder on bytes or tokens, trained at one length and scored at several; every length scores the same tokens.

    `config.data` names the text (`files`, see `posjax.data.load_documents`, a prepared set, or synthetic_tokens: random, of
    `config.model.vocab_size`), its `tokenizer`, and in `ladder` the growth of the context in training
    (`posjax.data.windows.Ladder`). The BOS of the tokenizer's template stands before every document and window, unless `bos`
    is False. `splits`: see `make_task`.
    """

    headline, headline_mode = "loss", "min"
    reads = "text"  # the kind of model
    causal = True

    def __init__(self, config: ConfigDict, splits: dict | None = None):
        self._length, self._eval_lengths = config.data.length, tuple(sorted(config.eval_lengths))
        if not self._eval_lengths or self._eval_lengths[0] < 1:
            raise ValueError(f"eval_lengths={self._eval_lengths} must be one or more lengths of at least 1")
        self._positions, self._batch_size = config.data.positions, config.batch_size
        self._vocabulary = config.model.get("vocab_size") or _VOCABULARY
        self._ladder = _ladder(config)
        self._eval_tokens = config.eval_batch_size * self._length  # tokens in an evaluation batch of any length
        self.mesh = mesh_of(config)
        if self._length % self.mesh.shape["context"]:
            raise ValueError(f"data.length={self._length} does not divide by mesh.context={self.mesh.shape['context']}")
        bos = config.data.get("bos") if self.causal else False
        self.tokenizer = data.load_tokenizer(config.data.get("tokenizer"), bos)
        source = (
            config.data.name,
            *(config.data.get(name) for name in ("data_dir", "files", "text_field", "tokenizer")),
            self.tokenizer.bos,
        )
        self.train_data, whole = (
            once(splits, (*source, split), functools.partial(self.text, config.data, split))
            for split in (config.data.train_split, config.data.eval_split)
        )
        self.eval_data = _first(whole, config.eval_tokens)
        self.tokenizer = tokenizer_of(self.train_data, self.tokenizer)
        self.digest = self.train_data.digest + self.eval_data.digest
        given = dict(vocab_size=self._vocab_size(config.model), length=self._table_length(config.model.length))
        self.model = make_model(dict(config.model), self.reads, **given, context=context_of(self.mesh))
        self.evaluation()  # sizes that do not fit are refused before training, not after it

    def text(self, config: ConfigDict, split: str) -> data.Text:
        """Returns a split of the text that `config.data` names."""
        if config.name == data.SYNTHETIC_TOKENS:
            longest = max(self._length, *self._eval_lengths)
            return data.synthetic_tokens(self._vocabulary, longest, self._batch_size + 1)
        where = dict(data_dir=config.data_dir, files=config.get("files"), field=config.get("text_field", "text"))
        return data.load_stream(config.name, split, **where, tokenizer=self.tokenizer)

    def _vocab_size(self, model: ConfigDict) -> int:
        """Returns the vocabulary's size: of the data, or of a model that was trained before."""
        needed, given = self.train_data.vocab_size, model.get("vocab_size")
        if given is not None and given < needed:
            raise ValueError(f"the model has {given:,} tokens, {self.tokenizer.name} {needed:,}: set data.tokenizer")
        return given or needed

    def _table_length(self, given: int | None) -> int | None:
        """Returns the number of positions in training and evaluation, which a table must hold."""
        needed = max(self._length, *self._eval_lengths)
        if self._positions == "document":
            ends = [np.append(text.starts[1:], len(text)) - text.starts for text in (self.train_data, self.eval_data)]
            needed = int(max(lengths.max() for lengths in ends))
        if given is None and needed > LARGEST_TABLE:
            return None  # an encoding that learns a row per position then asks for a length
        if given is not None and given < needed:
            raise ValueError(f"model.length={given} is below the {needed} positions of training and evaluation")
        return needed if given is None else given

    def batches(self, seed, share=WHOLE):
        windows = dict(length=self._length, positions=self._positions, ladder=self._ladder)
        windows |= dict(process_index=share.index, process_count=share.count)
        batches = data.text_batches(self.train_data, batch_size=self._batch_size, seed=seed, **windows)
        return data.repeated(batches) if self.train_data.name == data.SYNTHETIC_TOKENS else batches

    def evaluation(self):
        longest = max(self._eval_lengths)
        return {
            str(length): data.text_epoch(
                self.eval_data,
                length=length,
                batch_size=max(1, self._eval_tokens // length),
                positions=self._positions,
                align=longest,
            )
            for length in self._eval_lengths
        }

    def init(self, key):
        tokens = jnp.zeros((1, 2), jnp.int32)
        site = Site(tokens, tokens + 1, tokens)
        return self.model.init(key, tokens, site)["params"]

    def loss(self, params, batch, key):
        drop_key, place_key = jax.random.split(key)
        rngs = {"dropout": drop_key, "place": place_key}
        given = batch["tokens"], self.site(batch), batch["targets"]
        total = token_loss(self.model, params, *given, batch["weight"], train=True, rngs=rngs)
        return total, batch["weight"].sum()

    def site(self, batch: Batch) -> Site:
        """Returns the sites of the tokens; leaves that all windows share are NumPy arrays, so they are known when traced."""
        position, segment = batch["position"], batch["segment"]
        if self._positions == "document":
            return Site(position, segment, jnp.zeros_like(segment))
        known = sites(segment.shape[-1])
        return known if self._positions == "stream" and not self._ladder.steps else known._replace(segment=segment)

    def score(self, params, batch):
        losses = token_losses(self.model, params, batch["tokens"], self.site(batch), batch["targets"])
        return {"loss": (losses * batch["weight"]).sum(), "weight": batch["weight"].sum()}


class MaskedLanguageModel(LanguageModel):
    """An encoder that names masked tokens: a mask token replaces a share `config.data.masked` of them.

    Devlin et al. (2018), arXiv 1810.04805, section 3.1, without their tokens that are replaced by others or by themselves.
    Every step masks other tokens; scores are always of the same places.

    Raises:
      ValueError: as `LanguageModel`, or the share lies outside (0, 1).
    """

    reads = "masked text"
    causal = False  # a BOS could be masked and then be a target

    def __init__(self, config: ConfigDict, splits: dict | None = None):
        self._masked = config.data.masked
        if not 0 < self._masked < 1:
            raise ValueError(f"data.masked={self._masked} is a share of the tokens: it must lie in (0, 1)")
        super().__init__(config, splits)

    def _vocab_size(self, model):
        return super()._vocab_size(model) + 1

    def loss(self, params, batch, key):
        mask_key, drop_key, place_key = jax.random.split(key, 3)
        tokens, weight = self._hidden(mask_key, batch)
        rngs = {"dropout": drop_key, "place": place_key}
        logits = self.model.apply({"params": params}, tokens, self.site(batch), train=True, rngs=rngs)
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch["tokens"])
        return (losses * weight).sum(), weight.sum()

    def score(self, params, batch):
        tokens, weight = self._hidden(jax.random.key(0), batch)
        logits = self.model.apply({"params": params}, tokens, self.site(batch))
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch["tokens"])
        return {"loss": (losses * weight).sum(), "weight": weight.sum()}

    def _hidden(self, key, batch):
        """Returns the tokens, some of them masked, and 1.0 at the masked ones, else 0."""
        hidden = jax.random.bernoulli(key, np.float32(self._masked), batch["tokens"].shape) & (batch["segment"] > 0)
        return jnp.where(hidden, self.model.vocab_size - 1, batch["tokens"]), hidden.astype(jnp.float32)


_TASKS = {
    "algorithmic": Algorithmic,
    "classification": make_classification,
    "language_model": LanguageModel,
    "masked_language_model": MaskedLanguageModel,
}


def make_task(config: ConfigDict, splits: dict | None = None) -> Task:
    """Returns the task that `config.task` names, with its data loaded.

    Args:
      splits: loaded data by their names; tasks that are made with the same dictionary share them.

    Raises:
      ValueError: an unknown name of a task, data set, split, model part or dtype; sizes that do not fit.
      FileNotFoundError: a data set that is not prepared.
    """
    if config.task not in _TASKS:
        raise ValueError(f"no task is named {config.task!r}; {nearest(config.task, list(_TASKS))}")
    for name in ("dtype", "attention_dtype", "param_dtype"):
        given = config.model.get(name)
        if given is not None and given not in _DTYPES:
            raise ValueError(f"no model.{name} is named {given!r}; {nearest(given, _DTYPES)}")
    return _TASKS[config.task](config, splits)


def held_out_by(name: str) -> Callable[[ConfigDict, float], ConfigDict] | None:
    """Returns a task's static method `held_out(config, share)`; None for a task without one.

    The method returns the config that trains without the held-out part (named by `data.choose_split`) and is scored on it.
    Other tasks hold out a share of `data.train_split`.
    """
    return getattr(_TASKS.get(name), "held_out", None)


def _ladder(config: ConfigDict) -> Ladder:
    """Returns the ladder of `config.data.ladder`; without one, or with no steps, it changes nothing."""
    ladder = Ladder(**config.data.get("ladder", {}))
    try:
        ladder.check(config.data.length)
    except ValueError as error:
        raise ValueError(f"data.ladder: {error}") from None
    if ladder.steps > config.steps:
        raise ValueError(f"data.ladder.steps={ladder.steps} > steps={config.steps}: no step sees a whole window")
    return ladder


def _first(text: data.Text, tokens: int | None) -> data.Text:
    if tokens is None:
        return text
    if not 1 < tokens <= len(text):
        raise ValueError(f"eval_tokens={tokens} must lie in 2..{len(text)}, the tokens of the evaluation split")
    return dataclasses.replace(text, tokens=text.tokens[:tokens], starts=text.starts[text.starts < tokens])
