"""What `experiments.resolutions` is going to do: which models are trained, and how each sees which resolutions."""

import math
import re
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from posjax.spec import layers_text, nearest, parse_layers
from posjax.studies.resolution import AS_TRAINED, RESIZED

_OWN = ("title", "encodings", "policies", "finetune", "evaluation", "seed")
_PLACEHOLDER = re.compile(r"\{(height|width|scale|factor)\}")
TRAINED, AT_EVALUATION, FINE_TUNED = "trained", "at evaluation", "fine-tuned"


class Row(NamedTuple):
    """One model as it is evaluated."""

    study: str
    label: str
    base: str  # label of the encoding whose weights it starts from
    kind: str
    policy: str  # AS_TRAINED, RESIZED or a spec, perhaps with placeholders
    finetune: ConfigDict | None = None


class Resolution(NamedTuple):
    """What images are seen at: a height in pixels, or, in native aspects, a largest number of patches."""

    value: int
    scale: float  # of a side, against training


class Trained(NamedTuple):
    """What placeholders are filled with: the grid (patches) and the resolution that a model was trained at."""

    height: int
    width: int
    resolution: int


def training_config(study: ConfigDict, spec: str) -> ConfigDict:
    """The configuration of a training run: the study's without what is about evaluating."""
    row = ConfigDict({name: value for name, value in study.to_dict().items() if name not in _OWN})
    row.model.encoding = spec
    return row.lock()


def finetune_config(training: ConfigDict, tuning: ConfigDict, spec: str) -> ConfigDict:
    """The configuration of a fine-tune: the base's, at another resolution."""
    row = ConfigDict(training.to_dict())
    row.model.encoding = spec
    with row.data.ignore_type():
        if training.data.mode == "native":
            row.data.max_patches = tuning.resolution
        else:
            height, width = training.data.image_size
            row.data.image_size = (tuning.resolution, round(width * tuning.resolution / height))
    row.steps, row.eval_every = tuning.steps, 0
    row.optimizer.learning_rate, row.optimizer.warmup_steps = tuning.learning_rate, tuning.steps // 10
    return row.lock()


def plan(name: str, study: ConfigDict) -> list[Row]:
    """All rows of a study: each encoding under its policies, then fine-tuned; specs are read now, so that typos cost nothing.

    An encoding without policies is seen as it was trained. A policy named "" has its label from the encoding alone.

    Raises:
      ValueError: a spec that cannot be read, policies of an encoding that there is not, a label given twice, no resolutions.
    """
    rows = []
    for section in (study.policies, study.finetune):
        for base in section:
            if base not in study.encodings:
                raise ValueError(f"there is no encoding {base!r} in {name!r}; {nearest(base, list(study.encodings))}")
    for base, spec in study.encodings.items():
        parse_layers(spec)
        for policy, how in study.policies.get(base, {"": AS_TRAINED}).items():
            kind = TRAINED if how == AS_TRAINED else AT_EVALUATION
            rows.append(Row(name, f"{base}, {policy}" if policy else base, base, kind, how))
        for policy, tuning in study.finetune.get(base, {}).items():
            if study.data.mode == "native" and tuning.policy == RESIZED:
                raise ValueError(
                    f"the fine-tune '{base}, {policy}' of {name!r} would resize tables, which in native aspects are not of "
                    "the size of any image: take policy 'as trained', and an encoding as learned(resize='jax_linear')"
                )
            rows.append(Row(name, f"{base}, {policy}", base, FINE_TUNED, tuning.policy, tuning))
    labels = [row.label for row in rows]
    if twice := {label for label in labels if labels.count(label) > 1}:
        raise ValueError(f"two rows of {name!r} are labelled {min(twice)!r}: give each a label of its own")
    if not study.evaluation.resolutions or min(study.evaluation.resolutions) < 1:
        raise ValueError(
            f"evaluation.resolutions={tuple(study.evaluation.resolutions)} of {name!r} must be one or more, each at least 1"
        )
    images = study.evaluation.images
    if images is not None and images < 1:
        raise ValueError(f"evaluation.images={images} of {name!r} must be at least 1; None takes all")
    for row in rows:
        if row.policy not in (AS_TRAINED, RESIZED):
            parse_layers(fill(row.policy, 1.5, Trained(2, 2, 4)))
    return rows


def resolutions(study: ConfigDict, trained: int) -> list[Resolution]:
    """Those of the study, ascending, beside the one that its models are trained at."""
    native = study.data.mode == "native"
    return [
        Resolution(value, math.sqrt(value / trained) if native else value / trained)
        for value in sorted(study.evaluation.resolutions)
    ]


def fill(policy: str, scale: float, trained: Trained) -> str:
    """A policy with its placeholders filled for one resolution.

    {height} and {width} are the grid of training, {scale} is how much longer sides are than in training, {factor} the same
    but at least 1.
    """
    values: dict[str, Any] = {
        "height": trained.height,
        "width": trained.width,
        "scale": scale,
        "factor": max(1.0, scale),
    }

    def number(match: re.Match) -> str:
        value = values[match[1]]
        return str(int(value)) if value == int(value) else repr(value)

    return _PLACEHOLDER.sub(number, policy)


def spec_of(row: Row, training: ConfigDict) -> str:
    """What a record calls the encoding: the one that reads the weights."""
    return layers_text(parse_layers(training.model.encoding)) if row.policy in (AS_TRAINED, RESIZED) else row.policy
