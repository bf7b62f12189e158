"""TODO(rotary_grid)."""

from goldens.check import Check

CHECKS: list[Check] = []
