"""TODO(tables)."""

MEMBERS = {}
