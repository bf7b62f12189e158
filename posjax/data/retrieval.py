"""Sequences whose last tokens can only be predicted by retrieving a far earlier part.

Each task is a pure function of a random generator and the sizes; `retrieval_batch` makes batches of one. `depth` is the
share of the tokens that may be anything which stands before what must be found: 0 puts it first, 1 just before the question.
Tokens are bytes, or a tokenizer's, which gives each task its `Words`.
"""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from posjax.data.tokens import BYTES, Tokenizer
from posjax.data.windows import Batch

_LETTERS = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_SYMBOLS = b"0123456789!#$%&*+<=>?@"
_RARE = np.arange(224, 240, dtype=np.uint8)  # lead bytes of three-byte characters, which random text here lacks
_NOISE = np.arange(192, 224, dtype=np.uint8)
_FILLERS = (
    b"the of and to in is was for that with as on by at from this are have not or but his her you they we she he it"
)
_MARKS = b"~ ^ _ ; : / ( ) [ ] { }"  # tokens in place of rare bytes, where there are none
_END = b"|"
_GRASS = b"The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again. "
_CITIES = ("Oslo", "Lima", "Cairo", "Delhi", "Quito", "Paris", "Tunis", "Seoul", "Minsk", "Dakar", "Milan", "Perth")
_DIGITS = 5
_PAIRS = 8
_GAP_POWER = 0.01  # power_a of the authors' generator of associative recall


class Example(NamedTuple):
    """One sequence: its tokens, and marks of the answers."""

    content: np.ndarray  # [N] uint8 or int32
    answer: np.ndarray  # [N] bool


class Words(NamedTuple):
    """The parts of tasks: the tokens of text, and alphabets of single tokens that share none."""

    tokenizer: Tokenizer
    letters: np.ndarray
    symbols: np.ndarray
    noise: np.ndarray
    rare: np.ndarray
    end: np.ndarray

    def text(self, written: bytes) -> np.ndarray:
        """The tokens of a text."""
        return self.tokenizer.encode([written])[0]

    def question(self, asked: bytes, key: bytes) -> tuple[np.ndarray, int]:
        """Returns the tokens of a question with its answer, and the number of final tokens that are the answer.

        A tokenizer may join the space before an answer with it.
        """
        whole = self.text(asked + key)
        if self.tokenizer == BYTES:
            return whole, len(key)
        before = self.text(asked.rstrip())
        same = np.flatnonzero(whole[: len(before)] != before[: len(whole)])
        return whole, len(whole) - int(same[0] if len(same) else len(before))


def words_of(tokenizer: Tokenizer) -> Words:
    """Bytes have alphabets of their own; a tokenizer's are the characters and words that are one token each. An

    alphabet with fewer than two tokens is empty.
    """
    if tokenizer == BYTES:
        letters, symbols, end = (np.frombuffer(each, np.uint8) for each in (_LETTERS, _SYMBOLS, _END))
        return Words(tokenizer, letters, symbols, _NOISE, _RARE, end)
    singly = [[bytes([each]) for each in text] for text in (_LETTERS, _SYMBOLS)]
    alphabets, used = [], set()
    for candidates in (*singly, _FILLERS.split(), _MARKS.split(), [_END]):
        tokens = [each[-1] for each in tokenizer.encode(candidates) if len(each) == 1]
        found = [token for token in dict.fromkeys(tokens) if tokens.count(token) == 1 and token not in used]
        used |= set(found)
        alphabets.append(np.array(found, np.int32))
    return Words(tokenizer, *alphabets)


Make = Callable[[np.random.Generator, int, float, np.ndarray | None, Words], Example]


def passkey(rng: np.random.Generator, size: int, depth: float, haystack: np.ndarray | None, words: Words) -> Example:
    """A number of five digits among repeating sentences; the question comes last.

    Mohtashami & Jaggi (2023), arXiv 2305.16300, appendix B, without their opening words.
    """
    key = _digits(rng)
    found = b" The pass key is %b. Remember it. %b is the pass key. " % (key, key)
    filler = np.resize(words.text(_GRASS), size)
    return _asked("passkey", size, depth, filler, found, b"What is the pass key? The pass key is ", key, words)


def needle(rng: np.random.Generator, size: int, depth: float, haystack: np.ndarray | None, words: Words) -> Example:
    """A sentence in the middle of an unrelated text; the question comes last.

    Kamradt (2023), github gkamradt/LLMTest_NeedleInAHaystack; here the needle is a city's number, so exactly one answer is
    right. `haystack` is the text [N] as tokens; it is read from a random place on, and again from its start if it is short.

    Raises:
      ValueError: haystack is None.
    """
    if haystack is None or not len(haystack):
        raise ValueError("needle needs a haystack: a text to hide the needle in")
    key, city = _digits(rng), _CITIES[rng.integers(len(_CITIES))].encode()
    found, question = b" The number of %b is %b. " % (city, key), b" What is the number of %b? It is " % city
    start = rng.integers(len(haystack))
    filler = haystack[np.arange(start, start + size) % len(haystack)]
    return _asked("needle", size, depth, filler, found, question, key, words)


