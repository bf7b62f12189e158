"""Memory and time of a decoder by length and kind of attention, predicted and measured."""

from posjax.extras import require

require(__name__, "matplotlib", "scipy", "optax", "ml_collections")
