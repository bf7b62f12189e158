"""The suite of training steps: its configs, resumption and table by records of given numbers; in the slow part, one step."""

import json
import math
import statistics

import pytest
from test_benchmark import ABOUT, VERSIONS, Fake

from experiments import benchmark
from experiments.benchmarks import contender, jax_side, jax_training, runner
from experiments.benchmarks.training import training, training_text
from posjax import parse
from posjax.environment import compiler_flags

FULL, SMALL = training("gpu", peers=True), training("cpu", peers=True)
TINY = {"width": 16, "heads": 2, "depth": 1, "steps": 8, "dtype": "float32"}
TINY_DECODER = {**TINY, "vocabulary": 300, "length": 16, "batch": 4}
H100 = {**VERSIONS, "device": "NVIDIA H100 80GB HBM3", "devices": "1"}


def test_each_run_has_the_sizes_and_models_that_it_names():
    turns = [(cell["run"], cell, one) for cell, (one,) in FULL.turns()]
    assert [run for run, _, _ in turns] == sorted(run for run, _, _ in turns)
    assert turns[0][2].name == "posjax rope"
    assert {cell["batch"] * cell["length"] for run, cell, _ in turns if run in "ABCF"} == {65536}
    assert all(one.fresh for _, _, one in turns)
    for _, cell, one in turns:
        parse(one.case["spec"])
        if one.side == "jax":
            config = jax_training.training_config({**cell, **one.case})
            assert (config.model.depth, config.model.dtype) == (12, "bfloat16")
    names = {(run, one.name): one.case for run, _, one in turns}
    assert names["F", "posjax rope, 4 seeds of 16 rows"]["batch"] == 16
    registers = jax_training.training_config({**turns[-1][1], **TINY_DECODER, "spec": "rope", "fields": {"steps": 7}})
    assert registers.steps == 7
    assert [one.name for _, (one,) in SMALL.turns() if one.side == "torch"] == [
        one.name for _, _, one in turns if one.side == "torch"
    ]


def test_a_step_is_waited_for_while_the_next_one_computes():
    log, numbers = [], iter(range(100))

    def take():
        log.append(number := next(numbers))
        return number

    seconds = contender.step_seconds(take, lambda number: log.append(-number), 8)
    assert log[:6] == [0, 1, 0, 2, -1, 3]
    assert (len(seconds), len(log)) == (6, 20)  # a quarter warms up

    assert len(contender.step_seconds(lambda: None, lambda step: None, 1000, most_seconds=0.0)) == 6  # slow ones


def measured(run, name, milliseconds, **changes):
    cell = next(cell for cell in FULL.cells if cell["run"] == run)
    unit, count = ("images", 256) if "image" in cell else ("tokens", 65536)
    figures = {f"{unit}_per_s": 1e3 * count / milliseconds, "mfu": 0.4 if name == "posjax rope" else None}
    figures |= dict(compile_seconds=30.0, kernels={"__cudnn$fmha": 12}, device=H100["device"], flops=1.0)
    shared = dict(suite="training", threads=2, skip=None, temp_bytes=2**30, peak_bytes=2**31, load=0.5)
    shared |= dict(about=ABOUT, versions=H100, given={"flags": {"XLA_FLAGS": "--x"}, "command": "c"}, cpu=None)
    return {**shared, "cell": cell, "contender": name, "wall": [milliseconds / 1e3] * 3, **figures, **changes}


def test_the_table_compares_and_judges():
    records = [
        measured("B", "posjax none", 160.0),
        measured("A", "posjax rope", 999.0),
        measured("A", "posjax rope", 164.0),  # the latest counts
        measured("A", "torch SDPA, rope", 82.0, versions={"torch": "2"}),
        measured("B", "posjax t5", 180.0),
        measured("B", "posjax fox, 4 parts", 160.0),
        measured("D", "posjax learned", 64.0),
        measured("E", "timm, learned", 64.0, device="another"),
        measured("F", "posjax rope, scan", 328.0),
        measured("F", "posjax rope, remat", 1.0, skip="XlaRuntimeError: RESOURCE_EXHAUSTED"),
    ]
    text = training_text("d", FULL, records)
    assert (
        "| posjax rope | 399,610 tokens | 40.0% | 164 | 0.0% | 3 | 30.0 | 1024 | 2048 | 0.50 x torch SDPA, rope |"
        in text
    )
    assert "| 799,220 tokens | 80.0% |" in text
    assert "| 0.89 x posjax none |" in text
    assert "| 0.50 x A: posjax rope |" in text
    assert "* A: posjax rope: at least 400,000 tokens a second: **not held**, 399,610." in text
    assert "* rope within 2% of none: **not held**, +2.5% a step." in text
    assert "* t5 within 15% of none: held, +12.5% a step." in text
    assert "* fox within 15% of none: held, +0.0% a step." in text
    assert "alibi within" not in text
    assert "* posjax rope, remat, F: decoder, in other ways: XlaRuntimeError: RESOURCE_EXHAUSTED" in text
    assert "Flags of XLA's compilers: `XLA_FLAGS=--x`." in text
    assert "No peers" not in text
    assert "### Targets" not in training_text("d", FULL, [measured("A", "posjax rope", 164.0, device="a TPU")])


def test_the_command_goes_on_with_what_is_left(tmp_path, monkeypatch, capsys):
    """A second call measures nothing anew but the peers whose package was missing."""
    prepared = []

    def begin(one, **_):
        def prepare(case):
            prepared.append(one.name)
            if one.name.startswith("timm"):
                return {"skip": "timm is not installed beside torch"}
            names = "wall", "images_per_s", "compile_seconds", "device", "mfu"
            return {name: measured(case["run"], one.name, 64.0)[name] for name in names}

        versions = {"torch": "2"} if one.side == "torch" else {**H100, "platform": "cpu"}
        return Fake("", [], prepare, about={"allocator": "mallopt", "versions": versions})

    monkeypatch.setattr(runner, "Worker", begin)
    line = ["training", "--only=E:", "--peers_python=python", f"--out={tmp_path}"]
    for count in (2, 1):
        assert benchmark.main(line) == 0
        assert capsys.readouterr().out.startswith(f"{count} to measure")
    assert prepared == ["posjax learned", "timm, learned", "timm, learned"]
    first, *_ = (json.loads(text) for text in (tmp_path / "results.jsonl").read_text().splitlines())
    assert (first["cell"]["run"], first["given"]["flags"], len(first["wall"])) == ("E", compiler_flags(), 3)
    text = (tmp_path / "table.md").read_text()
    assert "This was run on a CPU, in small" in text
    assert text.count("timm is not installed") == 1


@pytest.mark.slow
def test_steps_are_those_of_a_training():
    case = {**TINY_DECODER, "kind": "config_step", "spec": "rope", "seeds": 2, "fields": {"model.scan": True}}
    call = jax_side.prepare(case)
    figures = call.figures
    assert figures["tokens_per_s"] == pytest.approx(2 * 64 / statistics.median(figures["wall"]))
    assert figures["loss"] == pytest.approx([math.log(300)] * 2, rel=0.3)
    assert (len(figures["wall"]), figures["mfu"], call.temp_bytes > 0) == (6, None, True)


@pytest.mark.slow
def test_a_peer_takes_steps():
    pytest.importorskip("torch", reason="the peers need torch")
    from experiments.benchmarks import torch_side

    call = torch_side.prepare({**TINY_DECODER, "kind": "decoder_step", "spec": "rope", "attention": "sdpa"})
    assert call.figures["tokens_per_s"] > 0
    assert call.figures["loss"] == pytest.approx(math.log(300), rel=0.5)
