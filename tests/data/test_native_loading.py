"""Sets of pictures of different sizes: folders, zips, and what tensorflow-datasets prepares."""

import csv
import gzip
import os
import pathlib
import shutil
import zipfile

import numpy as np
import pytest
from PIL import Image

from posjax import data
from posjax.data import sets
from posjax.data.folders import pictures_in
from posjax.data.tensorflow_free import without_tensorflow

RAW_DATA = os.environ.get("POSJAX_RAW_DATA", pathlib.Path(__file__).parents[2].resolve().parent / "shared/data")
CALTECH = pathlib.Path(RAW_DATA, "caltech101_128")
RNG = np.random.default_rng(0)
PICTURES = {  # <split>/<class>/<picture>
    f"{split}/{label}/{name}": RNG.integers(0, 256, (h, w, 3), np.uint8)
    for split, label, name, h, w in [
        ("train", "cat", "1.png", 6, 9),
        ("train", "cat", "2.PNG", 20, 5),
        ("train", "Dog", "1.webp", 7, 7),
        ("train", "emu", "1.png", 4, 30),
        ("test", "emu", "9.png", 8, 9),
        ("test", "cat", "3.png", 8, 3),
    ]
}


@pytest.fixture
def folder(tmp_path):
    for name, pixels in PICTURES.items():
        path = tmp_path / "set" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(path, **({"lossless": True} if path.suffix == ".webp" else {}))
    (tmp_path / "set/train/cat/.hidden.png").write_bytes(b"")
    (tmp_path / "set/train/notes.txt").write_text("not a class")
    (tmp_path / "set/train/cat/list.csv").write_text("not a picture")
    return tmp_path / "set"


def packed(folder, split="train", **more):
    """The folder of a split as a zip, with other members besides; the folder itself is taken away."""
    target = folder / f"{split}.zip"
    with zipfile.ZipFile(target, "w") as archive:
        for path in sorted((folder / split).rglob("*")):
            archive.write(path, path.relative_to(folder / split).as_posix())
        for name, content in more.items():
            archive.writestr(name, content)
    shutil.rmtree(folder / split)
    return target


def load(folder, split="train", **options):
    return data.load_native_images("folder", split, folder, **options)


def test_a_folder_of_classes(folder):
    train, test = load(folder), load(folder, "test")
    assert train.classes == test.classes == ("Dog", "cat", "emu")
    assert (train.num_classes, train.channels, train.name) == (3, 3, "set")
    assert train.label.tolist() == [0, 1, 1, 2]
    assert test.label.tolist() == [1, 2]
    names = ["train/Dog/1.webp", "train/cat/1.png", "train/cat/2.PNG", "train/emu/1.png"]
    for i, name in enumerate(names):
        np.testing.assert_array_equal(train[i], PICTURES[name])
    assert train.size.tolist() == [list(PICTURES[name].shape[:2]) for name in names]


def test_a_zip_is_the_folder_that_was_packed(folder):
    before = load(folder)
    packed(folder, **{"__MACOSX/cat/1.png": b"", "index.csv": b""})
    after = load(folder)
    assert (before.digest, before.classes) == (after.digest, after.classes)
    assert load(folder, "test").classes == before.classes


def test_pictures_that_no_class_holds_are_not_passed_over(folder):
    name = "train/cat/more/1.png"
    (folder / name).parent.mkdir(exist_ok=True)
    shutil.copy(folder / "train/cat/1.png", folder / name)
    with pytest.raises(ValueError, match=f"train holds {name.removeprefix('train/')}, not <class>/<picture>"):
        load(folder)


def test_large_pictures_are_shrunk_to_a_short_side(folder):
    images = load(folder, short_side=5, channels=1)
    assert images.size.tolist() == [[5, 5], [5, 8], [20, 5], [4, 30]]
    assert images[0].shape == (5, 5, 1)
    assert images.digest != load(folder, channels=1).digest


def test_one_size_for_all(folder):
    native = load(folder)
    images = data.as_images(native, (6, 8), "stretch", resample="bilinear")
    assert images.image.shape == (4, 6, 8, 3)
    assert images.num_classes == 3
    np.testing.assert_array_equal(images.image[2], data.preprocess(native[2], (6, 8), "stretch", resample="bilinear"))
    assert images.digest != data.as_images(native, 8).digest


def test_damaged_zips_are_refused(folder):
    target = packed(folder)
    content = bytearray(target.read_bytes())
    at = content.index(PNG_HEADER := b"\x89PNG") + len(PNG_HEADER) + 40
    content[at] ^= 255
    target.write_bytes(content)
    with pytest.raises(ValueError, match=r"train\.zip is damaged \(.*CRC"):
        load(folder)
    target.write_bytes(content[:200])
    with pytest.raises(ValueError, match=r"train\.zip is not a whole zip"):
        load(folder)


def test_what_is_not_there_is_named(folder, tmp_path):
    with pytest.raises(ValueError, match=r"has no split 'valid', only test, train; --config\.data\.eval_split= takes"):
        load(folder, "valid")
    with pytest.raises(FileNotFoundError, match=r"holds no folders of pictures: --config\.data\.data_dir= names one"):
        load(tmp_path / "elsewhere")
    (tmp_path / "empty/train/cat").mkdir(parents=True)
    with pytest.raises(ValueError, match="holds no pictures <class>/<picture> that end in"):
        load(tmp_path / "empty")
    for label in ("cat", "dog"):
        (tmp_path / "few" / label).mkdir(parents=True)
        shutil.copy(folder / "test/emu/9.png", tmp_path / "few" / label)
    assert len(load(tmp_path / "few", "train").label) == 2
    with pytest.raises(ValueError, match="one picture of each class, to train on: 'test' needs a second one"):
        load(tmp_path / "few", "test")
    (folder / "test/gnu").mkdir()
    shutil.copy(folder / "test/emu/9.png", folder / "test/gnu/1.png")
    with pytest.raises(ValueError, match=r"gnu/1\.png is of none of the 3 classes of 'train'"):
        load(folder, "test")
    with pytest.raises(ValueError, match=r"a folder is read as it is"):
        data.load_images("folder", "train", folder)
    with pytest.raises(ValueError, match="short_side=0"):
        load(folder, short_side=0)


