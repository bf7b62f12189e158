"""Tables, figures and pages of the records of studies."""

from posjax.extras import require

require(__name__, "matplotlib", "scipy", "rich", "PIL")
