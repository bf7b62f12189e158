"""Writes the pictures, the numbers and the page of `experiments.analyse`."""

import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure

from experiments.analysis.vision import plots
from experiments.analysis.vision.findings import Findings, Robustness, Told
from experiments.analysis.vision.positions import similarity_map
from experiments.analysis.vision.subject import Pictures
from experiments.report.statistics import Interval, mean_interval
from posjax.describe.figures import save
from posjax.describe.markdown import escape_markdown, grid
from posjax.files import replace_file
from posjax.jsonl import strict

_DPI = 110


class Section(NamedTuple):
    """A heading, its text, and the pictures by file name without ".png"."""

    heading: str
    text: str
    figures: Mapping[str, Figure]


def write_page(
    directory: pathlib.Path, title: str, sections: Sequence[Section], facts: Mapping[str, str], command: str
) -> list[pathlib.Path]:
    """Writes README.md and a PNG per figure; returns the paths, README.md last.

    The page is a function of the arguments: no clock, no host name. Files appear whole or not at all.

    Args:
      directory: the folder.
      title: the page's title.
      sections: the sections.
      facts: {name: fact} about the model and the images.
      command: the command line that makes the page again.

    Raises:
      ValueError: two figures have the same name.
    """
    names = [name for section in sections for name in section.figures]
    if len(set(names)) < len(names):
        raise ValueError(f"figures share file names: {sorted(names)}")
    directory.mkdir(parents=True, exist_ok=True)
    rows = [(escape_markdown(name), escape_markdown(value)) for name, value in facts.items()]
    parts, paths = [f"# {escape_markdown(title)}", grid(("about", "value"), rows, left=2)], []
    for section in sections:
        parts += [f"## {escape_markdown(section.heading)}", escape_markdown(section.text)]
        for name, figure in section.figures.items():
            paths.append(save(figure, directory / f"{name}.png", dpi=_DPI))
            parts.append(f"![{name.replace('_', ' ')}]({name}.png)")
    parts.append(f"## How to reproduce\n\n```\n{command}\n```")
    replace_file(directory / "README.md", ("\n\n".join(parts) + "\n").encode())
    return [*paths, directory / "README.md"]


def write(
    images: Pictures, found: Findings, directory: pathlib.Path, title: str, facts: dict[str, str], command: str
) -> list[pathlib.Path]:
    """Writes numbers.json, arrays.npz, a PNG per figure and README.md in the directory; returns their paths."""
    sections = [
        *_told(found.told, images),
        _filters(found, images),
        *_attention(found, images),
        _rollout(found, images),
        *_frequencies(found),
        *_position(found, images),
        *_robustness(found, images),
    ]
    paths = write_page(directory, title, [section for section in sections if section.figures], facts, command)
    replace_file(directory / "numbers.json", json.dumps(strict(numbers(images, found)), indent=1).encode() + b"\n")
    np.savez_compressed(directory / "arrays.npz", **arrays(found))
    return [directory / "numbers.json", directory / "arrays.npz", *paths]


def numbers(images: Pictures, found: Findings) -> dict[str, Any]:
    """The data of the curves: nested lists in the order of their names, by seed first."""
    attention = found.attention
    whole = {
        "encoding": images.subject.encoding,
        "images": images.about,
        "seeds": images.subject.seeds,
        "patch_size": images.patch,
        "grid": images.grid,
        "attention_distance_pixels": {"seed, layer, head": attention.distance, "uniform": attention.uniform},
        "attention_to_prefix_share": {"seed, layer, head": attention.prefix},
    }
    if attention.position is not None:
        whole["position_probe"] = {"seed, layer, (r2 of row, r2 of column, share of patches)": attention.position}
    if found.robustness is not None:
        shuffled, translated = curves_of(found.robustness)
        whole["accuracy_when_shuffled"] = {share: _shown(interval) for share, interval in shuffled}
        whole["accuracy_when_translated_pixels"] = {shift: _shown(interval) for shift, interval in translated}
    return whole


