"""Training: tasks, the step, the loop, evaluation, checkpoints and metrics.

Everything trains an ensemble: all seeds of one configuration at once, `jax.vmap`ped in one compiled step. A leading axis
`R` (runs, one per seed) stands on parameters, optimiser states, batches and metrics.
"""

from posjax.extras import require

require(__name__, "ml_collections", "absl", "optax", "orbax")
