"""The page of a decoder: what may go, frequencies, heads, shifts, massive values, pass keys."""

from collections.abc import Iterator, Mapping

import numpy as np
from matplotlib.figure import Figure

from experiments.analysis import decoder, page
from experiments.analysis.measured import mean_of, mean_text, rows_with, table
from experiments.analysis.page import Section
from experiments.analysis.subject import OWN
from experiments.records import StudyRecords
from experiments.report.figures import row_axes
from experiments.report.statistics import Estimate, Interval, difference_of, term
from posjax.describe.figures import GREY, HUES, SMALL
from posjax.describe.markdown import escape_markdown, grid

_FREE = 0.005  # nats per token: a change that costs less, with its whole interval, is free
_SCOPES = ("all layers", "global layers", "windowed layers", "some channels")


def sections(study: StudyRecords, arrays: Mapping[str, np.ndarray]) -> Iterator[Section]:
    """Yields the sections of the page of a decoder."""
    costs = {row: cost(study, row).interval() for row in rows_with(study, decoder.LOSS) if row != OWN}
    changes = {row: rise for row, rise in costs.items() if not row.startswith("positions")}
    yield _free(study, changes)
    if changes:
        yield _removal(changes)
    if "use" in arrays:
        yield _frequencies(study, arrays["use"], arrays["magnitude"])
    if decoder.FIRST in study.metrics:
        yield _heads(study, arrays)
    if rows := rows_with(study, decoder.SINKS):
        text = (
            "A head is a sink if its attention on the first token is above 0.3, in the mean of queries within the first 64 "
            "tokens (Gu et al. 2024). The same where all positions are moved, the BOS is left out or stands again at token "
            "32, or the words are shuffled."
        )
        metrics = (decoder.SINKS, f"{decoder.FIRST}, all layers", "attention on the second BOS")
        cells = table(study, rows, dict.fromkeys(metrics, (1, 100)), "first 64 tokens", " (%)")
        yield Section("Sinks", text, table=cells)
    if rows := [row for row in rows_with(study, decoder.HIDDEN) if row.startswith("positions")]:
        yield _shifts(study, {row: costs[row] for row in rows})
    if mean_of(study, OWN, f"{decoder.MASSIVE}, keys"):
        yield _massive(study, costs)
    if rows := rows_with(study, decoder.PASSKEY):
        text = (
            "Share of pass keys of five digits that are named in full, among repeating sentences as long as the texts, at "
            "any depth (Mohtashami & Jaggi 2023, arXiv 2305.16300)."
        )
        yield Section("Pass keys", text, table=table(study, rows, {decoder.PASSKEY: (1, 100)}, "read", " (%)"))


def cost(study: StudyRecords, row: str) -> Estimate:
    """Returns the rise in loss of a row over the model as loaded, paired by text."""
    return difference_of(term(study, row, decoder.LOSS), term(study, OWN, decoder.LOSS))


def _free(study: StudyRecords, costs: Mapping[str, Interval]) -> Section:
    """The sentence that a user wants: the largest change that costs nothing."""
    free = [row for row, rise in costs.items() if rise.mean + rise.half_width < _FREE]  # a single text has no interval
    text = f"The loss as loaded is {mean_text(study, OWN, decoder.LOSS, 3)} nats per token. "
    if not costs:
        text += "Nothing was changed."
    elif free:
        named = "; ".join(f"{row} ({costs[row].text(4, signed=True)})" for row in free)
        text += f"Costs less than {_FREE:g} nats per token, with the whole 95 % interval over texts: {named}."
    else:
        text += f"No change tried here costs less than {_FREE:g} nats per token with its whole interval."
    return Section("What may be changed for free", text)


def _removal(costs: Mapping[str, Interval]) -> Section:
    costs = dict(sorted(costs.items(), key=lambda item: item[1].mean))
    scopes = [next((scope for scope in _SCOPES if row.endswith(scope)), _SCOPES[-1]) for row in costs]
    axes = row_axes([*costs], [rise.text(3, signed=True) for rise in costs.values()])
    axes.figure.set_size_inches(8.0, 0.9 + 0.22 * len(costs))
    for index, scope in enumerate(_SCOPES):
        if own := {y: rise for y, rise in enumerate(costs.values()) if scopes[y] == scope}:
            middle, half_widths = np.nan_to_num(np.array([*own.values()])).T
            look = dict(fmt="o", color=HUES[index], markersize=4, label=scope)
            axes.errorbar(np.maximum(middle, 1e-4), [*own], xerr=half_widths, **look)
    axes.axvline(_FREE, color=GREY, linewidth=0.8, linestyle=":")
    axes.set(xscale="log", xlim=(1e-4, None), xlabel="rise in loss (nats per token)")
    axes.grid(axis="x")
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2)
    text = (
        "The loss of the same tokens when the same weights are read with less of their encoding, or with another one, minus "
        "the loss as loaded: mean and 95 % interval over texts, on a logarithmic axis (rises below 0.0001, and falls, stand "
        "at its left end). p_rope(p) turns the fastest share p of the pairs only. Nothing is trained."
    )
    return Section("What it costs to change a part", text, {"removal": axes.figure})


