"""One golden comparison."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

import posjax as pj

HERE = Path(__file__).parent


class Check(NamedTuple):
    """Our numbers beside a reference's on one setting."""

    encoding: str  # registered name
    reference: (
        str  # what ran, as in "transformers llama" (its version is in the .npz) or "naver-ai/rope-vit, transcribed"
    )
    setting: str  # its particularity, such as "13 heads" or "positions above the trained length"
    arrays: Callable[[], tuple[np.ndarray, np.ndarray]]  # () -> (ours, theirs), of one shape
    atol: float = 1e-5

    def __str__(self):
        return f"{self.encoding}: {self.reference}, {self.setting}"

    @property
    def error(self) -> float:
        ours, theirs = (np.asarray(x, np.float64) for x in self.arrays())
        assert ours.shape == theirs.shape, f"{self}: {ours.shape} beside {theirs.shape}"
        return float(np.abs(ours - theirs).max())


def load(name: str) -> dict[str, np.ndarray]:
    with np.load(HERE / f"{name}.npz", allow_pickle=False) as file:
        return dict(file)


def line(position) -> pj.Site:
    """The sites of one document at these positions."""
    ones = np.ones(len(position), np.int32)
    return pj.Site(np.asarray(position, np.int32), ones, 0 * ones)
