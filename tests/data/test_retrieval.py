"""The answer has been said exactly once, where `depth` puts it."""

import numpy as np
import pytest

from posjax import data
from posjax.data.retrieval import TASKS

HAYSTACK = np.frombuffer(b"It was a bright cold day in April, and the clocks were striking. " * 9, np.uint8)
DEPTHS = (0.0, 0.5, 1.0)


def batch(task, length=255, depth=0.5, count=8, seed=0):
    return data.retrieval_batch(task, length=length, count=count, seed=seed, depth=depth, haystack=HAYSTACK)


def rows(task, **more):
    """(whole sequence, answer) of every example."""
    made = batch(task, **more)
    for tokens, targets, weight in zip(made["tokens"], made["targets"], made["weight"], strict=True):
        yield bytes([tokens[0], *targets]), bytes(targets[weight > 0].tolist())


@pytest.mark.parametrize("task", TASKS)
def test_batches_have_the_form_of_text(task):
    made, again = batch(task), batch(task)
    assert {name: (x.shape, x.dtype.name) for name, x in made.items()} == {
        **dict.fromkeys(("tokens", "targets", "position", "segment"), ((8, 255), "int32")),
        "weight": ((8, 255), "float32"),
    }
    assert np.array_equal(made["tokens"][:, 1:], made["targets"][:, :-1])
    assert made["weight"].any(axis=1).all()
    assert all(np.array_equal(made[name], again[name]) for name in made)
    assert not np.array_equal(made["targets"], batch(task, seed=1)["targets"])
    assert len({bytes(targets) for targets in made["targets"].astype(np.uint8)}) == 8


@pytest.mark.parametrize("depth", DEPTHS)
def test_passkeys_and_needles_are_where_they_are_put_and_asked_for_at_the_end(depth):
    for task, found in (("passkey", b" The pass key is %b. Remember it. %b is"), ("needle", b" is %b. ")):
        for content, answer in rows(task, depth=depth):
            assert len(answer) == 5
            assert content.endswith(b" is " + answer)
            said = content[:-5]
            assert said.count(answer) == (2 if task == "passkey" else 1)
            at = said.index(found % ((answer,) * found.count(b"%b")))
            question = said.rindex(b"What is the")
            assert {0.0: at < 24, 0.5: 40 < at < 120, 1.0: question - said.rindex(answer) < 30}[depth]


@pytest.mark.parametrize("depth", DEPTHS)
def test_recall_asks_for_every_key_once_and_its_value_is_the_answer(depth):
    for content, answer in rows("recall", depth=depth, length=127):
        keys = [byte for byte in content if chr(byte).isalpha() and byte < 128]
        assert len(keys) == 16
        assert sorted(keys[:8]) == sorted(keys[8:])
        assert len(set(keys)) == 8
        pairs = {byte: content[i + 1] for i, byte in list(enumerate(content))[::-1] if byte in keys}
        assert [pairs[key] for key in keys[8:]] == list(answer)
        first = min(content.index(key) for key in keys)
        assert {0.0: first == 0, 0.5: 40 < first < 56, 1.0: first == 128 - 32}[depth]


@pytest.mark.parametrize("depth", DEPTHS)
def test_induction_has_one_earlier_place_to_look_at(depth):
    for content, answer in rows("induction", depth=depth):
        first = content.index(content[-2])
        assert content.count(content[-2]) == 2
        assert bytes([content[first + 1]]) == answer == content[-1:]
        assert first == int(depth * 252)


@pytest.mark.parametrize("depth", DEPTHS)
def test_copies_equal_what_stands_before_the_bar(depth):
    for content, answer in rows("copy", depth=depth):
        before, bar, after = content.partition(b"|")
        assert after == answer == before[-len(after) :]
        assert len(after) == {0.0: 127, 0.5: 63, 1.0: 1}[depth]


def test_depths_are_drawn_where_none_is_given():
    made = data.retrieval_batch(["induction", "copy"], length=64, count=64, seed=(3, 4))
    answers = made["weight"].sum(axis=1)
    assert (answers == 1).any()
    assert len(set(answers)) > 10


def test_what_cannot_be_made_is_refused():
    for changes, message in (
        ({"task": "pass_key"}, "'pass_key'"),
        ({"depth": 1.5}, "depth=1.5"),
        ({"length": 64}, "length=64"),
        ({"task": "recall", "length": 20}, "length=20"),
    ):
        with pytest.raises(ValueError, match=message):
            batch(**{"task": "passkey", **changes})
    with pytest.raises(ValueError, match="haystack"):
        data.retrieval_batch("needle", length=128, count=1, seed=0)
