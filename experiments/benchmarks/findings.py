"""Verdicts from measurements: ratios against goals."""

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

Record = Mapping[str, Any]


class Goal(NamedTuple):
    """`over`'s time (or temporaries) divided by `under`'s, in every cell that `where` holds for.

    `wanted` has (floor, aim or None) by mode; floors are lower bounds, or upper ones where `at_most`.
    """

    title: str
    over: str
    under: str
    wanted: Mapping[str, tuple[float, float | None]]
    where: Callable[[Mapping[str, Any]], bool] = lambda cell: True
    at_most: bool = False
    quantity: str = "time"


class Bound(NamedTuple):
    """An upper bound on one contender's own figure; `figure` takes its records of one mode, by ascending length."""

    title: str
    contender: str
    figure: Callable[[Sequence[Record]], float | None]
    limit: float
    unit: str = ""
    modes: Sequence[str] = ("f", "fb")
    where: Callable[[Mapping[str, Any]], bool] = lambda cell: True


class Finding(NamedTuple):
    """A line of the table of goals."""

    title: str
    cell: str
    value: str
    wanted: str
    verdict: str
    control: str = ""  # the same code in a second process, over the first


def seconds(record: Record) -> float | None:
    """The median time of a run, None if it was not timed; a call may make several runs."""
    found = times(record)
    return statistics.median(found) / record.get("runs", 1) if found and not record["skip"] else None


def times(record: Record) -> Sequence[float] | None:
    """The seconds of a call in each round: of the CPU where one core was all it had, else by the clock."""
    return record["cpu" if record["threads"] == 1 else "wall"]


def temporaries(record: Record) -> float | None:
    """The bytes of a program's temporaries."""
    return record["temp_bytes"]


_AMOUNTS = {"time": seconds, "temporaries": temporaries}


def largest(records: Sequence[Record]) -> float | None:
    """The temporaries at the greatest length, in MiB."""
    found = [temporaries(record) for record in records if temporaries(record)]
    return found[-1] / 2**20 if found else None


def growth(of: Callable[[Record], float | None]) -> Callable[[Sequence[Record]], float | None]:
    """The growth of a figure over that of the length, over its last factor of about four: 1 is linear."""

    def figure(records: Sequence[Record]) -> float | None:
        points = [(record["cell"]["length"], of(record)) for record in records if of(record)]
        if len(points) < 2:
            return None
        last, value = points[-1]
        before, less = next(((n, y) for n, y in reversed(points[:-1]) if 4 * n <= last), points[0])
        return (value / less) / (last / before)

    return figure


def verdicts(records: Sequence[Record], goals: Iterable[Goal | Bound], controls: Mapping[str, str]) -> list[Finding]:
    """A finding for each goal and cell in which it was measured.

    Args:
      controls: by contender, the name of the second process that ran the same code.
    """
    cells = by_cell(records)
    found: list[Finding | None] = []
    for goal in goals:
        if isinstance(goal, Bound):
            found += _bounded(goal, records)
        else:
            found += [_compared(goal, contenders, controls) for contenders in cells.values()]
    return [finding for finding in found if finding]


def by_cell(records: Iterable[Record]) -> dict[tuple, dict[str, Record]]:
    """Records by (suite, cell, threads) and contender."""
    cells: dict[tuple, dict[str, Record]] = {}
    for record in records:
        key = (record["suite"], *sorted(record["cell"].items()), record["threads"])
        cells.setdefault(key, {})[record["contender"]] = record
    return cells


def _compared(goal: Goal, contenders: Mapping[str, Record], controls: Mapping[str, str]) -> Finding | None:
    over, under = contenders.get(goal.over), contenders.get(goal.under)
    if over is None or under is None or not goal.where(over["cell"]) or over["cell"]["mode"] not in goal.wanted:
        return None
    above, below = (_AMOUNTS[goal.quantity](record) for record in (over, under))
    if not above or not below:
        return None
    floor, aim = goal.wanted[over["cell"]["mode"]]
    twin = contenders.get(controls.get(goal.under, ""))
    again = seconds(twin) if twin and goal.quantity == "time" else None
    return Finding(
        goal.title,
        cell_text(over),
        f"{above / below:.2f}",
        wanted_text(floor, aim, goal.at_most),
        verdict(above / below, floor, aim, goal.at_most),
        f"{again / below:.2f}" if again else "",
    )


def _bounded(bound: Bound, records: Sequence[Record]) -> list[Finding]:
    found = []
    groups: dict[tuple, list[Record]] = {}
    for record in records:
        cell = record["cell"]
        if record["contender"] == bound.contender and cell["mode"] in bound.modes and bound.where(cell):
            rest = tuple(sorted((name, value) for name, value in cell.items() if name != "length"))
            groups.setdefault((rest, record["threads"]), []).append(record)
    for group in groups.values():
        group = sorted(group, key=lambda record: record["cell"].get("length", 0))
        value = bound.figure(group)
        if value is not None:
            unit = f" {bound.unit}".rstrip()
            text = f"{value:.3g}{unit}"
            wanted = f"at most {bound.limit:g}{unit}"
            cell = cell_text(group[-1])
            found.append(Finding(bound.title, cell, text, wanted, verdict(value, bound.limit, None, at_most=True)))
    return found


def verdict(ratio: float, floor: float, aim: float | None, at_most: bool) -> str:
    """Whether a ratio reaches its floor and its aim, and if not, by how much it misses the floor."""
    # Judged by the two digits that the table shows.
    reached = round(ratio, 2) <= floor if at_most else round(ratio, 2) >= floor
    if not reached:
        return f"**missed by {abs(ratio / floor - 1):.0%}**"
    return "aim met" if aim is not None and not at_most and round(ratio, 2) >= aim else "met"


def wanted_text(floor: float, aim: float | None, at_most: bool) -> str:
    """The bound in words, as "at least 1.6 (aim 2)"."""
    if at_most:
        return f"at most {floor:g}"
    return f"at least {floor:g}" + (f" (aim {aim:g})" if aim is not None else "")


def cell_text(record: Record) -> str:
    """The cell and the cores of a record, as "n=2048 H=4 fb, 1 core", or the cell's title."""
    cores = "1 core" if record["threads"] == 1 else f"{record['threads']} cores"
    return record["cell"].get("title") or f"{cell_name(record['cell'])}, {cores}"


def cell_name(cell: Mapping[str, Any]) -> str:
    """The sizes and the mode of a cell, as "n=2048 H=4 fb", or its title."""
    short, unsaid = {"length": "n", "heads": "H", "batch": "B"}, ("mode", "kind", "head_dim")
    sizes = [f"{short.get(name, name)}={value}" for name, value in cell.items() if name not in unsaid]
    return cell.get("title") or " ".join([*sizes, cell["mode"]])
