"""TODO(additive)."""

from goldens.check import Check

CHECKS: list[Check] = []
