"""docs/vit_and_llm.md: vit_and_llm.md beside this file, with numbers of the records of results/real_models in its braces."""

import os
import pathlib

import numpy as np

from experiments.records import Records, read_study
from experiments.report.statistics import difference_of, finite_values, mean_interval, term
from posjax.files import replace_file

PAGE = pathlib.Path("docs/vit_and_llm.md")
GEMMA, MINILM, DINO = "gemma-3-270m", "all-MiniLM-L6-v2", "dinov2-small-saliency"


def write_page(directory: pathlib.Path) -> list[pathlib.Path]:
    """Writes the page from a folder of results; nothing where it holds no published models."""
    if not (records := read_study(directory / "real_models", parts=True)):
        return []
    replace_file(PAGE, render(records, directory).encode())
    return [PAGE]


def render(records: Records, directory: pathlib.Path = pathlib.Path("results")) -> str:
    """Returns the Markdown of the page.

    Args:
      directory: the folder of results, for links.

    Raises:
      ValueError: a number was not measured.
    """
    template = pathlib.Path(__file__).with_suffix(".md").read_text()
    results = os.path.relpath(directory, PAGE.parent)
    return template.format(
        home=f"{results}/real_models",
        results=results,
        gemma=GEMMA,
        minilm=MINILM,
        dino=DINO,
        **_of_gemma(records),
        **_of_minilm(records),
        **_of_dino(records),
    )


def _mean(
    records: Records, model: str, row: str, metric: str, digits: int, scale: float = 1, at: int | None = None
) -> str:
    """Returns a mean with its interval, ``0.94 ± 0.01``."""
    values = finite_values(records.studies[model].values(row, metric, at)) if model in records.studies else []
    if not values:
        raise ValueError(f"results/real_models has no {metric!r} of {row!r} of {model}: analyse that model again")
    return mean_interval(values).scaled(scale).text(digits)


def _of_gemma(records: Records) -> dict[str, str]:
    def mean(metric: str, digits: int, scale: float = 1, row: str = "as loaded") -> str:
        return _mean(records, GEMMA, row, metric, digits, scale)

    def rise(row: str, digits: int) -> str:
        study = records.studies[GEMMA]
        found = difference_of(term(study, row, "loss"), term(study, "as loaded", "loss"))
        return found.interval().text(digits, signed=True)

    band = "wavelength of the most used pair over the tokens seen, octaves"
    return {
        "slow": mean("share of the slowest quarter, all layers", 0, 100),
        "lead": mean("fastest quarter's lead", 0, 100),
        "band_windowed": mean(f"{band}, windowed layers", 1),
        "band_global": mean(f"{band}, global layers", 1),
        "sinks": mean("heads that are sinks", 0, 100),
        "no_bos": mean("heads that are sinks", 0, 100, "without BOS"),
        "shifted": rise("positions + 16384", 4),
        "opened": rise("no window, windowed layers", 2),
        "yarn": rise("no window and YaRN, windowed layers", 3),
        "no_rope": rise("no rope, all layers", 1),
        "free": rise("p_rope(0.5), global layers", 3),
    }


def _of_minilm(records: Records) -> dict[str, str]:
    moved, found = "cosine distance to the original", "pass key retrieved"
    return {
        "components": _mean(records, MINILM, "the table", "components for 90 %", 0).removesuffix(" ± -"),
        "moved": _mean(records, MINILM, "positions + 64", moved, 3),
        "moved_far": _mean(records, MINILM, "positions + 192", moved, 2),
        "cut": _mean(records, MINILM, "truncated", found, 0, 100, 2048),
        "grouped": _mean(records, MINILM, "grouped", found, 0, 100, 2048),
        "cls": _mean(records, MINILM, "as loaded", "heads that are sinks", 0, 100),
        "stretched": _mean(records, MINILM, "interpolated", found, 0, 100, 2048),
    }


def _of_dino(records: Records) -> dict[str, str]:
    shares = records.studies[DINO].rows["as loaded"][0].metrics["attention on tokens without position"]
    cosine, grid = "cosine of the class token", "variance in row + column codes"
    return {
        "prefix": f"{100 * np.mean([*shares.values()]):.0f}",
        "grid": _mean(records, DINO, "the table", grid, 1, 100),
        "shuffled_grid": _mean(records, DINO, "the table with its rows shuffled", grid, 1, 100),
        "cut_table": _mean(records, DINO, "252x252, not resized", cosine, 2),
        "along": _mean(records, DINO, "patches shuffled with their positions", cosine, 3),
        "in_place": _mean(records, DINO, "patches shuffled, positions in place", cosine, 2),
        "resized": _mean(records, DINO, "252x252, torch_bicubic", cosine, 2),
        "google": _mean(records, DINO, "252x252, google_npz", cosine, 3),
        "official": _mean(records, DINO, "252x252, dinov2", cosine, 3),
        "other_images": _mean(records, DINO, "other images", cosine, 2),
    }
