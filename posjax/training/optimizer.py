"""AdamW, LAMB and Muon with warm-up and clipping, decaying only the weights that multiply activations."""

import functools
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax
from optax.contrib import MuonDimensionNumbers, scale_by_muon

from posjax.spec import nearest

SCHEDULES = ["constant", "cosine", "linear"]

# Decay would pull these towards zero for no reason: offsets, norm scales, and tokens made of nothing but parameters.
# By name as well as by rank, because a bias may have several axes (heads x head dim).
_ENCODING = re.compile(r"encoding(_\d+)?")  # encoding_3: a layer's own
_NEVER = re.compile(r"(\w+_)?(bias|scale)|cls|cls_token|class_token|distillation|probe|registers?")

# (end of a path below a block, axes that a product sums over, axes of its output) of the matrices that Muon makes orthogonal,
# counted from the end. Further axes hold matrices of their own: queries, keys and values, and experts.
_MATRICES = (
    (r"qkv/kernel", (-4,), (-3, -1)),  # [M, K, H / K + 2, D]
    (r"(query|key|value|output_gate|query_up)/kernel|(key|value)_up_kernel", (-3,), (-2, -1)),  # [M, H, D]
    (r"out/kernel", (-3, -2), (-1,)),  # [H, D, M]
    (r"(query_down|kv_down|up|gate|down)/kernel|(up|gate|down)_kernel", (-2,), (-1,)),  # of experts: [E, M, F]
)
_BLOCK = re.compile(r"(block|encoding)_(\d+)")
# Other parameters outside of blocks stand before them.
_AFTER_BLOCKS = re.compile(r"(pooled_)?norm|head(_\w+)?|map|pre_logits|decoder_bias")
_START = 0.02  # deviation of timm's kernels before training
_COUNT = re.compile(r"(\d+(?:\.\d+)?) ?(|Ki|Mi|Gi|k|M|G) (epochs|tokens)")
_PREFIXES = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30}


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


def make_schedule(
    schedule: str,
    *,
    learning_rate: float,
    total_steps: int,
    warmup_steps: int = 0,
    final_share: float | None = None,
) -> optax.Schedule:
    """Returns step -> learning rate: linear from 0 over `warmup_steps`, then as named, ending at `total_steps`.

    "cosine" and "linear" end at `final_share` of the peak, 0 if None; "constant" stays at `learning_rate` and has no end.
    ValueError names a value that cannot be.

    >>> rate = make_schedule("cosine", learning_rate=1.0, total_steps=10, warmup_steps=2)
    >>> [round(float(rate(step)), 3) for step in (0, 1, 2, 6, 10)]
    [0.0, 0.5, 1.0, 0.5, 0.0]
    """
    if schedule not in SCHEDULES:
        raise ValueError(f"schedule={schedule!r} is unknown; {nearest(schedule, SCHEDULES)}")
    _check_not_negative(learning_rate=learning_rate, warmup_steps=warmup_steps)
    if total_steps < 1:
        raise ValueError(f"total_steps={total_steps} must be at least 1")
    if warmup_steps >= total_steps:
        raise ValueError(f"warmup_steps={warmup_steps} leaves nothing of total_steps={total_steps}; give fewer")
    if final_share is not None and (schedule == "constant" or not 0 <= final_share <= 1):
        raise ValueError(f"final_share={final_share} must lie in [0, 1], and schedule={schedule!r} be cosine or linear")
    rest, share = total_steps - warmup_steps, final_share or 0.0
    decay = {
        "constant": optax.constant_schedule(learning_rate),
        "cosine": optax.cosine_decay_schedule(learning_rate, rest, share),
        "linear": optax.linear_schedule(learning_rate, share * learning_rate, rest),
    }[schedule]
    if warmup_steps == 0:
        return decay
    return optax.join_schedules([optax.linear_schedule(0.0, learning_rate, warmup_steps), decay], [warmup_steps])


def steps_of(text: str, in_a_step: Mapping[str, float | None]) -> int:
    """Returns the number of steps, rounded, in "256Mi tokens" or "5 epochs" (Ki, Mi, Gi are powers of 1024; k, M, G of 1000).

    Args:
      in_a_step: {"tokens": number, "epochs": number} that a step reads; None for a number that is not known.

    Raises:
      ValueError: another text, or a unit whose number is not known.

    >>> steps_of("256Mi tokens", {"tokens": 2**19, "epochs": None})
    512
    """
    found = _COUNT.fullmatch(text)
    if not found:
        raise ValueError(f"optimizer.warmup={text!r} must be epochs or tokens, as '5 epochs' or '256Mi tokens'")
    number, prefix, unit = found.groups()
    if in_a_step[unit] is None:
        raise ValueError(f"optimizer.warmup={text!r}: these data have no number of {unit}; set optimizer.warmup_steps")
    return round(float(number) * _PREFIXES[prefix] / in_a_step[unit])


