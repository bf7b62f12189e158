"""TODO(rotary)."""

from goldens.check import Check

CHECKS: list[Check] = []
