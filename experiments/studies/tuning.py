"""Learning rates: each training of a study at the one of `config.tune.learning_rates` that suits it best.

    config.tune = ConfigDict(dict(learning_rates=(1e-3, 3e-3, 1e-2), seeds=(100,), share=0.1))

Encodings are compared each at its best, not at the rate that suits one of them. A point is a training at one rate with one of
the tuning seeds, which are no seeds of the study. It is trained on the training split without a share, which it is then
scored on; what is reported, `config.data.eval_split`, chooses nothing. The points of a training are one ensemble and one
program; their records are in tuning.jsonl. The final row is trained on the whole split at the rate with the best mean.
"""

import dataclasses
import math
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from ml_collections import ConfigDict

from experiments.report.units import unit_of
from experiments.studies.records import (
    Record,
    append_records,
    encoding_of,
    fields_of_run,
    finite,
    path_of,
    records_of_parts,
    row_hash,
    study_hash,
)
from experiments.studies.sweeps import choosing, chosen_by
from posjax.training.tasks import held_out_by

CHOOSING = "choosing "  # before the name of a metric
_NAME = "tuning"  # of the file of the points' records
POINT = "point"  # the kind of such a record
Member = tuple[float, int]  # (learning rate, seed)


class Tune(NamedTuple):
    """What is tried for each training.

    Attributes:
      learning_rates: ascending; none where nothing is tuned.
      seeds: of the points.
      share: of the training split, which is held out.
    """

    learning_rates: tuple[float, ...]
    seeds: tuple[int, ...]
    share: float

    @classmethod
    def of(cls, config: ConfigDict, seeds: Sequence[int] = ()) -> "Tune":
        """That of a study with these seeds.

        Raises:
          ValueError: rates or seeds given twice, a rate that is not positive, no seed, or a seed of the study.
        """
        given = config.get("tune")
        if given is None or not given.learning_rates:
            return cls((), (), 0.0)
        found = cls(tuple(sorted(given.learning_rates)), tuple(given.seeds), given.share)
        if len(set(found.learning_rates)) < len(found.learning_rates) or not found.learning_rates[0] > 0:
            raise ValueError(f"tune.learning_rates={found.learning_rates} must be positive and differ")
        if not found.seeds or len(set(found.seeds)) < len(found.seeds):
            raise ValueError(f"tune.seeds={found.seeds} must be given and differ")
        if shared := sorted({*found.seeds} & {*seeds}):
            raise ValueError(f"tune.seeds={found.seeds} must not be seeds of the study, but {shared[0]} is one")
        return found


def held_out(training: ConfigDict, share: float) -> ConfigDict:
    """The training of a point: on its split without a share, scored on that share in place of the split that is reported.

    A task whose data are drawn says itself what is held out: `posjax.training.tasks.held_out_by`.

    Raises:
      ValueError: a share outside (0, 1), or data without a split that is trained on.
    """
    if own := held_out_by(training.task):
        return own(training, share)
    if "train_split" not in training.data:
        raise ValueError(f"task {training.task!r} has no data.train_split of which a share could be held out for tune")
    made = ConfigDict(choosing(chosen_by(training, str(share))).to_dict())
    if "eval_tokens" in training:
        made.eval_tokens = training.eval_tokens
    made.eval_every = 0
    return made.lock()


