"""The loop: from the newest checkpoint to the last step, stopping at anything that is not finite."""

import contextlib
import functools
import pathlib
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import numpy as np
from ml_collections import ConfigDict

from posjax import data
from posjax.data.containers import digest_of
from posjax.jsonl import strict
from posjax.training.checkpoints import CheckpointError, Checkpoints
from posjax.training.evaluate import Metrics, evaluate, headline, make_score
from posjax.training.loggers import check_logger
from posjax.training.mesh import Share, batch_sharding, layout, left_out, on_devices, replicated, shards, share_of
from posjax.training.metrics import MetricsWriter
from posjax.training.optimizer import make_optimizer, rates_of
from posjax.training.processes import AnyStop, is_first
from posjax.training.step import State, init_state, make_step
from posjax.training.tasks import Task

# What may differ between two processes of one run: it says what is written, when and by whom, not what is computed.
_FREE = frozenset(
    ("checkpoint_every", "context_parallel", "data.data_dir", "eval_every", "keep_last", "log_every", "logger")
)
_FREE |= {"tensorboard"}  # what logger was before
_FREE |= {
    "init_from",
    "init_head",
    "init_encoding",
    "init_ignore",
    "init_resize",
}  # what they give counts, and has a digest
# Fields that came later, with the values at which all is as it was before: a run is the same one without them.
_LATER = {"data.files": None, "data.text_field": "text", "data.tokenizer": None, "data.bos": None}
_LATER |= {"data.ladder.start": 32, "data.ladder.steps": 0, "data.ladder.schedule": "linear"}
_LATER |= {"model.latent": None, "data.channels": None}
# Names that fields had when the first results were committed: by these their hashes are found again.
_FIRST_NAMES = {"model.kind": "architecture", "model.resnet": "model.stem", "model.resnet_width": "model.stem_width"}
_WARM_UP = 3  # steps of a process that compile and fill caches: not timed


class Result(NamedTuple):
    """A finished ensemble."""

    state: State
    metrics: Metrics  # of the final parameters
    step_time: float  # median seconds per step, all seeds together; nan if this row never ran long enough to tell
    wall_time: float  # seconds, over all the processes that it took, less what a kill lost


class Programs:
    """What a training compiles: its start, its step and its scores.

    Args:
      task, config, seeds: as `train` takes them.
    """

    def __init__(self, task: Task, config: ConfigDict, seeds: tuple[int, ...]):
        self.task, self._seeds = task, seeds
        self.mesh = mesh = task.mesh
        _check_sizes(config, seeds, shards(mesh))
        self.share = share_of(mesh, config.batch_size)
        optimizer, _ = make_optimizer(total_steps=config.steps, **config.optimizer)
        self._start = functools.partial(init_state, task, optimizer, seeds)
        lies = layout(mesh, jax.eval_shape(self._start))
        # It runs once: optimised it would take four times as long to compile, and no less to run.
        brief = {"xla_backend_optimization_level": 0}
        self.start = jax.jit(self._start, out_shardings=lies, compiler_options=brief)
        shared = {"seed_axis": "seed"} if mesh.shape["seed"] > 1 and len(seeds) % mesh.shape["seed"] == 0 else {}
        rates = rates_of(config.optimizer.learning_rate)
        step = make_step(task, optimizer, config.accumulate, **shared, **({} if rates is None else {"rates": rates}))
        self.step = jax.jit(step, donate_argnums=0, out_shardings=(lies, replicated(mesh)))
        self.score = make_score(task, mesh, **shared)

    def shapes(self, initial: Any = None) -> State:
        """Those of the state, and how they lie on the devices."""
        shapes = jax.eval_shape(self._start, initial)
        lies = layout(self.mesh, shapes)
        return jax.tree.map(lambda x, lie: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=lie), shapes, lies)

    def left_out(self) -> list[str]:
        """Parameters that an axis of the mesh does not divide, and so keeps whole: a line each."""
        return left_out(self.mesh, self.shapes().params)

    def evaluate(self, params: Any) -> Metrics:
        """The scores of parameters, each batch shared by the devices."""
        return evaluate(self.task, self.score, params, self.mesh)

    def trace(self) -> None:
        """Traces what will be compiled, the scores on the longest evaluation set alone; computes nothing."""
        self.start.trace(None)
        self.step.trace(self.shapes(), self._batch())
        *_, longest = self.task.evaluation().values()  # the last of several lengths is the longest
        self.score.trace(self.shapes().params, next(iter(longest)))

    def arguments(self) -> tuple[State, dict[str, jax.ShapeDtypeStruct]]:
        """What a step is given: shapes of the state and of a batch, and how they lie on the devices."""
        return self.shapes(), self._batch()

    def _batch(self) -> dict[str, jax.ShapeDtypeStruct]:
        """Shapes of a batch of all seeds."""
        runs, one = len(self._seeds), self.task.batches(self._seeds[0])[0]
        shapes = {name: (runs, *x.shape) for name, x in one.items()}
        return {
            name: jax.ShapeDtypeStruct(
                shapes[name],
                jax.dtypes.canonicalize_dtype(x.dtype),
                sharding=batch_sharding(self.mesh, shapes[name], runs=True),
            )
            for name, x in one.items()
        }


