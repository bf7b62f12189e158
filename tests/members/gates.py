"""TODO(gates)."""

MEMBERS = {}
