"""Problems of many lengths: trained on short ones, judged by longer ones."""

import functools

import jax
import jax.numpy as jnp
import optax
from ml_collections import ConfigDict

from posjax.data.algorithms import Rows, load_problems, problem_batches, problem_epoch
from posjax.encoding import Camera, Site, reads_rows
from posjax.models.kinds import KINDS, make_model
from posjax.spec import nearest, parse_layers
from posjax.training.classification import once
from posjax.training.mesh import WHOLE, context_of, mesh_of

_LAYOUT = {"text": "next", "masked text": "tape"}  # by what a model reads


class Algorithmic:
    """A decoder or an encoder on the problems that `config.data.name` names, see `posjax.data.algorithms`.

    It trains on lengths uniform in `data.shortest` ... `data.length`, and is evaluated at each of `eval_lengths`, on the
    problems of `data.others` too. Every problem weighs the same in the scores, and in the loss: a mean over tokens would
    leave little to short problems, which are learned first.

      accuracy: the share of an answer's tokens that are right, where a decoder reads the right tokens before them
      exact match: 1 if all of them are right, and then greedy decoding gives the answer and its end too; else 0

    Both are means over the held-out sets (lengths above `data.length`, and the problems of `data.others`), or over all sets
    if none is held out. "... by length" has each.

    Raises:
      ValueError: an unknown problem or model, lengths below 1, an encoding that would read the answers, sizes that do not
        fit.
    """

    headline, headline_mode = "accuracy", "max"

    def __init__(self, config: ConfigDict, splits: dict | None = None):
        self._config, given = config, config.data
        self._lengths = tuple(sorted(config.eval_lengths))
        if not self._lengths or self._lengths[0] < 1 or config.eval_examples < 1:
            raise ValueError(f"eval_lengths={self._lengths}, eval_examples={config.eval_examples} must be at least 1")
        self._problems = {
            name: once(
                splits,
                ("problems", name, given.symbols, given.files),
                functools.partial(load_problems, name, symbols=given.symbols, files=given.files),
            )
            for name in (given.name, *given.others)
        }
        kind = config.model.kind
        readers = [name for name, model in KINDS.items() if model.reads in _LAYOUT]
        if kind not in readers:
            raise ValueError(f"no model of problems is named {kind!r}; {nearest(kind, readers)}")
        reads = KINDS[kind].reads
        self._rows = Rows(self._own.symbols, _LAYOUT[reads], given.positions)
        if given.positions == "coupled" and self._rows.layout == "next":
            _refuse_sums(config.model.encoding)
        for name, each in self._problems.items():
            if each.symbols > self._own.symbols:
                raise ValueError(f"data.others: {name} has {each.symbols} symbols, {given.name} {self._own.symbols}")
        longest = max(given.length, *self._lengths)
        self._tokens = max(self._rows.tokens(each, longest) for each in self._problems.values())
        self.digest = "".join(each.digest for each in self._problems.values())
        self.mesh = mesh_of(config)
        made = dict(vocab_size=self._at_least("vocab_size", self._rows.vocab_size))
        made |= dict(length=self._at_least("length", self._tokens), context=context_of(self.mesh))
        self.model = make_model(dict(config.model), reads, **made)
        self.batches(0)
        self.evaluation()  # sizes that do not fit are refused before training, not after it

    @staticmethod
    def held_out(config: ConfigDict, share: float) -> ConfigDict:
        """Returns the config for tuning: it scores unseen problems of the trained length.

        No `share` is left out of the training: problems are drawn, and SCAN names its problems for training.
        """
        made = ConfigDict(config.to_dict())
        made.data.others, made.eval_lengths, made.eval_every = (), (config.data.length,), 0
        made.data.choose_split = f"length {config.data.length}"
        return made.lock()

    @property
    def _own(self):
        return self._problems[self._config.data.name]

    def _at_least(self, field: str, needed: int) -> int:
        given = self._config.model.get(field)
        if given is not None and given < needed:
            raise ValueError(f"model.{field}={given} is below the {needed} that {self._config.data.name} takes")
        return needed if given is None else given

    def batches(self, seed, share=WHOLE):
        given = self._config.data
        lengths = dict(shortest=given.shortest, longest=given.length)
        own = dict(process_index=share.index, process_count=share.count)
        return problem_batches(self._own, self._rows, batch_size=self._config.batch_size, seed=seed, **lengths, **own)

    def evaluation(self):
        """Returns sets whose rows have one size, so that one program scores them."""
        count, size = self._config.eval_examples, self._config.eval_batch_size
        shared = dict(tokens=self._tokens, count=count, batch_size=min(size, count))
        shared["split"] = self._config.data.get("choose_split") or self._config.data.eval_split
        return {
            f"{name}@{length}": problem_epoch(problems, self._rows, length=length, **shared)
            for name, problems in self._problems.items()
            for length in self._lengths
        }

    def init(self, key):
        batch = jax.tree.map(jnp.asarray, self._rows.batch([], 2, 1))
        batch["segment"] += 1
        return self.model.init(key, batch["tokens"], _site(batch))["params"]

    def loss(self, params, batch, key):
        drop_key, place_key = jax.random.split(key)
        logits = self.logits(params, batch, train=True, rngs={"dropout": drop_key, "place": place_key})
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch["targets"])
        return (losses * batch["weight"]).sum(), batch["weight"].sum()

    def score(self, params, batch):
        right = self.logits(params, batch).argmax(axis=-1) == batch["targets"]
        right, weight = (x.reshape(len(x), -1) for x in (right, batch["weight"]))
        has_answer = (weight > 0).any(axis=1)
        return {
            "accuracy": (right * weight).sum(),
            "exact match": (has_answer & (right | (weight == 0)).all(axis=1)).sum(),
            "weight": has_answer.sum(),
        }

    def summed_up(self, metrics):
        """Returns the metrics of the class, which `evaluate` reports, from {metric: {"name@length": [R]}}."""
        found, given = {}, self._config.data
        for metric, sets in metrics.items():
            apart = {tuple(name.rsplit("@", 1)): values for name, values in sets.items()}
            held_out = [values for (name, n), values in apart.items() if int(n) > given.length or name != given.name]
            held_out = held_out or [*sets.values()]
            found[metric] = sum(held_out) / len(held_out)
        for metric, sets in metrics.items():
            for name in self._problems:
                of = "" if name == self._config.data.name else f", {name}"
                found[f"{metric} by length{of}"] = {str(n): sets[f"{name}@{n}"] for n in self._lengths}
        return found

    def logits(self, params, batch, **options):
        logits = self.model.apply({"params": params}, batch["tokens"], _site(batch), **options)
        if not self._rows.pixels:
            return logits
        return logits[..., : self._rows.vocab_size].reshape(*batch["targets"].shape, -1)


def _site(batch) -> Site:
    cameras = Camera(batch["view"], batch["lens"]) if "view" in batch else ()
    return Site(batch["position"], batch["segment"], jnp.zeros_like(batch["segment"]), relation=cameras)


def _refuse_sums(pattern: str) -> None:
    """Refuses encodings that add up tokens by position: coupled positions fall back to the start of the question."""
    for encoding in parse_layers(pattern):
        if encoding.observes or reads_rows(encoding):
            raise ValueError(f"data.positions='coupled' show {encoding} the answer: take data.positions='order'")
