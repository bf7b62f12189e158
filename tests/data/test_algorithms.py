"""Every answer is what another computation gives, stands where the published rule puts it, and padding tells nothing."""

import gzip
import itertools
import os
import pathlib

import numpy as np
import pytest

from posjax import data
from posjax.data.algorithms import ALGORITHMS, Rows, load_problems, load_scan, problem_batches, problem_epoch
from posjax.encodings.digits import coupled_positions, digit_places

RAW = pathlib.Path(
    os.environ.get("POSJAX_RAW_DATA", pathlib.Path(__file__).parents[2].resolve().parent / "shared/data")
)
LENGTHS = (*range(1, 8), 12)


def parts(problem):
    return problem.content[~problem.answer].tolist(), problem.content[problem.answer].tolist()


def written(digits):
    return int("".join(map(str, digits)))


def value(tokens):
    """Python's own arithmetic on the text."""
    return eval("".join("01234+-*"[token] for token in tokens)) % 5


def missing(asked):
    """Answers "0110 0210" and the like."""
    asked = [token for token in asked if token != 3]
    if len(asked) < 2:
        return [1]
    half, at = len(asked) // 2, asked.index(2)
    return [asked[(at + half) % len(asked)]]


def summed(asked, *, reverse=False):
    step, at = -1 if reverse else 1, asked.index(10)
    total = written(asked[:at][::step]) + written(asked[at + 1 :][::step])
    return list(map(int, str(total)))[::step]


ANSWERS = {
    "even_pairs": lambda asked: [("".join(map(str, asked)).count("01") + "".join(map(str, asked)).count("10")) % 2],
    "parity_check": lambda asked: [asked.count(1) % 2],
    "cycle_navigation": lambda asked: [(asked.count(2) - asked.count(0)) % 5],
    "modular_arithmetic": lambda asked: [value(asked)],
    "reverse_string": lambda asked: list(reversed(asked)),
    "duplicate_string": lambda asked: asked + asked,
    "missing_duplicate_string": missing,
    "odds_first": lambda asked: asked[1::2] + asked[0::2],
    "bucket_sort": sorted,
    "addition": summed,
    "addition_reversed": lambda asked: summed(asked, reverse=True),
    "copy_string": list,
    "sort_string": sorted,
}


@pytest.mark.parametrize("name", ANSWERS)
def test_answers_are_right_at_every_length(name):
    algorithm, rng = ALGORITHMS[name], np.random.default_rng(1)
    for length in LENGTHS:
        made = [algorithm.of_length(rng, length) for _ in range(20)]
        for problem in made:
            asked, answer = parts(problem)
            assert answer == ANSWERS[name](asked)
            assert problem.answer.tolist() == sorted(problem.answer)  # the answer comes last
            assert max(problem.content) < algorithm.symbols
        longest = max(len(problem.content) for problem in made)
        assert algorithm.most(length) - 3 <= longest <= algorithm.most(length)


@pytest.mark.parametrize("name", ["flip_flop", "flip_flop_dense", "associative_recall"])
def test_what_has_four_tokens_at_least_says_so(name):
    algorithm, rng = ALGORITHMS[name], np.random.default_rng(0)
    for length in range(1, 10):
        found = len(algorithm.of_length(rng, length).content)
        assert algorithm.most(length) - 3 <= found <= algorithm.most(length)


@pytest.mark.parametrize(
    ("name", "signs"),
    [("word_problem_s5", (1, -1)), ("word_problem_a5", (1,)), ("word_problem_a5_generators", (1,))],
)
def test_targets_of_words_are_the_products_of_their_matrices(name, signs):
    matrices = [np.eye(5)[list(each)] for each in itertools.permutations(range(5))]
    matrices = [each for each in matrices if round(np.linalg.det(each)) in signs]
    algorithm, rng = ALGORITHMS[name], np.random.default_rng(4)
    assert (algorithm.symbols, algorithm.most(9)) == (len(matrices), 9)
    problem, product = algorithm.of_length(rng, 9), np.eye(5)
    assert problem.answer.all()
    for token, target in zip(problem.content, problem.targets, strict=True):
        product = matrices[token] @ product  # rows are permuted, so that a later one stands to the left
        np.testing.assert_array_equal(matrices[target], product)
    for layout in ("tape", "next"):
        row = Rows(algorithm.symbols, layout).batch([problem], 10, 1)
        assert row["tokens"][0].tolist() == [*problem.content, 0]
        assert row["targets"][0].tolist() == [*problem.targets, 0]
        np.testing.assert_allclose(row["weight"][0], [1 / 9] * 9 + [0])


