"""A share of a set: of every class, the same whoever asks, smaller ones within larger ones."""

import re
from unittest import mock

import numpy as np
import pytest
from PIL import Image

from posjax import data
from posjax.data import loading
from posjax.data.subsets import SPLITS


def images(count=100, classes=4):
    label = np.random.default_rng(0).integers(0, classes, count).astype(np.int32)
    return data.Images("toy", np.arange(count, dtype=np.uint8)[:, None, None, None], label, classes, "digest")


def numbers(some):
    return set(some.image[:, 0, 0, 0].tolist())


def test_shares_are_nested_and_of_every_class():
    whole, before = images(), set()
    counts = np.bincount(whole.label)
    for fraction in (0.01, 0.1, 0.3, 1.0):
        some = data.subset(whole, fraction)
        assert np.bincount(some.label).tolist() == [max(1, round(fraction * n)) for n in counts]
        assert numbers(some) >= before
        assert [whole.label[i] for i in some.image[:, 0, 0, 0]] == some.label.tolist()
        before = numbers(some)
    assert data.subset(whole, 1.0) is whole


def test_a_share_has_a_digest_of_its_own():
    digests = {data.subset(images(), fraction).digest for fraction in (0.1, 0.2, 1.0)}
    assert len(digests) == 3
    assert data.subset(images(), 0.1).digest in digests


def test_images_of_different_sizes_stay_whole():
    size = np.array([[2, 3], [1, 4], [5, 1], [2, 2]], np.int32)
    pixels = np.arange(int(size.prod(axis=1).sum()), dtype=np.uint8)
    label = np.array([0, 0, 1, 1], np.int32)
    whole = data.NativeImages("toy", pixels, size, label, ("a", "b"), 1, "digest")
    some = data.subset(whole, 0.5)
    assert len(some) == 2
    for i in range(2):
        (where,) = [j for j in range(4) if np.array_equal(whole[j], some[i])]
        assert whole.label[where] == some.label[i]


def test_a_share_lies_between_nothing_and_all():
    with pytest.raises(ValueError, match=r"fraction=1\.5"):
        data.subset(images(), 1.5)
    with pytest.raises(ValueError, match=r"a share of 1\.0 of 'train'"):
        data.held_out_names("train", 1.0)


@pytest.fixture(scope="module")
def sets():
    """Sets under names of their own, read by the loaders."""
    whole = images()
    data.register("held_images", classes=4, splits=("train",))(lambda split, data_dir: (whole.image, whole.label))
    data.register("held_text", splits=("train",))(lambda split, data_dir: ["abcdef", "gh", "ijklmnopqrst"])


def test_what_is_held_out_and_what_is_left_share_nothing(sets):
    left, held = data.held_out_names("train", 0.2)
    assert (left, held) == ("train without 20%", "20% of train")
    whole, *parts = (data.load_images("held_images", split) for split in ("train", left, held))
    assert numbers(parts[0]) | numbers(parts[1]) == numbers(whole)
    assert not numbers(parts[0]) & numbers(parts[1])
    assert np.bincount(parts[1].label).tolist() == [round(0.2 * n) for n in np.bincount(whole.label)]
    assert len({whole.digest, *(part.digest for part in parts)}) == 3
    native = data.load_native_images("held_images", held, channels=None)
    assert native.label.tolist() == parts[1].label.tolist()


def test_of_text_the_end_is_held_out(sets):
    left, held = (data.load_text("held_text", split) for split in data.held_out_names("train", 0.25))
    assert (bytes(left.tokens), left.starts.tolist()) == (b"abcdefghijklmno", [0, 6, 8])
    assert (bytes(held.tokens), held.starts.tolist()) == (b"pqrst", [0])
    left, held = (data.load_stream("held_text", split) for split in data.held_out_names("train", 0.7))
    assert (bytes(left.tokens), left.starts.tolist()) == (b"abcdef", [0])
    assert (bytes(held.tokens), held.starts.tolist()) == (b"ghijklmnopqrst", [0, 2])
    assert data.load_stream("held_text", "65% of train").starts.tolist() == [0, 1]


def of_folder(root, splits):
    for split in splits:
        (root / split / "cat").mkdir(parents=True)
        Image.new("L", (2, 2), SPLITS.index(split.lower())).save(root / split / "cat" / "1.png")
    return lambda split: data.load_native_images("folder", split, root).digest


def of_files(root, splits):
    for split in splits:
        (root / f"{split}.txt").write_text(f"of {split}")
    (root / "README.md").write_text("what it is")
    return lambda split: data.load_documents("mine", split, files=str(root)).titles


def of_source(root, splits):
    data.register("mine", splits=splits)(lambda split, data_dir: [split])
    return lambda split: data.load_text("mine", split).digest


