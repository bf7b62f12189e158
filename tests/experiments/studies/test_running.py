"""Progress bars in logs."""

from experiments.studies.running import bar, caption


def test_a_long_caption_leaves_room_for_the_count(capsys):
    """A pattern over the layers is longer than a line of a log."""
    with bar(10, "step") as progress:
        caption(progress, ", ".join(["rope() + window(512)"] * 6))
        progress.update(3)
        progress.refresh()
    assert "3/10" in capsys.readouterr().err
