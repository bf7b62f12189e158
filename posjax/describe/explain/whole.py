"""The explanation of a whole composition: its parts, and the attention under it."""

import dataclasses
import pathlib

import jax
import numpy as np

from posjax.describe import probes
from posjax.describe.catalogue import citation, documentation, paragraphs, parameter_shapes
from posjax.describe.explain.parts import WorkedPart, labels
from posjax.describe.explain.text import decimal, digits, prose, table, title
from posjax.describe.worlds import Part, awake, axes_taken, box, placed_parts, with_relation
from posjax.encoding import Dims, Encoding, PositionMap, Site

_MENDS = {1: "leave --grid out", 2: "give --grid=HxW", 3: "give --grid=DxHxW"}  # by the number of axes that are needed


def explain(
    encoding: Encoding, *, length: int, grid: tuple[int, ...] | None, prefix: int, head_dim: int, num_heads: int
) -> list[str]:
    """Lines of at most 100 columns.

    Raises:
      ValueError: where the encoding does not take these sizes.

    >>> import posjax as pj
    >>> lines = explain(pj.parse("window(2)"), length=4, grid=None, prefix=0, head_dim=4, num_heads=2)
    >>> start = lines.index("WHICH KEYS ARE SEEN")
    >>> print(*lines[start + 2 : start + 8], sep="\\n")
    Row: query at; column: key, in the same order; # is seen, . is not.
         keys
      0  # # . .
      1  # # # .
      2  . # # #
      3  . . # #
    """
    dims, site = _example(encoding, length, grid, prefix, head_dim, num_heads)
    params, asleep = awake(jax.jit(encoding.init, static_argnums=1)(jax.random.key(0), dims))
    members = list(placed_parts(encoding, params, site))
    lines = [*prose(str(encoding)), "", *prose(_setting(dims, site, grid, parameter_shapes(encoding, dims)))]
    if asleep:
        text = (
            f"Learned parameters that start at zero ({', '.join(asleep)}) would show nothing: random ones stand here "
            "in their place, standard deviation 0.3."
        )
        lines += ["", *prose(text)]
    if len(members) > 1:
        lines += ["", *prose(f"A composition of {len(members)} parts, explained one by one and then as a whole.")]
    for part in members:
        on_grid = part.site.position.ndim == 2 and part.site.position.shape[1] > 1  # a raster leads to a line
        lines += [*title(str(part.encoding)), *_about(part)]
        lines += WorkedPart(part, dims, site, grid if on_grid else None).sections()
    return [*lines, *_relativity(encoding, params, dims, site)]


def _example(encoding: Encoding, length, grid, prefix, head_dim, num_heads) -> tuple[Dims, Site]:
    """Returns the sizes of the model and its tokens."""
    width, extent = head_dim * num_heads, grid or (length,)
    taken = axes_taken(encoding)
    if len(extent) not in taken:
        takes = f"{encoding} takes positions of {' or '.join(map(str, taken))} axes"
        if min(taken) > len(_MENDS):
            raise ValueError(f"{takes}: it cannot be explained with more than {len(_MENDS)}; give it other arguments")
        raise ValueError(f"{takes}, the example has {len(extent)}: {_MENDS[min(taken)]}")
    if grid is None:
        dims = Dims(width, num_heads, head_dim, length=length, prefix=prefix)
    else:
        dims = Dims(width, num_heads, head_dim, grid=grid if len(grid) == 2 else None, prefix=prefix)
    return dims, with_relation(encoding, box(extent, prefix=prefix))


def _setting(dims: Dims, site: Site, sizes: tuple[int, ...] | None, learned: dict[str, tuple[int, ...]]) -> str:
    where = f"{len(site.segment) - dims.prefix} tokens on a line" if sizes is None else "x".join(map(str, sizes))
    where = where if sizes is None else f"a grid of {where} tokens"
    before = f", behind {dims.prefix} that stand nowhere (prefix)" if dims.prefix else ""
    shapes = {name or "table": "x".join(map(str, shape)) for name, shape in learned.items()}
    names = ", ".join(f"{name} ({shape or 'a number'})" for name, shape in shapes.items())
    count = sum(int(np.prod(shape)) for shape in learned.values())
    learns = (
        f"It learns {count:,} number{'s' * (count != 1)}: {names}; here as initialised from seed 0."
        if learned
        else "It learns nothing."
    )
    heads = f"{dims.num_heads} head{'s' if dims.num_heads > 1 else ''} of {dims.head_dim} channels"
    return f"The example: {where}{before}; {heads}, width {dims.width}. {learns}"


