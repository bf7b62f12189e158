"""TODO(rotary_learned)."""

MEMBERS = {}
