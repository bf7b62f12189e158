"""Figures of one encoding: its code, wavelengths, bias, mask or moves, and the logits that a word has with itself.

Figures belong to nobody; `posjax.describe.figures.save` writes them.
"""

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import TwoSlopeNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from posjax.describe import probes
from posjax.describe.catalogue import overridden
from posjax.describe.figures import GREY, HUES, SMALL
from posjax.describe.worlds import Part, evenly, normal, placed_parts
from posjax.encoding import Dims, Encoding, Params, Site, axes

_WORDS = 64  # random words that a curve of logits is the mean of
_HEADS = 4  # shown at most
_DIVERGING, _SEQUENTIAL = "RdBu_r", "viridis"


def draw_figures(encoding: Encoding, params: Params, dims: Dims, site: Site) -> list[tuple[str, Figure]]:
    """(name, figure) of every picture that says something about this encoding on these tokens."""
    found = list(placed_parts(encoding, params, site))
    draw = {"place": _placement, "embed": _code, "rotate": _wavelengths, "bias": _bias, "mask": _mask}
    drawn = []
    for index, part in enumerate(found):
        which = f"{index}_{part.encoding.spec_name}_" if len(found) > 1 else ""
        for hook in overridden(type(part.encoding)):
            figure = draw[hook](part, dims, site) if hook in draw else None
            if figure is not None:
                drawn.append((f"{which}{hook}", figure))
    return [*drawn, ("logits", _logits(encoding, params, dims, site))]


def _placement(part: Part, dims: Dims, origin: Site) -> Figure:
    after = [part.encoding.place(part.params, part.site)]
    after += [part.encoding.place(part.params, part.site, jax.random.key(seed)) for seed in range(3)]
    before, first = np.asarray(axes(part.site)), np.asarray(axes(after[0]))
    figure, panels = _panels(1, first.shape[1], 3.6, wide=1.3)
    random = any(np.any(np.asarray(axes(each)) != first) for each in after)
    for axis, panel in enumerate(panels.flat):
        same = before.shape[1] == first.shape[1]
        x = before[:, axis] if same else np.arange(len(before))
        for seed, each in enumerate(after[1:] if random else []):
            panel.plot(x, np.asarray(axes(each))[:, axis], ".", color=HUES[seed + 1], markersize=4, label=f"key {seed}")
        panel.plot(x, first[:, axis], ".", color=HUES[0], markersize=4, label="evaluation")
        panel.set_xlabel(f"position before{f', axis {axis}' * (before.shape[1] > 1)}" if same else "token")
        panel.set_ylabel(f"position after{f', axis {axis}' * (first.shape[1] > 1)}")
        _tidy(panel)
        if random:
            panel.legend(frameon=False, fontsize=SMALL, markerscale=2)
    return _titled(figure, part)


def _code(part: Part, dims: Dims, origin: Site) -> Figure:
    codes, _ = probes.codes(part, dims)
    unit = codes / np.maximum(np.linalg.norm(codes, axis=1, keepdims=True), 1e-12)
    figure, panels = _panels(1, 2, 4.2)
    _heat(panels[0, 0], codes, "channel", _token_axis(part.site))
    panels[0, 0].set_title("code", fontsize=SMALL + 2)
    sizes = _grid_of(part.site)
    if sizes is None:
        _heat(panels[0, 1], unit @ unit.T, *[_token_axis(part.site)] * 2, limits=(-1, 1))
        panels[0, 1].set_title("likeness of codes (cosine)", fontsize=SMALL + 2)
    else:
        token = _middle(part.site, sizes)
        _heat(
            panels[0, 1], (unit @ unit[token])[-sizes[0] * sizes[1] :].reshape(sizes), "column", "row", limits=(-1, 1)
        )
        panels[0, 1].set_title(
            f"likeness to the code of {tuple(map(int, part.site.position[token]))}", fontsize=SMALL + 2
        )
    return _titled(figure, part)