class Stopped(Exception):
    """Training was asked to stop; `step` is saved and the same call goes on from there."""

    def __init__(self, step: int, where: str = ""):
        super().__init__(f"stopped at step {step}{where}")
        self.step = step


def train(
    task: Task,
    config: ConfigDict,
    seeds: tuple[int, ...],
    workdir: pathlib.Path,
    *,
    initial: Any = None,
    programs: Programs | None = None,
    on_step: Callable[[int, dict[str, np.ndarray]], None] = lambda step, report: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> Result:
    """Trains one ensemble to `config.steps`, going on from the newest intact checkpoint under `workdir`.

    Data, randomness and therefore every later state are functions of the step, so a run that was killed and started again
    ends bit-identical to one that was not, wherever the same program gives the same bits twice (as on CPUs).

    Args:
      initial: parameters to start from, leaves [R, ...], instead of random ones; a run goes on with these alone.
      programs: of the same task, config and seeds, traced or not; made here if None.
      on_step: told (steps taken so far, {"loss": [R], "grad_norm": [R]}) once a step is known to be finite.
      should_stop: asked after every step; where it says True the state is saved and Stopped raised.

    Raises:
      FloatingPointError: a loss or gradient is not finite; the last good checkpoint stays the newest.
      CheckpointError: what is under `workdir` is of another configuration, or none of it is intact; a checkpoint cannot be
        saved, as on a full disk.
      ValueError: sizes that do not divide.
    """
    programs = programs or Programs(task, config, seeds)
    with contextlib.ExitStack() as stack:
        initial = jax.tree.map(np.asarray, initial)  # a copy: steps may reuse the buffers of what they are given
        about = _about(task, config, seeds, initial)
        checkpoints = stack.enter_context(_checkpoints(task, config, about, workdir))
        state, earlier = _restored(checkpoints, programs, initial, about)
        start, clock = int(state.step), Clock(**earlier)
        if start < config.steps:
            checkpoints.refuse_full({"state": state, "times": clock.times()})
        writer = MetricsWriter(workdir, start or None, config.get("logger")) if is_first() else None
        stack.enter_context(writer or contextlib.nullcontext())
        asked = AnyStop(should_stop, programs.mesh)
        journal = _Journal(config, seeds, writer, clock, on_step)
        metrics, pending = None, None
        for taken, batch in enumerate(_batches(task, seeds, programs.share, start, config.steps), start + 1):
            batch = on_devices(programs.mesh, batch, runs=True, share=programs.share)
            state, report = programs.step(state, batch)
            if pending is not None:  # the last step's report is fetched while this one runs
                journal.settle(*pending)
            checkpoints.check()  # what is trained behind a save that failed would be lost
            pending, stop = (taken, report), asked()
            if stop or _is_milestone(taken, config):
                journal.settle(*pending)
                pending = None
                metrics = programs.evaluate(state.params) if _is_evaluated(taken, config) else None
                journal.evaluated(taken, metrics)
                scores = None if metrics is None else {task.headline: headline(task, metrics)}
                checkpoints.save(taken, {"state": state, "times": clock.times()}, scores)
                clock.pause()
            if stop:
                raise Stopped(taken)
        if metrics is None:  # the run was finished before this process began
            metrics = programs.evaluate(state.params)
        return Result(state, metrics, clock.times()["step_time"], clock.times()["elapsed"])


def check(task: Task, config: ConfigDict, seeds: tuple[int, ...]) -> Programs:
    """Refuses what `train` would refuse or fail at, computing nothing: the model is traced in training and at evaluation.

    For runs that follow each other: what is wrong with the last one is told before the first one trains. The programs
    returned need not be traced again.

    Raises:
      ValueError: sizes that do not divide, an optimizer that cannot be, an encoding that the model cannot host; whatever
        else the model refuses; an unknown `config.logger`.
      ImportError: a logger whose package is not installed.
    """
    programs = Programs(task, config, seeds)
    if config.get("logger") is not None:
        check_logger(config.logger)
    programs.trace()
    return programs


class _Journal:
    """What is told of a run while it goes on."""

    def __init__(self, config: ConfigDict, seeds: tuple[int, ...], writer: MetricsWriter | None, clock, on_step):
        self._config, self._seeds, self._writer, self._clock, self._on_step = config, seeds, writer, clock, on_step

    def settle(self, taken: int, report: dict[str, jax.Array]) -> None:
        """Waits for a step's report, refuses it if it is not finite, and passes it on."""
        report = {name: np.asarray(report[name]) for name in ("loss", "grad_norm")}
        refuse_non_finite(report, taken, self._seeds, self._config)
        due = taken % self._config.log_every == 0 or taken == self._config.steps
        if due and self._writer is not None:
            self._writer.write(taken, {name: values.tolist() for name, values in report.items()})
        self._clock.tick()
        self._on_step(taken, report)

    def evaluated(self, taken: int, metrics: Metrics | None) -> None:
        if metrics is not None and self._writer is not None:
            self._writer.write(taken, _line_of(metrics))


def _line_of(metrics: Metrics) -> dict[str, list[float]]:
    """{"eval_accuracy": [R]}, or {"eval_loss@64": [R], ...} where there are several evaluation sets."""
    line = {}
    for metric, value in metrics.items():
        sets = value if isinstance(value, dict) else {"": value}
        line |= {f"eval_{metric}{'@' if name else ''}{name}": values.tolist() for name, values in sets.items()}
    return line


def identity(config: ConfigDict) -> dict[str, Any]:
    """The fields that say what is computed, flat: {"model.width": 8, ...}."""
    fields = {_FIRST_NAMES.get(name, name): value for name, value in _counting(flat_fields(config.to_dict())).items()}
    if fields.get("architecture") == "decoder":  # a name that was not asked for
        del fields["architecture"]
    return fields


def _counting(fields: dict[str, Any]) -> dict[str, Any]:
    """Flat fields without those that compute nothing else."""
    later = _LATER
    if any(name.startswith("data.retrieval.") for name in fields):  # studies of lengths had data.files from the first
        later = {name: value for name, value in _LATER.items() if name != "data.files"}
    nothing = {name for name, value in later.items() if name in fields and fields[name] == value}
    free = _FREE | nothing | {name for name in fields if name.startswith("mesh.")}
    return {name: value for name, value in fields.items() if name not in free}


def _about(task: Task, config: ConfigDict, seeds: tuple[int, ...], initial: Any) -> dict[str, Any]:
    about = {"config": config.to_dict(), "seeds": seeds, "data_digest": task.digest}
    return strict(about if initial is None else about | {"initial": digest(initial)})


def digest(params: Any) -> str:
    """Short sha256 of a tree of parameters: their values in order, and their shapes."""
    return digest_of(*map(np.asarray, jax.tree.leaves(params)))


def _checkpoints(task: Task, config: ConfigDict, about: dict[str, Any], workdir: pathlib.Path) -> Checkpoints:
    return Checkpoints(
        workdir / "checkpoints",
        keep_last=config.keep_last,
        best=task.headline,
        best_mode=task.headline_mode,
        metadata=about,
    )


def _restored(
    checkpoints: Checkpoints, programs: Programs, initial: Any, about: dict[str, Any]
) -> tuple[State, dict[str, float]]:
    """The newest intact state, or that of step 0, and how long it took to get there."""
    found = checkpoints.restore({"state": programs.shapes(initial), "times": {"elapsed": 0.0, "step_time": 0.0}})
    if found is None:
        return programs.start(initial), {"elapsed": 0.0, "step_time": float("nan")}
    _check_same_run(checkpoints, found[0], about)
    return found[1]["state"], found[1]["times"]


def _check_same_run(checkpoints: Checkpoints, step: int, now: dict[str, Any]) -> None:
    """Refuses what fits in shape and is still another run: other seeds, other data, another learning rate."""
    saved = checkpoints.record(step)["metadata"]
    before, after = (_counting(flat_fields({**about["config"], **about, "config": None})) for about in (saved, now))
    for name in sorted(before.keys() | after.keys()):
        if name not in before or name not in after or before[name] != after[name]:
            was, is_now = (fields.get(name, "not there") for fields in (before, after))
            raise CheckpointError(
                f"{name} was {was} in the checkpoint {checkpoints.directory / str(step)}, but is {is_now} in this run; "
                "use the config it was saved with, or another directory for this one"
            )


def flat_fields(config: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """{"model": {"width": 8}} as {"model.width": 8}."""
    flat = {}
    for name, value in config.items():
        flat |= flat_fields(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value}
    return flat


def _batches(task: Task, seeds: tuple[int, ...], share: Share, start: int, end: int) -> Iterator[dict[str, np.ndarray]]:
    """This process's share of batches [R, B, ...]; each seed shuffles for itself."""
    with contextlib.ExitStack() as stack:
        streams = [
            stack.enter_context(contextlib.closing(data.epoch(task.batches(seed, share), start, end))) for seed in seeds
        ]
        for batches in zip(*streams, strict=True):
            yield {name: np.stack([batch[name] for batch in batches]) for name in batches[0]}


def _check_sizes(config: ConfigDict, seeds: tuple[int, ...], shares: int) -> None:
    if not all(0 <= seed < 2**32 for seed in seeds):
        raise ValueError(f"seeds must lie in 0..2**32-1, got {seeds}")
    rates = rates_of(config.optimizer.learning_rate)
    if rates is not None and len(rates) != len(seeds):
        raise ValueError(f"optimizer.learning_rate={rates} must be one number, or one for each of the seeds {seeds}")
    for name in ("steps", "batch_size", "eval_batch_size", "accumulate", "log_every", "checkpoint_every", "keep_last"):
        if config[name] < 1:
            raise ValueError(f"{name}={config[name]} must be at least 1")
    parts = config.accumulate * shares
    if config.batch_size % parts:
        raise ValueError(
            f"batch_size={config.batch_size} cannot be split into accumulate={config.accumulate} parts on {shares} "
            f"{'devices' if shares == jax.device_count() else 'groups of devices'}: it must be divisible by {parts}"
        )


def _is_evaluated(taken: int, config: ConfigDict) -> bool:
    return taken == config.steps or (config.eval_every > 0 and taken % config.eval_every == 0)


def _is_milestone(taken: int, config: ConfigDict) -> bool:
    return taken % config.checkpoint_every == 0 or _is_evaluated(taken, config)


def refuse_non_finite(report: dict[str, np.ndarray], taken: int, seeds: tuple[int, ...], config: ConfigDict) -> None:
    """Runs at several learning rates may diverge: that says that their rate is too high, which their scores tell."""
    borne = 0 if rates_of(config.optimizer.learning_rate) is None else len(seeds)
    for name, values in report.items():
        bad = np.flatnonzero(~np.isfinite(values))
        if bad.size > borne:
            raise FloatingPointError(
                f"step {taken}: {name} of seed {seeds[bad[0]]} with encoding {config.model.encoding} is {values[bad[0]]}; "
                "the last good checkpoint is kept. Lower optimizer.learning_rate, lengthen warmup_steps or clip harder"
            )


class Clock:
    """Seconds between settled steps, leaving out warm-up and pauses, and in all, earlier processes included."""

    def __init__(self, elapsed: float, step_time: float):
        self._began, self._elapsed, self._step_time = time.perf_counter(), elapsed, step_time
        self._last, self._skip, self._durations = None, _WARM_UP, []

    def tick(self) -> None:
        now = time.perf_counter()
        if self._skip:
            self._skip -= 1
        elif self._last is not None:
            self._durations.append(now - self._last)
        self._last = now

    def pause(self) -> None:
        self._skip = max(self._skip, 1)

    def times(self) -> dict[str, float]:
        """ "elapsed" and the median "step_time": of this process, or of earlier ones where this one is too young to tell."""
        median = float(np.median(self._durations)) if self._durations else self._step_time
        return {"elapsed": self._elapsed + time.perf_counter() - self._began, "step_time": median}
