"""A description of each registered encoding, read off its class: its hooks, declarations, parameters and source.

Nothing here knows an encoding by name: `facts("mine")` describes a user's encoding like any other.
"""

import contextlib
import dataclasses
import inspect
import itertools
import math
import re
from collections.abc import Sequence
from typing import NamedTuple

import jax

from posjax.describe.markdown import escape_markdown, grid
from posjax.encoding import HOOKS, Dims, Encoding, Needs, PositionMap
from posjax.spec import names, registered, registered_names

ACTS = {"__rshift__": "moves tokens pair by pair"} | {name: hook.does for name, hook in HOOKS.items()}
LINE = Dims(width=384, num_heads=6, head_dim=64, length=1024)
GRID = Dims(width=384, num_heads=6, head_dim=64, grid=(14, 14))

_ARXIV = re.compile(r"\b(\d{4}\.\d{4,5})\b")
_AUTHORS = re.compile(r"((?:[A-Z][\w'’-]+(?:, | and | & )?)+(?: et al\.?)?),? \(?((?:19|20)\d\d)\)?")
# Tried in turn for an argument without a default, to have an example of the encoding.
_FILLERS = {int: (14, 2, 4, 16), float: (2.0, 0.5), bool: (True,), str: ("",)}
_OTHER_FILLERS = ((2, 2), (2, 2, 4), 2)


class Facts(NamedTuple):
    """One row of the catalogue. `example` is the encoding with its defaults, or None where none could be made up."""

    name: str
    cls: type
    family: str  # the module that defines it
    example: object | None
    hooks: tuple[str, ...]  # that it overrides
    parameters: dict[str, tuple[int, ...]] | None  # path -> shape, in a model of `dims`; None: not without arguments
    dims: Dims
    dimensions: tuple[int, ...]
    relative: bool
    needs: tuple[str, ...]  # names of `Needs`, in lower case
    reach: float
    depends: frozenset[str]  # what of these depends on its arguments
    arxiv: str | None
    citation: str | None
    summary: str

    @property
    def count(self) -> int:
        """Learned numbers."""
        return sum(math.prod(shape) for shape in (self.parameters or {}).values())


def facts(name: str) -> Facts:
    """Describes a registered encoding.

    Raises:
      ValueError: for an unknown name.
    """
    cls = registered(name)
    example = example_of(cls)
    source = cls if example is None else example
    by_arguments = {fact: isinstance(inspect.getattr_static(cls, fact), property) for fact in _DECLARED}
    values = {fact: getattr(Encoding if source is cls and by_arguments[fact] else source, fact) for fact in _DECLARED}
    dims = LINE if 1 in values["dimensions"] else GRID
    text, parameters = documentation(cls), None
    if example is not None:
        with contextlib.suppress(ValueError):  # sizes that this one does not take
            parameters = parameter_shapes(example, dims)
    return Facts(
        name=name,
        cls=cls,
        family=defining_module(cls),
        example=example,
        hooks=overridden(cls),
        parameters=parameters,
        dims=dims,
        dimensions=tuple(values["dimensions"]),
        relative=values["relative"],
        needs=tuple(need.name.lower() for need in values["needs"]),
        reach=values["reach"],
        depends=frozenset(fact for fact, depends in by_arguments.items() if depends),
        arxiv=arxiv_number(text),
        citation=citation(text),
        summary=summary(text),
    )


_DECLARED = ("relative", "dimensions", "reach", "needs")


def catalogue() -> list[Facts]:
    """Every registered encoding, by family and name."""
    return sorted(map(facts, names()), key=lambda row: (row.family, row.name))


def values() -> list[type]:
    """Registered classes that are no encodings but arguments of them, such as frequency scalings."""
    return [cls for name in registered_names() if not issubclass(cls := registered(name), Encoding)]


def defining_module(cls: type) -> str:
    """The module that defines a class, without the packages around it."""
    return cls.__module__.rpartition(".")[2]


