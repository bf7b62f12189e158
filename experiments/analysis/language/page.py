"""The page of `experiments.analyse` for a decoder: what may go, frequencies, heads, shifts, massive values, pass keys."""

import pathlib
from collections.abc import Iterator, Mapping, Sequence

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from experiments.analysis.language.findings import (
    FIRST,
    GAINS,
    HIDDEN,
    INDUCTION,
    LEAD,
    LOOKS_BACK,
    LOSS,
    MASSIVE,
    OLDEST,
    PASSKEY,
    PREVIOUS,
    RATIO,
    SINKS,
    SLOW,
)
from experiments.analysis.language.subject import OWN
from experiments.analysis.measured import mean_text
from experiments.analysis.page import Section, write_sections
from experiments.analysis.vision import plots
from experiments.records import Record, StudyRecords
from experiments.report.figures import row_axes
from experiments.report.statistics import Estimate, Interval, difference_of, is_whole, mean_interval, term
from posjax.describe.figures import GREY, HUES, MARKERS, SMALL
from posjax.describe.markdown import escape_markdown, grid

_FREE = 0.005  # nats per token: a change that costs less, with its whole interval, is free


def write_decoder_page(
    directory: pathlib.Path,
    records: Sequence[Record],
    arrays: Mapping[str, np.ndarray],
    title: str,
    facts: Mapping[str, str],
    command: str,
) -> list[pathlib.Path]:
    """Writes README.md, a PNG per figure and arrays.npz into a folder; returns their paths."""
    study = StudyRecords(records[0].study, records)
    with matplotlib.rc_context(plots.STYLE):
        sections = [_free(study), *_removal(study), *_frequencies(study, arrays), *_heads(study, arrays)]
        sections += [*_sinks(study), *_shifts(study), *_massive(study), *_pass_keys(study)]
        paths = write_sections(directory, title, sections, facts, command)
    np.savez_compressed(directory / "arrays.npz", **{name: x.astype(np.float32) for name, x in arrays.items()})
    return [directory / "arrays.npz", *paths]


def cost(study: StudyRecords, row: str) -> Estimate:
    """Returns the rise in loss of a row over the model as loaded, paired by text."""
    return difference_of(term(study, row, LOSS), term(study, OWN, LOSS))


def _costs(study: StudyRecords) -> dict[str, Interval]:
    rows = [row for row in study.rows if row != OWN and is_whole(study.values(row, LOSS))]
    return {row: cost(study, row).interval() for row in rows}


def _free(study: StudyRecords) -> Section:
    """The sentence that a user wants: the largest change that costs nothing."""
    costs = {row: each for row, each in _costs(study).items() if not row.startswith("positions")}
    free = [row for row, each in costs.items() if each.mean + each.half_width < _FREE]  # a single text has no interval
    own = mean_interval(list(study.values(OWN, LOSS).values()))
    text = f"The loss as loaded is {own.text(3)} nats per token. "
    if not costs:
        text += "Nothing was changed."
    elif free:
        named = "; ".join(f"{row} ({costs[row].text(4, signed=True)})" for row in free)
        text += f"Costs less than {_FREE:g} nats per token, with the whole 95 % interval over texts: {named}."
    else:
        text += f"No change tried here costs less than {_FREE:g} nats per token with its whole interval."
    return Section("What may be changed for free", text)


def _removal(study: StudyRecords) -> Iterator[Section]:
    costs = dict(sorted(_costs(study).items(), key=lambda item: item[1].mean))
    moved = [row for row in costs if row.startswith("positions")]
    if not (rows := [row for row in costs if row not in moved]):
        return
    axes = row_axes(rows, [costs[row].text(3, signed=True) for row in rows])
    axes.figure.set_size_inches(8.0, 0.9 + 0.22 * len(rows))
    for index, scope in enumerate(_SCOPES):
        own = {y: costs[row] for y, row in enumerate(rows) if _scope(row) == scope}
        if own:
            middle, half_widths = zip(
                *((max(each.mean, 1e-4), np.nan_to_num(each.half_width)) for each in own.values()), strict=True
            )
            axes.errorbar(middle, [*own], xerr=half_widths, fmt="o", color=HUES[index], markersize=4, label=scope)
    axes.axvline(_FREE, color=GREY, linewidth=0.8, linestyle=":")
    axes.set(xscale="log", xlim=(1e-4, None), xlabel="rise in loss (nats per token)")
    axes.grid(axis="x")
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2)
    text = (
        "The loss of the same tokens when the same weights are read with less of their encoding, or with another one, minus "
        "the loss as loaded: mean and 95 % interval over texts, on a logarithmic axis (rises below 0.0001, and falls, stand "
        "at its left end). p_rope(p) turns the fastest share p of the pairs only. Nothing is trained."
    )
    yield Section("What it costs to change a part", text, {"removal": axes.figure})


