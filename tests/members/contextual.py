"""TODO(contextual)."""

MEMBERS = {}
