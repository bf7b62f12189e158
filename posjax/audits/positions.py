"""Judges the position ids of a batch: where documents begin, and which documents see one another."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from posjax.audits.arrays import to_numpy


def judge_positions(position_ids: Any, attention_mask: Any = None) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Returns facts and findings of position ids.

    A document begins where all axes fall below every axis of the token before, or after padding. Attention learns of
    documents from `attention_mask` if it has numbers of documents or pairs, else from the text positions: as in transformers'
    `find_packed_sequence_indices`, a step other than 1 begins a document. Four axes have the text positions first; three
    have none, and all tokens of a row see one another.

    Args:
      position_ids: [B, T], or [A, B, T] on 3 or 4 axes.
      attention_mask: [B, T], 0 for padding and 1, or the number of the document, elsewhere; or [B, 1, T, T], 0 or false
        where a key is hidden.

    Raises:
      ValueError: for other shapes.
    """
    ids = to_numpy(position_ids)
    if not (ids.ndim == 2 or (ids.ndim == 3 and len(ids) in (3, 4))):
        raise ValueError(f"position ids have shape [B, T], [3, B, T] or [4, B, T]; got {ids.shape}")
    ids = ids[None] if ids.ndim == 2 else ids
    mask = None if attention_mask is None else to_numpy(attention_mask)
    batch, length = ids.shape[1:]
    if mask is not None and mask.shape not in ((batch, length), (batch, 1, length, length)):
        raise ValueError(
            f"attention_mask has shape [{batch}, {length}] or [{batch}, 1, {length}, {length}]; got {mask.shape}"
        )
    facts, findings = [], []
    for row in range(batch):
        stands, group = _groups(ids[:, row], None if mask is None else mask[row])
        document = _documents(ids[-3:, row], stands)
        sizes = np.bincount(document[stands])[1:]
        padding = f" and {length - stands.sum()} of padding" if not stands.all() else ""
        facts.append(f"row {row}: documents of {', '.join(map(str, sizes))} tokens{padding}")
        findings += [f"row {row}: {each}" for each in _faults(ids[:, row], document, stands, group)]
    return tuple(facts), tuple(findings)


def _groups(ids: Float[np.ndarray, "A T"], mask: np.ndarray | None) -> tuple[Bool[np.ndarray, " T"], np.ndarray]:
    """Returns which tokens are no padding, and who sees whom: pairs [T, T], or a number of each token's group."""
    stands = np.ones(ids.shape[1], bool)
    if mask is not None and mask.ndim == 3:
        seen = mask[0] != 0 if mask.max() > 0 else mask[0] > -1e3  # booleans or numbers, or a bias
        return seen.diagonal(), seen
    if mask is not None:
        stands = mask != 0
        if mask.max() > 1:
            return stands, mask
    if len(ids) == 3:
        return stands, np.zeros(ids.shape[1])
    steps = np.diff(ids[0], prepend=ids[0, 0] - 1)
    return stands, np.cumsum((steps != 1) & stands)


def _documents(ids: Float[np.ndarray, "A T"], stands: Bool[np.ndarray, " T"]) -> Int[np.ndarray, " T"]:
    """Returns the number of each token's document, from 1 on; 0 for padding."""
    falls = np.append(True, ids[:, 1:].max(axis=0) < ids[:, :-1].min(axis=0))
    after = np.append(True, ~stands[:-1])
    return np.where(stands, np.cumsum(stands & (falls | after)), 0)


def _faults(ids: np.ndarray, document: np.ndarray, stands: np.ndarray, group: np.ndarray) -> Iterator[str]:
    sees = group if group.ndim == 2 else group[:, None] == group
    sees = sees & stands[:, None] & stands
    for number in range(1, document.max() + 1):
        of = np.flatnonzero(document == number)
        if (least := ids[-3:, of[0]].min()) != 0:
            yield f"document {number} begins at position {least:g} (token {of[0]}), not at 0"
        if others := sorted({*document[: of[0]][sees[of, : of[0]].any(axis=0)].tolist()}):
            yield f"document {number} sees document{'s' * (len(others) > 1)} {', '.join(map(str, others))}"
        if len(cut := of[1:][~sees[of[1:], of[:-1]]]):
            more = f" and {len(cut) - 1} more" * (len(cut) > 1)
            yield f"document {number} is cut at token {cut[0]}{more}, where the text position does not rise by 1"
    if len(ids) == 3 and group.ndim == 1 and not group.any() and document.max() > 1:
        yield "[3, B, T] has no text positions to tell documents apart by; put them first: [4, B, T]"
