"""TODO(views)."""

MEMBERS = {}
