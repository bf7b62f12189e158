"""`posjax.audit`: the encoding that somebody's code computes, and its defects."""

import functools
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from posjax.audits.arrays import MakeArray, adapted, make_of, mask_of, to_numpy
from posjax.audits.biases import Bias, judge_bias, judge_mask
from posjax.audits.configuration import (
    against,
    judge_configs,
    logits_of,
    meant_by,
    read_config,
    rotates_as,
    rotation_of,
)
from posjax.audits.layers import judge_layers
from posjax.audits.positions import judge_positions
from posjax.audits.probe import matrices, probe_positions, turning
from posjax.audits.rotary import Verdict, in_catalogue, judge, lists_frequencies
from posjax.audits.tables import of_frequencies, of_table
from posjax.encoding import Encoding
from posjax.encodings.rotary import Rotary
from posjax.hf.configurations import head_dim_of
from posjax.spec import parse


@dataclass(frozen=True)
class Audit:
    """The result of `audit`; its text is a report of a few lines.

    Attributes:
      spec: the text of an encoding that computes the same, but for the findings; None where no registered one does.
      residual: the largest difference from that encoding: radians for rotations, units of logits for biases; nan without one.
      facts: measurements, in words.
      findings: defects, in words; empty where there is none.
      unknown: open questions, in words: no registered encoding, or no usual argument of one, explains the code.
      params: parameters of the encoding, such as a table of biases.
      wave: the measured frequencies [A, C] in radians per position, 0 for pairs that do not turn; None for biases.
      subject: the name of the audited thing, where that is not one encoding.

    >>> found = audit(inv_freq=10_000.0 ** (-np.arange(32) / 31))
    >>> found.ok, found.spec
    (False, 'rope(base=13459.6)')
    >>> found.findings
    ('exponents divide by 31 instead of 32: base^(-c/(C - 1)) of base 10000',)
    """

    spec: str | None
    residual: float
    facts: tuple[str, ...] = ()
    findings: tuple[str, ...] = ()
    params: Any = ()
    wave: Float[np.ndarray, "A C"] | None = None
    unknown: tuple[str, ...] = ()
    subject: str = ""

    @property
    def ok(self) -> bool:
        """Whether the code is explained and has no defects."""
        return not (self.findings or self.unknown)

    @property
    def encoding(self) -> Encoding | None:
        """The encoding of the spec."""
        return None if self.spec is None else parse(self.spec)

    def __str__(self) -> str:
        spec = self.spec or self.subject or "no registered encoding"
        lines = [spec if len(spec) < 300 else f"{spec[:300]}...", *(f"  {fact}" for fact in self.facts)]
        lines += [f"  residual {self.residual:.2g}"] if np.isfinite(self.residual) else []
        lines += [f"  WRONG: {each}" for each in self.findings]
        lines += [f"  UNKNOWN: {each}" for each in self.unknown]
        return "\n".join([*lines, "  nothing wrong"] if self.ok else lines)


def audit(
    rotate: Callable | None = None,
    *,
    head_dim: int | None = None,
    inv_freq: Any = None,
    table: tuple[Any, Any] | None = None,
    bias: Any = None,
    mask: Any = None,
    position_ids: Any = None,
    attention_mask: Any = None,
    layers: Sequence[Callable] | None = None,
    configs: Sequence[Mapping[str, Any] | str | os.PathLike] | None = None,
    config: Mapping[str, Any] | str | os.PathLike | None = None,
    layer: int | None = None,
    order: str = "THD",
    num_axes: int = 1,
    width: int | None = None,
    num_heads: int | None = None,
    length: int = 4096,
    array: MakeArray | None = None,
) -> Audit:
    """Says which encoding somebody's code computes, as a spec of posjax, and names its defects.

    Give one of `rotate`, `inv_freq`, `table`, `bias`, `mask`, `position_ids`, `layers` and `configs`.

    Args:
      rotate: rotate(q, k, position) -> (q, k), or rotate(x, position) -> x. Arrays of NumPy, JAX, PyTorch or MLX.
      head_dim: D; the configuration's, or the table's width, where it is not given.
      inv_freq: [C] radians per position, of pairs of the first 2 C channels of a head, in the half layout.
      table: (cos, sin) of positions 0, 1, ...: [T, C], or [T, 2 C] with each angle twice.
      bias: [H, T, T] that is added to logits, -inf where a key is hidden; or a function of T that returns it.
      mask: [T, T] or [H, T, T], true where a query sees a key; or a function that returns it, of T, of (query, key), or of
        (batch, head, query, key) as FlexAttention's, called with arrays of indices.
      position_ids: [B, T], [3, B, T] or [4, B, T] (text positions first) of a batch: which documents see one another.
      attention_mask: of `position_ids`: [B, T], 0 for padding, 1 or the number of the document elsewhere; or [B, 1, T, T].
      layers: a model's layers, functions of [1, T, width] that return the same shape: which tell positions apart, as
        `config` says or not.
      configs: two of transformers, as `config`: whether they mean the same encoding.
      config: of transformers, a dictionary or the path of a config.json. The verdict says how the two differ.
      layer: the number of the layer that the code is of, where the layers of the configuration differ.
      order: the axes of q and k, such as "BHTD" for a batch of one first; position is [T], or [T, A] on several axes.
      num_axes: A, the position axes of `rotate`.
      width: channels of a token, for `layers`.
      num_heads: of q and k, for functions that need that number, or whose heads differ.
      length: of probed positions, from 0 on; functions that return a bias are asked for min(length, 512) tokens,
        layers for min(length, 128).
      array: makes an array for `rotate` of one of NumPy, as torch.as_tensor; by default of the framework in its file.

    Raises:
      ValueError: for no subject or several, a missing head_dim, arrays of other shapes, or an unknown configuration.

    >>> print(audit(inv_freq=10_000.0 ** (-np.arange(32) / 32)))
    rope()
      pairs (c, c + 32) of 64 channels: half layout
      base 10000
      residual 0
      nothing wrong
    """
    subjects = {"rotate": rotate, "inv_freq": inv_freq, "table": table, "bias": bias, "mask": mask}
    subjects |= {"position_ids": position_ids, "layers": layers, "configs": configs}
    if len(given := [name for name, value in subjects.items() if value is not None]) != 1:
        raise ValueError(f"audit takes one of {', '.join(subjects)}, got {' and '.join(given) or 'none'}")
    if position_ids is not None:
        facts, findings = judge_positions(position_ids, attention_mask)
        return Audit(None, np.nan, facts, findings, subject="position ids")
    if configs is not None:
        return Audit(None, np.nan, *judge_configs(configs), subject="two configurations")
    config = None if config is None else read_config(config)
    meant = [] if config is None else meant_by(config)
    if layers is not None:
        if width is None:
            raise ValueError("audit(layers=..., width=...) needs the number of channels of a token")
        facts, findings = judge_layers(layers, width, min(length, 128), array, meant)
        return Audit(None, np.nan, facts, findings, subject=f"{len(layers)} layers")
    if bias is not None or mask is not None:
        meant = [logits_of(each) for each in meant]
        verdict, measured = (
            _of_logits(bias, length, meant) if mask is None else judge_mask(mask_of(mask, length, array))
        )
        return _report(verdict, meant, measured.agrees, layer)
    meant = [rotation_of(each) for each in meant]
    hints = [each for each in dict.fromkeys(meant) if isinstance(each, Rotary)]
    head_dim = head_dim or (None if config is None else head_dim_of(config))
    if rotate is not None:
        if head_dim is None:
            raise ValueError("audit(rotate, head_dim=...) needs the number of channels of a head")
        call = adapted(rotate, order, array or make_of(rotate))
        verdict = _of_function(call, head_dim, probe_positions(length, num_axes), num_heads, hints)
    else:
        found = (
            of_table(*map(to_numpy, table), head_dim) if table else of_frequencies(to_numpy(inv_freq), head_dim, length)
        )
        verdict = judge(found, hints)
    agrees = functools.partial(rotates_as, encoding=verdict.encoding, lanes=verdict.lanes)
    return _report(verdict, meant, agrees, layer)


