"""The loop: from the newest checkpoint to the last step, stopping at anything that is not finite."""

import contextlib
import functools
import pathlib
import time
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import numpy as np
from ml_collections import ConfigDict

from posjax import data
from posjax.training.checkpoints import Checkpoints
from posjax.training.clock import UNKNOWN_TIMES, WARM_UP, Clock
from posjax.training.evaluate import Metrics, evaluate, headline, make_score
from posjax.training.identity import RUN, describe_run, read_run, refuse_other_run, write_run
from posjax.training.mesh import Share, batch_sharding, layout, left_out, on_devices, replicated, shards, share_of
from posjax.training.metrics import MetricsWriter, check_logger
from posjax.training.optimizer import rates_of
from posjax.training.processes import AnyStop, is_first
from posjax.training.speed import Trace, Work, work_of
from posjax.training.step import State, make_step, optimizer_of, starter
from posjax.training.tasks import Task


class Result(NamedTuple):
    """A finished ensemble.

    Attributes:
      metrics: of the final parameters, or of their moving average where `config.ema` is set.
      step_time: median seconds per step, all seeds together; nan if no process ran long enough to time one.
      wall_time: seconds over all processes of the run, with the steps that a kill lost up to their last line of
        metrics.jsonl.
      speed: "tokens_per_s" or "images_per_s" and "mfu" at the median step, see `posjax.training.speed.Work`; "goodput" and
        "data_wait", see `Clock.efficiency`; and "compile_time", seconds until the first step of this process was compiled.
    """

    state: State
    metrics: Metrics
    step_time: float
    wall_time: float
    speed: Mapping[str, float] = MappingProxyType({})


class Stopped(Exception):
    """Training was asked to stop; `step` is saved and the same call goes on from there."""

    def __init__(self, step: int, where: str = ""):
        super().__init__(f"stopped at step {step}{where}")
        self.step = step


