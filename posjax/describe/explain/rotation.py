"""The section of `experiments.explain` about the transform of queries and keys."""

from typing import SupportsFloat

import numpy as np

from posjax.describe import probes
from posjax.describe.explain.text import heading, number, numbers, prose, table

_PAIRS_SHOWN = 8


def rotation(e) -> list[str]:
    """The action of `rotate`: it turns pairs of channels, scales, mixes, or something that depends on the content."""
    lines = [*heading("what happens to queries and keys")]
    found = probes.transform(e.part, e.dims)
    if found is None:
        text = "The transform is not linear in queries and keys: it depends on what they hold."
        return [*lines, *prose(text), *_vectors(e)]
    turns = probes.turns(found.query), probes.turns(found.key)
    if None in turns:
        return [*lines, *_blocks(e, found), *_vectors(e)]
    lines += _temperature(e, turns[0]) if not turns[0].pairs else _turning(e, *turns)
    return lines + _vectors(e)


def _turning(e, query: probes.Turns, key: probes.Turns) -> list[str]:
    heads_differ = np.abs(query.angle - query.angle[:, :1]).max() > 1e-6
    text = (
        f"A head has {e.dims.head_dim} channels. {2 * len(query.pairs)} of them are taken in {len(query.pairs)} pairs; "
        "each pair is a point in the plane, which is turned by an angle that follows from the token's position."
    )
    lines = prose(text)
    if query.single:
        lines += prose(f"Channels {_spans(query.single)} are in no pair: they are not turned.")
    if heads_differ:
        lines += prose("Every head turns in its own way; head 0 is shown.")
    rates = probes.frequencies(query, e.origin, e.part.site)
    shown = _shown(len(query.pairs))
    if rates is not None:
        lines += ["", *_frequency_table(e, query, rates, shown)]
    lines += ["", *prose("The angle of each pair, in radians (degrees), within half a turn either way:"), ""]
    headers = ["position", *[f"pair {p}" for p in shown]]
    rows = [[e.labels[t], *[_angle(query.angle[t, 0, p]) for p in shown]] for t in e.shown]
    lines += table(headers, rows)
    if np.abs(query.angle - key.angle).max() > 1e-5:
        rows = [[e.labels[t], *[_angle(key.angle[t, 0, p]) for p in shown]] for t in e.shown]
        lines += ["", *prose("Keys are turned by other angles:"), *table(headers, rows)]
    return [*lines, *_gains(e, query, key, shown), *_by_hand(e, query)]


def _by_hand(e, query: probes.Turns) -> list[str]:
    """One pair of one query at one position, step by step."""
    turned = [t for t in e.shown if abs(query.angle[t, 0, 0]) > 1e-6]
    if not turned:
        return []
    token, (a, b) = turned[min(1, len(turned) - 1)], query.pairs[0]
    _, before, after = _one_query(e)
    (x, y), (x_after, y_after) = before[0, [a, b]], after[token, 0, [a, b]]
    angle, gain = query.angle[token, 0, 0], query.gain[token, 0, 0]
    cos, sin = gain * np.cos(angle), gain * np.sin(angle)
    stretched = "" if abs(gain - 1) < 1e-5 else f" (both times {number(gain)})"
    text = f"By hand: channels {a} and {b} at position {e.labels[token]}; cos = {number(cos)}, sin = {number(sin)}{stretched}"
    return [
        "",
        *prose(f"{text}, on the query below:"),
        "",
        f"  channel {a}:  {_factor(x)} * {_factor(cos)} - {_factor(y)} * {_factor(sin)} = {number(x_after)}",
        f"  channel {b}:  {_factor(x)} * {_factor(sin)} + {_factor(y)} * {_factor(cos)} = {number(y_after)}",
    ]


def _factor(value: SupportsFloat) -> str:
    return f"({number(value)})" if value < 0 else number(value)


def _one_query(e):
    """Its site, one random query [H, D], and the query [T, H, C] rotated at every token's place."""
    _, q, k = probes.content(e.dims, 1)
    site = probes.observed(e.part, e.dims)
    many_q, many_k = (np.broadcast_to(x, (len(site.segment), *x.shape[1:])) for x in (q, k))
    after, _ = e.part.encoding.rotate(e.part.params, many_q, site, many_k, site)
    return site, np.asarray(q[0]), np.asarray(after)


def _shown(count: int) -> list[int]:
    if count <= _PAIRS_SHOWN:
        return list(range(count))
    return sorted({round(x) for x in np.linspace(0, count - 1, _PAIRS_SHOWN)})