def recall(rng: np.random.Generator, size: int, depth: float, haystack: np.ndarray | None, words: Words) -> Example:
    """Multi-query associative recall (MQAR): eight keys with their values, then each key again, its value the answer.

    Arora et al. (2023), arXiv 2312.04927, section 4.1 and appendix: the distances of queries follow a power law. The tokens
    between are noise of their own alphabet; the share `depth` of it stands before the pairs (0 in the paper).
    """
    _room("recall", size, 4 * _PAIRS)
    _alphabets("recall", words, letters=_PAIRS, symbols=2, noise=2)
    keys, values = rng.choice(words.letters, _PAIRS, replace=False), rng.choice(words.symbols, _PAIRS)
    pairs = np.stack([keys, values], axis=1)
    before = 2 * int(depth * (size - 4 * _PAIRS) / 2)
    content, answer = rng.choice(words.noise, size), np.zeros(size, bool)
    content[before : before + 2 * _PAIRS] = pairs.ravel()
    after = before + 2 * _PAIRS
    slots = (size - after) // 2
    weight = np.arange(1, slots + 1) ** (_GAP_POWER - 1)
    at = after + 2 * rng.choice(slots, _PAIRS, replace=False, p=weight / weight.sum())
    content[at], content[at + 1], answer[at + 1] = keys, values, True
    return Example(content, answer)


def induction(rng: np.random.Generator, size: int, depth: float, haystack: np.ndarray | None, words: Words) -> Example:
    """... A B ... A, and then B: the successor of the only other A, among random bytes.

    Olsson et al. (2022), arXiv 2209.11895. A is a byte that stands nowhere else: one answer is right at any
    length.
    """
    _room("induction", size, 4)
    _alphabets("induction", words, letters=2, rare=2)
    content, answer = rng.choice(words.letters, size), np.zeros(size, bool)
    at = int(depth * (size - 4))
    content[[at, -2]] = rng.choice(words.rare)
    content[-1], answer[-1] = content[at + 1], True
    return Example(content, answer)


def copy(rng: np.random.Generator, size: int, depth: float, haystack: np.ndarray | None, words: Words) -> Example:
    """Random letters, a bar, and the same letters again, all of them answers: Jelassi et al. (2024), arXiv 2402.01032.

    `depth` is the share of the sequence that is noise before both; the paper has 0. If it varies, copying cannot be learned
    as looking back by a fixed distance.
    """
    _room("copy", size, 3)
    count = max(1, int((1 - depth) * (size - 1) / 2))
    _alphabets("copy", words, letters=2, noise=2, end=1)
    letters = rng.choice(words.letters, count)
    content = np.concatenate([rng.choice(words.noise, size - 1 - 2 * count), letters, words.end, letters])
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
    tokenizer: Tokenizer = BYTES,
) -> Batch:
    """Makes a batch of text from examples of a task, or of several tasks at random.

    Args:
      tasks: one or more names of `TASKS`.
      length: T, tokens of each example without its last target.
      count: b, number of examples.
      seed: seed of the examples, a pure function of the arguments.
      depth: in [0, 1]; None draws a depth for every example.
      haystack: [N] tokens, for `needle`.
      tokenizer: the tokenizer of the examples; its BOS begins each.

    Returns:
      tokens, targets, position, segment: [b, T] int32, as in `text_batches`; weight: [b, T] float32, 1 where the
      target is an answer.

    Raises:
      ValueError: a task is unknown, depth is outside [0, 1], the length is too short for a task, or the tokenizer has too few
        tokens for it.

    >>> batch = retrieval_batch("passkey", length=200, count=2, seed=0)
    >>> row = batch["targets"][0]
    >>> BYTES.decode(row[batch["weight"][0] > 0])
    '56002'
    """
    names = [tasks] if isinstance(tasks, str) else list(tasks)
    for name in names:
        if name not in TASKS:
            raise ValueError(f"no retrieval task is named {name!r}; known: {', '.join(TASKS)}")
    if depth is not None and not 0 <= depth <= 1:
        raise ValueError(f"depth={depth} must lie in [0, 1]: the share of the filler before what must be found")
    rng, words = np.random.default_rng(seed), words_of(tokenizer)
    bos = tokenizer.bos
    examples = [
        TASKS[names[rng.integers(len(names))]](
            rng, length + 1 - len(bos), rng.random() if depth is None else depth, haystack, words
        )
        for _ in range(count)
    ]
    content = np.stack([np.append(np.int32(bos), example.content) for example in examples]).astype(np.int32)
    answer = np.stack([np.append(np.zeros(len(bos), bool), example.answer) for example in examples])
    return {
        "tokens": content[:, :-1],
        "targets": content[:, 1:],
        "position": np.tile(np.arange(length, dtype=np.int32), (count, 1)),
        "segment": np.ones((count, length), np.int32),
        "weight": answer[:, 1:].astype(np.float32),
    }


def _digits(rng: np.random.Generator) -> bytes:
    return str(rng.integers(10 ** (_DIGITS - 1), 10**_DIGITS)).encode()


def _room(task: str, size: int, needed: int) -> None:
    if size < needed:
        raise ValueError(f"{task} takes at least {needed} tokens, not length={size - 1}")


def _alphabets(task: str, words: Words, **least: int) -> None:
    for name, count in least.items():
        if len(getattr(words, name)) < count:
            raise ValueError(f"leave {task} out: it takes {count} {name} of one token, {words.tokenizer.name} has less")


def _asked(
    task: str,
    size: int,
    depth: float,
    filler: np.ndarray,
    found: bytes,
    question: bytes,
    key: bytes,
    words: Words,
) -> Example:
    """Places `found` within the filler, then the question and the key, which is the answer."""
    hidden, (end, answers) = words.text(found), words.question(question, key)
    free = size - len(hidden) - len(end)
    _room(task, size, size - free)
    before = round(depth * free)
    content = np.concatenate([filler[:before], hidden, filler[before:free], end])
    return Example(content, np.arange(size) >= size - answers)
