"""Sequences whose last bytes can only be known by finding something far before them.

Each task is a pure function of a random generator and the sizes; `retrieval_batch` makes batches of one. `depth` is the
share of the bytes that may be anything which stands before what must be found: 0 puts it first, 1 just before the question.
"""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from posjax.data.windows import Batch

_LETTERS = np.frombuffer(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz", np.uint8)
_SYMBOLS = np.frombuffer(b"0123456789!#$%&*+<=>?@", np.uint8)
_RARE = np.arange(224, 240, dtype=np.uint8)  # lead bytes of three-byte characters, which random text here lacks
_NOISE = np.arange(192, 224, dtype=np.uint8)
_END = np.frombuffer(b"|", np.uint8)
_GRASS = b"The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again. "
_CITIES = ("Oslo", "Lima", "Cairo", "Delhi", "Quito", "Paris", "Tunis", "Seoul", "Minsk", "Dakar", "Milan", "Perth")
_DIGITS = 5
_PAIRS = 8
_GAP_POWER = 0.01  # power_a of the authors' generator of associative recall


class Example(NamedTuple):
    """One sequence: what it says, and which of its bytes are answers."""

    content: np.ndarray  # [N] uint8
    answer: np.ndarray  # [N] bool


Make = Callable[[np.random.Generator, int, float, np.ndarray | None], Example]


def passkey(rng: np.random.Generator, size: int, depth: float, haystack: np.ndarray | None = None) -> Example:
    """A number of five digits among sentences that repeat, asked for at the end.

    Mohtashami & Jaggi (2023), arXiv 2305.16300, appendix B, without their opening words.
    """
    key = _digits(rng)
    found = b" The pass key is %b. Remember it. %b is the pass key. " % (key, key)
    filler = np.resize(np.frombuffer(_GRASS, np.uint8), size)
    return _asked("passkey", size, depth, filler, found, b"What is the pass key? The pass key is ", key)


def needle(rng: np.random.Generator, size: int, depth: float, haystack: np.ndarray | None = None) -> Example:
    """A sentence in the middle of a text that has nothing to do with it, asked for at the end.

    Kamradt (2023), github gkamradt/LLMTest_NeedleInAHaystack; here the needle is a city's number, so that exactly one
    answer is right. `haystack` is the text [N] uint8; it is read from some place on, and again from its start where it is
    short.

    Raises:
      ValueError: without a haystack.
    """
    if haystack is None or not len(haystack):
        raise ValueError("needle needs a haystack: a text of bytes to hide the needle in")
    key, city = _digits(rng), _CITIES[rng.integers(len(_CITIES))].encode()
    found, question = b" The number of %b is %b. " % (city, key), b" What is the number of %b? It is " % city
    start = rng.integers(len(haystack))
    filler = np.take(haystack, np.arange(start, start + size), mode="wrap")
    return _asked("needle", size, depth, filler, found, question, key)


def recall(rng: np.random.Generator, size: int, depth: float, haystack: np.ndarray | None = None) -> Example:
    """Multi-query associative recall (MQAR): eight keys with their values, then each key again, its value the answer.

    Arora et al. (2023), arXiv 2312.04927, section 4.1 and appendix: queries come at distances that follow a power law. The
    bytes between are noise of their own alphabet, part of which (`depth`) may stand before the pairs; 0 is the paper's.
    """
    _room("recall", size, 4 * _PAIRS)
    keys, values = rng.choice(_LETTERS, _PAIRS, replace=False), rng.choice(_SYMBOLS, _PAIRS)
    pairs = np.stack([keys, values], axis=1)
    before = 2 * int(depth * (size - 4 * _PAIRS) / 2)
    content, answer = rng.choice(_NOISE, size), np.zeros(size, bool)
    content[before : before + 2 * _PAIRS] = pairs.ravel()
    after = before + 2 * _PAIRS
    slots = (size - after) // 2
    weight = np.arange(1, slots + 1) ** (_GAP_POWER - 1)
    at = after + 2 * rng.choice(slots, _PAIRS, replace=False, p=weight / weight.sum())
    content[at], content[at + 1], answer[at + 1] = keys, values, True
    return Example(content, answer)


def induction(rng: np.random.Generator, size: int, depth: float, haystack: np.ndarray | None = None) -> Example:
    """... A B ... A, and then B: among random bytes, what followed the only other A.

    Olsson et al. (2022), arXiv 2209.11895. A is a byte that stands nowhere else, so that there is one right answer at any
    length.
    """
    _room("induction", size, 4)
    content, answer = rng.choice(_LETTERS, size), np.zeros(size, bool)
    at = int(depth * (size - 4))
    content[[at, -2]] = rng.choice(_RARE)
    content[-1], answer[-1] = content[at + 1], True
    return Example(content, answer)


def copy(rng: np.random.Generator, size: int, depth: float, haystack: np.ndarray | None = None) -> Example:
    """Random letters, a bar, and the same letters again, all of them answers: Jelassi et al. (2024), arXiv 2402.01032.

    There is nothing between the two: `depth` is the share of the sequence that is noise before them, 0 in the paper. Where
    it varies, copying cannot be learned as looking back by a fixed distance.
    """
    _room("copy", size, 3)
    count = max(1, int((1 - depth) * (size - 1) / 2))
    letters = rng.choice(_LETTERS, count)
    content = np.concatenate([rng.choice(_NOISE, size - 1 - 2 * count), letters, _END, letters])
    return Example(content, np.arange(size) >= size - count)


TASKS: Mapping[str, Make] = MappingProxyType(
    {make.__name__: make for make in (passkey, needle, recall, induction, copy)}
)


def retrieval_batch(
    tasks: str | Sequence[str],
    *,
    length: int,
    count: int,
    seed: int | Sequence[int],
    depth: float | None = None,
    haystack: np.ndarray | None = None,
) -> Batch:
    """Examples of a task, or of some tasks at random, in the form of a batch of text.

    Args:
      tasks: names of `TASKS`.
      length: T, tokens of each example without its last target.
      count: b, how many.
      seed: what the examples are a pure function of, besides the other arguments.
      depth: in [0, 1]; None draws one for every example.
      haystack: [N] uint8, for `needle`.

    Returns:
      tokens, targets, position, segment: [b, T] int32, as those of `text_batches`; weight: [b, T] float32, 1 where the
      target is an answer.

    Raises:
      ValueError: an unknown task, a depth outside [0, 1], or a length that the task does not fit into.
    """
    names = [tasks] if isinstance(tasks, str) else list(tasks)
    for name in names:
        if name not in TASKS:
            raise ValueError(f"no retrieval task is named {name!r}; known: {', '.join(TASKS)}")
    if depth is not None and not 0 <= depth <= 1:
        raise ValueError(f"depth={depth} must lie in [0, 1]: the share of the filler before what must be found")
    rng = np.random.default_rng(seed)
    examples = [
        TASKS[names[rng.integers(len(names))]](rng, length + 1, rng.random() if depth is None else depth, haystack)
        for _ in range(count)
    ]
    content = np.stack([example.content for example in examples]).astype(np.int32)
    return {
        "tokens": content[:, :-1],
        "targets": content[:, 1:],
        "position": np.tile(np.arange(length, dtype=np.int32), (count, 1)),
        "segment": np.ones((count, length), np.int32),
        "weight": np.stack([example.answer[1:] for example in examples]).astype(np.float32),
    }


def _digits(rng: np.random.Generator) -> bytes:
    return str(rng.integers(10 ** (_DIGITS - 1), 10**_DIGITS)).encode()


def _room(task: str, size: int, needed: int) -> None:
    if size < needed:
        raise ValueError(f"{task} takes at least {needed} bytes, not length={size - 1}")


def _asked(
    task: str, size: int, depth: float, filler: np.ndarray, found: bytes, question: bytes, key: bytes
) -> Example:
    """Filler with `found` within it, then the question and the key, which is the answer."""
    free = size - len(found) - len(question) - len(key)
    _room(task, size, size - free)
    before = round(depth * free)
    parts = [filler[:before].tobytes(), found, filler[before:free].tobytes(), question, key]
    content = np.frombuffer(b"".join(parts), np.uint8)
    return Example(content, np.arange(size) >= size - len(key))
