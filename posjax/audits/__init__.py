"""An audit of other people's positional code: `posjax.audit`."""

from posjax.audits.audit import Audit, audit

__all__ = ["Audit", "audit"]
