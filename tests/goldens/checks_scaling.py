"""TODO(scaling)."""

from goldens.check import Check

CHECKS: list[Check] = []
