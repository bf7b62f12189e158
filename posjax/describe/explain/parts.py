"""The sections of `experiments.explain` about one part of a composition, one for each hook that it fills in."""

from collections.abc import Callable
from typing import NamedTuple, SupportsFloat

import jax
import numpy as np

from posjax.describe import probes
from posjax.describe.catalogue import overridden
from posjax.describe.explain.rotation import rotation
from posjax.describe.explain.text import heading, number, numbers, picture, place, prose, short, table
from posjax.describe.worlds import Part
from posjax.encoding import Dims, PositionMap, Site, axes, of_queries

_HEADS_SHOWN = 2
_TOKENS_SHOWN = 10


class Example(NamedTuple):
    """A part of the encoding that is explained, in the model and on the tokens of the worked example."""

    part: Part
    dims: Dims
    origin: Site  # where the model put the tokens; `part.site` is where the part sees them
    grid: tuple[int, ...] | None  # sizes of the grid the tokens stand on

    @property
    def labels(self) -> list[str]:
        return labels(self.part.site)

    @property
    def middle(self) -> int:
        """A token that has others on all sides."""
        count = len(self.part.site.segment)
        return count // 2 if self.grid is None else count - int(np.prod(self.grid)) + _middle(self.grid)

    @property
    def shown(self) -> list[int]:
        """Tokens to show: the first of the line, or of the first two rows, and the last."""
        count = len(self.part.site.segment)
        if self.grid is None:
            return [*range(min(count - 1, _TOKENS_SHOWN - 1)), count - 1]
        first, row = count - int(np.prod(self.grid)), self.grid[-1]
        wanted = [*range(first), *(first + i for i in (0, 1, 2, row, row + 1, 2 * row)), count - 1]
        return sorted({t for t in wanted if t < count})


