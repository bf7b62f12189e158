"""What `experiments.extrapolate` is going to do: which models are trained, and under which encodings each is read."""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from posjax.spec import layers_text, nearest, parse_layers

_OWN = ("name", "title", "notes", "seeds", "encodings", "variants", "finetune", "evaluation", "retrieval")
_PLACEHOLDER = re.compile(r"\{(?:(\d+)\*)?(factor|length|trained)(?:/(\d+))?\}")
_RAMP = re.compile(r"\{(ramp|ones)\}")
TRAINED, AT_EVALUATION, FINE_TUNED = "trained", "at evaluation", "fine-tuned"


class Row(NamedTuple):
    """One model as it is evaluated."""

    label: str
    base: str  # label of the row whose weights it starts from: its own where it is trained
    kind: str
    spec: str  # with placeholders where it is read at lengths
    finetune: ConfigDict | None = None


class Sizes(NamedTuple):
    """What placeholders stand for."""

    trained: int  # length in training
    frequencies: int  # half a head's dim


def training_config(config: ConfigDict, spec: str) -> ConfigDict:
    """The configuration of a training run: the experiment's without what is about evaluating."""
    row = ConfigDict({name: value for name, value in config.to_dict().items() if name not in _OWN})
    row.task = "language_model"
    row.model.encoding = spec
    return row.lock()


def finetune_config(base: ConfigDict, tuning: ConfigDict, spec: str) -> ConfigDict:
    """The configuration of a fine-tune: the base's, as many tokens a step, at another length."""
    row = ConfigDict(base.to_dict())
    row.model.encoding = spec
    row.batch_size = max(1, base.batch_size * base.data.length // tuning.length)
    row.data.length, row.steps = tuning.length, tuning.steps
    row.eval_lengths, row.eval_every = (tuning.length,), 0
    row.optimizer.learning_rate, row.optimizer.warmup_steps = tuning.learning_rate, tuning.steps // 10
    return row.lock()


def plan(config: ConfigDict, bases: Mapping[str, str], sizes: Sizes) -> list[Row]:
    """All rows: each base, then it under other encodings, then fine-tuned; specs are read now, so that typos cost nothing.

    Args:
      bases: {label: spec} of what is trained, or was.

    Raises:
      ValueError: a spec that cannot be read, a label given twice, variants of a base that there is not, or lengths that
        cannot be.
    """
    _check_evaluation(config)
    rows = []
    for section in (config.variants, config.finetune):
        for base in section:
            if base not in config.encodings:
                raise ValueError(f"there is no base {base!r} for its variants; {nearest(base, list(config.encodings))}")
    for label, spec in bases.items():
        layers_text(parse_layers(spec))
        rows.append(Row(label, label, TRAINED, spec))
        rows += [Row(name, label, AT_EVALUATION, text) for name, text in config.variants.get(label, {}).items()]
        for name, tuning in config.finetune.get(label, {}).items():
            rows.append(Row(name, label, FINE_TUNED, fill(tuning.spec, tuning.target, sizes), tuning))
    labels = [row.label for row in rows]
    if twice := {label for label in labels if labels.count(label) > 1}:
        raise ValueError(f"two rows are labelled {min(twice)!r}: give each a label of its own")
    for row in rows:
        for length in config.evaluation.lengths:
            parse_layers(fill(row.spec, length, sizes))
    return rows


def fill(spec: str, length: int, sizes: Sizes) -> str:
    """The spec with its placeholders filled for one evaluated length.

    {length} is that length, {trained} the one in training, {factor} their quotient, at least 1; a whole number may stand
    before or behind, as in {2*factor} or {trained/2} (rounded down). {ramp} are as many numbers as a head has frequencies,
    rising geometrically from 1 to the factor, and {ones} as many ones: for longrope, whose authors search for such numbers.
    """
    factor = max(1.0, length / sizes.trained)

    def number(match: re.Match) -> str:
        times, name, parts = match.groups()
        value = {"factor": factor, "length": length, "trained": sizes.trained}[name] * int(times or 1)
        value = value // int(parts) if parts else value
        return str(int(value)) if value == int(value) else repr(value)

    def numbers(match: re.Match) -> str:
        last = max(sizes.frequencies - 1, 1)
        ramp = [1.0 if match[1] == "ones" else factor ** (c / last) for c in range(sizes.frequencies)]
        return f"({', '.join(f'{x:.6g}' for x in ramp)},)"

    return _RAMP.sub(numbers, _PLACEHOLDER.sub(number, spec))


def stride_of(length: int, evaluation: ConfigDict) -> int:
    """How far apart sliding windows begin: the share of the length that the config says, and no more than is scored."""
    return min(max(1, int(length * evaluation.stride)), evaluation.bytes)


def lengths_of(row: Row, evaluation: ConfigDict) -> list[int]:
    """The lengths at which a row is evaluated, ascending."""
    long = evaluation.long_lengths if row.label in evaluation.long_rows else ()
    return sorted({*evaluation.lengths, *long})


def first_scored(evaluation: ConfigDict) -> int:
    """How many bytes stand before those that are scored: the same bytes at every length, with room for the longest."""
    return max(*evaluation.lengths, *evaluation.long_lengths, 0)


def _check_evaluation(config: ConfigDict) -> None:
    evaluation: Any = config.evaluation
    if not evaluation.lengths or min(evaluation.lengths) < 2:
        raise ValueError(
            f"evaluation.lengths={tuple(evaluation.lengths)} must be lengths of at least 2, and one at least"
        )
    if not 0 < evaluation.stride <= 1:
        raise ValueError(f"evaluation.stride={evaluation.stride} is a share of the length: it must lie in (0, 1]")
    for length in (*evaluation.lengths, *evaluation.long_lengths):
        stride = stride_of(length, evaluation)
        if length % stride or evaluation.bytes % stride or (length <= evaluation.bytes and evaluation.bytes % length):
            raise ValueError(
                f"evaluation.bytes={evaluation.bytes} must be a multiple of length={length} (or its divisor) and of the "
                f"stride {stride}: powers of two do"
            )
