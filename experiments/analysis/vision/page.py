"""Writes the pictures, the numbers and the page of `experiments.analyse`."""

import json
import math
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any

import matplotlib
import numpy as np

from experiments.analysis.page import Section, write_sections
from experiments.analysis.vision import moved, plots
from experiments.analysis.vision.findings import SHARES, Findings, Robustness
from experiments.analysis.vision.positions import similarity_map
from experiments.analysis.vision.subject import Pictures
from experiments.records import Record, StudyRecords
from experiments.report.statistics import Interval, mean_interval
from posjax.files import replace_file
from posjax.jsonl import strict


def write_analysis(
    images: Pictures,
    found: Findings,
    records: Sequence[Record],
    directory: pathlib.Path,
    title: str,
    facts: dict[str, str],
    command: str,
) -> list[pathlib.Path]:
    """Writes numbers.json, arrays.npz, a PNG per figure and README.md in the directory; returns their paths.

    Args:
      records: of `measure_moved`.
    """
    with matplotlib.rc_context(plots.STYLE):
        sections = [
            *_codes(found, images),
            *_maps(found),
            *_filters(found),
            _distance(found, images),
            *_read(found, images),
            _rollout(found, images),
            *_frequencies(found),
            *_position(found, images),
            *_robustness(found, images),
            *moved.sections_of(StudyRecords("", records)),
        ]
        paths = write_sections(directory, title, sections, facts, command)
    curves = json.dumps(strict(curve_numbers(images, found)), indent=1)
    replace_file(directory / "numbers.json", curves.encode() + b"\n")
    np.savez_compressed(directory / "arrays.npz", **arrays(found))
    return [directory / "numbers.json", directory / "arrays.npz", *paths]


def curve_numbers(images: Pictures, found: Findings) -> dict[str, Any]:
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
    if names := _without_position(images):
        whole["attention_of_prefix"] = {
            "tokens": names,
            "seed, layer, head, token, (pixels from its centre, entropy in nats)": attention.read,
        }
    if attention.position is not None:
        whole["position_probe"] = {"seed, layer, (r2 of row, r2 of column, share of patches)": attention.position}
    if found.robustness is not None:
        for name, curve in zip(("shuffled", "translated_pixels"), curves_of(found.robustness), strict=True):
            points = {x: {"mean": each.mean, "half_width": each.half_width} for x, each in curve}
            whole[f"accuracy_when_{name}"] = points
    return whole


def arrays(found: Findings) -> dict[str, np.ndarray]:
    """The data of the pictures, of the first seed, by name."""
    hosts, attention = found.hosts, found.attention
    by_host = {
        "codes": [host.codes for host in hosts],
        "rotation_agreement": [host.agreement for host in hosts],
        "bias": [host.bias for host in hosts],
        "waves": [waves and waves.wave for waves in found.waves],
    }
    whole = {f"{name}_{i}": x for name, values in by_host.items() for i, x in enumerate(values)}
    whole |= {"use": attention.use, "query_norm": attention.query, "key_norm": attention.key}
    whole |= {
        "rollout": found.rollout,
        "attention_by_distance": found.profile,
        "attention_of_prefix": found.read if found.read.size else None,
        "filters": found.filters.filters,
        "filters_share": found.filters.share,
    }
    return {name: np.asarray(x, np.float32) for name, x in whole.items() if x is not None}


def curves_of(found: Robustness) -> tuple[list[tuple[float, Interval]], list[tuple[int, Interval]]]:
    """Returns accuracy by share and by shift, with its interval over seeds, or over images if there is one seed."""

    def accuracy(right: np.ndarray) -> Interval:  # of answers [R, N], 0 to 1 each
        return mean_interval(right.mean(axis=1) if len(right) > 1 else right[0].astype(float))

    moved = found.translated.mean(axis=2)
    return (
        [(share, accuracy(found.shuffled[:, i])) for i, share in enumerate(SHARES)],
        [(shift, accuracy(moved[:, i])) for i, shift in enumerate(found.shifts)],
    )


def _over(images: Pictures) -> str:
    count = len(images.subject.seeds)
    return f"Mean and 95 % interval over {count} seeds." if count > 1 else "One seed."


def _codes(found: Findings, images: Pictures) -> Iterator[Section]:
    coded = [(host.name, similarity_map(host.codes)) for host in found.hosts if host.codes is not None]
    if not coded:
        return
    names, maps = zip(*coded, strict=True)
    figures = {"similarity": plots.similarity(maps[0])}
    if len(coded) > 1:
        title = "likeness to the code in the middle"
        tiles = [each[None] for each in maps]
        figures["similarity_by_layer"] = plots.around_the_middle(tiles, names, title, "cosine similarity")
    text = (
        "Cosine similarity between the code that is added to a patch, at the row and column of the tile, and those of "
        "all others (ViT, arXiv 2010.11929, figure 7 centre and figure 10). The codes of the first seed"
        f"{f', {names[0]}' if len(found.hosts) > 1 else ''}."
    )
    yield Section("Position embeddings", text, figures)