def of_tfds(root, splits, monkeypatch):
    builder = mock.MagicMock(info=mock.MagicMock(splits=dict.fromkeys(splits), features={"text": 0}))
    builder.info.file_format.value = "array_record"
    monkeypatch.setattr(loading, "find_builder", lambda *_: builder)
    monkeypatch.setattr(loading, "is_prepared", lambda _: True)
    return lambda split: loading.ready("mine", split, None, kind="text", features=("text",))[1]


@pytest.mark.parametrize("make", [of_folder, of_files, of_source, of_tfds])
@pytest.mark.parametrize("name", ["validation", "dev"])
def test_every_reader_knows_the_names_of_validation_and_the_flag_of_others(make, name, tmp_path, monkeypatch):
    monkeypatch.setattr("posjax.data.sets.SOURCES", {})
    given = (monkeypatch,) if make is of_tfds else ()
    load = make(tmp_path, ("train", name), *given)
    assert len({load(each) for each in ("validation", "valid", "val", "dev")}) == 1
    assert load("train") != load(name)
    with pytest.raises(ValueError, match=r"has no split 'test', only .*--config\.data\.eval_split="):
        load("test")


def test_a_set_for_training_alone_says_how_to_hold_out(tmp_path):
    load = of_folder(tmp_path, ("train",))
    with pytest.raises(ValueError, match=r"only train; .* --config\.data\.eval_split='10% of train' hold"):
        load("test")


@pytest.mark.parametrize("names", [("test.rst", "a.txt"), ("Test/a.txt", "b.txt"), ("test-driven.txt", "a.txt")])
def test_texts_are_no_splits_for_what_they_are_about(names, tmp_path):
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("0123456789" * 10)
    documents = [data.load_documents("mine", split, files=str(tmp_path)) for split in ("train", "validation")]
    assert [[len(text) for text in each.texts] for each in documents] == [[90, 90], [10, 10]]


NAMES = ("{}.txt", "ptb.{}.txt", "{}_01.md", "X-{}.txt", "{}/a.txt", "set-{}/a.txt", "wiki.{}.raw.txt", "c4-{}.jsonl")


@pytest.mark.parametrize(("name", "spelt"), [*((name, str.lower) for name in NAMES), (NAMES[1], str.title)])
def test_a_part_of_a_name_says_the_split_in_a_folder_and_in_a_pattern(name, spelt, tmp_path, caplog):
    splits = ("train", "valid", "test")
    for split in splits:
        path = tmp_path / name.format(spelt(split))
        path.parent.mkdir(exist_ok=True)
        path.write_text(f'{{"text": "{split}"}}\n')
    (tmp_path / "README.md").write_text("what it is")
    for files in (tmp_path, tmp_path / "**" / f"*{path.suffix}"):
        read = [data.load_documents("mine", split, files=str(files)).texts for split in splits]
        assert [len(texts) for texts in read] == [1, 1, 1]
        assert all(split.encode() in bytes(texts[0]) for split, texts in zip(splits, read, strict=True))
    assert re.fullmatch(rf"split 'test' is 1 of \d files: {re.escape(str(path))}", caplog.messages[-1])


def test_files_of_an_evaluation_alone_are_splits(tmp_path):
    for split in ("valid", "test"):
        (tmp_path / f"wiki.{split}.txt").write_text(split)
    assert [data.load_documents("mine", each, files=str(tmp_path)).titles for each in ("test", "dev")] == [
        ("wiki.test.txt",),
        ("wiki.valid.txt",),
    ]


def test_a_line_says_that_files_are_cut(tmp_path, caplog):
    for name in "abcdef":
        (tmp_path / f"{name}.txt").write_text("0123456789")
    for split, share in (("train", "all but the last tenth"), ("test", "the last tenth")):
        data.load_documents("mine", split, files=str(tmp_path))
        assert caplog.messages[-1].startswith(f"split {split!r} is {share} of each of 6 files: {tmp_path}/a.txt, ")
        assert caplog.messages[-1].endswith("d.txt, ...")


@pytest.mark.parametrize("name", ["._a.txt", ".ipynb_checkpoints/a.txt", "__MACOSX/a.txt", ".hidden/below/a.jsonl"])
def test_hidden_copies_are_no_documents(name, tmp_path):
    for each in ("a.txt", name):
        (tmp_path / each).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / each).write_text("0123456789")
    for files in (tmp_path, tmp_path / "**" / "*.txt"):
        assert data.load_documents("mine", "train", files=str(files)).titles == ("a.txt",)


@pytest.mark.parametrize("split", ["Train", "val"])
def test_a_class_may_have_the_name_of_a_split(split, tmp_path):
    for label in ("bus", "car", split):
        (tmp_path / label).mkdir()
        for i in range(5):
            Image.new("L", (2, 2), i).save(tmp_path / label / f"{i}.png")
    read = [data.load_native_images("folder", each, tmp_path) for each in ("train", "test")]
    assert [len(each) for each in read] == [12, 3]
    assert read[0].classes == tuple(sorted(("bus", "car", split)))
