"""The command for the longest possible input, on a tiny model, and its table."""

import json
import pathlib

import pytest

from experiments import cli, context
from experiments.cost import table

CONFIGS = pathlib.Path(__file__).parents[1] / "configs"
GIVEN = {"memory": 2.0**30, "seconds": 3.0, "window": 8, "batch": 1}
ABOUT = {
    **GIVEN,
    "model": {"encoding": "rope"},
    "device": "cpu",
    "cpus": 2,
    "jax": "1",
    "commit": "c",
    "allocator": "a",
}


def point(length, calibrating, seconds):
    sizes = dict(bytes=2 * 2**20, predicted_bytes=2**20, seconds=seconds, predicted_seconds=3.0)
    return {"length": length, "calibrating": calibrating, **sizes}


def predicted(length):
    """A point that was neither compiled nor run."""
    return {**point(length, False, None), "bytes": None}


ROW = {
    "attention": "dense",
    "work": "forward",
    "points": [point(1024, True, 6.0), point(65536, False, None)],
    "longest_of_memory": 1_234_567,
    "longest_of_time": 2**31 - 1,
}


def markdown(**changes):
    return table.to_markdown([{**ROW, **changes}], {**ABOUT, "command": "python -m x"})


def test_the_table_answers_first_and_brackets_what_was_calibrated_on():
    text = markdown()
    assert "| dense | forward | **1,230,000** | memory | 1,230,000 (19x) | no limit |" in text
    assert "| dense | forward | 1,024 | 1 MiB | 2 MiB | (0.50) | 3 s | 6 s | (0.50) |" in text
    assert "| dense | forward | 65,536 | 1 MiB | 2 MiB | 0.50 | 3 s |  |  |" in text


def test_the_table_says_what_runs_out_and_how_far_beyond_the_measured_that_is():
    assert "| **10,200** | time | 1,230,000 (19x) | 10,200 (10x) |" in markdown(longest_of_time=10_240)
    assert "| **1,000** | time | 1,230,000 (19x) | 1,000 |" in markdown(longest_of_time=1000)
    assert "| **no limit** | nothing | no limit | no limit |" in markdown(longest_of_memory=2**31 - 1)


def test_the_table_of_what_was_not_run_and_not_compiled():
    points = [{**point(1024, True, None), "predicted_seconds": None}, predicted(65536)]
    text = markdown(points=points, longest_of_memory=0, longest_of_time=None)
    assert "| **none** | memory | none | not run |" in text
    assert "| 1,024 | 1 MiB | 2 MiB | (0.50) |  |  |  |" in text
    assert "| 65,536 | 1 MiB |  |  | 3 s |  |  |" in text


def test_panels_hold_what_was_measured_and_what_was_predicted():
    memory, time = table.panels([ROW], ABOUT)
    assert memory.limit == (1.0, "1 GiB")
    assert [curve.values for curve in time.curves] == [{1024: 6.0}, {1024: 3.0, 65536: 3.0}]
    assert [curve.predicted for curve in time.curves] == [False, True]


@pytest.mark.parametrize(("text", "size"), [("24GiB", 24 * 2**30), ("1.5 MiB", 1.5 * 2**20), ("512", 512)])
def test_sizes(text, size):
    assert context.size_of(text) == size


@pytest.mark.parametrize("text", ["24GB", "much", "0GiB", "-1GiB"])
def test_what_is_no_size_is_named(text):
    with pytest.raises(ValueError, match="is no size: write it as 24GiB"):
        context.size_of(text)


def test_configs_and_lengths_that_do_not_do(tmp_path):
    with pytest.raises(ValueError, match="give the config of one"):
        context.main(cli.load(str(CONFIGS / "vit.py")), tmp_path)
    with pytest.raises(ValueError, match="at most 4096 tokens"):
        context.main(cli.load(str(CONFIGS / "decoder.py")), tmp_path, lengths=[8192])


def tiny():
    config = cli.load(str(CONFIGS / "decoder.py"))
    config.update_from_flattened_dict({"model.width": 8, "model.depth": 1, "model.num_heads": 2, "model.mlp_dim": 8})
    return config


@pytest.mark.slow
def test_a_memory_that_nothing_fits_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(context, "CALIBRATING", 32)
    monkeypatch.setattr(context, "ROWS", [("dense", "forward"), ("window", "decoding")])
    with pytest.raises(
        ValueError, match=r"no program fits 1 KiB: the smallest of them, .* KiB; raise --memory"
    ) as error:
        context.main(tiny(), tmp_path, lengths=[32, 64], memory=1024.0, window=16)
    assert "decoding with window attention at 32 tokens" in str(error.value)
    assert not list(tmp_path.iterdir())


def test_what_is_hopeless_is_neither_compiled_nor_run(tmp_path, monkeypatch):
    monkeypatch.setattr(context, "CALIBRATING", 32)
    monkeypatch.setattr(context, "ROWS", [("dense", "forward")])
    context.main(tiny(), tmp_path, lengths=[32, 2**16], memory=2.0**30, window=16)
    short, long = json.loads((tmp_path / "results.jsonl").read_text())["points"]
    assert short["seconds"] > 0
    assert (long["bytes"], long["seconds"]) == (None, None)
    assert long["predicted_bytes"] > 2**35


@pytest.mark.slow
def test_a_tiny_decoder(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(context, "CALIBRATING", 32)
    context.main(tiny(), tmp_path, lengths=[32, 64], memory=2.0**34, seconds=30.0, window=16)
    rows = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    assert [(row["attention"], row["work"]) for row in rows] == list(context.ROWS)
    assert all(min(p["bytes"], p["seconds"]) > 0 for row in rows for p in row["points"])
    dense, blockwise = (row["longest_of_memory"] for row in rows[:2])
    assert 64 < dense < blockwise
    assert rows[-1]["longest_of_memory"] == 2**31 - 1
    assert (tmp_path / "context.png").stat().st_size > 10_000
    assert "How long may the input be?" in capsys.readouterr().out
