"""Windows over a stream of documents: positions, segments, weights, and every token once."""

import numpy as np
import pytest

from posjax import data
from posjax.data.windows import Ladder

STARTS = np.array([0, 7, 8, 30, 31, 90])
TOKENS = np.arange(101, dtype=np.uint8)  # a token says where in the stream it stands
TEXT = data.Text("toy", TOKENS, STARTS, "digest")


def document_of(token):
    return np.searchsorted(STARTS, token, side="right") - 1


def flat(batches, field):
    return np.concatenate([batch[field] for batch in batches])


def assert_consistent(batch, positions):
    """Checks a batch against the definition, token by token, in plain Python."""
    for tokens, targets, position, segment, weight in zip(
        *(batch[k] for k in ("tokens", "targets", "position", "segment", "weight")), strict=True
    ):
        document = 0
        for t in range(len(tokens)):
            if segment[t] == 0:
                assert not segment[t:].any()
                assert not weight[t:].any()
                break
            opens = tokens[t] in STARTS
            document += int(t == 0 or opens)
            assert segment[t] == document
            assert targets[t] == (tokens[t] + 1) % len(TOKENS)
            assert weight[t] == float(targets[t] not in STARTS)
            assert position[t] == (tokens[t] - STARTS[document_of(tokens[t])] if positions == "document" else t)


@pytest.mark.parametrize("positions", ["document", "window"])
@pytest.mark.parametrize("length", [1, 10, 64])
def test_batches_follow_the_definition(positions, length):
    ds = data.text_batches(TEXT, length=length, batch_size=3, seed=1, positions=positions)
    for step in range(6):
        assert_consistent(ds[step], positions)
    for batch in data.text_epoch(TEXT, length=length, batch_size=3, positions=positions):
        assert_consistent(batch, positions)


def test_rows_of_a_stream_are_one_document_each_and_full():
    """Each token is a target once in an epoch; what stands beyond the last one has weight 0."""
    batches = list(data.text_epoch(TEXT, length=16, batch_size=3, positions="stream"))
    rows = {name: flat(batches, name)[:7] for name in batches[0]}  # 7 windows of 16 hold 101 tokens
    np.testing.assert_array_equal(rows["segment"], np.ones((7, 16)))
    np.testing.assert_array_equal(rows["position"], np.tile(np.arange(16), (7, 1)))
    np.testing.assert_array_equal(rows["tokens"].reshape(-1)[:101], TOKENS)
    np.testing.assert_array_equal(rows["targets"].reshape(-1)[:100], TOKENS[1:])
    np.testing.assert_array_equal(rows["weight"].reshape(-1), np.arange(112) < 100)


