"""Verdicts from measurements: quantities and ratios against goals."""

import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

Record = Mapping[str, Any]
# "mode", "length" and the other sizes that its contenders share; "title" if it has a name of its own
Cell = Mapping[str, Any]


class Goal(NamedTuple):
    """`over`'s time (or temporaries) divided by `under`'s, in every cell for which `where` holds.

    Without `under`, the temporaries of `over` in MiB; or with `grows` the growth of its quantity over that of the length,
    over the last factor of about four: 1 is linear. `wanted` has (floor, aim or None) by mode; floors are lower bounds, or
    upper ones where `at_most`.
    """

    title: str
    over: str
    under: str | None
    wanted: Mapping[str, tuple[float, float | None]]
    where: Callable[[Cell], bool] = lambda cell: True
    at_most: bool = False
    quantity: str = "time"
    grows: bool = False


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
    rounds = times(record)
    return statistics.median(rounds) / record.get("runs", 1) if rounds and not record["skip"] else None


def times(record: Record) -> Sequence[float] | None:
    """The seconds of a call in each round: of the CPU where one core was all it had, else by the clock."""
    return record["cpu" if record["threads"] == 1 else "wall"]


def relative_spread(values: Sequence[float]) -> float:
    """The interquartile range over the median; 0 for a single value."""
    if len(values) < 2:
        return 0.0
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return (high - low) / statistics.median(values)


_AMOUNTS = {"time": seconds, "temporaries": lambda record: record["temp_bytes"]}


def by_cell(records: Iterable[Record]) -> dict[tuple, dict[str, Record]]:
    """Records by (suite, cell, threads) and contender."""
    cells: dict[tuple, dict[str, Record]] = {}
    for record in records:
        key = (record["suite"], *sorted(record["cell"].items()), record["threads"])
        cells.setdefault(key, {})[record["contender"]] = record
    return cells


def series(cell: Cell) -> tuple:
    """A key that the cells of all lengths share."""
    return tuple(sorted((name, value) for name, value in cell.items() if name != "length"))


def verdicts(records: Sequence[Record], goals: Iterable[Goal]) -> list[Finding]:
    """Returns a finding for each goal and cell in which it was measured."""
    findings = []
    for goal in goals:
        values = _growths(goal, records) if goal.grows else _values(goal, records)
        for record, value, control in values:
            floor, aim = goal.wanted[record["cell"]["mode"]]
            wanted = f"at most {floor:g}" if goal.at_most else f"at least {floor:g}"
            wanted += f" (aim {aim:g})" if aim is not None and not goal.at_most else ""
            unit = "" if goal.under or goal.grows else " MiB"
            value_text = f"{value:.2f}" if goal.under else f"{value:.3g}{unit}"
            judged, shown = verdict(value, floor, aim, goal.at_most), f"{control:.2f}" if control else ""
            findings.append(Finding(goal.title, cell_text(record), value_text, wanted + unit, judged, shown))
    return findings


def _values(goal: Goal, records: Sequence[Record]) -> Iterator[tuple[Record, float, float | None]]:
    """Yields a record, the goal's value and that of the control in each cell."""
    amount = _AMOUNTS[goal.quantity]
    for contenders in by_cell(_measured(goal, records)).values():
        over, under = contenders.get(goal.over), contenders.get(goal.under or goal.over)
        above, below = (record and amount(record) for record in (over, under))
        if above and below:
            twin = contenders.get(f"{goal.under} again")
            again = seconds(twin) if twin and goal.quantity == "time" else None
            yield over, above / (below if goal.under else 2**20), again and again / below


def _growths(goal: Goal, records: Sequence[Record]) -> Iterator[tuple[Record, float, None]]:
    """Yields the last record of each series of lengths, and its growth."""
    amount, lines = _AMOUNTS[goal.quantity], {}
    for record in _measured(goal, records):
        if record["contender"] == goal.over and amount(record):
            lines.setdefault((series(record["cell"]), record["threads"]), []).append(record)
    for line in lines.values():
        *shorter, last = sorted(line, key=lambda record: record["cell"]["length"])
        if shorter:
            length = last["cell"]["length"]
            first = next((r for r in reversed(shorter) if 4 * r["cell"]["length"] <= length), shorter[0])
            yield last, (amount(last) / amount(first)) / (length / first["cell"]["length"]), None


def _measured(goal: Goal, records: Sequence[Record]) -> list[Record]:
    return [record for record in records if record["cell"]["mode"] in goal.wanted and goal.where(record["cell"])]


def verdict(value: float, floor: float, aim: float | None, at_most: bool) -> str:
    """Whether a value reaches its floor and its aim, and if not, by how much it misses the floor."""
    # Judged by the two digits that the table shows.
    reached = round(value, 2) <= floor if at_most else round(value, 2) >= floor
    if not reached:
        return f"**missed by {abs(value / floor - 1):.0%}**"
    return "aim met" if aim is not None and not at_most and round(value, 2) >= aim else "met"


def cell_text(record: Record) -> str:
    """The cell and the cores of a record, as "n=2048 H=4 fb, 1 core", or the cell's title."""
    cores = "1 core" if record["threads"] == 1 else f"{record['threads']} cores"
    return record["cell"].get("title") or f"{cell_name(record['cell'])}, {cores}"


def cell_name(cell: Cell) -> str:
    """The sizes and the mode of a cell, as "n=2048 H=4 fb", or its title."""
    short, unsaid = {"length": "n", "heads": "H", "batch": "B"}, ("mode", "kind", "head_dim")
    sizes = [f"{short.get(name, name)}={value}" for name, value in cell.items() if name not in unsaid]
    return cell.get("title") or " ".join([*sizes, cell["mode"]])