def overridden(cls: type) -> tuple[str, ...]:
    """The hooks of the contract that a class fills in, in the order in which a model calls them."""
    base = PositionMap if issubclass(cls, PositionMap) else Encoding
    return tuple(hook for hook in ACTS if getattr(cls, hook) is not getattr(base, hook))


def documentation(cls: type) -> str:
    """The cleaned docstring of a class; "" for the signature that `dataclass` writes in its place."""
    text = inspect.cleandoc(cls.__dict__.get("__doc__") or "")
    return "" if text.startswith(f"{cls.__name__}(") else text


def paragraphs(text: str) -> list[str]:
    """The paragraphs before the first section (Args:, Raises:, Parameters: ...) or example."""
    found = []
    for paragraph in re.split(r"\n\s*\n", text):
        if re.match(r"(Args|Arguments|Raises|Returns|Parameters)\b[^\n]*:|>>> ", paragraph):
            break
        if paragraph.strip():
            found.append(paragraph)
    return found


def summary(text: str) -> str:
    """The first sentence of a docstring, as one line."""
    first = (paragraphs(text) or [""])[0]
    line, _, rest = first.partition("\n")
    return line if line.endswith((".", ":")) or not rest else re.split(r"(?<=[a-z)])\.\s", " ".join(first.split()))[0]


def arxiv_number(text: str) -> str | None:
    """The first arXiv number of a docstring."""
    match = _ARXIV.search(text)
    return match[1] if match else None


def citation(text: str) -> str | None:
    """Authors and year, as "Su et al. 2021": the last ones before the first arXiv number, or else the first."""
    flat = " ".join(text.split())
    number = _ARXIV.search(flat)
    before = list(_AUTHORS.finditer(flat, 0, number.start() if number else len(flat)))
    if not before:
        return None
    match = before[-1] if number else before[0]
    return f"{match[1].strip(' ,')} {match[2]}"


def declared_meanings() -> dict[str, str]:
    """The meaning of each fact and each need, in the words of the contract."""
    facts = re.findall(r"^    (\w+): ClassVar\[.*?\] = .*?  # (.+)$", inspect.getsource(Encoding), re.MULTILINE)
    needs = re.findall(r"^    (\w+) = enum.auto\(\)  # (.+)$", inspect.getsource(Needs), re.MULTILINE)
    found = {name: meaning for name, meaning in facts if name in _DECLARED}
    return found | {name.lower(): meaning for name, meaning in needs}


def parameter_shapes(encoding: Encoding, dims: Dims) -> dict[str, tuple[int, ...]]:
    """Shapes of an encoding's parameters in a model of these sizes, by path."""
    shapes = jax.eval_shape(lambda key: encoding.init(key, dims), jax.random.key(0))
    return {
        jax.tree_util.keystr(path, simple=True, separator="."): leaf.shape
        for path, leaf in jax.tree_util.tree_leaves_with_path(shapes)
    }


def example_of(cls: type) -> object | None:
    """The encoding with its defaults, and made-up values for arguments without one."""
    missing = [
        field
        for field in dataclasses.fields(cls)
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    ]
    encodings = [registered(name)() for name in ("rope", "alibi") if name in names()]
    fillers = [_FILLERS.get(field.type, (*encodings, *_OTHER_FILLERS)) for field in missing]
    for arguments in itertools.product(*fillers):
        try:
            example = cls(**{field.name: value for field, value in zip(missing, arguments, strict=True)})
            [getattr(example, fact) for fact in _DECLARED if isinstance(example, Encoding)]
        except (ValueError, TypeError, AttributeError):
            continue
        return example
    return None


_BY_ARGUMENTS = "*"