def _frequency_table(e, found: probes.Turns, rates: np.ndarray, shown: list[int]) -> list[str]:
    """Frequencies and wavelengths; one row for each pair and axis that turns it."""
    extent = np.ptp(np.asarray(e.part.site.position, np.float64).reshape(len(e.part.site.segment), -1), axis=0)
    headers = ["pair", "channels", *(["axis"] if len(rates) > 1 else []), "radians per position", "degrees"]
    rows = []
    for pair in range(len(found.pairs)) if len(found.pairs) <= 64 else shown:
        for axis in range(len(rates)):
            rate = rates[axis, 0, pair]
            if abs(rate) < 1e-9 and np.abs(rates[:, 0, pair]).max() > 1e-9:
                continue
            wavelength = ["never turns", "0"] if rate == 0 else _wavelength(rate, extent[axis])
            channels = "{}, {}".format(*found.pairs[pair])
            which = [str(axis)] if len(rates) > 1 else []
            rows.append([str(pair), channels, *which, f"{rate:.6g}", f"{np.degrees(rate):.4g}", *wavelength])
    lines = prose(
        "Its frequency says by how much from one position to the next, its wavelength how far a full turn is:"
    )
    return [*lines, "", *table([*headers, "wavelength (positions)", "turns in this example"], rows)]


def _wavelength(rate: float, extent: float) -> list[str]:
    return [f"{2 * np.pi / abs(rate):.5g}", f"{abs(rate) * extent / (2 * np.pi):.3g}"]


def _gains(e, query: probes.Turns, key: probes.Turns, shown: list[int]) -> list[str]:
    """The lengths of queries and keys, if a rotation changes them."""
    if max(np.abs(query.gain - 1).max(), np.abs(key.gain - 1).max()) < 1e-5:
        return ["", *prose("Turning a point does not change its distance from the origin: lengths stay as they were.")]
    if max(np.ptp(query.gain), np.ptp(key.gain), np.abs(query.gain - key.gain).max()) < 1e-5:
        return ["", *prose(f"All pairs are stretched by {number(query.gain.flat[0])} besides.")]
    lines = ["", *prose("Pairs are stretched besides; factors for queries / for keys:"), ""]
    rows = [
        [e.labels[t], *[f"{number(query.gain[t, 0, p])} / {number(key.gain[t, 0, p])}" for p in shown]] for t in e.shown
    ]
    return lines + table(["position", *[f"pair {p}" for p in shown]], rows)


def _temperature(e, found: probes.Turns) -> list[str]:
    """The factors of tokens, for a transform that turns no pair."""
    gain = found.single_gain
    if np.abs(gain - 1).max() < 1e-6:
        return prose("Here the vectors stay as they are: with these arguments, at these positions, nothing is done.")
    if np.ptp(gain, axis=2).max() > 1e-6:
        lines = prose("Every channel of a query is multiplied by a factor (head 0):")
        rows = [[e.labels[t], *numbers(gain[t, 0])] for t in e.shown]
        return [*lines, "", *table(["position", *[f"ch {c}" for c in found.single]], rows)]
    lines = prose("A query is multiplied by one number, which sharpens or flattens its attention:")
    rows = [[e.labels[t], *numbers(gain[t, :, 0])] for t in range(len(e.labels))]
    return [*lines, "", *table(["position", *[f"head {h}" for h in range(gain.shape[1])]], rows)]


def _blocks(e, found: probes.Transform) -> list[str]:
    matrix = found.query[e.shown[-1], 0]
    what = f"Queries and keys are multiplied by a matrix of {matrix.shape[0]} x {matrix.shape[1]} for every position."
    lines = prose(what)
    gram = np.einsum("thcd,thce->thde", found.query, found.query)
    if matrix.shape[0] == matrix.shape[1] and np.abs(gram - np.eye(matrix.shape[1])).max() < 1e-4:
        lines += prose("All of them are rotations: they keep lengths, and the products of vectors turned alike.")
    lines += ["", *prose(f"The one for queries at {e.labels[e.shown[-1]]} (head 0):"), ""]
    return lines + table([""] * matrix.shape[1], [numbers(row) for row in matrix])[1:]


def _vectors(e) -> list[str]:
    """One query before, and after at several positions."""
    _, before, after = _one_query(e)
    headers = ["", "length", *[f"ch {c}" for c in range(after.shape[-1])]]
    rows = [["before", number(np.linalg.norm(before[0])), *numbers(before[0])]]
    rows[0] += [""] * (len(headers) - len(rows[0]))
    rows += [[f"at {e.labels[t]}", number(np.linalg.norm(after[t, 0])), *numbers(after[t, 0])] for t in e.shown]
    return ["", *prose("One query with random content (seed 0, head 0), before and after:"), "", *table(headers, rows)]


def _angle(radians: SupportsFloat) -> str:
    return f"{number(radians)} ({np.degrees(radians):.1f})"


def _spans(channels: list[int]) -> str:
    """0-3, 6 for [0, 1, 2, 3, 6]."""
    spans: list[list[int]] = []
    for channel in channels:
        if spans and channel == spans[-1][1] + 1:
            spans[-1][1] = channel
        else:
            spans.append([channel, channel])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in spans)
