"""Golden vectors: what independent references make of the same inputs. Each family's checks_*.py compares ours with them."""

import importlib
import pkgutil

from goldens.check import Check

FAMILIES = [
    importlib.import_module(f"goldens.{name}")
    for _, name, _ in pkgutil.iter_modules(__path__)
    if name.startswith("checks_")
]
CHECKS: list[Check] = [check for family in FAMILIES for check in family.CHECKS]

__all__ = ["CHECKS", "Check"]