def learns(row: Facts) -> str:
    """Shapes and count of its parameters, in the model that `row.dims` describes."""
    if row.parameters is None:
        return "depends on its arguments"
    if not row.parameters:
        return "nothing"
    shapes = " + ".join("x".join(map(str, shape)) or "1" for shape in row.parameters.values())
    return f"{row.count:,} ({shapes})" if len(row.parameters) <= 4 else f"{row.count:,} in {len(row.parameters)} arrays"


def catalogue_cells(row: Facts) -> dict[str, str]:
    """The cells of a row behind its name, by the headings of their columns."""
    known = [*row.needs]
    if "needs" in row.depends:
        known = [f"{need}{_BY_ARGUMENTS}" for need in known] or ["some by its arguments"]
    known += [f"reach {row.reach:g}"] if math.isfinite(row.reach) else []
    relative = "yes" if row.relative else "no"  # a position map defers to the encoding behind it
    return {
        "summary": row.summary,
        "acts": ", ".join(ACTS[hook] for hook in row.hooks) or "nowhere",
        "learns": learns(row),
        "axes": ", ".join(map(str, row.dimensions)) + _BY_ARGUMENTS * ("dimensions" in row.depends),
        "relative": relative + _BY_ARGUMENTS * ("relative" in row.depends),
        "declares": ", ".join(known),
    }


def summing_up(rows: Sequence[Facts], kinds: Sequence[type]) -> str:
    """The number of entries."""
    line, plane = f"{LINE.length} positions", f"{GRID.grid[0]}x{GRID.grid[1]} patches"
    sizes = [
        f"width {d.width}, {d.num_heads} heads of {d.head_dim} and {at}" for d, at in ((LINE, line), (GRID, plane))
    ]
    learned = sum(bool(row.parameters) for row in rows)
    relative = sum(row.relative for row in rows if "place" not in row.hooks)
    families = len({row.family for row in rows} | {defining_module(cls) for cls in kinds})
    return (
        f"{len(rows)} encodings and position maps, {len(kinds)} values that they take, in {families} families; "
        f"{learned} learn something, {relative} (position maps not counted) are relative. "
        f"Parameters are counted in a model of {sizes[0]}, or, without an axis for lines, {sizes[1]}. "
        f"{_BY_ARGUMENTS} depends on the arguments; shown as with the defaults."
    )


def to_markdown(rows: Sequence[Facts], kinds: Sequence[type]) -> str:
    """The page: a table for each family, one of values, and the meanings of the words."""
    lines = [
        "# Catalogue",
        "",
        "Generated from the classes and their docstrings by `python -m experiments.catalogue --write`; "
        "`posjax explain NAME` explains one with numbers.",
        "",
        escape_markdown(summing_up(rows, kinds)),
    ]

    def table(title: str, headers: Sequence[str], body: Sequence[Sequence[str]]) -> list[str]:
        return ["", f"## {title}", "", grid(headers, body, left=len(headers))]

    for family, members in itertools.groupby(rows, key=lambda row: row.family):
        described = [(row, catalogue_cells(row)) for row in members]
        body = [
            [f"`{row.name}`", *map(escape_markdown, each.values()), _link(row.citation, row.arxiv)]
            for row, each in described
        ]
        lines += table(family, ["encoding", *described[0][1], "reference"], body)
    if kinds:
        body = []
        for cls in kinds:
            text = documentation(cls)
            about = [escape_markdown(summary(text)), escape_markdown(defining_module(cls))]
            body.append([f"`{cls.spec_name}`", *about, _link(citation(text), arxiv_number(text))])
        lines += table("Arguments of encodings", ["value", "summary", "family", "reference"], body)
    lines += ["", "## Declared traits", ""]
    lines += [f"- `{name}`: {escape_markdown(meaning)}" for name, meaning in declared_meanings().items()]
    return "\n".join(lines) + "\n"


def _link(text_citation: str | None, number: str | None) -> str:
    link = f"[{number}](https://arxiv.org/abs/{number})" if number else ""
    return ", ".join(part for part in (escape_markdown(text_citation or ""), link) if part)