def rates_of(learning_rate: float | Sequence[float]) -> tuple[float, ...] | None:
    """Returns the learning rate of each run of an ensemble; None where they share one."""
    return tuple(map(float, learning_rate)) if isinstance(learning_rate, Sequence) else None


def make_optimizer(
    *,
    learning_rate: float | Sequence[float],
    total_steps: int,
    warmup_steps: int = 0,
    schedule: str = "cosine",
    final_share: float | None = None,
    name: str | None = None,
    weight_decay: float = 0.0,
    clip_norm: float | None = 1.0,
    b1: float = 0.9,
    b2: float = 0.999,
    decay_encoding: bool = False,
    layer_decay: float | None = None,
) -> tuple[optax.GradientTransformation, optax.Schedule]:
    """Returns an optimizer after clipping by the global norm, and its learning-rate schedule.

    Under `jax.vmap` over seeds each seed has its own norms and mask.

    Args:
      learning_rate: the peak. If each run has its own, the peak is 1 here and `make_step` multiplies the updates of each run
        by its rate.
      total_steps: step at which cosine and linear schedules end.
      warmup_steps, schedule, final_share: see `make_schedule`.
      name: one of `OPTIMIZERS`, whose functions have the formulas; None is "adamw".
      weight_decay: multiplied by the learning rate, as in optax.
      clip_norm: largest global norm of the gradient; 0 and None do not clip.
      b1, b2: decay rates of the moments of Adam, in [0, 1).
      decay_encoding: see `decays`.
      layer_decay: factor on the updates from each layer to the one before it, see `layer_factors`; None for no factors.

    Raises:
      ValueError: names the argument and its value.
    """
    _check_not_negative(weight_decay=weight_decay, clip_norm=clip_norm or 0.0)
    name = name or "adamw"
    if name not in OPTIMIZERS:
        raise ValueError(f"optimizer.name={name!r} is unknown; {nearest(name, [*OPTIMIZERS])}")
    for each, value in (("b1", b1), ("b2", b2)):
        if not 0 <= value < 1:
            raise ValueError(f"{each}={value} must be in [0, 1)")
    if layer_decay is not None and not 0 < layer_decay <= 1:
        raise ValueError(f"layer_decay={layer_decay} must be in (0, 1]; None for no decay")
    if rates := rates_of(learning_rate):
        for each in rates:
            _check_not_negative(learning_rate=each)
        learning_rate = 1.0
    given = dict(total_steps=total_steps, warmup_steps=warmup_steps, final_share=final_share)
    rate = make_schedule(schedule, learning_rate=learning_rate, **given)
    mask = functools.partial(jax.tree_util.tree_map_with_path, functools.partial(decays, decay_encoding=decay_encoding))
    clip = optax.clip_by_global_norm(clip_norm) if clip_norm else optax.identity()
    rule = OPTIMIZERS[name](rate, b1, b2, weight_decay, mask)
    if layer_decay is not None:
        scaled = lambda updates, _: jax.tree.map(jnp.multiply, updates, layer_factors(updates, layer_decay))  # noqa: E731
        rule = optax.chain(rule, optax.stateless(scaled))
    return optax.chain(clip, rule), rate


def adamw(rate, b1, b2, weight_decay, mask) -> optax.GradientTransformation:
    """Returns -rate (m_hat / (sqrt(v_hat) + 1e-8) + weight_decay * w where `mask`), Loshchilov & Hutter 2019 (1711.05101)."""
    return optax.adamw(rate, b1=b1, b2=b2, weight_decay=weight_decay, mask=mask)


