"""TODO(scaling)."""

MEMBERS = {}