def _about(part: Part) -> list[str]:
    """Describes an encoding, and arguments such as frequency scalings, by docstrings and declarations."""
    encoding, lines = part.encoding, []
    fields = dataclasses.fields(encoding) if dataclasses.is_dataclass(encoding) else ()
    arguments = [getattr(encoding, field.name) for field in fields]
    for value in [encoding, *(value for value in arguments if getattr(value, "spec_name", ""))]:
        text = documentation(type(value))
        if value is not encoding:
            lines += ["", f"with {value.spec_name}:"]
        for paragraph in paragraphs(text) or ["(no docstring)"]:
            lines += [*prose(paragraph), ""]
        lines = lines[:-1]
    kind = "relative: attention sees differences of positions only" if encoding.relative else "absolute"
    declared = ["a map of positions" if isinstance(encoding, PositionMap) else kind]
    declared += [f"needs {need.name.lower()}" for need in encoding.needs]
    declared += [f"positions up to {encoding.reach:g} from 0"] if np.isfinite(encoding.reach) else []
    source = citation(documentation(type(encoding)))
    return [*lines, "", *prose(f"Declared: {'; '.join(declared)}.{f' Source: {source}.' if source else ''}")]


def _relativity(encoding: Encoding, params, dims: Dims, site: Site) -> list[str]:
    """Logits of one word at every place: pairs of tokens differ by their places only."""
    found = probes.same_word(encoding, params, dims, site)
    shown = "logits"
    text = (
        "Let one and the same word (random, seed 0) stand at every position. Without an encoding every query and key "
        f"then has the same logit, {decimal(found.plain[0, 0, 0])} in head 0."
    )
    if "weigh" in encoding.hooks:
        shown = "log weights"
        text += f" {encoding} makes weights that are no softmax of logits: their logs are shown."
    text += f" With {encoding} these are the {shown} of the first tokens (head 0; row: query at, column: key at):"
    names = labels(site)[:9]
    logit = lambda m, n: decimal(found.encoded[0, m, n]) if found.seen[m, n] else "hidden"  # noqa: E731
    rows = [[name, *[logit(m, n) for n in range(len(names))]] for m, name in enumerate(names)]
    lines = [*title("What attention sees"), "", *prose(text), "", *table(["", *names], rows), ""]
    lines += prose(_verdict(encoding, found, site))
    return lines if found.seen.all() else lines + prose("Hidden are the keys that the query does not see.")


def _verdict(encoding: Encoding, found: probes.Logits, site: Site) -> str:
    if not found.seen.any():
        return "No query sees a key here: give more tokens."
    spread = probes.spread_at_equal_offsets(found.encoded, site, found.seen)
    weighs = "weigh" in encoding.hooks
    what, values = ("weights", "their logs") if weighs else ("logits", "logits")
    shift = f"over all pairs that are equally far apart, {values} differ by at most {digits(spread)}"
    if not weighs and np.ptp(found.encoded[:, found.seen], axis=1).max() < 1e-5:
        if not found.seen.all():
            return "All logits that are seen are equal: the mask alone tells such words apart."
        if "value" in encoding.hooks:
            return "All logits are equal: where a key stands shows in what is read of its value alone."
        return "All logits are equal: such a word cannot tell positions apart by this encoding."
    if spread < 1e-3:
        return f"Equal differences give equal {what} ({shift})."
    if encoding.relative and not weighs:
        return (
            f"Equal differences do not give equal logits here: {shift}. It is relative all the same: moving "
            "ALL tokens by the same amount changes nothing."
        )
    return f"Equal differences do NOT give equal {what}: {shift}."


def plot(
    encoding: Encoding, directory: pathlib.Path, *, length, grid, prefix, head_dim, num_heads
) -> list[pathlib.Path]:
    """Writes the PNGs; returns their paths.

    Raises:
      ValueError: where the encoding does not take these sizes.
    """
    from posjax.describe.figures import save
    from posjax.describe.plots import draw_figures

    dims, site = _example(encoding, length, grid, prefix, head_dim, num_heads)
    params, _ = awake(jax.jit(encoding.init, static_argnums=1)(jax.random.key(0), dims))
    directory.mkdir(parents=True, exist_ok=True)
    stem = "".join(c if c.isalnum() else "_" for c in str(encoding).replace("()", "")).strip("_")[:60]
    return [
        save(figure, directory / f"{stem}_{name}.png") for name, figure in draw_figures(encoding, params, dims, site)
    ]
