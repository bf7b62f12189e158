"""A member for every registered name, a module per family of posjax/encodings.

A new encoding needs an entry in its family's `MEMBERS`; without one `test_every_encoding_is_a_member` fails.
"""

import importlib
import pkgutil
from collections.abc import Callable, Hashable

import posjax as pj
from members.member import GRID, LINE, Case, Member, Oracle, Row, both, grids, lines

FAMILIES = [
    importlib.import_module(f"members.{name}") for _, name, _ in pkgutil.iter_modules(__path__) if name != "member"
]
MEMBERS: dict[str, Member] = {name: member for family in FAMILIES for name, member in family.MEMBERS.items()}
# What encodings take as an argument, by registered name: hypothesis strategies for its arguments.
VALUES: dict[str, dict] = {name: value for family in FAMILIES for name, value in getattr(family, "VALUES", {}).items()}


def way(encoding: pj.Encoding) -> Hashable:
    """With the same hooks and needs encodings are the same to a model that hosts them."""
    return encoding.hooks, encoding.needs


def one_of_each(kind: str, way: Callable[[pj.Encoding], Hashable] = way) -> dict[str, str]:
    """{name: spec}, one for each way to act."""
    found = {}
    for name, member in MEMBERS.items():
        if spec := member.on(kind):
            found.setdefault(way(pj.parse(spec)), (name, spec))
    return dict(found.values())


__all__ = [
    "GRID",
    "LINE",
    "MEMBERS",
    "VALUES",
    "Case",
    "Member",
    "Oracle",
    "Row",
    "both",
    "grids",
    "lines",
    "one_of_each",
    "way",
]
