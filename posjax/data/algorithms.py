"""Problems with one right answer at any length, to train on short ones and test on longer ones.

An `Algorithm` makes problems of a length from a random generator, `Scan` draws them from files; `problem_batches` and
`problem_epoch` place them in rows of one shape. There are two layouts:

    "tape" the question, then a blank for each token of the answer: an encoder fills the blanks (Ruoss et al. 2023)
    "next" the question, a mark, the answer, an end: a decoder predicts the answer and its end (Kazemnejad et al. 2023)

A problem may name a target for each of its tokens instead: then nothing is appended, and both layouts are the same.

Rows differ in length. Padding follows a row's end and has segment 0, so nothing tells the model how far the row goes.
Tokens 0 ... V - 1 are the symbols of an algorithm, V is the blank or mark, V + 1 the end.
"""

import dataclasses
import functools
import gzip
import itertools
import math
import os
import pathlib
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from posjax.data.containers import digest_of
from posjax.data.pipelines import share_of
from posjax.data.scenes import PATCH, draw_views, patches_of
from posjax.data.windows import Batch
from posjax.remote import local_copy

if TYPE_CHECKING:
    import grain

LAYOUTS = ("tape", "next")
POSITIONS = ("order", "digits", "coupled", "views")
_MARKS = 2  # the blank or mark, and the end: two tokens above the symbols
_MODULUS = 5  # modulus of the counting tasks of Ruoss et al.


class Problem(NamedTuple):
    """A problem: its question and answer, in one sequence of N symbols.

    Attributes:
      content: [N] int32; [N, P] where a token has P pixels, each a symbol.
      answer: [N] or [N, P] bool, the symbols to predict.
      marked: whether the answer comes last; a decoder then reads a mark before it and predicts an end after it.
      place: [N] int32 for `abacus`: the place of each digit within its number, from 1; 0 elsewhere. None without numbers.
      coupled: [N] int32 for `position_coupling`: ids from 2 that symbols which belong together share; 1 between them. None
        where none is published.
      targets: [N] or [N, P] int32, the prediction at each token of `answer`; None: the answer is part of the content.
      views: [N, 3] int32, (view, row, column) of each symbol; None: the symbols stand on a line.
      cameras: [N, 4, 4] and [N, 4] float32, the leaves of a `Camera`, of symbols with `views`.
    """

    content: np.ndarray
    answer: np.ndarray
    marked: bool = True
    place: np.ndarray | None = None
    coupled: np.ndarray | None = None
    targets: np.ndarray | None = None
    views: np.ndarray | None = None
    cameras: tuple[np.ndarray, np.ndarray] | None = None


class Problems(Protocol):
    """A source of problems."""

    name: str
    symbols: int  # V
    digest: str  # of the problem

    def most(self, length: int) -> int:
        """The largest number N of symbols in a problem of this length or a shorter one."""

    def of_length(self, rng: np.random.Generator, length: int) -> Problem:
        """A held-out problem of exactly this length."""

    def trained(self, rng: np.random.Generator, shortest: int, longest: int) -> Problem:
        """A training problem of a length in shortest ... longest."""


@dataclasses.dataclass(frozen=True)
class Algorithm:
    """Problems that a function generates.

    Args:
      make: (random generator, length, symbols) -> problem.
      symbols: V, tokens that problems are made of; those published.
      answers: (length) -> the largest number of tokens of an answer; the length where None.
      asks: the same for the question.
      resizable: whether `make` takes other numbers of symbols.
      fewest: the smallest number of symbols that `make` takes.
    """

    make: Callable[[np.random.Generator, int, int], Problem]
    symbols: int
    answers: Callable[[int], int] | None = None
    asks: Callable[[int], int] | None = None
    resizable: bool = False
    fewest: int = 2

    @property
    def name(self) -> str:
        return self.make.func.__name__ if isinstance(self.make, functools.partial) else self.make.__name__

    @property
    def digest(self) -> str:
        rng = np.random.default_rng(0)
        made = [self.of_length(rng, length) for length in range(1, 9)]
        leaves = (leaf for each in made for leaf in (each.content, each.answer, each.targets))
        return digest_of(*(leaf for leaf in leaves if leaf is not None))

    def most(self, length):
        return sum(length if each is None else each(length) for each in (self.asks, self.answers))

    def of_length(self, rng, length):
        return self.make(rng, length, self.symbols)

    def trained(self, rng, shortest, longest):
        return self.of_length(rng, int(rng.integers(shortest, longest + 1)))