_SCOPES = ("all layers", "global layers", "windowed layers", "some channels")


def _scope(row: str) -> str:
    return next((scope for scope in _SCOPES if row.endswith(scope)), _SCOPES[-1])


def _frequencies(study: StudyRecords, arrays: Mapping[str, np.ndarray]) -> Iterator[Section]:
    if "use" not in arrays:
        return
    use, wave = arrays["use"], arrays["magnitude"]
    image = use.reshape(-1, use.shape[2]) * use.shape[2]
    figure = Figure(figsize=(8.0, 1.2 + 0.055 * len(image)))
    axes = figure.add_subplot()
    drawn = axes.imshow(np.log2(np.maximum(image, 1 / 32)), aspect="auto", cmap="magma", vmin=-3, vmax=4)
    heads = use.shape[1]
    axes.set_yticks(np.arange(len(use)) * heads + (heads - 1) / 2, range(1, len(use) + 1), fontsize=SMALL)
    axes.set(ylabel=f"layer ({heads} heads each)", xlabel="pair of channels, from the fastest to the slowest")
    bar = figure.colorbar(drawn, ax=axes, ticks=[-3, 0, 3])
    bar.ax.set_yticklabels(["1/8", "1", "8"])
    bar.set_label("share of |q||k|, times number of pairs")
    slow, gains = (
        mean_of(study, f"{name}, all layers") for name in (SLOW, GAINS)
    )  # gains are of models with such norms
    text = (
        "The mean of |q||k| of each pair of channels that turns together, behind norms (Barbero et al. 2024, arXiv "
        "2410.06205), as a share of its head's; 1 is an even share. The slowest quarter of the pairs holds "
        f"{slow.scaled(100).text(1)} % of it over all heads, where an even share is 25 %"
    )
    text += f"; of the gains of the norms of queries and keys alone {gains.scaled(100).text(1)} %." if gains else "."
    longest = 2 * np.pi / np.maximum(wave.min(axis=1), 1e-12)
    text += f" Wavelengths end at {longest.min():,.0f} to {longest.max():,.0f} tokens."
    leads = [mean_of(study, name) for name in (LEAD, f"{LEAD}, other heads")]
    if all(leads):
        text += (
            f" In the heads that look at the token before (attention above {LOOKS_BACK:g}) the fastest quarter of the pairs "
            f"makes {leads[0].scaled(100).text(1)} % of that token's lead in the logit, in other heads "
            f"{leads[1].scaled(100).text(1)} %."
        )
    rows = [row for row in (OWN, "fastest quarter still", "slowest quarter still") if row in study.rows]
    before = f"{PREVIOUS}, its heads"
    cells = [(row, cost(study, row).interval().text(4, signed=True), percent(study, row, before)) for row in rows]
    header = ("pairs that do not turn", "rise in loss (nats)", "attention on the token before, of its heads (%)")
    yield Section("Frequencies in use", text, {"frequencies": figure}, grid(header, cells) if len(rows) > 1 else "")


def mean_of(study: StudyRecords, metric: str, row: str = OWN, at=None) -> Interval | None:
    """Returns the mean over texts of a metric, with its interval; None if it was not measured."""
    values = study.values(row, metric, at)
    return mean_interval(list(values.values())) if is_whole(values) else None


def percent(study: StudyRecords, row: str, metric: str) -> str:
    """Returns the mean of a share in per cent, with its interval; "-" if it was not measured."""
    return mean_text(study, row, metric, 1, 100)


def _heads(study: StudyRecords, arrays: Mapping[str, np.ndarray]) -> Iterator[Section]:
    if FIRST not in study.metrics:
        return
    figure = Figure(figsize=(8.0, 2.9))
    axes = figure.add_subplot()
    lines = {FIRST: "first token (mean)", PREVIOUS: "token before (best head)", INDUCTION: "induction (best head)"}
    for index, (metric, name) in enumerate(lines.items()):
        ats = study.metrics.get(metric, [])
        found = np.array([mean_of(study, metric, OWN, at) for at in ats]).reshape(-1, 2)
        look = dict(color=HUES[index], marker=MARKERS[index], markersize=4, label=name)
        axes.errorbar(ats, found[:, 0], yerr=found[:, 1], **look)
    axes.set(xlabel="layer", ylabel="attention", ylim=(0, 1))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y")
    axes.legend()
    figures = {"heads": figure}
    if "profile" in arrays:
        figures["distance"] = _distances(arrays["profile"])
    text = (
        "Above: attention on the first token within the first 64 (Gu et al. 2024, arXiv 2410.10781, mean of heads), on the "
        "token before (best head of the layer), and behind the earlier copy of random tokens that stand twice (Olsson et al. "
        "2022, arXiv 2209.11895, best head). Means and 95 % intervals over texts. Below: attention of each head by distance."
    )
    if oldest := mean_of(study, f"{OLDEST}, windowed layers") or mean_of(study, f"{OLDEST}, all layers"):
        text += (
            f" Where a window has left the first token behind, its oldest token gets {oldest.scaled(100).text(1)} %."
        )
    yield Section("Heads", text, figures)


