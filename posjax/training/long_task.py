"""A decoder trained on long documents, with retrieval among them."""

import itertools
import zlib
from collections.abc import Iterator, Sequence

import numpy as np
from ml_collections import ConfigDict

from posjax import data
from posjax.training.mesh import WHOLE, Share
from posjax.training.tasks import LanguageModel, Task, make_task


class LongDocuments(LanguageModel):
    """A `LanguageModel` whose batches have some rows of retrieval tasks.

    The group `config.data.retrieval` holds the `share` of a batch's rows, the names of the `tasks`, and the `weight` of an
    answer's token (1 for a token of text). In the first `first_steps`, if given, all rows are retrieval tasks: a small model
    learns to look far back from them alone, and hardly beside text. If all rows of all steps are such tasks, the model is
    scored on them too, one for each window of the evaluation text. The `ladder` holds for text: rows of retrieval tasks are
    seen whole.

    Raises:
      ValueError: a share outside [0, 1], or one that leaves a batch without a row of retrieval; a negative weight or number
        of steps; a training length that is too short for a task.
    """

    def __init__(self, config: ConfigDict, splits: dict | None = None):
        mixed = config.data.retrieval
        if not 0 <= mixed.share <= 1 or mixed.weight < 0:
            raise ValueError(f"data.retrieval: share={mixed.share} must lie in [0, 1], weight={mixed.weight} from 0 on")
        self._first_steps = mixed.get("first_steps", 0)
        if self._first_steps < 0:
            raise ValueError(f"data.retrieval.first_steps={self._first_steps} must not be negative")
        self._rows, self._weight, self._tasks = round(mixed.share * config.batch_size), mixed.weight, tuple(mixed.tasks)
        if mixed.share and not self._rows:
            raise ValueError(f"data.retrieval.share={mixed.share} of {config.batch_size} rows is no row: take more")
        super().__init__(config, splits)
        asked = {self._length} if self._rows or self._first_steps else set()
        asked |= {*self._eval_lengths} if self._alone else set()
        for task, length in itertools.product(self._tasks, asked):
            self._retrieval(task, self.train_data, length, count=1, seed=0)  # refuses a length before training

    @property
    def _alone(self) -> bool:
        """Says whether no row is text."""
        return self._rows == self._batch_size

    def batches(self, seed, share=WHOLE):
        batches = super().batches(seed, share)
        if not self._rows and not self._first_steps:
            return batches
        return batches.map_with_index(lambda step, batch: self._mixed(batch, seed, step, share))

    def _mixed(self, batch: dict[str, np.ndarray], seed: int, step: int, share: Share) -> dict[str, np.ndarray]:
        """Returns this process's share of a batch whose first rows are replaced, by a function of seed and step alone."""
        size = len(batch["weight"])
        first, count = share.index * size, self._batch_size if step < self._first_steps else self._rows
        if not count:
            return batch
        own = slice(min(first, count), min(first + size, count))
        rows = self._retrieval(self._tasks, self.train_data, self._length, count=count, seed=(seed, step))
        rows["weight"] = rows["weight"] * np.float32(self._weight)
        return {
            name: np.concatenate([rows[name][own], values[own.stop - own.start :]]) for name, values in batch.items()
        }

    def evaluation(self):
        if not self._alone:
            return super().evaluation()
        return {str(length): self._asked(length) for length in self._eval_lengths}

    def _asked(self, length: int) -> Iterator[dict[str, np.ndarray]]:
        """Yields retrieval tasks within the evaluation text: other ones in each text, the same for every model."""
        windows, own = max(1, (len(self.eval_data) - 1) // length), zlib.crc32(self.eval_data.digest.encode())
        count = min(windows, max(1, self._eval_tokens // length))
        for batch in range(windows // count):
            yield self._retrieval(self._tasks, self.eval_data, length, count=count, seed=(own, batch))

    def _retrieval(
        self, tasks: Sequence[str] | str, text: data.Text, length: int, *, count: int, seed: int | tuple[int, int]
    ) -> dict[str, np.ndarray]:
        given = dict(length=length, count=count, seed=seed, haystack=text.tokens)
        return data.retrieval_batch(tasks, **given, tokenizer=self.tokenizer)


def decoding_task(config: ConfigDict, splits: dict | None = None) -> Task:
    """Returns the task of a config that trains a decoder, with retrieval if it has that; `splits` as in `make_task`."""
    return (LongDocuments if "retrieval" in config.data else make_task)(config, splits)
