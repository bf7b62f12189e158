"""The sections of `posjax explain` about one part of a composition, one for each hook that it fills in."""

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import SupportsFloat

import jax
import numpy as np

from posjax.describe import probes
from posjax.describe.catalogue import overridden
from posjax.describe.explain.text import decimal, decimals, digits, picture, place_text, prose, spans, subtitle, table
from posjax.describe.worlds import Part, evenly
from posjax.encoding import Dims, PositionMap, Site, axes, of_queries

_HEADS_SHOWN = 2
_TOKENS_SHOWN = 10
_PAIRS_SHOWN = 8
_DISTANCES = (0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
# Headings of sections, in the order in which a model calls the hooks. The method of that name writes the section.
HEADINGS = {
    "place": "where tokens stand",
    "observe": "what is read off the tokens",
    "embed": "what is added to the tokens",
    "rotate": "what happens to queries and keys",
    "value": "how values arrive",
    "bias": "what is added to the logits",
    "mask": "which keys are seen",
    "sink": "the sink of each head",
    "weigh": "how keys are weighed",
    "read": "what is read beside the values",
}


def labels(site: Site) -> list[str]:
    """A name for each token: its position, or which prefix token it is."""
    numbers = np.asarray(site.prefix)
    return [f"prefix {n}" if n else place_text(p) for p, n in zip(site.position, numbers, strict=True)]


@dataclass(frozen=True)
class WorkedPart:
    """A part of the explained encoding, in the model and on the tokens of the worked example.

    Attributes:
      part: the encoding, its parameters and the places where it sees the tokens.
      dims: sizes of the model.
      origin: the places where the model put the tokens.
      grid: sizes of the grid on which the part sees the tokens; None on a line.
    """

    part: Part
    dims: Dims
    origin: Site
    grid: tuple[int, ...] | None

    def sections(self) -> list[str]:
        """Describes every hook of the part, in the order in which a model calls them."""
        hooks = overridden(type(self.part.encoding))
        if isinstance(self.part.encoding, PositionMap) and "place" not in hooks:
            return [*subtitle("how far tokens seem to be apart"), *self.views()]
        written = {hook: heading for hook, heading in HEADINGS.items() if hook in self.part.encoding.hooks}
        return [line for hook, heading in written.items() for line in (*subtitle(heading), *getattr(self, hook)())]

    @functools.cached_property
    def labels(self) -> list[str]:
        return labels(self.part.site)

    @property
    def middle(self) -> int:
        """A token that has others on all sides."""
        count = len(self.part.site.segment)
        if self.grid is None:
            return count // 2
        return count - self._size + int(np.ravel_multi_index([size // 2 for size in self.grid], self.grid))

    @functools.cached_property
    def shown(self) -> list[int]:
        """Tokens to show: the first of the line, or of the first two rows, and the last."""
        count = len(self.part.site.segment)
        if self.grid is None:
            return [*range(min(count - 1, _TOKENS_SHOWN - 1)), count - 1]
        first, row = count - self._size, self.grid[-1]
        wanted = [*range(first), *(first + i for i in (0, 1, 2, row, row + 1, 2 * row)), count - 1]
        return sorted({t for t in wanted if t < count})

    @property
    def _size(self) -> int:
        return int(np.prod(self.grid))

    def _by_token(
        self,
        columns: Sequence[str],
        cells: Callable[[int], Iterable[str]],
        first: str = "position",
        tokens: Iterable[int] | None = None,
    ) -> list[str]:
        """Returns a table with a row for each token, `shown` by default."""
        rows = [[self.labels[t], *cells(t)] for t in (self.shown if tokens is None else tokens)]
        return table([first, *columns], rows)

    def _by_pair(self, values: np.ndarray, text: Callable[[SupportsFloat], str] = decimal) -> list[str]:
        """Returns a table of [T, S] values: a row for each query that is shown, a column for each key."""
        return self._by_token(
            [self.labels[s] for s in self.shown], lambda t: [text(values[t, s]) for s in self.shown], ""
        )

    def _by_key(self, text: str, values: np.ndarray) -> list[str]:
        """Returns [S, H, E] values that the middle query reads: a row of channels for each key that is shown, of head 0."""
        away = np.asarray(axes(self.part.site)) - np.asarray(axes(self.part.site))[self.middle]
        columns = ["key - query", *_channels(values.shape[-1])]
        rows = self._by_token(
            columns,
            lambda s: [place_text(away[s] if away.shape[1] > 1 else away[s, 0]), *decimals(values[s, 0])],
            "key at",
        )
        return [*prose(text.format(self.labels[self.middle])), "", *rows]

    def _on_grid(self, values: np.ndarray) -> list[str]:
        rows = np.asarray(values)[-self._size :].reshape(-1, self.grid[-1])
        return table([""] * self.grid[-1], [decimals(row) for row in rows], indent=4)[1:]

    def place(self) -> list[str]:
        encoding, params, site = self.part
        after = encoding.place(params, site)
        draws = [encoding.place(params, site, jax.random.key(seed)) for seed in (0, 1)]
        random = any(_differ(after, draw) for draw in draws)
        headers = ["in evaluation", *(["in training (key 0)", "in training (key 1)"] if random else [])]
        columns = [labels(each) for each in ([after, *draws] if random else [after])]
        tokens = range(min(len(site.segment), 2 * _TOKENS_SHOWN))
        lines = [*self._by_token(headers, lambda t: [column[t] for column in columns], "before", tokens), ""]
        if random:
            return [*lines, *prose("In training every sequence draws places of its own: two draws are shown.")]
        if _differ(after, site) and labels(after) == self.labels:
            return [*lines, *prose("Positions stay; what changes is the state that the tokens carry along.")]
        return [*lines, *prose("The same in training and in evaluation: nothing is drawn.")]

    def views(self) -> list[str]:
        """Describes a map that moves no token, but shows each pair of them positions of its own."""
        text = "No token is moved. How far from a query (row) each key (column) seems to be, query less key:"
        return [*prose(text), "", *self._by_pair(probes.apparent_distance(self.part, self.dims), digits)]

    def observe(self) -> list[str]:
        lines = prose("Of tokens with random content (seed 0), every token keeps, and a cache with it:")
        state = probes.observed(self.part, self.dims).state
        for path, leaf in jax.tree_util.tree_leaves_with_path(state):
            name = jax.tree_util.keystr(path, simple=True, separator=".") or "state"
            flat = np.asarray(leaf).reshape(len(leaf), -1)
            columns = [f"{name}[{c}]" for c in range(flat.shape[1])]
            lines += ["", *self._by_token(columns, lambda t, flat=flat: decimals(flat[t]))]
        return lines

    def embed(self) -> list[str]:
        codes, depends = probes.codes(self.part, self.dims)
        what = "what the tokens hold (random here, seed 0) and on where they stand" if depends else "the position alone"
        lines = prose(f"A code of {codes.shape[1]} channels, from {what}:")
        norms = np.linalg.norm(codes, axis=1)
        first = 0 if self.grid is None else self.middle
        unit = codes / np.maximum(norms[:, None], 1e-12)
        cosine = unit @ unit[first]
        columns = ["length", f"cosine to {self.labels[first]}", *_channels(codes.shape[1])]
        lines += ["", *self._by_token(columns, lambda t: [*decimals([norms[t], cosine[t]]), *decimals(codes[t])])]
        if depends:
            return lines
        if self.grid is not None:
            text = f"How alike is the code of every place to that of {self.labels[first]} (cosine)?"
            return [*lines, "", *prose(text), *self._on_grid(cosine)]
        if len(codes) - 1 <= np.linalg.matrix_rank(codes[:-1], tol=1e-4):
            return lines
        matrix, *_ = np.linalg.lstsq(codes[:-1], codes[1:], rcond=None)
        residual = np.abs(codes[:-1] @ matrix - codes[1:]).max()
        if residual < 1e-3 * np.abs(codes).max():
            says = "so a shift by one position is the same linear map everywhere, and a linear layer can find it"
        else:
            says = "so no single linear map is a shift by one position"
        text = f"The best matrix that takes every code to the next one leaves a residual of {digits(residual)}: {says}."
        return [*lines, "", *prose(text)]

    def bias(self) -> list[str]:
        values, depends = probes.bias(self.part, self.dims)
        lines = []
        if depends:
            lines = prose("The bias depends on what the tokens hold: here queries and keys of random content (seed 0).")
        if len(values) > 1 and np.abs(values - values[:1]).max() == 0:
            lines += prose("Every head gets the same bias.")
            values = values[:1]
        if self.grid is None and not depends:
            gap = probes.spread_at_equal_offsets(values, self.part.site)
            if gap <= 1e-4:
                return lines + self._by_distance(values)
            lines += prose(f"It is no function of the distance: equal distances differ by {digits(gap)}.")
        for head in sorted({*range(min(len(values), _HEADS_SHOWN - 1)), len(values) - 1}):
            lines += ["", *prose(f"Head {head} (row: query at, column: key at):"), "", *self._by_pair(values[head])]
        if self.grid is None:
            return lines
        at = self.labels[self.middle]
        text = f"What the query at {at} adds for every key, head {len(values) - 1}, laid out as the grid:"
        return [*lines, "", *prose(text), *self._on_grid(values[-1, self.middle])]

    def _by_distance(self, values: np.ndarray) -> list[str]:
        """Returns biases [H, T, S] by the distance of tokens from the first one, with the slope from the row before."""
        distances = [d for d in _DISTANCES if d < values.shape[1]]
        away = probes.offsets(self.part.site)[distances, 0, 0]  # of positions, which a map may have stretched
        before, after = values[:, distances, 0].T, values[:, 0, distances].T
        both = np.abs(before - after).max() > 1e-6
        text = "By distance (key before the query), and the slope from one row to the next:"
        if both:
            text = "By distance, and the slope from one row to the next (keys before the query):"
        heads = range(len(values))
        slopes = [[""] * len(values), *map(decimals, np.diff(before, axis=0) / np.diff(away)[:, None])]
        rows = [[digits(a), *decimals(b), *s] for a, b, s in zip(away, before, slopes, strict=True)]
        headers = ["distance", *[f"head {h}" for h in heads]]
        lines = ["", *prose(text), "", *table([*headers, *[f"slope {h}" for h in heads]], rows)]
        if both:
            rows = [[digits(-a), *decimals(b)] for a, b in list(zip(away, after, strict=True))[1:]]
            lines += ["", *prose("Keys after the query get another bias:"), *table(headers, rows)]
        return lines

    def mask(self) -> list[str]:
        seen = probes.mask(self.part)
        shown = range(min(len(seen), 40))
        marks = np.where(seen, "#", ".")
        lines = prose("Row: query at; column: key, in the same order; # is seen, . is not.")
        lines += picture([marks[t, : len(shown)] for t in shown], [self.labels[t] for t in shown], "keys")
        text = f"Of {seen.size} pairs {int(seen.sum())} are seen. Causality and documents hide others besides."
        lines += ["", *prose(text)]
        if self.grid is not None and len(self.grid) == 2:
            lines += ["", *prose(f"What the query at {self.labels[self.middle]} sees, laid out as the grid:")]
            lines += ["    " + " ".join(row) for row in marks[self.middle, -self._size :].reshape(self.grid)]
        return lines

    def sink(self) -> list[str]:
        encoding, params, _ = self.part
        site = probes.observed(self.part, self.dims)
        sinks = np.asarray(of_queries(encoding.sink(params, site, self.dims.num_heads))).mean(axis=1)
        share = np.exp(sinks) / (np.exp(sinks) + len(site.segment))
        text = "A logit in each head's softmax that reads nothing, and its share where the logits of all keys are 0:"
        rows = [[str(head), decimal(sinks[head]), decimal(share[head])] for head in range(len(sinks))]
        return [*prose(text), "", *table(["head", "logit", "share"], rows)]

    def weigh(self) -> list[str]:
        text = "What stands for the softmax: the weights of each query (row) where all its logits are 0 (head 0):"
        return [*prose(text), "", *self._by_pair(probes.weighed(self.part, self.dims), digits)]

    def value(self) -> list[str]:
        text = "What the query at {} would read of the value (1, 0, 0, ...) of each key (head 0):"
        return self._by_key(text, probes.carried(self.part, self.dims, self.middle))

    def read(self) -> list[str]:
        text = "What the query at {} would read beside the value of each key (head 0):"
        return self._by_key(text, probes.outputs_beside(self.part, self.dims, self.middle))

    def rotate(self) -> list[str]:
        """Describes a transform that turns pairs of channels, scales, mixes, or depends on the content."""
        transform = probes.linear_rotation(self.part, self.dims)
        _, q, k = probes.content(self.dims, 1)
        site = probes.observed(self.part, self.dims)
        many_q, many_k = (np.broadcast_to(x, (len(site.segment), *x.shape[1:])) for x in (q, k))
        after, _ = probes.call(self.part.encoding, "rotate", self.part.params, many_q, site, many_k, site)
        before, after = np.asarray(q[0, 0]), np.asarray(after)[:, 0]
        query, key = (None, None) if transform is None else map(probes.turns, transform)
        if transform is None:
            lines = prose("The transform is not linear in queries and keys: it depends on what they hold.")
        elif query is None or key is None:
            lines = self._matrix(transform.query)
        elif not query.pairs:
            lines = self._factors(query.single, query.single_gain)
        else:
            lines = [*self._turning(query, key), *self._by_hand(query, before, after)]
        length = len(after[0])
        cells = [decimal(np.linalg.norm(before)), *decimals(before), *[""] * (length - len(before))]
        rows = [["before", *cells]]
        rows += [[f"at {self.labels[t]}", decimal(np.linalg.norm(after[t])), *decimals(after[t])] for t in self.shown]
        lines += ["", *prose("One query with random content (seed 0, head 0), before and after:"), ""]
        return lines + table(["", "length", *_channels(length)], rows)

    def _turning(self, query: probes.Turns, key: probes.Turns) -> list[str]:
        lines = prose(
            f"A head has {self.dims.head_dim} channels. {2 * len(query.pairs)} of them are taken in {len(query.pairs)} "
            "pairs; each pair is a point in the plane, which is turned by an angle that follows from the token's position."
        )
        if query.single:
            lines += prose(f"Channels {spans(query.single)} are in no pair: they are not turned.")
        if np.abs(query.angle - query.angle[:, :1]).max() > 1e-6:
            lines += prose("Every head turns in its own way; head 0 is shown.")
        rates = probes.frequencies(query, self.origin, self.part.site)
        shown = evenly(len(query.pairs), _PAIRS_SHOWN)
        if rates is not None:
            lines += ["", *self._frequencies(query.pairs, rates, shown)]

        def by_pair(text: Callable[[int, int], str]) -> list[str]:
            return self._by_token([f"pair {p}" for p in shown], lambda t: [text(t, p) for p in shown])

        def angles(angle: np.ndarray) -> list[str]:
            return by_pair(lambda t, p: f"{decimal(angle[t, 0, p])} ({np.degrees(angle[t, 0, p]):.1f})")

        lines += ["", *prose("The angle of each pair, in radians (degrees), within half a turn either way:"), ""]
        lines += angles(query.angle)
        if np.abs(query.angle - key.angle).max() > 1e-5:
            lines += ["", *prose("Keys are turned by other angles:"), *angles(key.angle)]
        q, k = query.gain, key.gain
        if max(np.abs(q - 1).max(), np.abs(k - 1).max()) < 1e-5:
            text = "Turning a point does not change its distance from the origin: lengths stay as they were."
        elif max(np.ptp(q), np.ptp(k), np.abs(q - k).max()) < 1e-5:
            text = f"All pairs are stretched by {decimal(q.flat[0])} besides."
        else:
            lines += ["", *prose("Pairs are stretched besides; factors for queries / for keys:"), ""]
            return lines + by_pair(lambda t, p: f"{decimal(q[t, 0, p])} / {decimal(k[t, 0, p])}")
        return [*lines, "", *prose(text)]

    def _frequencies(self, pairs: list[tuple[int, int]], rates: np.ndarray, shown: list[int]) -> list[str]:
        """Returns frequencies [A, H, P] and wavelengths; one row for each pair and axis that turns it."""
        extent = np.ptp(np.asarray(axes(self.part.site), np.float64), axis=0)
        rows = []
        for pair in range(len(pairs)) if len(pairs) <= 64 else shown:
            for axis, rate in enumerate(rates[:, 0, pair]):
                if abs(rate) < 1e-9 and np.abs(rates[:, 0, pair]).max() > 1e-9:
                    continue
                wavelength = ["never turns", "0"]
                if rate != 0:
                    wavelength = [f"{2 * np.pi / abs(rate):.5g}", f"{abs(rate) * extent[axis] / (2 * np.pi):.3g}"]
                which = [str(axis)] if len(rates) > 1 else []
                rows.append([str(pair), "{}, {}".format(*pairs[pair]), *which])
                rows[-1] += [f"{rate:.6g}", f"{np.degrees(rate):.4g}", *wavelength]
        headers = ["pair", "channels", *(["axis"] if len(rates) > 1 else []), "radians per position", "degrees"]
        text = "Its frequency says by how much from one position to the next, its wavelength how far a full turn is:"
        return [*prose(text), "", *table([*headers, "wavelength (positions)", "turns in this example"], rows)]

    def _by_hand(self, query: probes.Turns, before: np.ndarray, after: np.ndarray) -> list[str]:
        """Computes one pair of one query [D] at one position step by step; `after` is [T, D]."""
        turned = [t for t in self.shown if abs(query.angle[t, 0, 0]) > 1e-6]
        if not turned:
            return []
        token, (a, b) = turned[min(1, len(turned) - 1)], query.pairs[0]
        angle, gain = query.angle[token, 0, 0], query.gain[token, 0, 0]
        cos, sin = gain * np.cos(angle), gain * np.sin(angle)
        stretched = "" if abs(gain - 1) < 1e-5 else f" (both times {decimal(gain)})"
        x, y, c, s = (f"({decimal(v)})" if v < 0 else decimal(v) for v in (before[a], before[b], cos, sin))
        text = f"By hand: channels {a} and {b} at position {self.labels[token]}; cos = {decimal(cos)}, sin = {decimal(sin)}"
        return [
            "",
            *prose(f"{text}{stretched}, on the query below:"),
            "",
            f"  channel {a}:  {x} * {c} - {y} * {s} = {decimal(after[token, a])}",
            f"  channel {b}:  {x} * {s} + {y} * {c} = {decimal(after[token, b])}",
        ]

    def _factors(self, channels: list[int], gain: np.ndarray) -> list[str]:
        """Describes a transform that turns no pair, by its factors [T, H, D]."""
        if np.abs(gain - 1).max() < 1e-6:
            return prose(
                "Here the vectors stay as they are: with these arguments, at these positions, nothing is done."
            )
        if np.ptp(gain, axis=2).max() > 1e-6:
            lines = prose("Every channel of a query is multiplied by a factor (head 0):")
            return [*lines, "", *self._by_token([f"ch {c}" for c in channels], lambda t: decimals(gain[t, 0]))]
        lines = prose("A query is multiplied by one number, which sharpens or flattens its attention:")
        heads = [f"head {h}" for h in range(gain.shape[1])]
        every = range(len(self.labels))
        return [*lines, "", *self._by_token(heads, lambda t: decimals(gain[t, :, 0]), tokens=every)]

    def _matrix(self, query: np.ndarray) -> list[str]:
        """Describes a transform that mixes channels, by its matrices [T, H, C, D] for queries."""
        matrix = query[self.shown[-1], 0]
        size = " x ".join(map(str, matrix.shape))
        lines = prose(f"Queries and keys are multiplied by a matrix of {size} for every position.")
        gram = np.einsum("thcd,thce->thde", query, query)
        if matrix.shape[0] == matrix.shape[1] and np.abs(gram - np.eye(matrix.shape[1])).max() < 1e-4:
            lines += prose("All of them are rotations: they keep lengths, and the products of vectors turned alike.")
        lines += ["", *prose(f"The one for queries at {self.labels[self.shown[-1]]} (head 0):"), ""]
        return lines + table([""] * matrix.shape[1], [decimals(row) for row in matrix])[1:]


def _channels(count: int) -> list[str]:
    return [f"ch {c}" for c in range(count)]


def _differ(one: Site, other: Site) -> bool:
    a, b = jax.tree.leaves(one), jax.tree.leaves(other)
    return len(a) != len(b) or any(x.shape != y.shape or np.any(np.asarray(x != y)) for x, y in zip(a, b, strict=True))
