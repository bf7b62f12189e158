"""TODO(bias)."""

from goldens.check import Check

CHECKS: list[Check] = []