def _middle(grid: tuple[int, ...]) -> int:
    return int(np.ravel_multi_index([size // 2 for size in grid], grid))


def labels(site: Site) -> list[str]:
    """A name for each token: its position, or which prefix token it is."""
    return [f"prefix {n}" if n else place(p) for p, n in zip(site.position, np.asarray(site.prefix), strict=True)]


def sections(example: Example) -> list[str]:
    """Describes every hook of a part, in the order in which a model calls them."""
    write = {
        "place": placement,
        "observe": state,
        "embed": code,
        "rotate": rotation,
        "value": carried,
        "bias": bias,
        "mask": mask,
        "sink": sink,
        "weigh": weighed,
        "read": beside,
    }
    hooks = overridden(type(example.part.encoding))
    if isinstance(example.part.encoding, PositionMap) and "place" not in hooks:
        return views(example)
    return [line for hook, section in write.items() if hook in hooks for line in section(example)]


def placement(e: Example) -> list[str]:
    encoding, params, site = e.part.encoding, e.part.params, e.part.site
    after = encoding.place(params, site)
    draws = [encoding.place(params, site, jax.random.key(seed)) for seed in (0, 1)]
    random = any(_differ(after, draw) for draw in draws)
    headers = ["before", "in evaluation", *(["in training (key 0)", "in training (key 1)"] if random else [])]
    columns = [e.labels, *[labels(each) for each in ([after, *draws] if random else [after])]]
    rows = [[column[t] for column in columns] for t in range(min(len(site.segment), 2 * _TOKENS_SHOWN))]
    lines = [*heading("where tokens stand"), *table(headers, rows), ""]
    if random:
        return [*lines, *prose("In training every sequence draws places of its own: two draws are shown.")]
    if _differ(after, site) and labels(after) == e.labels:
        return [*lines, *prose("Positions stay; what changes is the state that the tokens carry along.")]
    return [*lines, *prose("The same in training and in evaluation: nothing is drawn.")]


def views(e: Example) -> list[str]:
    """A map that moves no token, but shows each pair of them positions of its own."""
    found = probes.apparent_distance(e.part, e.dims)
    text = "No token is moved. How far from a query (row) each key (column) seems to be, query less key:"
    return [*heading("how far tokens seem to be apart"), *prose(text), "", *_matrix(e, found, short)]


def _differ(one: Site, other: Site) -> bool:
    a, b = jax.tree.leaves(one), jax.tree.leaves(other)
    return len(a) != len(b) or any(x.shape != y.shape or np.any(np.asarray(x != y)) for x, y in zip(a, b, strict=True))


def state(e: Example) -> list[str]:
    site = probes.observed(e.part, e.dims)
    leaves = [
        (jax.tree_util.keystr(path, simple=True, separator="."), np.asarray(leaf))
        for path, leaf in jax.tree_util.tree_leaves_with_path(site.state)
    ]
    lines = [*heading("what is read off the tokens")]
    lines += prose("Of tokens with random content (seed 0), every token keeps, and a cache with it:")
    for name, leaf in leaves:
        flat = leaf.reshape(len(leaf), -1)
        headers = ["position", *[f"{name or 'state'}[{c}]" for c in range(flat.shape[1])]]
        lines += ["", *table(headers, [[e.labels[t], *numbers(flat[t])] for t in e.shown])]
    return lines


def code(e: Example) -> list[str]:
    codes, depends = probes.codes(e.part, e.dims)
    what = "what the tokens hold (random here, seed 0) and on where they stand" if depends else "the position alone"
    lines = [*heading("what is added to the tokens"), *prose(f"A code of {codes.shape[1]} channels, from {what}:")]
    norms = np.linalg.norm(codes, axis=1)
    headers = ["position", "length", *[f"ch {c}" for c in range(codes.shape[1])]]
    lines += ["", *table(headers, [[e.labels[t], number(norms[t]), *numbers(codes[t])] for t in e.shown])]
    if depends or e.grid is not None:
        return lines + ([] if depends else _alike_on_grid(e, codes))
    return lines + _shift(e, codes)


def _alike_on_grid(e: Example, codes: np.ndarray) -> list[str]:
    size = int(np.prod(e.grid))
    likeness = _cosines(codes)[e.middle, -size:]
    return [
        "",
        *prose(f"How alike is the code of {e.labels[e.middle]} to that of every other place (cosine)?"),
        *_rows_of_grid(e.grid, likeness),
    ]


def _cosines(codes: np.ndarray) -> np.ndarray:
    unit = codes / np.maximum(np.linalg.norm(codes, axis=1, keepdims=True), 1e-12)
    return unit @ unit.T


def _shift(e: Example, codes: np.ndarray) -> list[str]:
    likeness, step = _cosines(codes), np.linalg.norm(np.diff(codes, axis=0), axis=1)
    rows = [[f"{e.labels[t]} -> {e.labels[t + 1]}", number(step[t]), number(likeness[0, t + 1])] for t in e.shown[:-1]]
    lines = ["", *prose("From each position to the next, and how alike its code is to the first one's (cosine):"), ""]
    lines += table(["step", "distance", "cosine to the first"], rows)
    rank = np.linalg.matrix_rank(codes[:-1], tol=1e-4)
    if len(codes) - 1 <= rank:
        return lines
    matrix, *_ = np.linalg.lstsq(codes[:-1], codes[1:], rcond=None)
    residual = np.abs(codes[:-1] @ matrix - codes[1:]).max()
    if residual < 1e-3 * np.abs(codes).max():
        says = "so a shift by one position is the same linear map everywhere, and a linear layer can find it"
    else:
        says = "so no single linear map is a shift by one position"
    text = f"The best matrix that takes every code to the next one leaves a residual of {short(residual)}: {says}."
    return [*lines, "", *prose(text)]


def bias(e: Example) -> list[str]:
    found, depends = probes.bias(e.part, e.dims)
    heads = sorted({*range(min(len(found), _HEADS_SHOWN - 1)), len(found) - 1})
    lines = [*heading("what is added to the logits")]
    same = len(found) > 1 and np.abs(found - found[:1]).max() == 0
    if depends:
        lines += prose("The bias depends on what the tokens hold: here queries and keys of random content (seed 0).")
    if same:
        lines += prose("Every head gets the same bias.")
        heads = heads[:1]
    for head in heads:
        lines += ["", *prose(f"Head {head} (row: query at, column: key at):"), "", *_matrix(e, found[head])]
    relative = probes.spread_at_equal_offsets(found, e.part.site)
    if e.grid is not None:
        size = int(np.prod(e.grid))
        text = f"What the query at {e.labels[e.middle]} adds for every key, head {heads[-1]}, laid out as the grid:"
        return [*lines, "", *prose(text), *_rows_of_grid(e.grid, found[heads[-1], e.middle, -size:])]
    if depends:
        return lines
    if relative > 1e-4:
        return [*lines, "", *prose(f"It is no function of the distance: equal distances differ by {short(relative)}.")]
    return lines + _by_distance(e, found)


def _matrix(e: Example, values: np.ndarray, text: Callable[[SupportsFloat], str] = number) -> list[str]:
    shown = e.shown
    rows = [[e.labels[t], *[text(values[t, s]) for s in shown]] for t in shown]
    return table(["", *[e.labels[s] for s in shown]], rows)


def _by_distance(e: Example, found: np.ndarray) -> list[str]:
    """Biases by the distance of tokens from the first one, with the slope from the row before."""
    count = found.shape[1]
    distances = [d for d in (0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128) if d < count]
    away = probes.offsets(e.part.site)[distances, 0, 0]  # of positions, which a map may have stretched
    before = np.stack([found[:, d, 0] for d in distances])
    after = np.stack([found[:, 0, d] for d in distances])
    both = np.abs(before - after).max() > 1e-6
    lines = ["", *prose("By distance (key before the query), and the slope from one row to the next:"), ""]
    if both:
        lines[1:2] = prose("By distance, and the slope from one row to the next (keys before the query):")
    heads = range(found.shape[0])
    headers = ["distance", *[f"head {h}" for h in heads], *[f"slope {h}" for h in heads]]
    rows = []
    for row in range(len(distances)):
        slopes = (
            ["" for _ in heads] if not row else numbers((before[row] - before[row - 1]) / (away[row] - away[row - 1]))
        )
        rows.append([short(away[row]), *numbers(before[row]), *slopes])
    lines += table(headers, rows)
    if both:
        rows = [[short(-away[row]), *numbers(after[row])] for row, d in enumerate(distances) if d]
        lines += ["", *prose("Keys after the query get another bias:"), *table(headers[: 1 + len(heads)], rows)]
    return lines


def mask(e: Example) -> list[str]:
    seen = probes.mask(e.part)
    shown = range(min(len(seen), 40))
    marks = [["#" if seen[t, s] else "." for s in shown] for t in shown]
    lines = [
        *heading("which keys are seen"),
        *prose("Row: query at; column: key, in the same order; # is seen, . is not."),
    ]
    lines += picture(marks, [e.labels[t] for t in shown], "keys")
    lines += [
        "",
        *prose(f"Of {seen.size} pairs {int(seen.sum())} are seen. Causality and documents hide others besides."),
    ]
    if e.grid is not None and len(e.grid) == 2:
        size = int(np.prod(e.grid))
        window = seen[e.middle, -size:].reshape(e.grid)
        lines += ["", *prose(f"What the query at {e.labels[e.middle]} sees, laid out as the grid:")]
        lines += ["    " + " ".join("#" if mark else "." for mark in row) for row in window]
    return lines


def sink(e: Example) -> list[str]:
    found = np.asarray(of_queries(e.part.encoding.sink(e.part.params, e.part.site, e.dims.num_heads))).mean(axis=1)
    share = np.exp(found) / (np.exp(found) + len(e.part.site.segment))
    text = "A logit in each head's softmax that reads nothing, and its share where the logits of all keys are 0:"
    rows = [[str(head), number(found[head]), number(share[head])] for head in range(len(found))]
    return [*heading("the sink of each head"), *prose(text), "", *table(["head", "logit", "share"], rows)]


def weighed(e: Example) -> list[str]:
    text = "What stands for the softmax: the weights of each query (row) where all its logits are 0 (head 0):"
    found = probes.weighed(e.part, e.dims)
    return [*heading("how keys are weighed"), *prose(text), "", *_matrix(e, found, short)]


def carried(e: Example) -> list[str]:
    text = "What the query at {} would read of the value (1, 0, 0, ...) of each key (head 0):"
    found = probes.carried(e.part, e.dims, e.middle)
    return [*heading("how values arrive"), *_by_key(e, text.format(e.labels[e.middle]), found)]


def beside(e: Example) -> list[str]:
    text = "What the query at {} would read beside the value of each key (head 0):"
    found = probes.read_beside(e.part, e.dims, e.middle)
    return [*heading("what is read beside the values"), *_by_key(e, text.format(e.labels[e.middle]), found)]


def _by_key(e: Example, text: str, found: np.ndarray) -> list[str]:
    """A row of channels for each key shown, from [S, H, E]."""
    query = e.middle
    away = np.asarray(axes(e.part.site)) - np.asarray(axes(e.part.site))[query]
    headers = ["key at", "key - query", *[f"ch {c}" for c in range(found.shape[-1])]]
    rows = [[e.labels[s], place(away[s] if away.shape[1] > 1 else away[s, 0]), *numbers(found[s, 0])] for s in e.shown]
    return [*prose(text), "", *table(headers, rows)]


def _rows_of_grid(grid: tuple[int, ...], values: np.ndarray) -> list[str]:
    rows = np.asarray(values).reshape(-1, grid[-1])
    return table([""] * grid[-1], [numbers(row) for row in rows], indent=4)[1:]
