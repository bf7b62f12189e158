"""Golden vectors: what independent references make of the same inputs. Each family's checks_*.py compares ours with them."""

from goldens import (
    checks_additive,
    checks_bias,
    checks_content,
    checks_contextual,
    checks_gates,
    checks_graphs,
    checks_groups,
    checks_hf,
    checks_inkling,
    checks_larger_inputs,
    checks_multimodal,
    checks_resize,
    checks_rotary,
    checks_rotary_grid,
    checks_scaling,
    checks_sinks,
    checks_sticks,
)
from goldens.check import Check

FAMILIES = [
    checks_additive,
    checks_bias,
    checks_content,
    checks_contextual,
    checks_gates,
    checks_graphs,
    checks_groups,
    checks_hf,
    checks_inkling,
    checks_larger_inputs,
    checks_multimodal,
    checks_resize,
    checks_rotary,
    checks_rotary_grid,
    checks_scaling,
    checks_sinks,
    checks_sticks,
]
CHECKS: list[Check] = [check for family in FAMILIES for check in family.CHECKS]

__all__ = ["CHECKS", "Check"]
