"""What trained vision transformers have learned of positions."""

from posjax.extras import require

require(__name__, "matplotlib", "ml_collections")