def _frequencies(study: StudyRecords, use: np.ndarray, wave: np.ndarray) -> Section:
    gains = mean_of(study, OWN, f"{decoder.GAINS}, all layers")  # of models with such norms
    text = (
        "The mean of |q||k| of each pair of channels that turns together, behind norms (Barbero et al. 2024, arXiv "
        "2410.06205), as a share of its head's; 1 is an even share. The slowest quarter of the pairs holds "
        f"{mean_text(study, OWN, f'{decoder.SLOW}, all layers', 1, 100)} % of it over all heads, where an even share is 25 %"
    )
    text += f"; of the gains of the norms of queries and keys alone {gains.scaled(100).text(1)} %." if gains else "."
    longest = 2 * np.pi / np.maximum(wave.min(axis=1), 1e-12)
    text += f" Wavelengths end at {longest.min():,.0f} to {longest.max():,.0f} tokens."
    leads = [mean_of(study, OWN, name) for name in (decoder.LEAD, f"{decoder.LEAD}, other heads")]
    if all(leads):
        own, others = (lead.scaled(100).text(1) for lead in leads)
        text += (
            f" In the heads that look at the token before (attention above {decoder.LOOKS_BACK:g}) the fastest quarter of "
            f"the pairs makes {own} % of that token's lead in the logit, in other heads {others} %."
        )
    before, rows = f"{decoder.PREVIOUS}, its heads", (OWN, "fastest quarter still", "slowest quarter still")
    cells = [
        (row, cost(study, row).interval().text(4, signed=True), mean_text(study, row, before, 1, 100))
        for row in rows
        if row in study.rows
    ]
    header = ("pairs that do not turn", "rise in loss (nats)", "attention on the token before, of its heads (%)")
    figure = page.frequency_shares(use, np.broadcast_to(wave[:, None], use.shape))
    shown = grid(header, cells) if len(cells) > 1 else ""
    return Section("Frequencies in use", text, {"frequencies": figure}, shown)


def _heads(study: StudyRecords, arrays: Mapping[str, np.ndarray]) -> Section:
    figure = Figure(figsize=(8.0, 2.9))
    axes = figure.add_subplot()
    lines = {
        decoder.FIRST: "first token (mean)",
        decoder.PREVIOUS: "token before (best head)",
        decoder.INDUCTION: "induction (best head)",
    }
    for index, (metric, name) in enumerate(lines.items()):
        ats = study.metrics.get(metric, [])
        page.line(axes, ats, [mean_of(study, OWN, metric, at) for at in ats], index, name)
    axes.set(ylabel="attention", ylim=(0, 1))
    page.layer_axis(axes)
    page.finish(axes)
    figures = {"heads": figure}
    if "profile" in arrays:
        profile, label = arrays["profile"], "distance of the key (tokens)"
        figures["distance"], axes = page.by_head(profile, label, "share of attention", cmap="viridis", vmin=0, vmax=1)
        bins = profile.shape[-1]
        names = ["0", "1", *(f"{2**i}-{2 ** (i + 1) - 1}" for i in range(1, bins - 2)), f"from {2 ** (bins - 2)}"]
        axes.set_xticks(range(bins), names[:bins], fontsize=SMALL, rotation=40)
    text = (
        "Above: attention on the first token within the first 64 (Gu et al. 2024, arXiv 2410.10781, mean of heads), on the "
        "token before (best head of the layer), and behind the earlier copy of random tokens that stand twice (Olsson et al. "
        "2022, arXiv 2209.11895, best head). Means and 95 % intervals over texts. Below: attention of each head by distance."
    )
    kinds = (mean_of(study, OWN, f"{decoder.OLDEST}, {kind} layers") for kind in ("windowed", "all"))
    if oldest := next(filter(None, kinds), None):
        share = oldest.scaled(100).text(1)
        text += f" Where a window has left the first token behind, its oldest token gets {share} %."
    return Section("Heads", text, figures)


def _shifts(study: StudyRecords, costs: Mapping[str, Interval]) -> Section:
    cells = [
        (escape_markdown(row), rise.text(5, signed=True), f"{mean_of(study, row, decoder.HIDDEN).mean:.2g}")
        for row, rise in costs.items()
    ]
    text = (
        "All tokens are moved by so many positions, moved away from the first one, or apart. Hidden states: the mean over "
        "tokens of |difference| / |hidden state|. An encoding by differences of positions alone leaves both at 0 under a "
        "common shift, but for rounding."
    )
    return Section("Shifts", text, table=grid(("positions", "rise in loss (nats)", "change of hidden states"), cells))


def _massive(study: StudyRecords, costs: Mapping[str, Interval]) -> Section:
    metrics = {decoder.MASSIVE: 2, decoder.RATIO: 1}
    cells = [
        (name, *(mean_text(study, OWN, f"{metric}, {name}", digits) for metric, digits in metrics.items()))
        for name in ("queries", "keys", "values")
    ]
    text = (
        "Channels whose norm over the tokens is above five times the mean of their head (Jin et al. 2025, arXiv 2502.01563), "
        "in the mean of heads, and the largest norm over the mean norm. "
    )
    rises = [f"{row} {rise.text(3, signed=True)}" for row, rise in costs.items() if row.endswith("fixed")]
    text += f"Rise in loss (nats) with queries and keys at their mean over a text: {'; '.join(rises)}." if rises else ""
    return Section("Massive values", text, table=grid(("of", "massive channels a head", "largest norm / mean"), cells))
