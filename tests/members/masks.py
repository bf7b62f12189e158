"""TODO(masks)."""

MEMBERS = {}