class Programs:
    """The compiled programs of a training: its start, its step and its scores.

    Args:
      task, config, seeds: as `train` takes them.

    Raises:
      ValueError: sizes that do not divide, an optimizer that cannot be, an unknown `config.logger`.
      ImportError: a logger whose package is not installed.
    """

    def __init__(self, task: Task, config: ConfigDict, seeds: tuple[int, ...]):
        self.task, self._seeds = task, seeds
        self.mesh = mesh = task.mesh
        _check_sizes(config, seeds, shards(mesh))
        if config.get("logger") is not None:
            check_logger(config.logger)
        self.share = share_of(mesh, config.batch_size)
        self._start = starter(task, config, seeds)
        lies = layout(mesh, jax.eval_shape(self._start))
        # It runs once: optimised it would take four times as long to compile, and no less to run.
        brief = {"xla_backend_optimization_level": 0}
        self.start = jax.jit(self._start, out_shardings=lies, compiler_options=brief)
        shared = {"seed_axis": "seed"} if mesh.shape["seed"] > 1 and len(seeds) % mesh.shape["seed"] == 0 else {}
        options = dict(rates=rates_of(config.optimizer.learning_rate), ema=config.get("ema"))
        step = make_step(task, optimizer_of(task, config), config.accumulate, **shared, **options)
        self.step = jax.jit(step, donate_argnums=0, out_shardings=(lies, replicated(mesh)))
        self.score = make_score(task, mesh, **shared)
        self.compiled: dict[str, float] = {}

    def shapes(self, initial: Any = None) -> State:
        """Returns the shapes of the state, and how it lies on the devices."""
        shapes = jax.eval_shape(self._start, initial)
        lies = layout(self.mesh, shapes)
        return jax.tree.map(lambda x, lie: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=lie), shapes, lies)

    def left_out(self) -> list[str]:
        """Returns a line for each parameter that an axis of the mesh does not divide, and so keeps whole."""
        return left_out(self.mesh, self.shapes().params)

    def evaluate(self, params: Any) -> Metrics:
        """Returns the scores of parameters, each batch shared by the devices."""
        return evaluate(self.task, self.score, params, self.mesh)

    @functools.cached_property
    def work(self) -> Work:
        """What a step computes."""
        state, batch = self.arguments()
        return work_of(self.task.model, state.params, batch, self.mesh)

    def result(self, state: State, metrics: Metrics, clock: Clock) -> Result:
        """Returns the result of a training, with its speed."""
        times = clock.times()
        speed = self.work.speed(times["step_time"]) | clock.efficiency() | self.compiled
        return Result(state, metrics, times["step_time"], times["elapsed"], speed)

    def take(self, state: State, batch: Any) -> tuple[State, dict[str, jax.Array]]:
        """Takes a step; the first one, which compiles it, is timed."""
        began = time.perf_counter()
        result = self.step(state, batch)
        self.compiled = self.compiled or {"compile_time": time.perf_counter() - began}
        return result

    def trace(self) -> None:
        """Traces the programs, the scores on the longest evaluation set alone; computes nothing.

        Raises:
          ValueError: an encoding that the model cannot host; whatever else the model refuses.
        """
        self.start.trace(None)
        self.step.trace(*self.arguments())
        *_, longest = self.task.evaluation().values()  # the last of several lengths is the longest
        self.score.trace(self.shapes().params, next(iter(longest)))

    def arguments(self) -> tuple[State, dict[str, jax.ShapeDtypeStruct]]:
        """Returns the arguments of a step: shapes of the state and of a batch, and how they lie on the devices."""

        def abstract(x: np.ndarray) -> jax.ShapeDtypeStruct:
            shape = (len(self._seeds), *x.shape)
            lies = batch_sharding(self.mesh, shape, runs=True)
            return jax.ShapeDtypeStruct(shape, jax.dtypes.canonicalize_dtype(x.dtype), sharding=lies)

        return self.shapes(), {name: abstract(x) for name, x in self.task.batches(self._seeds[0])[0].items()}


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
    profile: pathlib.Path | None = None,
) -> Result:
    """Trains one ensemble to `config.steps`, going on from the newest intact checkpoint under `workdir`.

    Data, randomness and therefore every later state are functions of the step, so a run that was killed and started again
    ends bit-identical to one that was not, wherever the same program gives the same bits twice (as on CPUs).

    Args:
      workdir: gets run.json, metrics.jsonl and checkpoints/.
      initial: parameters to start from, leaves [R, ...], instead of random ones; a run goes on with these alone.
      programs: of the same task, config and seeds, traced or not; made here if None.
      on_step: called with (steps taken so far, {"loss": [R], "grad_norm": [R]}) once a step is known to be finite; from the
        first steps that are timed on also with their speed, as `Work.speed` names it.
      should_stop: asked after every step; where it says True the state is saved and Stopped raised.
      profile: a directory for a trace of five steps of this process, behind those that warm up.

    Raises:
      FloatingPointError: a loss or gradient is not finite; the last good checkpoint stays the newest.
      CheckpointError: the checkpoints under `workdir` are of another run, or none of them is intact; a checkpoint cannot be
        saved, as on a full disk.
      ValueError: sizes that do not divide.
    """
    programs = programs or Programs(task, config, seeds)
    initial = jax.tree.map(np.asarray, initial)  # a copy: steps may reuse the buffers of their arguments
    with contextlib.ExitStack() as stack:
        best = {"best": task.headline, "best_mode": task.headline_mode}
        checkpoints = stack.enter_context(Checkpoints(workdir / "checkpoints", keep_last=config.keep_last, **best))
        state, clock = _begin(programs, checkpoints, describe_run(task, config, seeds, initial), workdir, initial)
        start = int(state.step)
        if start < config.steps:
            checkpoints.check_room(config.steps, {"state": state, "times": clock.times()})
        writer = MetricsWriter(workdir, start or None, config.get("logger")) if is_first() else None
        stack.enter_context(writer or contextlib.nullcontext())
        clock.go_on_from(writer.elapsed if writer else 0.0)

        def settle(taken: int, report: dict[str, jax.Array]) -> None:
            report = {name: np.asarray(report[name]) for name in ("loss", "grad_norm")}
            refuse_non_finite(report, taken, seeds, config)
            clock.tick()
            is_logged = taken % config.log_every == 0 or taken == config.steps
            seconds, waited = clock.lap(is_logged)
            speed = programs.work.speed(seconds) | {"data_wait": waited, "elapsed": clock.elapsed}
            if writer and is_logged:
                writer.write(taken, {name: values.tolist() for name, values in report.items()} | speed)
            on_step(taken, report | speed)

        trace = stack.enter_context(Trace(profile, start + WARM_UP + 1))
        any_stop, metrics, pending = AnyStop(should_stop, programs.mesh), None, None
        batches = clock.timed(_batches(task, seeds, programs.share, start, config.steps))
        for taken, batch in enumerate(batches, start + 1):
            batch = on_devices(programs.mesh, batch, runs=True, share=programs.share)
            trace.before(taken, state)
            state, report = programs.take(state, batch)
            if pending:  # the last step's report is fetched while this one runs
                settle(*pending)
            checkpoints.check()  # raise a failed save now: later steps could not be recovered
            pending, stop = (taken, report), any_stop()
            is_evaluated = taken == config.steps or (config.eval_every > 0 and taken % config.eval_every == 0)
            if stop or is_evaluated or taken % config.checkpoint_every == 0:
                settle(*pending)
                pending, metrics = None, _evaluated(programs, state, writer) if is_evaluated else None
                scores = {task.headline: headline(task, metrics)} if metrics else None
                checkpoints.save(taken, {"state": state, "times": clock.times()}, scores)
                clock.pause()
            if stop:
                raise Stopped(taken)
        if metrics is None:  # the run was finished before this process began
            metrics = programs.evaluate(state.scored)
        return programs.result(state, metrics, clock)