def lamb(rate, b1, b2, weight_decay, mask) -> optax.GradientTransformation:
    """Returns `adamw` (with 1e-6) times |w| / |update| of each parameter in `mask`; You et al. 2020 (arXiv:1904.00962).

    Other parameters have no such factor, as in apex's FusedLAMB and timm's Lamb; both also clip by a global norm of 1. timm
    leaves the factor out of all parameters where weight_decay is 0; here it stays. Heads of images start at 0 here, where a
    factor of |w| would hold them: |w| is at least its value in timm's start.
    """

    def with_ratio(path, update, param):
        length, step = jnp.linalg.norm(param.astype(jnp.float32)), jnp.linalg.norm(update)
        if _layer_of(path) == math.inf:
            length = jnp.maximum(length, _START * math.sqrt(param.size))
        return update * jnp.where((length > 0) & (step > 0), length / step, 1.0)

    ratios = optax.stateless(functools.partial(jax.tree.map_with_path, with_ratio))
    return optax.chain(
        optax.scale_by_adam(b1=b1, b2=b2, eps=1e-6),
        optax.add_decayed_weights(weight_decay, mask),
        optax.masked(ratios, mask),
        optax.scale_by_learning_rate(rate),
    )


def muon(rate, b1, b2, weight_decay, mask) -> optax.GradientTransformation:
    """Returns Muon for the matrices of blocks (`matrix_axes`) and `adamw` for all else; Jordan 2024 (KellerJordan/Muon).

    The momentum of 0.95 (Nesterov) is made orthogonal by five Newton-Schulz iterations, and multiplied by
    0.2 sqrt(max(rows, columns)), so that learning rate and weight decay are AdamW's; Liu et al. 2025 (arXiv:2502.16982).
    """

    def scaled(path, update):
        rows, columns = (math.prod(update.shape[axis] for axis in axes) for axes in matrix_axes(path))
        return update * (0.2 * max(rows, columns) ** 0.5)

    axes = functools.partial(jax.tree.map_with_path, lambda path, _: matrix_axes(path))
    of_matrices = optax.chain(
        scale_by_muon(weight_dimension_numbers=axes),
        optax.stateless(lambda updates, _: jax.tree.map_with_path(scaled, updates)),
        optax.add_decayed_weights(weight_decay, mask),
        optax.scale_by_learning_rate(rate),
    )
    labels = functools.partial(jax.tree.map_with_path, lambda path, _: "muon" if matrix_axes(path) else "adamw")
    return optax.partition({"muon": of_matrices, "adamw": adamw(rate, b1, b2, weight_decay, mask)}, labels)


OPTIMIZERS = {"adamw": adamw, "lamb": lamb, "muon": muon}


def matrix_axes(path: tuple[Any, ...]) -> MuonDimensionNumbers | None:
    """Returns the axes of the matrices that Muon makes orthogonal in the parameter at `path`; None for AdamW's parameters.

    Matrices are the kernels of attention and of MLPs in blocks: queries, keys and values of all heads are a matrix each.
    Embeddings, patches, heads, pooling, routers, encodings and whatever has one axis are AdamW's.
    """
    name = jax.tree_util.keystr(path, simple=True, separator="/")
    for end, summed, output in _MATRICES:
        if re.search(rf"(^|/)block_\d+/(.+/)?({end})$", name):
            return MuonDimensionNumbers(summed, output)
    return None


def layer_factors(params: Any, layer_decay: float) -> Any:
    """Returns the factor on the update of each parameter: layer_decay ** (depth + 1 - layer), as BEiT and timm have it.

    Layer 0 has embeddings, stems and encodings, layer l + 1 has block l and its own encoding, layer depth + 1 has the final
    norm and the heads, so their factor is 1. A tied embedding is in layer 0. Bao et al. 2022 (arXiv:2106.08254).

    Raises:
      ValueError: the model has no blocks.
    """
    layers = jax.tree.map_with_path(lambda path, _: _layer_of(path), params)
    depth = max((layer for layer in jax.tree.leaves(layers) if layer < math.inf), default=0)
    if depth == 0:
        raise ValueError(f"layer_decay={layer_decay} needs a model of blocks; None for no decay")
    return jax.tree.map(lambda layer: layer_decay ** (depth + 1 - min(layer, depth + 1)), layers)


def _layer_of(path: tuple[Any, ...]) -> float:
    """Returns 0 for a parameter before the blocks, l + 1 for one of block l, infinity for one after the blocks."""
    names = [jax.tree_util.keystr((key,), simple=True) for key in path]
    if block := next(filter(None, map(_BLOCK.fullmatch, names)), None):
        return int(block[2]) + 1
    return math.inf if any(map(_AFTER_BLOCKS.fullmatch, names)) else 0


def _check_not_negative(**values: float) -> None:
    for name, value in values.items():
        if not value >= 0:
            raise ValueError(f"{name}={value} must not be negative")
