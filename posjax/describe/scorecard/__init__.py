"""Ideal properties of encodings, measured as one wishes for them."""

from posjax.extras import require

require(__name__, "matplotlib", "scipy", "rich")
