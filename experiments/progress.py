"""Progress bars on stderr, and requests to stop a run."""

import signal
import sys
from collections.abc import Callable
from types import FrameType

import numpy as np
from tqdm import tqdm

LINE_EVERY = 10.0  # seconds, where there is no terminal to draw a bar on
LONGEST = 40  # characters of a caption
NOTHING_YET = 1e-3  # seconds: tqdm then draws nothing before the first step, so that an early error stands alone
SPEEDS = ("tokens_per_s", "images_per_s")


def bar(total: int, unit: str, **options) -> tqdm:
    """A bar on stderr that appears with its first step. `options` are tqdm's."""
    if sys.stderr.isatty():
        return tqdm(total=total, unit=unit, dynamic_ncols=True, delay=NOTHING_YET, **options)
    lines = {"mininterval": LINE_EVERY, "miniters": 1, "ascii": True, "ncols": 100, "file": _Lines()}
    lines["position"] = 0  # a bar within another would move the cursor
    return tqdm(total=total, unit=unit, delay=NOTHING_YET, **lines, **options)


def caption(progress: tqdm, text: str) -> None:
    """Sets the caption of a bar, shortened to leave room for it; at once on a terminal, with the next line in a log."""
    text = text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."
    progress.set_description(text, refresh=progress.n > 0 and sys.stderr.isatty())


class _Lines:
    """stderr for a bar that is redrawn: each time a line of its own, instead of a carriage return."""

    def write(self, text: str) -> None:
        if text := text.strip():
            sys.stderr.write(text + "\n")

    def flush(self) -> None:
        sys.stderr.flush()


class StopRequest:
    """Within `with StopRequest() as should_stop`, should_stop() says whether SIGTERM or Ctrl-C has come.

    A second Ctrl-C interrupts at once, as usual.
    """

    _SIGNALS = (signal.SIGTERM, signal.SIGINT)

    def __enter__(self) -> "StopRequest":
        self._asked = False
        self._before = {number: signal.signal(number, self._ask) for number in self._SIGNALS}
        return self

    def __exit__(self, *_) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def __call__(self) -> bool:
        return self._asked

    def _ask(self, number: int, frame: FrameType | None) -> None:
        self._asked = True
        signal.signal(number, self._before[number])


class Progress:
    """A bar over the steps of all rows."""

    def __init__(self, total: int):
        self._bar = bar(total, "step")

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *_) -> None:
        self._bar.close()

    def row(self, name: str) -> Callable[[int, dict[str, np.ndarray]], None]:
        """`on_step` of a row; steps that an earlier process took are not counted into the rate."""
        caption(self._bar, name)
        taken_before: list[int] = []

        def on_step(taken: int, report: dict[str, np.ndarray]) -> None:
            if not taken_before:
                taken_before.append(taken - 1)
                self._bar.initial += taken - 1
                self._bar.n += taken - 1
            speed = {name.replace("_per_", "/"): f"{report[name]:,.0f}" for name in SPEEDS if name in report}
            speed |= {"mfu": f"{report['mfu']:.1%}"} if "mfu" in report else {}
            speed |= {"data_wait": f"{report['data_wait']:.3f} s"} if "data_wait" in report else {}
            self._bar.set_postfix({"loss": f"{report['loss'].mean():.3f}"} | speed, refresh=False)
            self._bar.update()

        return on_step
