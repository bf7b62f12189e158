"""How long may the input be: the fit, the table, and the suite on a tiny model."""

import argparse
import json
import pathlib

import pytest

from experiments import benchmark
from experiments.benchmarks import inputs, running
from experiments.benchmarks.jax_inputs import read_input
from experiments.benchmarks.plots import Curve, Panel, against_length
from experiments.benchmarks.units import bytes_of

CONFIG = str(pathlib.Path(__file__).parents[1] / "configs/decoder.py")
TINY = [f"--config={CONFIG}", "--config.model.width=8", "--config.model.depth=1", "--config.model.num_heads=2"]
GIVEN = {"memory": 2.0**30, "seconds": 3.0, "window": 8, "batch": 1, "model": {"encoding": "rope"}}


def record(length, held, seconds, attention="dense", work="forward"):
    times = [] if seconds is None else [seconds]
    cell = {"mode": work, "length": length}
    figures = dict(skip=None, threads=2, cpu=times, wall=times, held_bytes=held)
    return dict(suite="context", contender=attention, cell=cell, given=GIVEN, **figures)


def test_a_fit_finds_the_polynomial_and_meets_the_longest():
    quadratic, linear = (lambda n: 3 + 2 * n + 5 * n**2), (lambda n: 7 + 2 * n)
    assert inputs.fit([(n, quadratic(n)) for n in (8, 64, 512)], 2)(4096) == pytest.approx(quadratic(4096), rel=1e-6)
    assert inputs.fit([(n, linear(n)) for n in (8, 64)], 1)(4096) == pytest.approx(linear(4096), rel=1e-6)
    assert inputs.fit([(8, 1.0), (16, 3.0), (32, 50.0)], 1)(32) == pytest.approx(50)


def test_the_table_answers_first_and_says_how_far_beyond_the_measured_that_is():
    records = [record(n, 2**10 * n**2, (n / 512) ** 2) for n in (256, 512)]
    records += [record(2048, None, None), record(256, 2**20, None, "window"), record(512, 2**20, None, "window")]
    text = inputs.inputs_text(records)
    assert "| dense | forward | **886** | time | 1,020 (2.0x) | 886 (1.7x) |" in text
    assert "| window | forward | **no limit** | nothing | no limit | not run |" in text
    assert "| dense | forward | 2,048 | 4 GiB |  |  | 16 s |  |  |" in text
    assert "not measured" in inputs.inputs_text(records[:1])


def test_panels_hold_measurements_and_limits():
    memory, time = inputs.input_panels([record(256, 2**30, 1.5), record(512, None, None)])
    assert (memory.limit, time.limit) == ((1.0, "1 GiB"), (3.0, "3 s"))
    assert [curve.values for panel in (memory, time) for curve in panel.curves] == [{256: 1.0}, {256: 1.5}]


def test_plots_show_a_limit():
    figure = against_length([Panel("t", "s", [Curve("a", {1: 1.0, 2: 3.0})], (2.0, "limit"))])
    assert [line.get_linestyle() for line in figure.axes[0].get_lines()] == ["-", ":"]


@pytest.mark.parametrize(("text", "size"), [("24GiB", 24 * 2**30), ("1.5 MiB", 1.5 * 2**20)])
def test_sizes(text, size):
    assert bytes_of(text) == size


@pytest.mark.parametrize("text", ["24GB", "much", "0GiB", "-1GiB", "512"])
def test_other_texts_are_no_size(text):
    with pytest.raises(argparse.ArgumentTypeError, match="is no size: write it as 24GiB"):
        bytes_of(text)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ([f"--config={CONFIG.replace('decoder', 'vit')}"], "give the config of one"),
        ([*TINY, "--lengths=64"], "needs two lengths or more"),
        ([], "--config=FILE is missing"),
    ],
)
def test_mistakes_are_one_line(line, message, tmp_path, capsys):
    assert benchmark.main(["context", *line, f"--out={tmp_path}"]) == 2
    assert message in capsys.readouterr().err


def case(mode, attention, length, **more):
    model = dict(encoding="rope", width=8, depth=1, num_heads=2, length=None)
    optimizer = dict(learning_rate=1e-3)
    given = dict(model=model, optimizer=optimizer, steps=10, batch=1, window=16, memory=2**30, imports=[], run=True)
    return {**given, "mode": mode, "attention": attention, "length": length, **more}


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "attention"), [("forward", "dense"), ("training", "window"), ("decoding", "window")])
def test_programs_hold_memory_and_run_where_it_fits(mode, attention):
    call = read_input(case(mode, attention, 32))
    call.run()
    call.run()
    held = call.figures["held_bytes"]
    assert held > 0
    assert read_input(case(mode, attention, 32, memory=held - 1)).run is None
    assert read_input(case(mode, attention, 32, run=False)).run is None


def test_memory_of_dense_attention_is_that_of_its_arrays():
    held = [read_input(case("forward", "dense", n, run=False)).figures["held_bytes"] for n in (256, 512)]
    logits = 512**2 * 2 * 4
    assert logits < held[1] < 4 * logits
    assert held[1] > 3 * held[0]


def test_a_slow_program_is_compiled_only_and_a_large_one_is_left_out():
    settings = running.Settings(call_seconds=10, memory_bytes=2**30)
    history = running.History(settings)
    history.add({**record(64, 2**20, 4.0), "seconds": 4.0, "peak_bytes": None})
    cell = {"mode": "forward", "length": 256}
    assert history.too_slow("dense", cell) == "a call would take about 64 s"
    assert history.too_large("dense", cell) is None
    assert "16 GiB" in history.too_large("dense", {"mode": "forward", "length": 8192})


@pytest.mark.slow
def test_a_tiny_decoder(tmp_path, capsys):
    line = ["context", *TINY, "--lengths=32,64", "--window=16", "--cell_seconds=0.2", f"--out={tmp_path}"]
    assert benchmark.main([*line, "--memory=1GiB"]) == 0
    records = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    assert len(records) == 16
    assert all(min(r["held_bytes"], r["seconds"]) > 0 for r in records)
    assert (tmp_path / "context.png").stat().st_size > 10_000
    assert "| dense | decoding | **" in capsys.readouterr().out
    assert benchmark.main([*line, "--memory=1KiB", "--only=forward: dense"]) == 2
    assert "no program fits 1 KiB: the smallest needs" in capsys.readouterr().err
