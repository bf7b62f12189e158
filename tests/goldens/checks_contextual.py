"""TODO(contextual)."""

from goldens.check import Check

CHECKS: list[Check] = []