def _begin(
    programs: Programs, checkpoints: Checkpoints, about: dict[str, Any], workdir: pathlib.Path, initial: Any
) -> tuple[State, Clock]:
    """Returns the newest intact state, or that of step 0, and the clock of its run."""
    began = time.perf_counter()
    if not checkpoints.steps():
        if (workdir / RUN).is_file() and "small" in read_run(workdir):
            raise ValueError(f"{workdir} holds a small run, from which no training goes on: use another workdir")
        if is_first():
            write_run(workdir, about)
        return programs.start(initial), Clock(began=began)
    refuse_other_run(workdir, about)
    _, saved = checkpoints.restore({"state": programs.shapes(initial), "times": UNKNOWN_TIMES})
    return saved["state"], Clock(**saved["times"], began=began)


def _batches(task: Task, seeds: tuple[int, ...], share: Share, start: int, end: int) -> Iterator[dict[str, np.ndarray]]:
    """Yields this process's share of batches [R, B, ...]; each seed shuffles for itself."""
    workers = getattr(task, "workers", 0)
    with contextlib.ExitStack() as stack:
        streams = [
            stack.enter_context(contextlib.closing(data.epoch(task.batches(seed, share), start, end, workers)))
            for seed in seeds
        ]
        for batches in zip(*streams, strict=True):
            yield {name: np.stack([batch[name] for batch in batches]) for name in batches[0]}


def _evaluated(programs: Programs, state: State, writer: MetricsWriter | None) -> Metrics:
    """Returns and writes the scores of a state; with a moving average it writes the last parameters' scores too."""
    metrics = programs.evaluate(state.scored)
    last = {} if state.ema is None else _line_of(programs.evaluate(state.params), "last_eval")
    if writer:
        writer.write(int(state.step), _line_of(metrics) | last)
    return metrics


def _line_of(metrics: Metrics, kind: str = "eval") -> dict[str, list[float]]:
    """Returns {"eval_accuracy": [R]}, or {"eval_loss@64": [R], ...} where there are several evaluation sets."""
    line = {}
    for metric, value in metrics.items():
        sets = value if isinstance(value, dict) else {"": value}
        line |= {f"{kind}_{metric}{'@' if name else ''}{name}": values.tolist() for name, values in sets.items()}
    return line


def _check_sizes(config: ConfigDict, seeds: tuple[int, ...], shares: int) -> None:
    if not all(0 <= seed < 2**32 for seed in seeds):
        raise ValueError(f"seeds must lie in 0..2**32-1, got {seeds}")
    rates = rates_of(config.optimizer.learning_rate)
    if rates is not None and len(rates) != len(seeds):
        raise ValueError(f"optimizer.learning_rate={rates} must be one number, or one for each of the seeds {seeds}")
    for name in ("steps", "batch_size", "eval_batch_size", "accumulate", "log_every", "checkpoint_every", "keep_last"):
        if config[name] < (least := int(name != "steps")):  # without steps the start is scored
            raise ValueError(f"{name}={config[name]} must be at least {least}")
    parts = config.accumulate * shares
    if config.batch_size % parts:
        raise ValueError(f"batch_size={config.batch_size} is not divisible by {config.accumulate=} x {shares}")


def refuse_non_finite(report: dict[str, np.ndarray], taken: int, seeds: tuple[int, ...], config: ConfigDict) -> None:
    """Refuses a step whose loss or gradient is not finite.

    Runs that have several learning rates may diverge: their scores say that the rate is too high.
    """
    borne = 0 if rates_of(config.optimizer.learning_rate) is None else len(seeds)
    for name, values in report.items():
        bad = np.flatnonzero(~np.isfinite(values))
        if bad.size > borne:
            raise FloatingPointError(
                f"step {taken}: {name} of seed {seeds[bad[0]]} with encoding {config.model.encoding} is {values[bad[0]]}; "
                "the last good checkpoint is kept. Lower optimizer.learning_rate, lengthen warmup_steps or clip harder"
            )
