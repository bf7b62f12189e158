"""How long may the input be: the command on a tiny model, and its table."""

import json
import pathlib

import pytest

from experiments import _cli, _context_table, context

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


ROW = {
    "attention": "dense",
    "work": "forward",
    "points": [point(1024, True, 6.0), point(65536, False, None)],
    "longest_of_memory": 1_234_567,
    "longest_of_time": 2**31 - 1,
}


def test_the_table_answers_first_and_brackets_what_was_calibrated_on():
    text = _context_table.to_markdown([ROW], {**ABOUT, "command": "python -m x"})
    assert "| dense | forward | 1,230,000 | no limit |" in text
    assert "| dense | forward | 1,024 | 1 MiB | 2 MiB | (0.50) | 3 s | 6 s | (0.50) |" in text
    assert "| dense | forward | 65,536 | 1 MiB | 2 MiB | 0.50 | 3 s |  |  |" in text


def test_panels_hold_what_was_measured_and_what_was_predicted():
    memory, time = _context_table.panels([ROW], ABOUT)
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
        context.main(_cli._load(str(CONFIGS / "vit.py")), tmp_path)
    with pytest.raises(ValueError, match="at most 4096 tokens"):
        context.main(_cli._load(str(CONFIGS / "decoder.py")), tmp_path, lengths=[8192])


@pytest.mark.slow
def test_a_tiny_decoder(tmp_path, monkeypatch, capsys, quick_compilation):
    monkeypatch.setattr(context, "_CALIBRATING", 32)
    config = _cli._load(str(CONFIGS / "decoder.py"))
    config.update_from_flattened_dict({"model.width": 8, "model.depth": 1, "model.num_heads": 2, "model.mlp_dim": 8})
    context.main(config, tmp_path, lengths=[32, 64], memory=2.0**34, seconds=30.0, window=16)
    rows = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    assert [(row["attention"], row["work"]) for row in rows] == list(context._ROWS)
    assert all(min(p["bytes"], p["seconds"]) > 0 for row in rows for p in row["points"])
    dense, blockwise = (row["longest_of_memory"] for row in rows[:2])
    assert 64 < dense < blockwise
    assert (tmp_path / "context.png").stat().st_size > 10_000
    assert "How long may the input be?" in capsys.readouterr().out
