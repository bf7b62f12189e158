"""How a command shows how far it is: a bar with an ETA on a terminal, a line now and then in a log."""

import sys

from tqdm import tqdm

_LINE_EVERY = 10.0  # seconds, where there is no terminal to draw a bar on
_NOTHING_YET = 1e-3  # seconds: tqdm then draws nothing before the first step, so that an early error stands alone


def bar(total: int, unit: str, **options) -> tqdm:
    """A bar on stderr, of which nothing is seen before its first step. `options` are tqdm's."""
    if sys.stderr.isatty():
        return tqdm(total=total, unit=unit, dynamic_ncols=True, delay=_NOTHING_YET, **options)
    lines = {"mininterval": _LINE_EVERY, "miniters": 1, "ascii": True, "ncols": 100, "file": _Lines()}
    return tqdm(total=total, unit=unit, delay=_NOTHING_YET, **lines, **options)


def caption(progress: tqdm, text: str) -> None:
    """Says what is under way; at once on a terminal where the bar is seen, with the next line in a log."""
    progress.set_description(text, refresh=progress.n > 0 and sys.stderr.isatty())


class _Lines:
    """stderr for a bar that is redrawn: each time a line of its own, instead of a carriage return."""

    def write(self, text: str) -> None:
        if text := text.strip():
            sys.stderr.write(text + "\n")

    def flush(self) -> None:
        sys.stderr.flush()