# Ruoss et al. (2023), arXiv 2305.16843, github google-deepmind/randomized_positional_encodings: the sampling is that of their
# tasks/; each function here names the length as they do.


def even_pairs(rng: np.random.Generator, length: int, symbols: int) -> Problem:
    """Whether the number of 01s and 10s in a binary string is odd, which is whether its ends differ."""
    bits = rng.integers(2, size=length)
    return _solved(bits, (bits[1:] != bits[:-1]).sum() % 2)


def parity_check(rng: np.random.Generator, length: int, symbols: int) -> Problem:
    """Whether the number of 1s in a binary string is odd."""
    bits = rng.integers(2, size=length)
    return _solved(bits, bits.sum() % 2)


def cycle_navigation(rng: np.random.Generator, length: int, symbols: int) -> Problem:
    """The end of a walk of steps -1 (symbol 0), 0 and 1 on a circle of five places."""
    steps = rng.integers(3, size=length)
    return _solved(steps, (steps - 1).sum() % _MODULUS)


def modular_arithmetic(rng: np.random.Generator, length: int, symbols: int) -> Problem:
    """The value modulo 5 of numbers 0 ... 4 joined by +, - and * (symbols 5, 6, 7); an even length is reduced by one."""
    numbers = rng.integers(_MODULUS, size=(length + 1) // 2)
    operators = rng.integers(3, size=len(numbers) - 1)
    terms = [int(numbers[0])]
    for operator, number in zip(operators.tolist(), numbers[1:].tolist(), strict=True):
        if operator == 2:
            terms[-1] *= number
        else:
            terms.append(number if operator == 0 else -number)
    asked = np.empty(2 * len(numbers) - 1, int)
    asked[::2], asked[1::2] = numbers, _MODULUS + operators
    return _solved(asked, sum(terms) % _MODULUS)


def reverse_string(rng: np.random.Generator, length: int, symbols: int) -> Problem:
    """A string, last symbol first."""
    string = rng.integers(symbols, size=length)
    return _solved(string, string[::-1])


def duplicate_string(rng: np.random.Generator, length: int, symbols: int) -> Problem:
    """A string twice."""
    string = rng.integers(symbols, size=length)
    return _solved(string, np.tile(string, 2))


def missing_duplicate_string(rng: np.random.Generator, length: int, symbols: int) -> Problem:
    """The one symbol that is blotted out (2) in a binary string written twice; an odd length ends with a 3."""
    if length == 1:
        return _solved([1], [1])
    string = np.tile(rng.integers(2, size=length // 2), 2)
    missing = rng.integers(len(string))
    answer = string[missing]
    string[missing] = 2
    return _solved(np.append(string, [3] * (length % 2)), answer)


def odds_first(rng: np.random.Generator, length: int, symbols: int) -> Problem:
    """The symbols at odd indices (counted from 0), then the symbols at even indices."""
    string = rng.integers(symbols, size=length)
    return _solved(string, np.concatenate([string[1::2], string[::2]]))


def bucket_sort(rng: np.random.Generator, length: int, symbols: int) -> Problem:
    """A string, sorted."""
    string = rng.integers(symbols, size=length)
    return _solved(string, np.sort(string))


# Kazemnejad et al. (2023), arXiv 2305.19466, github McGill-NLP/length-generalization, scripts/dataset_builders: a token is a
# symbol here, and the words of the prompt are left out.


def addition(rng: np.random.Generator, length: int, symbols: int, *, reverse: bool = False) -> Problem:
    """The sum of two numbers, most significant digit first, "+" (symbol 10) between them.

    `length` digits has the longer one, the other 1 ... length; which comes first is drawn. Numbers of several digits begin
    with none that is 0. The ids of position coupling follow Cho et al. (2024), arXiv 2405.20671, figure 1: equal
    significance, equal id.

    Args:
      reverse: least significant digit first, in all three numbers, as `abacus` takes them.
    """
    sizes = [length, int(rng.integers(1, length + 1))]
    if rng.integers(2):
        sizes.reverse()
    numbers = [_number(rng, size) for size in sizes]
    written = [list(map(int, str(number))) for number in (*numbers, sum(numbers))]
    ranks = [np.arange(len(digits))[::-1] for digits in written]  # 0 for ones
    if reverse:
        written, ranks = [digits[::-1] for digits in written], [rank[::-1] for rank in ranks]
    places = [1 + np.arange(len(digits)) for digits in written]

    def joined(parts, between):
        return np.concatenate([parts[0], [between], parts[1]])

    return _solved(
        joined(written, 10),
        written[2],
        place=np.concatenate([joined(places, 0), places[2]]),
        coupled=np.concatenate([joined([2 + rank for rank in ranks], 1), 2 + ranks[2]]),
    )


def addition_reversed(rng: np.random.Generator, length: int, symbols: int) -> Problem:
    """The problem of `addition` with all three numbers written least significant digit first."""
    return addition(rng, length, symbols, reverse=True)


def copy_string(rng: np.random.Generator, length: int, symbols: int) -> Problem:
    """The string again (`copy_multi_char` there); coupled as in `CopyDatasetWithCoupledPositions` of Cho et al. (2024)."""
    string, ids = rng.integers(symbols, size=length), 2 + np.arange(length)
    return _solved(string, string, coupled=np.tile(ids, 2))


def sort_string(rng: np.random.Generator, length: int, symbols: int) -> Problem:
    """The string sorted by the order of symbols (`single_digit` there): `bucket_sort` with a larger alphabet."""
    return bucket_sort(rng, length, symbols)


# Liu et al. (2023), arXiv 2306.00946, definition 1.

_WRITE, _READ, _IGNORE = 2, 3, 4


def flip_flop(rng: np.random.Generator, length: int, symbols: int, *, ignore: float = 0.8) -> Problem:
    """FFL(T, p): `length` tokens, an instruction (w, r, i: symbols 2, 3, 4) and a bit in turn; a read repeats the last write.

    The first instruction writes, the last one reads, the others ignore with probability `ignore` and write or read equally
    often; bits that are written or ignored are random. Answers are the bits of reads. Odd lengths are reduced by one; the
    shortest is 4: a write and a read.

    The paper has T = 512 and ignore 0.8 in training, 0.98 (sparse) and 0.1 (dense) out of distribution.
    """
    count = max(2, length // 2)
    share = (1 - ignore) / 2
    instruction = rng.choice([_WRITE, _READ, _IGNORE], size=count, p=[share, share, ignore])
    instruction[[0, -1]] = _WRITE, _READ
    bits = rng.integers(2, size=count)
    index = np.arange(count)
    written = np.maximum.accumulate(np.where(instruction == _WRITE, index, 0))
    reads = instruction == _READ
    bits = np.where(reads, bits[written], bits)
    content = np.stack([instruction, bits], axis=1).ravel()
    answer = np.stack([np.zeros(count, bool), reads], axis=1).ravel()
    return Problem(content.astype(np.int32), answer, marked=False)


def flip_flop_sparse(rng: np.random.Generator, length: int, symbols: int) -> Problem:
    """FFL(T, 0.98): the last write stands far away."""
    return flip_flop(rng, length, symbols, ignore=0.98)


def flip_flop_dense(rng: np.random.Generator, length: int, symbols: int) -> Problem:
    """FFL(T, 0.1): writes and reads are frequent."""
    return flip_flop(rng, length, symbols, ignore=0.1)


# Merrill et al. (2024), arXiv 2404.08819, section 5, github jopetty/word-problem, src/generate_data.py: words of a group,
# elements drawn uniformly, and at each token the product so far, from the left. Elements are numbered here in the order of
# their permutations; the identity is 0.


def word_problem_s5(rng: np.random.Generator, length: int, symbols: int) -> Problem:
    """The product of permutations of five things so far, at each token."""
    return _products(rng, length, _S5)


def word_problem_a5(rng: np.random.Generator, length: int, symbols: int) -> Problem:
    """The problem of `word_problem_s5` with even permutations: the smallest group whose word problem is complete for NC1."""
    return _products(rng, length, _A5)


def word_problem_a5_generators(rng: np.random.Generator, length: int, symbols: int) -> Problem:
    """The problem of `word_problem_a5` with words in six letters: the cycles (1 2 3), (1 2 4), (1 2 5) and their inverses.

    Letters of Yang et al. (2025), arXiv 2505.16381, section 4.1; they ask whether the whole word is the identity.
    """
    return _products(rng, length, _A5, _LETTERS)


def _group(degree: int, *, even: bool = False) -> np.ndarray:
    """Returns the product table [G, G] int32: the number of a times b (b first, then a)."""
    elements = _elements(degree, even)
    number = {tuple(element): index for index, element in enumerate(elements.tolist())}
    return np.array([[number[tuple(a[b])] for b in elements] for a in elements], np.int32)


def _elements(degree: int, even: bool) -> np.ndarray:
    """[G, degree]: all permutations, or the even ones, in their order."""
    elements = np.array(list(itertools.permutations(range(degree))))
    if not even:
        return elements
    later = np.triu(np.ones((degree, degree), bool), 1)
    inversions = ((elements[:, :, None] > elements[:, None, :]) & later).sum(axis=(1, 2))
    return elements[inversions % 2 == 0]


def _three_cycles() -> np.ndarray:
    """The numbers in A5 of (0 1 c) and of its inverse, for c = 2, 3, 4."""
    number = {tuple(element): index for index, element in enumerate(_elements(5, even=True).tolist())}
    letters = []
    for c in (2, 3, 4):
        for cycle in ((0, 1, c), (c, 1, 0)):
            images = list(range(5))
            for a, b in zip(cycle, (*cycle[1:], cycle[0]), strict=True):
                images[a] = b
            letters.append(number[tuple(images)])
    return np.array(letters, np.int32)


def _products(rng: np.random.Generator, length: int, table: np.ndarray, letters: np.ndarray | None = None) -> Problem:
    drawn = rng.integers(len(table if letters is None else letters), size=length).astype(np.int32)
    content = drawn if letters is None else letters[drawn]
    targets = np.array(list(itertools.accumulate(content, lambda before, each: table[before, each])), np.int32)
    return Problem(content, np.ones(length, bool), marked=False, targets=targets)


# Arora et al. (2023), arXiv 2312.04927. posjax.data.retrieval has the task in long text, with the gaps of its authors.


def associative_recall(rng: np.random.Generator, length: int, symbols: int) -> Problem:
    """`length` / 4 keys with their values, then each key again in another order, its value the answer.

    Keys are symbols below V / 2 and differ, values are the others. A length is rounded down to a multiple of 4, at least 4.
    """
    pairs = max(1, length // 4)
    if pairs > symbols // 2:
        raise ValueError(f"associative_recall of length {length} needs {2 * pairs} symbols, there are {symbols}")
    keys = rng.permutation(symbols // 2)[:pairs]
    values = rng.integers(symbols // 2, symbols, size=pairs)
    order = rng.permutation(pairs)
    content = np.stack([np.concatenate([keys, keys[order]]), np.concatenate([values, values[order]])], axis=1).ravel()
    answer = (np.arange(4 * pairs) > 2 * pairs) & (np.arange(4 * pairs) % 2 == 1)
    return Problem(content.astype(np.int32), answer, marked=False)


def novel_view(rng: np.random.Generator, length: int, symbols: int, *, zoom: float = 1.0) -> Problem:
    """The pixels of a new camera, from `length` other views of the same scene, see `posjax.data.scenes`.

    The blank patches of the new view come first. Only those pixels are asked whose point one of the other views shows.
    """
    views = draw_views(rng, length + 1, symbols, zoom)
    is_new = views.place[:, :1] == 0
    content = np.where(is_new, symbols, views.colour).astype(np.int32)
    cameras = views.view, views.lens
    return Problem(content, is_new & views.shared, targets=views.colour, views=views.place, cameras=cameras)


def novel_view_zoomed(rng: np.random.Generator, length: int, symbols: int) -> Problem:
    """`novel_view` by cameras of half as long again focal lengths."""
    return novel_view(rng, length, symbols, zoom=1.5)


def _one(length: int) -> int:
    return 1


def _four(length: int) -> int:
    return max(4, length)


def _none(length: int) -> int:
    return 0


_S5, _A5, _LETTERS = _group(5), _group(5, even=True), _three_cycles()
_FLIP_FLOP = dict(symbols=5, asks=_four, answers=_none)
_SUM = dict(symbols=11, asks=lambda length: 2 * length + 1, answers=lambda length: length + 1)
ALGORITHMS: Mapping[str, Algorithm] = MappingProxyType(
    {
        each.name: each
        for each in (
            Algorithm(even_pairs, 2, _one),
            Algorithm(parity_check, 2, _one),
            Algorithm(cycle_navigation, _MODULUS, _one),
            Algorithm(modular_arithmetic, _MODULUS + 3, _one),
            Algorithm(reverse_string, 2, resizable=True),
            Algorithm(duplicate_string, 2, lambda length: 2 * length, resizable=True),
            Algorithm(missing_duplicate_string, 4, _one),
            Algorithm(odds_first, 2, resizable=True),
            Algorithm(bucket_sort, 5, resizable=True),
            Algorithm(addition, **_SUM),
            Algorithm(addition_reversed, **_SUM),
            Algorithm(copy_string, 100, resizable=True),
            Algorithm(sort_string, 50, resizable=True),
            Algorithm(flip_flop, **_FLIP_FLOP),
            Algorithm(flip_flop_sparse, **_FLIP_FLOP),
            Algorithm(flip_flop_dense, **_FLIP_FLOP),
            Algorithm(word_problem_s5, len(_S5), _none),
            Algorithm(word_problem_a5, len(_A5), _none),
            Algorithm(word_problem_a5_generators, len(_A5), _none),
            Algorithm(associative_recall, 64, _none, _four, resizable=True, fewest=4),
            Algorithm(novel_view, 6, _none, patches_of, resizable=True),
            Algorithm(novel_view_zoomed, 6, _none, patches_of, resizable=True),
        )
    }
)


@dataclasses.dataclass(frozen=True)
class Scan:
    """Commands and their actions: Lake & Baroni (2018), arXiv 1711.00350, in their split by length.

    It trains on the commands of at most 22 actions and tests on 24 ... 48 actions; their number is the length here. A tenth
    of the training file is held out for lengths up to 22.

    Attributes:
      training, held_out: problems; the test file's are held out, too.
      lengths: the number of actions of each that is trained on.
    """

    training: tuple[Problem, ...]
    lengths: np.ndarray = dataclasses.field(repr=False)
    held_out: Mapping[int, tuple[Problem, ...]]
    symbols: int
    digest: str
    name = "scan"

    def most(self, length):
        held_out = (each for group in self.held_out.values() for each in group)
        return max(len(each.content) for each in (*self.training, *held_out) if each.answer.sum() <= length)

    def of_length(self, rng, length):
        if length not in self.held_out:
            raise ValueError(f"no command of scan has {length} actions; lengths: {', '.join(map(str, self.held_out))}")
        group = self.held_out[length]
        return group[rng.integers(len(group))]

    def trained(self, rng, shortest, longest):
        found = np.flatnonzero((self.lengths >= shortest) & (self.lengths <= longest))
        if not found.size:
            known = f"{self.lengths.min()} to {self.lengths.max()}"
            raise ValueError(f"scan is trained on {known} actions, not on {shortest} to {longest} (data.length)")
        return self.training[rng.choice(found)]


def load_scan(folder: str | pathlib.Path) -> Scan:
    """Reads tasks_train_length.txt and tasks_test_length.txt, or these with .gz, of github brendenlake/SCAN.

    Raises:
      FileNotFoundError: a file is missing.
      ValueError: a line is not a command with its actions.
    """
    lines = {split: _lines(pathlib.Path(folder) / f"tasks_{split}_length.txt") for split in ("train", "test")}
    words = sorted({word for found in lines.values() for pair in found for part in pair for word in part})
    number = {word: index for index, word in enumerate(words)}
    problems = {
        split: [_solved([number[word] for word in asked], [number[word] for word in answer]) for asked, answer in found]
        for split, found in lines.items()
    }
    order = np.random.default_rng(0).permutation(len(problems["train"]))
    cut = len(order) // 10
    held_out: dict[int, list[Problem]] = {}
    for each in (*(problems["train"][index] for index in order[:cut]), *problems["test"]):
        held_out.setdefault(int(each.answer.sum()), []).append(each)
    groups = {length: tuple(held_out[length]) for length in sorted(held_out)}
    digest = digest_of(*(each.content for found in problems.values() for each in found))
    training = tuple(problems["train"][index] for index in order[cut:])
    return Scan(training, np.array([each.answer.sum() for each in training]), groups, len(words), digest)


def load_problems(name: str, *, symbols: int | None = None, files: str | pathlib.Path | None = None) -> Problems:
    """Returns the problems of a name.

    Args:
      name: an algorithm of `ALGORITHMS`, or "scan".
      symbols: a number of symbols in place of the published one.
      files: the folder of SCAN's files.

    Raises:
      ValueError: the name is unknown, the algorithm's number of symbols is fixed, or scan has no files.
      FileNotFoundError: a file of SCAN is missing.

    >>> problem = load_problems("reverse_string").of_length(np.random.default_rng(1), 4)
    >>> problem.content.tolist(), problem.answer.tolist()
    ([0, 1, 1, 1, 1, 1, 1, 0], [False, False, False, False, True, True, True, True])
    """
    if name == Scan.name and symbols is None:
        if files is None:
            raise ValueError("scan is read from files: give data.files, the folder of tasks_train_length.txt")
        return load_scan(local_copy(os.fspath(files)))
    if name not in ALGORITHMS:
        raise ValueError(f"no algorithm is named {name!r}; known: {', '.join(ALGORITHMS)}, {Scan.name}")
    algorithm = ALGORITHMS[name]
    if symbols is None:
        return algorithm
    if not algorithm.resizable or symbols < algorithm.fewest:
        fixed = f"{algorithm.symbols} symbols, no more and no less"
        sizes = f"{algorithm.fewest} or more symbols" if algorithm.resizable else fixed
        raise ValueError(f"data.symbols={symbols}: {name} has {sizes}")
    return dataclasses.replace(algorithm, symbols=symbols)


# Rows


@dataclasses.dataclass(frozen=True)
class Rows:
    """Rows [T] made of problems.

    Args:
      symbols: V.
      layout: a name of `LAYOUTS`.
      positions: "order" is 0, 1, 2 ...; "digits" has a second axis, the place of a digit within its number, for `abacus`;
        "coupled" is the ids of `position_coupling`; "views" is (view, row, column) of patches of P pixels and their cameras.

    Raises:
      ValueError: for an unknown layout or positions.

    >>> problem = load_problems("reverse_string").of_length(np.random.default_rng(1), 4)
    >>> batch = Rows(symbols=2, layout="next").batch([problem], tokens=10, count=1)    # 2 and 3 are marks
    >>> batch["tokens"][0].tolist()
    [0, 1, 1, 1, 2, 1, 1, 1, 0, 0]
    >>> batch["targets"][0, batch["weight"][0] > 0].tolist()
    [1, 1, 1, 0, 3]
    """

    symbols: int
    layout: str
    positions: str = "order"

    def __post_init__(self):
        for what, given, known in (("layout", self.layout, LAYOUTS), ("positions", self.positions, POSITIONS)):
            if given not in known:
                raise ValueError(f"{what}={given!r} must be one of {', '.join(map(repr, known))}")

    @property
    def vocab_size(self) -> int:
        """The number of tokens; each pixel of a patch has tokens of its own."""
        return (self.symbols + _MARKS) * math.prod(self.pixels)

    @property
    def pixels(self) -> tuple[int, ...]:
        """The shape of a token's symbols."""
        return (PATCH**2,) if self.positions == "views" else ()

    @property
    def axes(self) -> tuple[int, ...]:
        """The shape of a token's position."""
        return {"digits": (2,), "views": (3,)}.get(self.positions, ())

    def tokens(self, problems: Problems, length: int) -> int:
        """T, tokens of a row that holds any problem up to a length."""
        return problems.most(length) + (self.layout == "next")

    def batch(self, problems: Sequence[Problem], tokens: int, count: int) -> Batch:
        """Places problems in `count` rows of T `tokens`; rows without a problem have weight 0.

        Returns:
          tokens, targets, segment: [count, T] int32; position: [count, T] or [count, T, A] int32; weight: [count, T]
          float32, nonzero at answers, summing to 1 over each problem. With positions="views" view and lens, float32, and
          tokens, targets and weight [count, T, P].

        Raises:
          ValueError: a problem is too long, or has no such positions.
        """
        shapes = dict(tokens=self.pixels, targets=self.pixels, segment=(), position=self.axes)
        made: Batch = {name: np.zeros((count, tokens, *more), np.int32) for name, more in shapes.items()}
        floats = dict(weight=self.pixels) | (dict(view=(4, 4), lens=(4,)) if self.positions == "views" else {})
        made |= {name: np.zeros((count, tokens, *more), np.float32) for name, more in floats.items()}
        for row, problem in enumerate(problems):
            for name, values in self._row(problem).items():
                if len(values) > tokens:
                    raise ValueError(f"a problem of {len(values)} tokens does not fit into rows of {tokens}")
                made[name][row, : len(values)] = values
        return made

    def _row(self, problem: Problem) -> dict[str, np.ndarray]:
        content, answer = problem.content, problem.answer
        if problem.targets is not None:
            tokens, targets, weight = content, problem.targets, answer
            if self.pixels:
                tokens = tokens + (self.symbols + _MARKS) * np.arange(*self.pixels)
        elif self.layout == "tape":
            tokens, targets, weight = np.where(answer, self.symbols, content), content, answer
        else:
            if problem.marked:
                asked = len(content) - answer.sum()
                content = np.concatenate([content[:asked], [self.symbols], content[asked:], [self.symbols + 1]])
                answer = np.arange(len(content)) > asked
            tokens, targets, weight = content[:-1], content[1:], answer[1:]
        row = {
            "tokens": tokens,
            "targets": targets,
            "segment": np.ones(len(tokens), np.int32),
            "position": self._position(problem, len(tokens)),
            "weight": weight / weight.sum(),
        }
        return row | (dict(zip(("view", "lens"), problem.cameras, strict=True)) if self.positions == "views" else {})

    def _position(self, problem: Problem, count: int) -> np.ndarray:
        if self.positions == "order" and problem.views is None:
            return np.arange(count)
        given = {"digits": problem.place, "coupled": problem.coupled, "views": problem.views}.get(self.positions)
        if given is None:
            known = "order" if problem.views is None else "views"
            raise ValueError(f"positions={self.positions!r} are not defined for this algorithm: take {known!r}")
        if self.positions == "views":
            return given
        if self.layout == "next":
            between = 0 if self.positions == "digits" else 1  # of the mark
            given = np.insert(given, len(given) - problem.answer.sum(), between)
        return np.stack([np.arange(count), given], axis=1) if self.positions == "digits" else given


def problem_batches(
    problems: Problems,
    rows: Rows,
    *,
    shortest: int,
    longest: int,
    batch_size: int,
    seed: int,
    process_index: int = 0,
    process_count: int = 1,
) -> "grain.MapDataset":
    """Endless batches of training problems; ds[step] is a function of the arguments and the step.

    Each problem draws its own length, uniform in shortest ... longest. In the code of Ruoss et al. a batch has one length.

    Raises:
      ValueError: lengths below 1; batch_size does not divide among the processes.
    """
    import grain

    if not 1 <= shortest <= longest:
        raise ValueError(f"shortest={shortest} to longest={longest} is not a range of lengths")
    first, share = share_of(batch_size, seed, process_index, process_count)
    tokens = rows.tokens(problems, longest)

    def made(step: int, _: int) -> Batch:
        rng = np.random.default_rng((seed, step))
        found = [problems.trained(rng, shortest, longest) for _ in range(batch_size)]
        return rows.batch(found[first : first + share], tokens, share)

    return grain.MapDataset.range(1).repeat().map_with_index(made)


def problem_epoch(
    problems: Problems, rows: Rows, *, length: int, tokens: int, count: int, batch_size: int, split: str
) -> Iterator[Batch]:
    """Yields batches of `count` held-out problems of one length, the same every time; rows that fill up have weight 0.

    Args:
      tokens: T of a row.
      split: names the drawn problems; another name gives others.
    """
    rng = np.random.default_rng((zlib.crc32(split.encode()), length))
    found = [problems.of_length(rng, length) for _ in range(count)]
    starts = range(0, count, batch_size)
    return (rows.batch(found[start : start + batch_size], tokens, batch_size) for start in starts)


def _solved(
    asked: Iterable[int],
    answer: Iterable[int] | int,
    *,
    place: np.ndarray | None = None,
    coupled: np.ndarray | None = None,
) -> Problem:
    asked, answer = np.asarray(asked), np.atleast_1d(answer)
    content = np.concatenate([asked, answer]).astype(np.int32)
    return Problem(content, np.arange(len(content)) >= len(asked), place=place, coupled=coupled)


def _number(rng: np.random.Generator, digits: int) -> int:
    """Draws a number of `digits` digits uniformly; 0 counts as a number of one digit."""
    first = rng.integers(10) if digits == 1 else rng.integers(1, 10)
    return int("".join(map(str, [first, *rng.integers(10, size=digits - 1)])))


def _lines(path: pathlib.Path) -> list[tuple[list[str], list[str]]]:
    packed = path.with_name(f"{path.name}.gz")
    if path.exists():
        text = path.read_text()
    elif packed.exists():
        text = gzip.decompress(packed.read_bytes()).decode()
    else:
        raise FileNotFoundError(f"there is neither {path} nor {packed.name}: download github brendenlake/SCAN")
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        command, out, actions = line.partition(" OUT: ")
        if not command.startswith("IN: ") or not out or not actions.split():
            raise ValueError(f"{path}, line {number}: expected 'IN: command OUT: actions', got {line[:60]!r}")
        found.append((command.removeprefix("IN: ").split(), actions.split()))
    return found
