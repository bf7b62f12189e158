"""docs/vit_and_llm.md, in two languages: templates beside this file, with numbers of results/real_models in their braces."""

import pathlib

import numpy as np

from experiments.records import Records, read_study
from experiments.report.languages import write
from experiments.report.statistics import difference_of, finite_values, mean_interval, term

GEMMA, MINILM, DINO = "gemma-3-270m", "all-MiniLM-L6-v2", "dinov2-small-saliency"
OWN = "as loaded"
_BAND = "wavelength of the most used pair over the tokens seen, octaves"
_SINKS, _COSINE, _GRID = "heads that are sinks", "cosine of the class token", "variance in row + column codes"
_MOVED, _FOUND = "cosine distance to the original", "pass key retrieved"
# Means by their name in the page: model, row, metric, digits and factor, and a length where the metric has several.
MEANS = {
    "slow": (GEMMA, OWN, "share of the slowest quarter, all layers", 0, 100),
    "lead": (GEMMA, OWN, "fastest quarter's lead", 0, 100),
    "band_windowed": (GEMMA, OWN, f"{_BAND}, windowed layers", 1, 1),
    "band_global": (GEMMA, OWN, f"{_BAND}, global layers", 1, 1),
    "sinks": (GEMMA, OWN, _SINKS, 0, 100),
    "no_bos": (GEMMA, "without BOS", _SINKS, 0, 100),
    "components": (MINILM, "the table", "components for 90 %", 0, 1),
    "moved": (MINILM, "positions + 64", _MOVED, 3, 1),
    "moved_far": (MINILM, "positions + 192", _MOVED, 2, 1),
    "cut": (MINILM, "truncated", _FOUND, 0, 100, 2048),
    "grouped": (MINILM, "grouped", _FOUND, 0, 100, 2048),
    "stretched": (MINILM, "interpolated", _FOUND, 0, 100, 2048),
    "cls": (MINILM, OWN, _SINKS, 0, 100),
    "grid": (DINO, "the table", _GRID, 1, 100),
    "shuffled_grid": (DINO, "the table with its rows shuffled", _GRID, 1, 100),
    "cut_table": (DINO, "252x252, not resized", _COSINE, 2, 1),
    "along": (DINO, "patches shuffled with their positions", _COSINE, 3, 1),
    "in_place": (DINO, "patches shuffled, positions in place", _COSINE, 2, 1),
    "resized": (DINO, "252x252, torch_bicubic", _COSINE, 2, 1),
    "google": (DINO, "252x252, google_npz", _COSINE, 3, 1),
    "official": (DINO, "252x252, dinov2", _COSINE, 3, 1),
    "other_images": (DINO, "other images", _COSINE, 2, 1),
}
# Rises of Gemma's loss: row and digits.
RISES = {
    "shifted": ("positions + 16384", 4),
    "opened": ("no window, windowed layers", 2),
    "yarn": ("no window and YaRN, windowed layers", 3),
    "no_rope": ("no rope, all layers", 1),
    "free": ("p_rope(0.5), global layers", 3),
}


def write_pages(directory: pathlib.Path) -> list[pathlib.Path]:
    """Writes the page in both languages from a folder of results; nothing where it holds no published models."""
    if not (records := read_study(directory / "real_models", parts=True)):
        return []
    return write("vit_and_llm", fields(records), directory)


def fields(records: Records) -> dict[str, str]:
    """Returns the numbers of the page by name.

    Raises:
      ValueError: a number was not measured.
    """
    means = {name: _mean(records, *address) for name, address in MEANS.items()}
    rises = {name: _rise(records, *address) for name, address in RISES.items()}
    shares = records.studies[DINO].rows[OWN][0].metrics["attention on tokens without position"]
    prefix = f"{100 * np.mean([*shares.values()]):.0f}"
    return dict(gemma=GEMMA, minilm=MINILM, dino=DINO, **means, **rises, prefix=prefix)


def _mean(
    records: Records, model: str, row: str, metric: str, digits: int, factor: float, at: int | None = None
) -> str:
    """Returns a mean with its interval, ``0.94 ± 0.01``; without one if nothing varies."""
    values = finite_values(records.studies[model].values(row, metric, at)) if model in records.studies else []
    if not values:
        raise ValueError(f"results/real_models has no {metric!r} of {row!r} of {model}: analyse that model again")
    return mean_interval(values).scaled(factor).text(digits).removesuffix(" ± -")


def _rise(records: Records, row: str, digits: int) -> str:
    cells = (term(records.studies[GEMMA], name, "loss") for name in (row, OWN))
    return difference_of(*cells).interval().text(digits, signed=True)
