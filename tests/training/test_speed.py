"""The speed of a training: its formula by hand, and what a chip without a peak says."""

import jax
import numpy as np
import pytest
from small import small_decoder, small_vit

from posjax.training.clock import Clock
from posjax.training.loop import Programs
from posjax.training.speed import Trace, Work
from posjax.training.tasks import make_task


def test_the_work_of_a_decoder_and_a_vit_is_that_of_the_formula(data_dir):
    config = small_decoder(data_dir)  # tied: the embedding is the head too; rope has no parameters
    programs = Programs(make_task(config), config, (0, 1))
    work, tokens = programs.work, 2 * config.batch_size * config.data.length
    params = sum(leaf.size for leaf in jax.tree.leaves(programs.shapes().params)) / 2
    per_token = 6 * params + 6 * config.model.depth * config.model.width * config.data.length
    assert work == ("tokens", tokens, pytest.approx(per_token * tokens), None)
    config = small_vit(data_dir)
    programs = Programs(make_task(config), config, (0,))
    work, length = programs.work, programs.task.model.sites(8, 8).segment.shape[-1]
    shapes = programs.shapes().params
    params = sum(leaf.size for leaf in jax.tree.leaves(shapes)) - sum(
        leaf.size for leaf in jax.tree.leaves(shapes["trunk"].get("encoding", {}))
    )
    per_token = 6 * params + 12 * config.model.depth * config.model.width * length
    assert work == ("images", config.batch_size, pytest.approx(per_token * config.batch_size * length), None)


def test_speed_is_of_all_devices_and_none_without_a_time():
    work = Work("tokens", 1000, 8e12, 4 * 197e12)
    assert work.speed(0.5) == {"tokens_per_s": 2000, "mfu": pytest.approx(8e12 / 0.5 / (4 * 197e12))}
    assert work._replace(peak=None).speed(0.5) == {"tokens_per_s": 2000}
    assert work.speed(np.nan) == {}


def test_a_lap_is_the_mean_of_the_steps_since_the_last(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("posjax.training.clock.time.perf_counter", lambda: now[0])
    clock, durations = Clock(), [5, 5, 5, 1, 2, 3, 7]  # three steps warm up

    def source():
        for index, _ in enumerate(durations):
            now[0] += index / 8  # a wait
            yield index

    batches = clock.timed(source())

    def step():
        index = next(batches)
        now[0] += durations[index]

    step()
    for _ in range(5):
        step()  # a step is settled while the next one runs
        clock.tick()
    waits = (0, 1 / 8, 2 / 8, 3 / 8, 4 / 8)
    assert clock.lap(ends=False) == clock.lap(ends=True) == pytest.approx(((2 + 4 / 8 + 3 + 5 / 8) / 2, sum(waits) / 5))
    assert np.isnan(clock.lap(ends=True)).all()
    clock.tick()  # the last one before a save, settled at once
    step()
    clock.tick()
    assert clock.lap(ends=True) == ((0 + 7 + 6 / 8) / 2, (5 / 8 + 6 / 8) / 2)
    assert clock.efficiency()["data_wait"] == pytest.approx((3 + 4 + 5 + 6) / 8 / 4)
    assert list(batches) == []


@pytest.mark.parametrize(("last", "ends"), [(12, 9), (6, 6)])
def test_a_trace_is_of_five_steps_or_ends_with_the_training(monkeypatch, last, ends):
    events, step = [], 0
    monkeypatch.setattr("jax.profiler.start_trace", lambda directory: events.append(("start", directory, step)))
    monkeypatch.setattr("jax.profiler.stop_trace", lambda: events.append(("stop", step)))
    with Trace("traces", 4) as trace:
        for step in range(1, last + 1):
            trace.before(step, np.zeros(1))
    assert events == [("start", "traces", 4), ("stop", ends)]