class Rates:
    """The points of a study's trainings: those that are recorded, those that are missing, and the best of each.

    Args:
      config, seeds: of the study.
      rows: `experiments.studies.study.Row`s whose bases are trained.
      held: what makes the training of a point, as `held_out`.
      workdir, part: see `experiments.studies.study.run`.
    """

    def __init__(
        self,
        config: ConfigDict,
        seeds: Sequence[int],
        rows: Sequence[Any],
        held: Callable[[ConfigDict, float], ConfigDict],
        workdir: pathlib.Path,
        part: tuple[int, int] | None = None,
    ):
        self._tune, self._path = Tune.of(config, seeds), path_of(workdir, _NAME, part)
        rows = rows if self._tune.learning_rates else ()
        self._planned = {(row.study, row.base): row.training for row in rows}
        self.points = {base: held(training, self._tune.share) for base, training in self._planned.items()}
        self._records = records_of_parts(workdir, _NAME, part) if self._planned else []

    def missing(self, study: str, base: str) -> list[Member]:
        """The points of a base that have no record."""
        if (study, base) not in self._planned:
            return []
        return [
            (rate, seed)
            for rate in self._tune.learning_rates
            for seed in self._tune.seeds
            if seed not in {each.seed for each in self._recorded(study, base, rate)}
        ]

    def ensemble(self, row: Any, members: Sequence[Member]) -> tuple[ConfigDict, tuple[int, ...]]:
        """The configuration that trains these points together, and the seed of each."""
        rates, seeds = zip(*members, strict=True)
        return _at(self.points[row.study, row.base], rates), seeds

    def record(self, row: Any, members: Sequence[Member], weights: Any, described: Mapping[str, Any]) -> None:
        """Writes the records of points that have been trained; `described` is what records say of the machine."""
        point, task = self.points[row.study, row.base], weights.run.task
        scores = weights.metrics[task.headline]
        scores = next(iter(scores.values())) if isinstance(scores, Mapping) else scores
        about = {
            "study": row.study,
            "task": point.task,
            "encoding": encoding_of(point),
            **fields_of_run(weights.run),
            **described,
            "kind": POINT,
            "point_of": row.base,
            "chosen_on": point.data.choose_split,
            "reported_on": row.training.data.eval_split,
        }
        new = [
            Record.of(
                about
                | {"label": f"{row.base}, learning_rate={rate:g}", "point": {"learning_rate": rate}, "seed": seed}
                | {"config_hash": row_hash(_at(point, rate)), "metrics": {f"{CHOOSING}{task.headline}": finite(score)}}
            )
            for (rate, seed), score in zip(members, scores, strict=True)
        ]
        append_records(self._path, new)
        self._records += new

    def at_best(self, row: Any) -> Any:
        """The row with its training at the best rate; as it is where nothing is tuned, or no rate is known to be best."""
        key = row.study, row.base
        if key not in self._planned or self.missing(*key) or self._best(*key) is None:
            return row
        return row._replace(training=_at(self._planned[key], self._best(*key)))

    def told(self, records: Sequence[Record]) -> list[Record]:
        """These records with all points that there are by now."""
        return with_points(records, self._records)

    def refuse_diverged(self, row: Any) -> None:
        """Raises FloatingPointError where no rate has finite scores for all tuning seeds."""
        key = row.study, row.base
        if key in self._planned and self._best(*key) is None:
            raise FloatingPointError(
                f"each of tune.learning_rates={self._tune.learning_rates} diverges: give lower ones"
            )

    def fields(self, row: Any) -> dict[str, Any]:
        """What records of a row say of its rate: "tuned" with the rate, and the mean score of each point it was chosen from.

        The hash of the study is that of what was planned: rows at rates of their own stay comparable. A fine-tune has a rate
        of its own, which was not chosen.
        """
        key = row.study, row.base
        if key not in self._planned:
            return {}
        if row.tuning:
            return {"study_hash": study_hash(self._planned[key])}
        one = self._recorded(*key, self._best(*key))[0]
        tuned = {
            "learning_rate": self._best(*key),
            "from": {f"{rate:g}": finite(mean) for rate, mean in self._means(*key).items()},
            "by": next(iter(one.metrics)),
            "on": one.more["chosen_on"],
            "seeds": self._tune.seeds,
        }
        return {"tuned": tuned, "study_hash": study_hash(self._planned[key])}

    def _best(self, study: str, base: str) -> float | None:
        means = {rate: mean for rate, mean in self._means(study, base).items() if math.isfinite(mean)}
        if not means:
            return None
        metric = next(iter(self._recorded(study, base, next(iter(means)))[0].metrics))
        return (unit_of(metric).best or min)(means, key=means.__getitem__)

    def _means(self, study: str, base: str) -> dict[float, float]:
        """Rate -> mean score over the tuning seeds; nan where one is not finite."""
        scores = {
            rate: [next(iter(each.metrics.values())) for each in self._recorded(study, base, rate)]
            for rate in self._tune.learning_rates
        }
        return {rate: float(np.mean(np.array(found, float))) for rate, found in scores.items()}

    def _recorded(self, study: str, base: str, rate: float) -> list[Record]:
        wanted = (study, base, row_hash(_at(self.points[study, base], rate)))
        found = [each for each in self._records if (each.study, each.more.get("point_of"), each.config_hash) == wanted]
        return [each for each in found if each.seed in self._tune.seeds]


def with_points(records: Sequence[Record], points: Sequence[Record]) -> list[Record]:
    """Records that tell of all points which there are by now: rates may have been added after their rows had run.

    Args:
      points: of the same study, as tuning.jsonl has them.
    """
    scores: dict[tuple[str, str], dict[float, list[float]]] = {}
    for each in points:
        rates = scores.setdefault((each.study, each.more["point_of"]), {})
        rates.setdefault(each.more["point"]["learning_rate"], []).append(next(iter(each.metrics.values())))
    made = []
    for record in records:
        found = scores.get((record.study, record.more.get("base") or record.label), {})
        if "tuned" in record.more and found:
            means = {f"{rate:g}": finite(float(np.mean(np.array(each, float)))) for rate, each in found.items()}
            known = record.more["tuned"]["from"] | means
            tuned = record.more["tuned"] | {"from": {rate: known[rate] for rate in sorted(known, key=float)}}
            record = dataclasses.replace(record, more=record.more | {"tuned": tuned})
        made.append(record)
    return made


def _at(training: ConfigDict, rate: float | Sequence[float]) -> ConfigDict:
    """The training at another learning rate, or at one for each of its runs."""
    made = ConfigDict(training.to_dict())
    with made.optimizer.ignore_type():
        made.optimizer.learning_rate = rate
    return made.lock()