def _of_logits(bias: Any, length: int, meant: Sequence[Encoding]) -> tuple[Verdict, Bias]:
    """The verdict on a bias, or on a function of the number of tokens that returns it."""
    tensor = to_numpy(bias(min(length, 512)) if callable(bias) else bias)
    return judge_bias(tensor[0] if tensor.ndim == 4 else tensor, meant)


def _of_function(call, head_dim: int, position: np.ndarray, num_heads: int | None, hints: Sequence[Rotary]) -> Verdict:
    """The verdict on queries; on keys and other heads, how they differ."""
    matrix = matrices(call, head_dim, position, num_heads)
    queries, keys = matrix[0, 0], matrix[1, 0]
    if np.allclose(matrix[1], matrix[0], atol=1e-4) and np.allclose(matrix[0], matrix[0, :1], atol=1e-4):
        found = turning(queries, position)
        if not found.norm.size or np.ptp(found.norm) < 0.02 * found.norm.max():  # as under an attention factor
            verdict = judge(found, hints)
        else:
            verdict = Verdict(None, np.nan, (), ("norms change with the position",))
        unnamed = verdict.encoding is None or lists_frequencies(verdict.encoding)
        known = in_catalogue(matrix, position, num_heads) if unnamed and len(found.pairs) else None
        verdict = verdict if known is None else _known(*known)
        short = position.max() // 4 + 1
        near = (position < short).all(axis=1)
        if not np.allclose(matrices(call, head_dim, position % short, num_heads)[0, 0, near], queries[near], atol=1e-3):
            fact = f"frequencies depend on the length of the document: these are of {found.length} tokens"
            verdict = verdict._replace(facts=(*verdict.facts, fact))
        return verdict
    if (known := in_catalogue(matrix, position, num_heads)) is not None:
        return _known(*known)
    verdict = judge(turning(queries, position), hints)
    more = [] if np.allclose(matrix[0], matrix[0, :1], atol=1e-4) else ["heads are rotated differently; this is head 0"]
    if not np.allclose(keys, queries, atol=1e-4):
        of_keys = judge(turning(keys, position), hints)
        words = of_keys.encoding or ", ".join((*of_keys.findings, *of_keys.unknown))
        more.append(f"keys are not rotated as queries are; keys: {words}")
        more += [f"keys: {each}" for each in of_keys.findings if each not in verdict.findings and of_keys.encoding]
    return verdict._replace(findings=(*verdict.findings, *more))


def _known(encoding: Rotary, residual: float) -> Verdict:
    return Verdict(encoding, residual, ("with its usual arguments and starting parameters",), ())


def _report(verdict: Verdict, layers: list[Encoding], agrees: Callable[[Encoding], bool], layer: int | None) -> Audit:
    findings, facts = verdict.findings, verdict.facts
    if layers:
        differing = against(layers, verdict.encoding, agrees, layer)
        findings = (*findings, *differing)
        facts = facts if differing else (*facts, "config.json means the same")
    spec = None if verdict.encoding is None else str(verdict.encoding)
    wave = None if verdict.lanes is None else verdict.lanes.wave
    return Audit(spec, verdict.residual, facts, findings, verdict.params, wave, verdict.unknown)