def _wavelengths(part: Part, dims: Dims, origin: Site) -> Figure | None:
    """None for encodings that do not turn pairs of channels."""
    found = probes.linear_rotation(part, dims)
    turns = None if found is None else probes.turns(found.query)
    if turns is None or not turns.pairs:
        return None
    rates = probes.frequencies(turns, origin, part.site)
    if rates is None or not np.any(rates):
        return None
    figure, panels = _panels(1, 2, 3.8)
    panel, extent = panels[0, 0], np.ptp(np.asarray(axes(part.site), np.float64), axis=0)
    for axis, rate in enumerate(np.abs(rates[:, 0])):
        pairs = np.flatnonzero(rate > 1e-12)
        label = f"axis {axis}" if len(rates) > 1 else "wavelength"
        panel.semilogy(pairs, 2 * np.pi / rate[pairs], ".", color=HUES[axis], markersize=6, label=label)
    panel.axhline(extent.max() + 1, color="black", linewidth=0.8, linestyle=(0, (5, 4)))
    panel.annotate(f"{extent.max() + 1:g} positions here", (0.02, extent.max() + 1), xytext=(0, 3),
                   xycoords=panel.get_yaxis_transform(), textcoords="offset points", fontsize=SMALL)  # fmt: skip
    panel.set_xlabel("pair of channels")
    panel.set_ylabel("positions for a full turn")
    panel.xaxis.set_major_locator(MaxNLocator(integer=True))
    _tidy(panel)
    if len(rates) > 1:
        panel.legend(frameon=False, fontsize=SMALL)
    count = 2 * len(turns.pairs)
    _heat(panels[0, 1], np.cos(turns.angle[:, 0]), f"pair of channels (of {count // 2})", _token_axis(part.site))
    panels[0, 1].set_title("cosine of the angle, head 0", fontsize=SMALL + 2)
    return _titled(figure, part)


def _bias(part: Part, dims: Dims, origin: Site) -> Figure:
    found, depends = probes.bias(part, dims)
    shown = evenly(len(found), _HEADS)
    figure, panels = _panels_of_heads(len(shown))
    sizes = _grid_of(part.site)
    for panel, head in zip(panels.flat, shown, strict=True):
        limit = float(np.abs(found[head]).max())  # heads differ by orders of magnitude: each has colours of its own
        if sizes is None:
            values, names = found[head], (f"key {_token_axis(part.site)}", f"query {_token_axis(part.site)}")
        else:
            token = _middle(part.site, sizes)
            values, names = found[head, token, -sizes[0] * sizes[1] :].reshape(sizes), ("key's column", "key's row")
        _heat(panel, values, *names, limits=(-limit, limit))
        panel.set_title(f"head {head}", fontsize=SMALL + 2)
    if sizes is not None:
        return _titled(figure, part, f"bias of the query at {tuple(map(int, part.site.position[token]))}")
    return _titled(figure, part, "bias, random queries and keys" if depends else "bias")


def _mask(part: Part, dims: Dims, origin: Site) -> Figure:
    figure, panels = _panels(1, 1, 4.2)
    seen = probes.mask(part)
    panels[0, 0].imshow(seen, cmap="Greys", vmin=0, vmax=1.4, interpolation="nearest")
    panels[0, 0].set_xlabel("key, in order of the tokens", fontsize=SMALL + 1)
    panels[0, 0].set_ylabel("query", fontsize=SMALL + 1)
    panels[0, 0].tick_params(labelsize=SMALL)
    return _titled(figure, part, f"{seen.mean():.0%} of the pairs are seen (dark)")


def _logits(encoding: Encoding, params: Params, dims: Dims, site: Site) -> Figure:
    """The logit of a word with itself, by distance on a line, or around the middle of a grid."""
    values, seen = self_logits(encoding, params, dims, site)
    shown = evenly(len(values), _HEADS)
    sizes = _grid_of(site)
    quantity = "log weight" if "weigh" in encoding.hooks else "logit"
    about = f"{encoding}: {quantity} of a word with itself, mean of {_WORDS} random ones"
    if sizes is not None:
        figure, panels = _panels_of_heads(len(shown))
        token = _middle(site, sizes)
        values = np.where(seen, values, np.nan)[:, token, -sizes[0] * sizes[1] :].reshape(-1, *sizes)
        for panel, head in zip(panels.flat, shown, strict=True):
            _heat(panel, values[head], "column", "row")
            panel.set_title(f"head {head}", fontsize=SMALL + 2)
        figure.suptitle(f"{about}, query at {tuple(map(int, site.position[token]))}", fontsize=SMALL + 2)
        return figure
    figure, panels = _panels(1, 1, 4.0, wide=1.6)
    panel = panels[0, 0]
    for style, head in zip(HUES, shown, strict=False):
        _curve(panel, values[head], seen, site, style, f"head {head}")
    panel.axvline(0, color=GREY, linewidth=0.6)
    panel.set_xlabel("query's position less the key's (line: mean over pairs; band: all of them)", fontsize=SMALL + 1)
    panel.set_ylabel(quantity, fontsize=SMALL + 1)
    _tidy(panel)
    panel.legend(frameon=False, fontsize=SMALL)
    figure.suptitle(about, fontsize=SMALL + 2, wrap=True)
    return figure