def _distances(profile: np.ndarray) -> Figure:
    layers, heads, bins = profile.shape
    figure = Figure(figsize=(8.0, 1.2 + 0.055 * layers * heads))
    axes = figure.add_subplot()
    drawn = axes.imshow(profile.reshape(-1, bins), aspect="auto", cmap="viridis", vmin=0, vmax=1)
    axes.set_yticks(np.arange(layers) * heads + (heads - 1) / 2, range(1, layers + 1), fontsize=SMALL)
    names = ["0", "1", *(f"{2**i}-{2 ** (i + 1) - 1}" for i in range(1, bins - 2)), f"from {2 ** (bins - 2)}"]
    axes.set_xticks(range(bins), names[:bins], fontsize=SMALL, rotation=40)
    axes.set(ylabel=f"layer ({heads} heads each)", xlabel="distance of the key (tokens)")
    figure.colorbar(drawn, ax=axes, label="share of attention")
    return figure


def _sinks(study: StudyRecords) -> Iterator[Section]:
    rows = [row for row in study.rows if is_whole(study.values(row, SINKS))]
    if not rows:
        return
    metrics = (SINKS, f"{FIRST}, all layers", "attention on the second BOS")
    cells = [(escape_markdown(row), *(percent(study, row, metric) for metric in metrics)) for row in rows]
    header = ("first 64 tokens", *(f"{metric} (%)" for metric in metrics))
    text = (
        "A head is a sink if its attention on the first token is above 0.3, in the mean of queries within the first 64 "
        "tokens (Gu et al. 2024). The same where all positions are moved, the BOS is left out or stands again at token 32, "
        "or the words are shuffled."
    )
    yield Section("Sinks", text, table=grid(header, cells))


def _shifts(study: StudyRecords) -> Iterator[Section]:
    rows = [row for row in study.rows if row.startswith("positions") and is_whole(study.values(row, HIDDEN))]
    rises = {row: cost(study, row).interval().text(5, signed=True) for row in rows}
    cells = [(escape_markdown(row), rises[row], f"{mean_of(study, HIDDEN, row).mean:.2g}") for row in rows]
    text = (
        "All tokens are moved by so many positions, moved away from the first one, or apart. Hidden states: the mean over "
        "tokens of |difference| / |hidden state|. An encoding by differences of positions alone leaves both at 0 under a "
        "common shift, but for rounding."
    )
    if rows:
        yield Section(
            "Shifts", text, table=grid(("positions", "rise in loss (nats)", "change of hidden states"), cells)
        )


def _massive(study: StudyRecords) -> Iterator[Section]:
    if mean_of(study, f"{MASSIVE}, keys") is None:
        return
    named = ("queries", "keys", "values")
    cells = []
    for name in named:
        number, ratio = (mean_of(study, f"{metric}, {name}") for metric in (MASSIVE, RATIO))
        cells.append((name, number.text(2), ratio.text(1)))
    fixed = [row for row in study.rows if row.endswith("fixed") and is_whole(study.values(row, LOSS))]
    text = (
        "Channels whose norm over the tokens is above five times the mean of their head (Jin et al. 2025, arXiv 2502.01563), "
        "in the mean of heads, and the largest norm over the mean norm. "
    )
    rises = [f"{row} {cost(study, row).interval().text(3, signed=True)}" for row in fixed]
    text += f"Rise in loss (nats) with queries and keys at their mean over a text: {'; '.join(rises)}." if rises else ""
    yield Section("Massive values", text, table=grid(("of", "massive channels a head", "largest norm / mean"), cells))


def _pass_keys(study: StudyRecords) -> Iterator[Section]:
    rows = [row for row in study.rows if is_whole(study.values(row, PASSKEY))]
    cells = [(escape_markdown(row), percent(study, row, PASSKEY)) for row in rows]
    text = (
        "Share of pass keys of five digits that are named in full, among repeating sentences as long as the texts, at any "
        "depth (Mohtashami & Jaggi 2023, arXiv 2305.16300)."
    )
    if rows:
        yield Section("Pass keys", text, table=grid(("read", "pass keys found (%)"), cells))
