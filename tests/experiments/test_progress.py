"""Progress bars in logs."""

import numpy as np
import pytest

from experiments import progress


def test_a_log_has_lines_and_nothing_before_the_first_step(monkeypatch, capsys):
    monkeypatch.setattr(progress, "LINE_EVERY", 0.0)
    monkeypatch.setattr(progress, "NOTHING_YET", 1e-9)
    with progress.Progress(2) as steps:
        on_step = steps.row("first")
        for step in (1, 2):
            on_step(step, {"loss": np.ones(1)})
    shown = capsys.readouterr().err
    assert "\r" not in shown
    assert len(shown.splitlines()) >= 2
    assert all(line.startswith("first: ") and "loss=1.000" in line for line in shown.splitlines())
    monkeypatch.undo()
    with pytest.raises(ValueError, match="early"), progress.Progress(2) as steps:
        steps.row("first")
        raise ValueError("early")
    assert capsys.readouterr().err == ""


def test_a_bar_within_another_moves_no_cursor_and_a_long_caption_leaves_room(monkeypatch, capsys):
    """A pattern over the layers is longer than a line of a log."""
    monkeypatch.setattr(progress, "LINE_EVERY", 0.0)
    monkeypatch.setattr(progress, "NOTHING_YET", 1e-9)
    with progress.bar(1, "step") as outer, progress.bar(2, "tok", leave=False) as inner:
        progress.caption(inner, ", ".join(["rope() + window(512)"] * 6))
        inner.update()
        outer.update()
    shown = capsys.readouterr().err
    assert "tok/s" in shown
    assert "1/2" in shown
    assert "\x1b" not in shown