def _maps(found: Findings) -> Iterator[Section]:
    turned = (
        "How alike a query in the middle and a key elsewhere are turned: the mean cosine of the angle between them over "
        "pairs of channels, which is what rotation leaves of the product of a word with itself when no channel matters more "
        "than another. First seed."
    )
    added = "What is added to the logits of a query in the middle. First seed; heads share one scale."
    agreement = {host.name: host.agreement for host in found.hosts if host.agreement is not None}
    bias = {host.name: host.bias for host in found.hosts if host.bias is not None}
    for heading, text, maps, title, unit in (
        ("Rotation", turned, agreement, "what rotation leaves of a word's logit with itself", "mean cosine"),
        ("Bias", added, bias, "bias of the logits", "added to the logit"),
    ):
        if maps:
            figure = plots.around_the_middle(list(maps.values()), list(maps), title, unit)
            yield Section(heading, text, {heading.lower(): figure})


def _filters(found: Findings) -> Iterator[Section]:
    text = (
        "Principal components of the filters that make tokens of patches, the mean filter taken off (ViT, figure 7 left); "
        "each with its own contrast, grey is 0. First seed."
    )
    if found.filters.filters.shape[1] > 1:  # after a stem, a filter has one pixel and nothing to show
        yield Section("Patch filters", text, {"filters": plots.filters(found.filters)})


def _distance(found: Findings, images: Pictures) -> Section:
    attention = found.attention
    text = (
        "How far from a patch its attention goes, for each head (ViT, figure 7 right and appendix D.7), among patches: what "
        f"goes to class token and registers is left out. {_over(images)} "
    )
    if attention.prefix.any():
        shares = attention.prefix.mean(axis=(0, 2))
        text += "Share that goes to them, by layer: " + ", ".join(f"{100 * share:.0f} %" for share in shares) + "."
    text += (
        " Below: the attention of each head of the first seed to patches so far away, over that of uniform attention."
    )
    figures = {"attention_distance": plots.distance_by_depth(attention.distance, attention.uniform)}
    figures["attention_by_distance"] = plots.distance_profile(found.profile, math.prod(images.grid))
    return Section("Attention distance", text, figures)


_READERS = 2  # tokens without position that are drawn: a class token and a register


def _without_position(images: Pictures) -> list[str]:
    """Returns the names of the tokens without position, in their order."""
    model = images.subject.model
    return (
        ["class token"] * model.has_cls
        + ["distillation token"] * model.distillation_token
        + [f"register {index + 1}" for index in range(model.num_registers)]
    )


def _read(found: Findings, images: Pictures) -> Iterator[Section]:
    names, read = _without_position(images), found.attention.read
    if not names:
        return
    text = (
        f"The patches that tokens without position read, for each head, in one image (left), first seed: each patch's "
        f"share, over that of uniform attention to {math.prod(images.grid):,} patches. By layer, the number of patches that are read "
        f"(the exponential of the entropy) and their mean distance from the map's own centre. {_over(images)} "
    )
    for index, name in enumerate(names):
        far, entropy = read[..., index, :].mean(axis=(0, 2)).T
        layers = (f"{np.exp(e):.0f} at {d:.0f} pixels" for d, e in zip(far, entropy, strict=True))
        text += f"{'; ' if index else ''}{name}: {', '.join(layers)}"
    figures = {
        f"attention_of_{name.replace(' ', '_')}": plots.reading_maps(images.pixels[0], found.read[:, :, index], name)
        for index, name in enumerate(names[:_READERS])
    }
    yield Section("Attention of the class token and registers", f"{text}.", figures)


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
    figure = plots.rollouts(images.pixels[: len(names)], found.rollout, names)
    return Section("Attention rollout", text, {"rollout": figure})


def _frequencies(found: Findings) -> Iterator[Section]:
    if found.attention.use is None:
        return
    use, magnitude = found.attention.use[0], np.stack([waves.magnitude for waves in found.waves])
    text = (
        "The mean of |q||k| over each pair of channels that turns together (Barbero et al., arXiv 2410.06205), as a share of "
        "the head's; 1 is an even share. Pairs of short wavelength tell neighbours apart, those of long ones carry content. "
        "First seed: another one may have learned other frequencies."
    )
    figures = {"frequency_use": plots.frequency_shares(use, magnitude)}
    if len(found.waves[0].wave) == 2:
        figures["wave_vectors"] = plots.wave_vectors(np.stack([waves.wave for waves in found.waves]), use)
        text += " Below: in which direction each pair turns, and how fast."
    yield Section("Rotary frequencies", text, figures)


def _position(found: Findings, images: Pictures) -> Iterator[Section]:
    text = (
        "Ridge regression from the tokens of half the images to where they stand, scored on the other half: R² of row and "
        f"column, and the share of patches whose index it names. {_over(images)}"
    )
    if found.attention.position is not None:
        figure = plots.position_by_depth(found.attention.position, 1 / math.prod(images.grid))
        yield Section("Where tokens know they are", text, {"position_probe": figure})


def _robustness(found: Findings, images: Pictures) -> Iterator[Section]:
    seeds = len(images.subject.seeds)
    over = f"over {seeds} seeds" if seeds > 1 else f"over {len(images.pixels)} images"
    text = (
        "Left: a share of the patches, drawn for each image, stand in each other's places; tokens keep the positions of "
        "their slots. Right: the whole image is moved, right, left, down and up, and what comes in is "
        f"{images.padding!r}. Mean and 95 % interval {over}."
    )
    if found.robustness is not None:
        chance = 1 / images.subject.model.num_classes
        figure = plots.robustness(*curves_of(found.robustness), images.patch, chance)
        yield Section("Patch shuffling and translation", text, {"robustness": figure})
