"""AdamW with warm-up and clipping, decaying only the weights that multiply activations."""

import difflib
import functools
import re
from collections.abc import Sequence
from typing import Any

import jax
import optax

SCHEDULES = ("constant", "cosine", "linear")

# Decay would pull these towards zero for no reason: offsets, norm scales, and tokens made of nothing but parameters.
# By name as well as by rank, because a bias may have several axes (heads x head dim, or stacked layers).
_ENCODING = re.compile(r"encoding(_\d+)?")  # encoding_3: a layer's own
_NEVER = re.compile(r"(\w+_)?(bias|scale)|cls|cls_token|class_token|distillation|probe|registers?")


def decays(path: tuple[Any, ...], leaf: Any, *, decay_encoding: bool = False) -> bool:
    """Says whether weight decay applies to the parameter `leaf` at `path`.

    It does to leaves with two or more axes, except to biases, norm scales, class and register tokens and, unless
    `decay_encoding`, everything below a component named "encoding" or "encoding_<layer>".

    Args:
      path: keys as `jax.tree_util.tree_map_with_path` gives them.
      leaf: the parameter of one seed (anything with a shape).
      decay_encoding: decay the parameters of the positional encoding like any others.
    """
    names = {jax.tree_util.keystr((key,), simple=True) for key in path}
    of_encoding = any(_ENCODING.fullmatch(name) for name in names)
    if any(_NEVER.fullmatch(name) for name in names) or (of_encoding and not decay_encoding):
        return False
    return len(leaf.shape) >= 2


def make_schedule(schedule: str, *, learning_rate: float, total_steps: int, warmup_steps: int = 0) -> optax.Schedule:
    """Returns step -> learning rate: linear from 0 over `warmup_steps`, then as named, reaching 0 at `total_steps`.

    "constant" stays at `learning_rate` instead. ValueError names a value that cannot be.

    >>> rate = make_schedule("cosine", learning_rate=1.0, total_steps=10, warmup_steps=2)
    >>> [round(float(rate(step)), 3) for step in (0, 1, 2, 6, 10)]
    [0.0, 0.5, 1.0, 0.5, 0.0]
    """
    if schedule not in SCHEDULES:
        near = difflib.get_close_matches(schedule, SCHEDULES, n=1, cutoff=0.0)
        raise ValueError(f"schedule={schedule!r} is unknown; did you mean {near[0]!r}? Known: {', '.join(SCHEDULES)}")
    _check_not_negative(learning_rate=learning_rate, warmup_steps=warmup_steps)
    if total_steps < 1:
        raise ValueError(f"total_steps={total_steps} must be at least 1")
    if warmup_steps >= total_steps:
        raise ValueError(f"warmup_steps={warmup_steps} leaves nothing of total_steps={total_steps}; give fewer")
    rest = total_steps - warmup_steps
    decay = {
        "constant": optax.constant_schedule(learning_rate),
        "cosine": optax.cosine_decay_schedule(learning_rate, rest),
        "linear": optax.linear_schedule(learning_rate, 0.0, rest),
    }[schedule]
    if warmup_steps == 0:
        return decay
    return optax.join_schedules([optax.linear_schedule(0.0, learning_rate, warmup_steps), decay], [warmup_steps])


def rates_of(learning_rate: float | Sequence[float]) -> tuple[float, ...] | None:
    """Returns the learning rate of each run of an ensemble; None where they share one."""
    return tuple(map(float, learning_rate)) if isinstance(learning_rate, Sequence) else None


def make_optimizer(
    *,
    learning_rate: float | Sequence[float],
    total_steps: int,
    warmup_steps: int = 0,
    schedule: str = "cosine",
    weight_decay: float = 0.0,
    clip_norm: float | None = 1.0,
    b1: float = 0.9,
    b2: float = 0.999,
    decay_encoding: bool = False,
) -> tuple[optax.GradientTransformation, optax.Schedule]:
    """Returns AdamW after clipping by the global norm, and its learning-rate schedule.

    update = -lr(t) (m_hat / (sqrt(v_hat) + 1e-8) + weight_decay * w where `decays`); Loshchilov & Hutter 2019
    (arXiv:1711.05101). Under `jax.vmap` over seeds each seed has its own norm and mask.

    Args:
      learning_rate: the peak. If each run has its own, the peak is 1 here and `make_step` multiplies the updates of each run
        by its rate.
      total_steps: step at which cosine and linear schedules reach 0.
      warmup_steps, schedule: see `make_schedule`.
      weight_decay: multiplied by the learning rate, as in optax.
      clip_norm: largest global norm of the gradient; 0 and None do not clip.
      b1, b2: decay rates of the moments, in [0, 1).
      decay_encoding: see `decays`.

    Raises:
      ValueError: names the argument and its value.
    """
    _check_not_negative(weight_decay=weight_decay, clip_norm=clip_norm or 0.0)
    for name, value in (("b1", b1), ("b2", b2)):
        if not 0 <= value < 1:
            raise ValueError(f"{name}={value} must be in [0, 1)")
    if rates := rates_of(learning_rate):
        for each in rates:
            _check_not_negative(learning_rate=each)
        learning_rate = 1.0
    rate = make_schedule(schedule, learning_rate=learning_rate, total_steps=total_steps, warmup_steps=warmup_steps)
    mask = functools.partial(jax.tree_util.tree_map_with_path, functools.partial(decays, decay_encoding=decay_encoding))
    adamw = optax.adamw(rate, b1=b1, b2=b2, weight_decay=weight_decay, mask=mask)
    clip = optax.clip_by_global_norm(clip_norm) if clip_norm else optax.identity()
    return optax.chain(clip, adamw), rate


def _check_not_negative(**values: float) -> None:
    for name, value in values.items():
        if not value >= 0:
            raise ValueError(f"{name}={value} must not be negative")