def arrays(found: Findings) -> dict[str, np.ndarray]:
    """The data of the pictures, of the first seed, by name."""
    told = found.told
    by_host = {"codes": told.codes, "rotation_agreement": told.agreement, "bias": told.bias}
    whole = {f"{what}_{i}": x for what, values in by_host.items() for i, x in enumerate(values) if x is not None}
    whole |= {f"waves_{i}": waves.wave for i, waves in enumerate(told.waves) if waves is not None}
    used = {"use": found.attention.use, "query_norm": found.attention.query, "key_norm": found.attention.key}
    whole |= {name: values for name, values in used.items() if values is not None}
    whole |= {"rollout": found.rollout, "filters": found.filters.filters, "filters_share": found.filters.share}
    return {name: np.asarray(x, np.float32) for name, x in whole.items()}


def curves_of(found: Robustness) -> tuple[list[tuple[float, Interval]], list[tuple[int, Interval]]]:
    """Returns accuracy by share and by shift, with its interval over seeds, or over images if there is one seed."""
    moved = found.translated.mean(axis=2)
    return (
        [(share, _accuracy(found.shuffled[:, i])) for i, share in enumerate(found.shares)],
        [(shift, _accuracy(moved[:, i])) for i, shift in enumerate(found.shifts)],
    )


def _accuracy(right: np.ndarray) -> Interval:
    """Mean and interval of right answers [R, N], 0 to 1 each."""
    return mean_interval(right.mean(axis=1) if len(right) > 1 else right[0].astype(float))


def _shown(interval: Interval) -> dict[str, float]:
    return {"mean": interval.mean, "half_width": interval.half_width}


def _over(images: Pictures) -> str:
    count = len(images.subject.seeds)
    return f"Mean and 95 % interval over {count} seeds." if count > 1 else "One seed."


def _told(told: Told, images: Pictures) -> list[Section]:
    sections, grid = [], "x".join(map(str, images.grid))
    coded = [(name, codes) for name, codes in zip(told.names, told.codes, strict=True) if codes is not None]
    if coded:
        figures = {"similarity": plots.similarity(similarity_map(coded[0][1]), f"codes of {grid} patches")}
        if len(coded) > 1:
            maps, names = [similarity_map(codes)[None] for _, codes in coded], [name for name, _ in coded]
            title = "likeness to the code in the middle"
            figures["similarity_by_layer"] = plots.around_the_middle(maps, names, title, "cosine similarity")
        text = (
            "Cosine similarity between the code that is added to a patch, at the row and column of the tile, and those of "
            "all others (ViT, arXiv 2010.11929, figure 7 centre and figure 10). The codes of the first seed"
            f"{f', {coded[0][0]}' if len(told.names) > 1 else ''}."
        )
        sections.append(Section("Position embeddings", text, figures))
    what = "what rotation leaves of a word's logit with itself"
    text = (
        "How alike a query in the middle and a key elsewhere are turned: the mean cosine of the angle between them over "
        "pairs of channels, which is what rotation leaves of the product of a word with itself when no channel matters more "
        "than another. First seed."
    )
    sections += _maps(told.names, told.agreement, "rotation", "Rotation", text, what, "mean cosine")
    text = "What is added to the logits of a query in the middle. First seed; heads share one scale."
    return sections + _maps(told.names, told.bias, "bias", "Bias", text, "bias of the logits", "added to the logit")


def _maps(names, values, name: str, heading: str, text: str, title: str, unit: str) -> list[Section]:
    kept = [(label, maps) for label, maps in zip(names, values, strict=True) if maps is not None]
    if not kept:
        return []
    labels, maps = zip(*kept, strict=True)
    return [Section(heading, text, {name: plots.around_the_middle(maps, labels, title, unit)})]


def _filters(found: Findings, images: Pictures) -> Section:
    text = (
        "Principal components of the filters that make tokens of patches, the mean filter taken off (ViT, figure 7 left); "
        "each with its own contrast, grey is 0. First seed."
    )
    flat = found.filters.filters.shape[1] == 1
    if flat:  # after a stem, a filter has one pixel and nothing to show
        return Section("Patch filters", text, {})
    return Section("Patch filters", text, {"filters": plots.filters(found.filters)})