def test_class_folders_without_splits_are_split_by_a_hash_of_their_names(tmp_path):
    for label, count in (("cat", 25), ("dog", 10), ("emu", 3), ("gnu", 1)):
        (tmp_path / label).mkdir()
        for i in range(count):
            Image.new("L", (2, 2), i).save(tmp_path / label / f"{i}.png")
    train, held, same = (load(tmp_path, split) for split in ("train", "test", "validation"))
    assert train.classes == held.classes == ("cat", "dog", "emu", "gnu")
    assert np.bincount(train.label).tolist() == [20, 8, 2, 1]
    assert np.bincount(held.label, minlength=4).tolist() == [5, 2, 1, 0]
    seen = [{(int(i), int(each[n][0, 0, 0])) for n, i in enumerate(each.label)} for each in (train, held)]
    assert not seen[0] & seen[1]
    assert len(seen[0] | seen[1]) == 39
    assert sorted(level for label, level in seen[1] if label == 0) != list(range(20, 25))  # not the last names
    assert held.digest == same.digest
    # A set of splits under other names is not taken for classes.
    (tmp_path / "sets").mkdir()
    for split in ("training", "testing"):
        shutil.copytree(tmp_path / "cat", tmp_path / "sets" / split / "cat")
    with pytest.raises(ValueError, match=r"no split 'train', only testing, training; did you mean 'training'\?"):
        load(tmp_path / "sets")


def test_prepared_sets_load_too_and_are_cached_by_themselves(tmp_path):
    plain = data.load_images("digits", "test", tmp_path)
    native = data.load_native_images("digits", "test", tmp_path, channels=1)
    assert native.classes == tuple("0123456789")
    np.testing.assert_array_equal(native.pixels.reshape(-1, 8, 8, 1), plain.image)
    np.testing.assert_array_equal(native.label, plain.label)
    small = data.load_native_images("digits", "test", tmp_path, channels=1, short_side=4)
    assert (small.size == 4).all()
    again = data.load_native_images("digits", "test", tmp_path, channels=1)
    assert isinstance(again.pixels, np.memmap)
    assert again.digest == native.digest
    assert isinstance(data.load_images("digits", "test", tmp_path).image, np.memmap)


@pytest.fixture
def caltech(tmp_path):
    """TFDS's caltech101, prepared from folders like those in the published archive, with two of its classes."""
    root = tmp_path / "raw"
    for label, sizes in {"accordion": (20, 30), "airplanes": (24, 40)}.items():
        (root / "101_ObjectCategories" / label).mkdir(parents=True)
        for i in range(32):
            picture = Image.new("RGB", (sizes[1] + i, sizes[0]), (7 * i, 99, 5))
            picture.save(root / "101_ObjectCategories" / label / f"image_{i:04}.jpg")

    class Manager:
        downloaded_size = 0

        def download_and_extract(self, url):
            return tmp_path

        def extract(self, path):
            return root

    builder = sets.find_builder("caltech101", tmp_path)
    builder._make_download_manager = lambda **_: Manager()
    with without_tensorflow():
        builder.download_and_prepare(file_format="array_record")
    return tmp_path


def test_caltech101_is_prepared_without_tensorflow(caltech):
    train, test = (data.load_native_images("caltech101", split, caltech) for split in ("train", "test"))
    assert (len(train), len(test), train.num_classes) == (60, 4, 102)
    assert {train.classes[i] for i in train.label} == {"accordion", "airplanes"}
    assert set(train.size[:, 0].tolist()) == {20, 24}
    assert len(np.unique(train.size[:, 1])) > 10
    with pytest.raises(ValueError, match=r"mixes images: load_native_images\('caltech101', \.\.\.\)"):
        data.load_images("caltech101", "train", caltech)


@pytest.mark.slow
@pytest.mark.skipif(not CALTECH.is_dir(), reason=f"{CALTECH} is not there: POSJAX_RAW_DATA may name another folder")
def test_the_photographs_are_those_of_their_index():
    images = load(CALTECH, "test")
    with gzip.open(CALTECH / "index.csv.gz", "rt") as file:
        rows = sorted((row for row in csv.DictReader(file) if row["split"] == "test"), key=lambda row: row["file"])
    assert len(images) == len(rows) == 1219
    assert images.num_classes == 99
    assert images.size.tolist() == [[int(row["height"]), int(row["width"])] for row in rows]
    assert [images.classes[i] for i in images.label] == [row["class"] for row in rows]
    source = data.NativePatches(images, 16, 64)
    batches = list(data.native_epoch(source, batch_size=128, prefix=1, tokens=260))
    assert sum(batch["weight"].sum() for batch in batches) == 1219
    assert np.mean([(batch["segment"] > 0).mean() for batch in batches[:-1]]) > 0.95


def test_pictures_of_any_folders(folder, tmp_path):
    """As `experiments.evaluate --images` takes them: without classes."""
    found = pictures_in(folder)
    assert found == sorted(found)
    assert found
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="there is no folder"):
        pictures_in(tmp_path / "none")
    with pytest.raises(ValueError, match="holds no pictures"):
        pictures_in(tmp_path / "empty")