def test_generators_are_three_cycles_that_share_two_points():
    even = [each for each in itertools.permutations(range(5)) if round(np.linalg.det(np.eye(5)[list(each)])) == 1]
    words = ALGORITHMS["word_problem_a5_generators"].of_length(np.random.default_rng(6), 200)
    letters = [even[token] for token in np.unique(words.content)]
    assert len(letters) == 6
    assert all(sum(image != place for place, image in enumerate(letter)) == 3 for letter in letters)
    assert all(letter[0] != 0 and letter[1] != 1 for letter in letters)
    assert {tuple(np.argsort(letter)) for letter in letters} == set(letters)  # with the inverse of each


def test_a_key_is_asked_for_once_and_has_its_value():
    algorithm, rng = ALGORITHMS["associative_recall"], np.random.default_rng(5)
    for length in (1, 4, 15, 64):
        problem = algorithm.of_length(rng, length)
        pairs = problem.content.reshape(2, -1, 2)
        assert pairs.size == max(4, length // 4 * 4)
        told, asked = (dict(each.tolist()) for each in pairs)
        assert told == asked
        assert len(told) == pairs.shape[1]
        assert (pairs[..., 0] < 32).all()
        assert (pairs[..., 1] >= 32).all()
        assert np.flatnonzero(problem.answer).tolist() == list(range(pairs.size // 2 + 1, pairs.size, 2))
    with pytest.raises(ValueError, match="length 200 needs 100 symbols, there are 64"):
        algorithm.of_length(rng, 200)


@pytest.mark.parametrize(("name", "ignore"), [("flip_flop", 0.8), ("flip_flop_sparse", 0.98), ("flip_flop_dense", 0.1)])
def test_reads_repeat_the_last_write(name, ignore):
    rng, ignored = np.random.default_rng(2), []
    for _ in range(40):
        problem = ALGORITHMS[name].of_length(rng, 128)
        instructions, bits = problem.content[::2], problem.content[1::2]
        assert (instructions[0], instructions[-1], len(problem.content)) == (2, 3, 128)
        memory = None
        for index, (instruction, bit) in enumerate(zip(instructions, bits, strict=True)):
            memory = bit if instruction == 2 else memory
            assert problem.answer[2 * index : 2 * index + 2].tolist() == [False, instruction == 3]
            if instruction == 3:
                assert bit == memory
        ignored += (instructions[1:-1] == 4).tolist()
    assert abs(np.mean(ignored) - ignore) < 0.03


@pytest.mark.parametrize("name", ["addition", "addition_reversed"])
def test_digits_have_the_places_and_ids_of_their_encodings(name):
    rng = np.random.default_rng(3)
    for length in LENGTHS:
        problem = ALGORITHMS[name].of_length(rng, length)
        row = Rows(11, "next", "digits").batch([problem], 40, 1)
        inside = row["segment"][0] == 1
        tokens = row["tokens"][0][inside]
        assert np.array_equal(row["position"][0][inside, 0], np.arange(inside.sum()))
        assert np.array_equal(row["position"][0][inside, 1], digit_places(tokens, tuple(range(10))))
        ids = Rows(11, "next", "coupled").batch([problem], 40, 1)["position"][0][inside]
        if name == "addition_reversed":  # the published writing: numbers most significant digit first, their sum last
            at, mark = tokens.tolist().index(10), tokens.tolist().index(11)
            tokens = np.concatenate([tokens[:at][::-1], [10], tokens[at + 1 : mark][::-1], tokens[mark:]])
            ids = np.concatenate([ids[:at][::-1], [1], ids[at + 1 : mark][::-1], ids[mark:]])
            assert np.array_equal(ids, coupled_positions(tokens.astype(np.int32), tuple(range(10)), equals=11))
        else:
            assert np.array_equal(ids, coupled_from_the_end(problem))


def coupled_from_the_end(problem):
    """Couples positions as `coupled_positions` does, the sum most significant digit first: from each number's end."""
    asked, answer = parts(problem)
    at = asked.index(10)
    sizes = at, len(asked) - at - 1, len(answer)
    first, second, total = ([1 + rank for rank in range(size, 0, -1)] for size in sizes)
    return [*first, 1, *second, 1, *total]


def test_copies_are_coupled_symbol_by_symbol():
    problem = ALGORITHMS["copy_string"].of_length(np.random.default_rng(0), 3)
    row = Rows(100, "next", "coupled").batch([problem], 8, 1)
    assert row["position"].tolist() == [[2, 3, 4, 1, 2, 3, 4, 0]]


def test_an_encoder_fills_blanks_and_a_decoder_predicts_the_next_token():
    problem = ALGORITHMS["reverse_string"].of_length(np.random.default_rng(0), 3)
    a, b, c = problem.content[:3]
    tape, following = (Rows(2, layout).batch([problem], 8, 2) for layout in ("tape", "next"))
    assert tape["tokens"][0].tolist() == [a, b, c, 2, 2, 2, 0, 0]
    assert tape["targets"][0].tolist() == [a, b, c, c, b, a, 0, 0]
    assert tape["segment"][0].tolist() == [1] * 6 + [0] * 2
    assert tape["position"][0].tolist() == [0, 1, 2, 3, 4, 5, 0, 0]
    assert np.allclose(tape["weight"][0], [0, 0, 0, 1 / 3, 1 / 3, 1 / 3, 0, 0])
    assert following["tokens"][0].tolist() == [a, b, c, 2, c, b, a, 0]
    assert following["targets"][0].tolist() == [b, c, 2, c, b, a, 3, 0]
    assert np.allclose(following["weight"][0], [0, 0, 0, 0.25, 0.25, 0.25, 0.25, 0])
    assert all((batch[name][1] == 0).all() for batch in (tape, following) for name in batch)  # a row that is left over


def test_what_a_row_holds_does_not_depend_on_how_far_it_is_padded():
    """The places of outputs follow from the problem alone."""
    rng = np.random.default_rng(4)
    problems = [ALGORITHMS["bucket_sort"].of_length(rng, length) for length in (1, 5, 9)]
    for layout in ("tape", "next"):
        near, far = (Rows(5, layout).batch(problems, tokens, 3) for tokens in (19, 50))
        for name, values in near.items():
            assert np.array_equal(values, far[name][:, :19])
            assert not far[name][:, 19:].any()


def test_batches_are_a_function_of_the_step_and_shared_by_processes():
    algorithm = ALGORITHMS["copy_string"]
    rows, given = Rows(100, "next"), dict(shortest=2, longest=6, batch_size=8, seed=5)
    ds = problem_batches(algorithm, rows, **given)
    halves = [problem_batches(algorithm, rows, **given, process_index=i, process_count=2)[3] for i in range(2)]
    assert all(
        np.array_equal(values, np.concatenate([half[name] for half in halves])) for name, values in ds[3].items()
    )
    assert not np.array_equal(ds[3]["tokens"], ds[4]["tokens"])
    (first,) = data.epoch(ds, 3, 4)
    assert np.array_equal(first["tokens"], ds[3]["tokens"])
    lengths = np.concatenate([(ds[step]["weight"] > 0).sum(axis=1) - 1 for step in range(40)])
    assert np.array_equal(np.unique(lengths), [2, 3, 4, 5, 6])
    assert np.bincount(lengths)[2:].min() > 40  # of 64 each in the mean: uniform


def test_an_evaluation_set_is_the_same_every_time_and_another_one_under_another_name():
    given = dict(length=4, tokens=10, count=5, batch_size=2)
    one, again, other = (
        list(problem_epoch(ALGORITHMS["copy_string"], Rows(100, "next"), split=split, **given))
        for split in ("test", "test", "10% of train")
    )
    assert [int((batch["weight"] > 0).any(axis=1).sum()) for batch in one] == [2, 2, 1]
    assert all(np.array_equal(x["tokens"], y["tokens"]) for x, y in zip(one, again, strict=True))
    assert not np.array_equal(one[0]["tokens"], other[0]["tokens"])


def scan_files(folder, packed):
    long = " ".join(["I_WALK"] * 24)
    trained = [f"IN: walk {'twice ' * (n % 2)}OUT: {'I_WALK ' * (1 + n % 2)}".strip() for n in range(20)]
    for split, lines in (("train", trained), ("test", [f"IN: walk thrice OUT: {long}"])):
        path, text = folder / f"tasks_{split}_length.txt", "\n".join(lines) + "\n"
        if packed:
            path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(text.encode()))
        else:
            path.write_text(text)


@pytest.mark.parametrize("packed", [False, True])
def test_scan_is_read_from_its_files(tmp_path, packed):
    scan_files(tmp_path, packed)
    scan = load_problems("scan", files=tmp_path)
    assert (scan.symbols, len(scan.training), sorted(scan.held_out)[-1]) == (4, 18, 24)
    assert sum(map(len, scan.held_out.values())) == 3
    rng = np.random.default_rng(0)
    assert scan.of_length(rng, 24).answer.tolist() == [False] * 2 + [True] * 24
    assert {scan.trained(rng, 2, 22).answer.sum() for _ in range(9)} == {2}
    assert (scan.most(22), scan.most(24)) == (4, 26)
    with pytest.raises(ValueError, match=r"no command of scan has 23 actions; lengths: .*24"):
        scan.of_length(rng, 23)


def test_the_length_split_of_scan_is_the_published_one():
    if not (RAW / "scan").is_dir():
        pytest.skip("no raw files of scan: $POSJAX_RAW_DATA/scan is not there")
    scan = load_scan(RAW / "scan")
    test = {length: len(group) for length, group in scan.held_out.items() if length > 22}
    assert (min(test), max(test), sum(test.values())) == (24, 48, 3920)
    assert len(scan.training) + sum(map(len, scan.held_out.values())) == 16990 + 3920
    assert scan.symbols == 13 + 6


def test_what_cannot_be_is_refused(tmp_path):
    scan_files(tmp_path, packed=False)
    (tmp_path / "tasks_test_length.txt").write_text("IN: walk OUT: I_WALK\nwalk twice\n")
    problem = [ALGORITHMS["bucket_sort"].of_length(np.random.default_rng(0), 3)]
    for make, message in (
        (lambda: load_problems("bucket_srt"), "bucket_srt"),
        (lambda: load_problems("even_pairs", symbols=3), r"data\.symbols=3"),
        (lambda: load_problems("associative_recall", symbols=3), "4 or more symbols"),
        (lambda: load_problems("scan"), r"data\.files"),
        (lambda: load_scan(tmp_path), r"tasks_test_length\.txt, line 2"),
        (lambda: Rows(2, "tabe"), "layout='tabe'"),
        (lambda: Rows(2, "tape", "coupled").batch(problem, 9, 1), "positions='coupled'"),
        (lambda: Rows(5, "tape").batch(problem, 5, 1), "rows of 5"),
        (
            lambda: Rows(6, "tape").batch([ALGORITHMS["novel_view"].of_length(np.random.default_rng(0), 1)], 128, 1),
            "take 'views'",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            make()
    with pytest.raises(FileNotFoundError, match=r"tasks_train_length\.txt"):
        load_scan(tmp_path / "nowhere")
