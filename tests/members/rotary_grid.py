"""TODO(rotary_grid)."""

MEMBERS = {}