def _attention(found: Findings, images: Pictures) -> list[Section]:
    attention = found.attention
    text = (
        "How far from a patch its attention goes, for each head (ViT, figure 7 right and appendix D.7), among patches: what "
        f"goes to class token and registers is left out. {_over(images)} "
    )
    if attention.prefix.any():
        shares = attention.prefix.mean(axis=(0, 2))
        text += "Share that goes to them, by layer: " + ", ".join(f"{100 * share:.0f} %" for share in shares) + "."
    figure = plots.distance_by_depth(attention.distance, attention.uniform, "mean attention distance by head and depth")
    return [Section("Attention distance", text, {"attention_distance": figure})]


def _rollout(found: Findings, images: Pictures) -> Section:
    names = [""] * len(found.rollout)
    if found.answers is not None and images.labels is not None:
        names = [f"{images.labels[i]} → {found.answers[i]}" for i in range(len(names))]
    read = "the class token" if images.subject.model.pooling.startswith("cls") else "the mean of all patches"
    text = (
        f"From which patches {read} comes by attention rollout (Abnar & Zuidema, arXiv 2005.00928): the product over layers "
        "of half the attention, averaged over heads, and half the identity. It ignores what values and MLPs do. Above "
        "the images: class → answer. First seed."
    )
    figure = plots.rollouts(images.pixels[: len(names)], found.rollout, names, "attention rollout")
    return Section("Attention rollout", text, {"rollout": figure})


def _frequencies(found: Findings) -> list[Section]:
    attention, waves = found.attention, found.told.waves
    if attention.use is None:
        return []
    use, magnitude = attention.use[0], np.stack([each.magnitude for each in waves])
    text = (
        "The mean of |q||k| over each pair of channels that turns together (Barbero et al., arXiv 2410.06205), as a share of "
        "the head's; 1 is an even share. Pairs of short wavelength tell neighbours apart, those of long ones carry content. "
        "First seed: another one may have learned other frequencies."
    )
    figures = {"frequency_use": plots.frequency_use(use, magnitude, "use of rotary frequencies by head")}
    if len(waves[0].wave) == 2:
        whole = np.stack([each.wave for each in waves])
        names = [f"layer {i + 1}" for i in range(len(whole))]
        title = "wave vectors of the heads; the larger, the more used"
        figures["wave_vectors"] = plots.wave_vectors(whole, use, names, title)
        text += " Below: in which direction each pair turns, and how fast."
    return [Section("Rotary frequencies", text, figures)]


def _position(found: Findings, images: Pictures) -> list[Section]:
    if found.attention.position is None:
        return []
    rows, columns = images.grid
    text = (
        "Ridge regression from the tokens of half the images to where they stand, scored on the other half: R² of row and "
        f"column, and the share of patches whose index it names. {_over(images)}"
    )
    figure = plots.position_by_depth(found.attention.position, 1 / (rows * columns), "absolute position in the tokens")
    return [Section("Where tokens know they are", text, {"position_probe": figure})]


def _robustness(found: Findings, images: Pictures) -> list[Section]:
    if found.robustness is None:
        return []
    shuffled, translated = curves_of(found.robustness)
    over = (
        f"over {len(images.subject.seeds)} seeds"
        if len(images.subject.seeds) > 1
        else f"over {len(images.pixels)} images"
    )
    text = (
        "Left: a share of the patches, drawn for each image, stand in each other's places; tokens keep the positions of "
        "their slots. Right: the whole image is moved, right, left, down and up, and what comes in is "
        f"{images.padding!r}. Mean and 95 % interval {over}."
    )
    chance = 1 / images.subject.model.num_classes
    figure = plots.robustness(shuffled, translated, images.patch, chance, "accuracy when patches or images move")
    return [Section("Patch shuffling and translation", text, {"robustness": figure})]
