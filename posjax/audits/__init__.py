"""An audit of other people's positional code: `posjax.audit`."""

from posjax.audits.audit import Audit as Audit
from posjax.audits.audit import audit as audit