def _curve(panel: Axes, values: np.ndarray, seen: np.ndarray, site: Site, color: str, label: str) -> None:
    stand = np.asarray(site.prefix) == 0
    keep = seen & stand[:, None] & stand[None]
    offset = np.round(probes.offsets(site)[..., 0][keep], 6)
    x, group = np.unique(offset, return_inverse=True)
    members = [values[keep][group == g] for g in range(len(x))]
    panel.plot(x, [np.mean(each) for each in members], color=color, linewidth=1.4, label=label)
    low, high = ([bound(each) for each in members] for bound in (np.min, np.max))
    panel.fill_between(x, low, high, color=color, alpha=0.15, linewidth=0)


def self_logits(encoding: Encoding, params: Params, dims: Dims, site: Site) -> tuple[np.ndarray, np.ndarray]:
    """[H, T, S] `probes.weighed_logits` of one word at all places, q and k its own projection; and which are seen."""
    weights = jnp.stack([normal(5, dims.width, dims.num_heads, dims.head_dim) * dims.width**-0.5] * 2)
    # A word at a time: the logits of all of them might not fit.
    found = [probes.word_logits(encoding, params, word, weights, site) for word in normal(6, _WORDS, dims.width)]
    _, total, seen = map(sum, zip(*found, strict=True))
    return np.asarray(total) / _WORDS, np.asarray(seen) > 0


def _panels(height: int, width: int, size: float, wide: float = 1.0) -> tuple[Figure, np.ndarray]:
    figure = Figure(figsize=(size * width * wide + 0.6, size * height + 0.4), layout="constrained")
    return figure, figure.subplots(height, width, squeeze=False)


def _panels_of_heads(count: int) -> tuple[Figure, np.ndarray]:
    """A panel for each head, in two rows from three on; four at most."""
    figure, panels = _panels(1 + (count > 2), min(count, 2), 3.4)
    for panel in panels.flat[count:]:
        panel.remove()
    return figure, panels.flatten()[:count].reshape(1, -1)


def _heat(panel: Axes, values: np.ndarray, x: str, y: str, limits: tuple[float, float] | None = None) -> None:
    """Blue below zero and red above, white at zero; one hue where there is one sign."""
    low, high = (np.nanmin(values), np.nanmax(values)) if limits is None else limits
    low, high = (low, high) if high > low else (low - 1, high + 1)
    signs = low < 0 < high
    norm = TwoSlopeNorm(0, -max(-low, high), max(-low, high)) if signs else None
    options = dict(norm=norm) if signs else dict(vmin=low, vmax=high)
    height, width = values.shape
    square = height == width or (1 / 3 < height / width < 3 and max(height, width) <= 32)
    image = panel.imshow(values, cmap=_DIVERGING if signs else _SEQUENTIAL, interpolation="nearest",
                         aspect="equal" if square else "auto", **options)  # fmt: skip
    bar = panel.figure.colorbar(image, ax=panel, shrink=0.8, pad=0.02)
    bar.ax.tick_params(labelsize=SMALL - 1)
    bar.outline.set_visible(False)
    panel.set_xlabel(x, fontsize=SMALL + 1)
    panel.set_ylabel(y, fontsize=SMALL + 1)
    panel.tick_params(labelsize=SMALL)
    for axis in (panel.xaxis, panel.yaxis):
        axis.set_major_locator(MaxNLocator(integer=True, nbins=6))


def _tidy(panel: Axes) -> None:
    panel.spines[["top", "right"]].set_visible(False)
    panel.tick_params(labelsize=SMALL)
    panel.grid(color="#e4e4e4", linewidth=0.6)
    panel.set_axisbelow(True)


def _titled(figure: Figure, part: Part, note: str = "") -> Figure:
    figure.suptitle(f"{part.encoding}{': ' * bool(note)}{note}", fontsize=SMALL + 3)
    return figure


def _token_axis(site: Site) -> str:
    return "position" if site.position.ndim == 1 and not np.any(site.prefix) else "token"


def _grid_of(site: Site) -> tuple[int, int] | None:
    if site.position.ndim == 1 or site.position.shape[1] != 2:
        return None
    on = np.asarray(site.position)[np.asarray(site.prefix) == 0]
    sizes = len(np.unique(on[:, 0])), len(np.unique(on[:, 1]))
    return sizes if sizes[0] * sizes[1] == len(on) else None


def _middle(site: Site, sizes: tuple[int, int]) -> int:
    return len(site.segment) - sizes[0] * sizes[1] + (sizes[0] // 2) * sizes[1] + sizes[1] // 2
