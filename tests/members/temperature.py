"""TODO(temperature)."""

MEMBERS = {}