def test_a_ladder_shows_what_the_papers_mask_shows():
    """M_ij of SkyLadder, section 4.1: floor(i / w) w <= j <= i, here within a document; all else is as without it."""
    length, ladder = 16, Ladder(start=3, steps=9)
    given = dict(length=length, batch_size=3, seed=1)
    plain, cut = data.text_batches(TEXT, **given), data.text_batches(TEXT, **given, ladder=ladder)
    contexts = [min(length, 3 + 13 * step // 9) for step in range(11)]
    assert contexts[:3] + contexts[-2:] == [3, 4, 5, 16, 16]
    i, j = np.mgrid[:length, :length]
    for step, context in enumerate(contexts):
        theirs, ours = plain[step], cut[step]
        documents, blocks = (batch["segment"] for batch in (theirs, ours))
        same = documents[:, :, None] == documents[:, None]
        shown = same & (j >= i // context * context) & (j <= i) & (documents[:, :, None] > 0)
        seen = (blocks[:, :, None] == blocks[:, None]) & (j <= i) & (blocks[:, :, None] > 0)
        np.testing.assert_array_equal(seen, shown)
        for name in theirs.keys() - {"segment"}:
            np.testing.assert_array_equal(ours[name], theirs[name])


@pytest.mark.parametrize(
    ("schedule", "contexts"),
    [("linear", [32, 280, 528, 1024]), ("sinusoidal", [32, 411, 733, 1024]), ("exponential", [32, 76, 181, 1024])],
)
def test_schedules_of_a_ladder(schedule, contexts):
    """Values of lit_gpt/packed_dataset.py of sail-sg/SkyLadder: lin, sin and exp, at 0, 1/4, half and all of the way."""
    ladder = Ladder(start=32, steps=40, schedule=schedule)
    assert [ladder.context(step, 1024) for step in (0, 10, 20, 40)] == contexts


def test_shapes_and_dtypes():
    for batch in (
        data.text_batches(TEXT, length=8, batch_size=4, seed=0)[0],
        next(data.text_epoch(TEXT, length=8, batch_size=4)),
    ):
        assert {k: (v.shape, v.dtype.name) for k, v in batch.items()} == {
            **dict.fromkeys(("tokens", "targets", "position", "segment"), ((4, 8), "int32")),
            "weight": ((4, 8), "float32"),
        }


@pytest.mark.parametrize("length", [1, 7, 64])
def test_every_token_is_an_input_once_per_epoch_from_another_phase_each_time(length):
    windows = -(-len(TOKENS) // length)
    ds = data.text_batches(TEXT, length=length, batch_size=1, seed=0)
    cuts = set()
    for epoch in range(3):
        batches = [ds[step] for step in range(epoch * windows, (epoch + 1) * windows)]
        tokens = flat(batches, "tokens")[flat(batches, "segment") > 0]
        np.testing.assert_array_equal(np.sort(tokens), TOKENS)
        cuts.add(tuple(sorted(batch["tokens"][0, 0].item() for batch in batches)))
    assert len(cuts) > 1 or length == 1


def test_a_single_document_that_goes_round_the_circle_opens_a_segment_there():
    whole = data.Text("one", TOKENS, np.array([0]), "digest")
    ds = data.text_batches(whole, length=40, batch_size=3, seed=0)
    wraps = 0
    for step in range(8):
        batch = ds[step]
        seam = (batch["tokens"] == 100) & (batch["segment"] > 0)
        assert not batch["weight"][seam].any()
        rows = (batch["segment"] == 2).any(1)
        wraps += rows.sum()
        assert (batch["position"] == batch["tokens"]).all()
        assert (batch["segment"] <= 2).all()
    assert wraps


def test_resuming_by_step_is_bit_identical():
    ds = data.text_batches(TEXT, length=16, batch_size=2, seed=3)
    straight = list(data.epoch(ds, 0, 12))
    resumed = list(data.epoch(data.text_batches(TEXT, length=16, batch_size=2, seed=3), 5, 12))
    assert len(resumed) == 7
    for a, b in zip(straight[5:], resumed, strict=True):
        assert all((a[k] == b[k]).all() for k in a)


def test_two_processes_share_the_batch_of_one():
    alone = data.text_batches(TEXT, length=16, batch_size=4, seed=3)
    pair = [
        data.text_batches(TEXT, length=16, batch_size=4, seed=3, process_index=p, process_count=2) for p in range(2)
    ]
    for step in range(3):
        for field, value in alone[step].items():
            np.testing.assert_array_equal(value, np.concatenate([ds[step][field] for ds in pair]))


def test_every_evaluated_length_scores_the_same_targets():
    expected = [t for t in range(1, 97) if t not in STARTS]
    for length in (4, 8, 16, 32):
        batches = data.text_epoch(TEXT, length=length, batch_size=3, align=32)
        targets = np.concatenate([batch["targets"][batch["weight"] > 0] for batch in batches])
        np.testing.assert_array_equal(targets, expected)


def test_without_align_every_target_is_scored_once_in_order():
    batches = list(data.text_epoch(TEXT, length=16, batch_size=3))
    targets = np.concatenate([batch["targets"][batch["segment"] > 0] for batch in batches])
    np.testing.assert_array_equal(targets, np.arange(1, 101))
    assert {len(batch["tokens"]) for batch in batches} == {3}


def test_errors_name_the_value():
    for make, changes, message in (
        (data.text_batches, {"length": 101, "seed": 0}, "length=101"),
        (data.text_batches, {"positions": "relative", "seed": 0}, "positions='relative'"),
        (data.text_epoch, {"align": 20}, "align=20"),
        (data.text_epoch, {"batch_size": 0}, "batch_size=0"),
    ):
        with pytest.raises(ValueError, match=message):
            make(TEXT, **{"length": 16, "batch_size": 1, **changes})
