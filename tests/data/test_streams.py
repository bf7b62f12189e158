"""Images that are read by index and decoded when a batch needs them."""

import io
import json
import os
import pathlib
import pickle
import tarfile
import zipfile

import numpy as np
import pytest
from PIL import Image

from posjax import data
from posjax.data import image_sets
from posjax.data.host_augment import HostFlip, InceptionCrop

RNG = np.random.default_rng(0)
PICTURES = [("cat", "1"), ("cat", "2"), ("cat", "3"), ("dog", "1"), ("dog", "2"), ("emu", "1"), ("emu", "2")]


def jpeg(height, width, **options):
    buffer = io.BytesIO()
    low = RNG.integers(0, 256, (height // 4 + 1, width // 4 + 1, 3), np.uint8)
    Image.fromarray(low).resize((width, height)).save(buffer, "jpeg", quality=90, **options)
    return buffer.getvalue()


def turned():
    exif = Image.Exif()
    exif[274] = 6  # to be turned by a quarter
    return jpeg(20, 34, exif=exif)


CONTENT = {name: turned() if i == 3 else jpeg(20 + i, 33 - 2 * i) for i, name in enumerate(PICTURES)}


def in_folders(root):
    for (label, key), content in CONTENT.items():
        path = root / "train" / label / f"{key}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def in_a_zip(root):
    with zipfile.ZipFile(root / "train.zip", "w") as archive:
        for i, ((label, key), content) in enumerate(CONTENT.items()):
            archive.writestr(f"{label}/{key}.jpg", content, [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED][i % 2])


def add(archive, name, content):
    member = tarfile.TarInfo(name)
    member.size = len(content)
    archive.addfile(member, io.BytesIO(content))


def in_tars(root):
    for shard in range(2):
        with tarfile.open(root / f"mine-train-{shard}.tar", "w") as archive:
            for (label, key), content in [*CONTENT.items()][shard::2]:
                add(archive, f"./{label}/{key}.jpg", content)


def in_numbered_tars(root, number=["cat", "dog", "emu"].index):
    with tarfile.open(root / "train.tar", "w") as archive:
        for (label, key), content in CONTENT.items():
            add(archive, f"{label}{key}.jpg", content)
            add(archive, f"{label}{key}.cls", f"{number(label)}\n".encode())
            add(archive, f"{label}{key}.json", b"{}")


@pytest.fixture
def folder(tmp_path):
    in_folders(tmp_path)
    return tmp_path


FLIP, CROP = HostFlip(), InceptionCrop(8, resample="bilinear")


@pytest.mark.parametrize("pack", [in_folders, in_a_zip, in_tars, in_numbered_tars])
def test_pictures_are_read_by_index_however_they_are_packed(pack, tmp_path):
    pack(tmp_path)
    images = pickle.loads(pickle.dumps(data.stream_images("folder", "train", tmp_path)))
    assert images.label.tolist() == [0, 0, 0, 1, 1, 2, 2]
    assert images.classes == (("0", "1", "2") if pack is in_numbered_tars else ("cat", "dog", "emu"))
    for i, content in enumerate(CONTENT.values()):
        np.testing.assert_array_equal(np.asarray(images[i]), data.read_image(content))
    part = data.subset(data.stream_images("folder", "train without 40%", tmp_path), 0.5)
    assert part.label.tolist() == [0, 1, 2]
    assert [*map(images.index.tolist().index, part.index)] == part.index.tolist()
    assert len({images.digest, part.digest}) == 2


def test_tars_are_listed_once(tmp_path, caplog):
    in_tars(tmp_path)
    first, again = (data.stream_images("folder", "train", tmp_path) for _ in range(2))
    assert [record.message.partition(" in ")[0] for record in caplog.records] == ["listing the pictures of 2 files"]
    assert first.digest == again.digest
    (kept,) = tmp_path.glob(".*.npy")
    kept.write_bytes(kept.read_bytes()[:150])
    assert data.stream_images("folder", "train", tmp_path).digest == first.digest
    assert "is damaged" in caplog.records[-1].message
    os.utime(tmp_path / "mine-train-0.tar", ns=(1, 1))  # a tar that was made anew
    assert data.stream_images("folder", "train", tmp_path).digest == first.digest
    assert len([*tmp_path.glob(".*.npy")]) == 2


def linked(archive):
    member = tarfile.TarInfo("cat/1.jpg")
    member.type, member.linkname = tarfile.SYMTYPE, "/etc/passwd"
    archive.addfile(member)


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (linked, "holds 'cat/1.jpg', which is a link or no regular file"),
        (lambda archive: add(archive, "a/b/1.jpg", b"?"), "holds 'a/b/1.jpg', not <class>/<picture>"),
        (lambda archive: add(archive, "notes.txt", b"?"), "holds no pictures <class>/<picture>"),
        (
            lambda archive: [add(archive, "1.jpg", b"?"), add(archive, "1.cls", b"-1")],
            "'1.jpg' needs the number of its class in a .cls beside it, got b'-1'",
        ),
    ],
)
def test_strange_tars_are_refused(write, message, tmp_path):
    with tarfile.open(tmp_path / "train.tar", "w") as archive:
        write(archive)
    with pytest.raises(ValueError, match=message):
        data.stream_images("folder", "train", tmp_path)


def test_archives_that_are_cut_off_or_packed_are_refused(tmp_path):
    in_numbered_tars(tmp_path)
    path = tmp_path / "train.tar"
    content = path.read_bytes()
    images = data.stream_images("folder", "train", tmp_path)
    path.write_bytes(content[:1500])
    with pytest.raises(ValueError, match=r"emu2\.jpg in .*train\.tar is damaged \(it ends early\)"):
        images[6]
    with pytest.raises(ValueError, match=r"train\.tar is not a whole tar"):
        data.stream_images("folder", "train", tmp_path)
    path.rename(tmp_path / "train.tar.gz")
    with pytest.raises(ValueError, match=r"train\.tar\.gz cannot be read by index: unpack it to a plain \.tar"):
        data.stream_images("folder", "train", tmp_path)


@pytest.mark.parametrize(("host", "repeats"), [((), 1), ((FLIP,), 1), ((CROP, FLIP), 3)])
def test_streams_and_memory_give_equal_bits(host, repeats, folder):
    """Also a step alone, a process's share, and the draws of each copy."""
    frame = data.Frame((8, 8), host=host)
    streamed, held = (load("folder", "train", folder) for load in (data.stream_images, data.load_native_images))
    options = dict(batch_size=6, seed=5, frame=frame, repeats=repeats)
    ds, other = (data.image_batches(images, **options) for images in (streamed, held))
    for step in (2, 0, 1):
        assert ds[step]["image"].shape == (6, 8, 8, 3)
        for name in ("image", "label"):
            np.testing.assert_array_equal(ds[step][name], other[step][name])
    parts = [data.image_batches(streamed, **options, process_index=i, process_count=2)[2] for i in range(2)]
    np.testing.assert_array_equal(np.concatenate([part["image"] for part in parts]), ds[2]["image"])
    scored = [list(data.image_epoch(images, batch_size=4, frame=frame)) for images in (streamed, held)]
    plain = data.as_images(held, 8)
    for i, (a, b) in enumerate(zip(*scored, strict=True)):
        np.testing.assert_array_equal(a["image"], b["image"])
        np.testing.assert_array_equal(a["image"][: len(plain) - 4 * i], plain.image[4 * i : 4 * i + 4])
    assert scored[0][-1]["weight"].tolist() == [1, 1, 1, 0]


def test_draws_are_of_the_seed_the_epoch_the_image_and_the_copy(folder):
    images = data.load_native_images("folder", "train", folder)
    frame = data.Frame((8, 8), host=(CROP, FLIP))
    ds = data.image_batches(images, batch_size=14, seed=5, frame=frame, repeats=2)  # a batch is an epoch
    order = data.image_batches(images, batch_size=7, seed=5, frame=data.Frame((8, 8)))
    for epoch in range(2):
        assert ds[epoch]["label"].tolist() == np.tile(order[epoch]["label"], 2).tolist()
        seen = {image.tobytes() for image in ds[epoch]["image"]}
        for index in range(7):
            for copy in range(2):
                rng = np.random.default_rng((5, epoch, index, copy))
                image = FLIP(CROP(images[index], rng), rng)
                assert image.tobytes() in seen


def test_prepared_sets_stream_and_keep_their_labels(tmp_path, caplog):
    held = data.load_native_images("digits", "test", tmp_path, channels=1)
    images, again = (data.stream_images("digits", "test", tmp_path, channels=None) for _ in range(2))
    images = pickle.loads(pickle.dumps(images))
    np.testing.assert_array_equal(images.label, held.label)
    np.testing.assert_array_equal(again.label, held.label)
    assert [record.message.partition(" in ")[0] for record in caplog.records] == ["reading the labels of 1 files"]
    for i in (0, 100):
        np.testing.assert_array_equal(np.asarray(images[i])[..., None], held[i])


def test_the_size_chooses_between_memory_and_stream(folder, monkeypatch, caplog):
    opened = data.open_images("folder", "train", folder)
    load = lambda **options: data.images_of_size(opened, (8, 8), **options)  # noqa: E731
    held = load()
    assert isinstance(held, data.Images)
    assert not caplog.records
    assert held.digest == data.as_images(data.load_native_images("folder", "train", folder), 8).digest
    monkeypatch.setattr(image_sets, "IN_MEMORY", 7 * 8 * 8 * 3 - 1)
    assert isinstance(load(stream=False), data.Images)
    assert isinstance(load(), data.StreamedImages)
    assert "streams from disk: 7 images, 0.0 GiB at 8x8" in caplog.records[0].message
    with pytest.raises(ValueError, match="has images of many sizes: give a frame"):
        data.image_batches(load(), batch_size=2, seed=0)


def test_parquet_becomes_tars(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    (tmp_path / "hub").mkdir()
    rows = [
        {"image": {"bytes": content, "path": None}, "label": 4 - i % 2} for i, content in enumerate(CONTENT.values())
    ]
    names = {"info": {"features": {"label": {"names": ["ant", "bee", "crab", "a  dog", "emu", "fox"]}}}}
    for shard in range(2):
        table = pyarrow.Table.from_pylist(rows[shard::2]).replace_schema_metadata({"huggingface": json.dumps(names)})
        parquet.write_table(table, tmp_path / f"hub/train-0000{shard}-of-00002.parquet", row_group_size=2)
    with pytest.raises(
        ValueError, match=r"cannot be read by index: .*prepare --name=folder --from=\S*hub --data_dir=DIR"
    ):
        data.stream_images("folder", "train", tmp_path / "hub")
    made = [data.prepare("folder", tmp_path / "tars", tmp_path / "hub") for _ in range(2)]
    assert [each.made_now for each in made] == [True, False]
    images = data.stream_images("folder", "train", tmp_path / "tars")
    assert images.label.tolist() == [3, 3, 3, 4, 4, 4, 4]
    assert images.classes == ("ant", "bee", "crab", "a dog", "emu", "fox")
    (tmp_path / "tars/classes.txt").write_text("ant\nbee\n")
    with pytest.raises(ValueError, match=r"classes\.txt names 2 classes, pictures are of 5"):
        data.stream_images("folder", "train", tmp_path / "tars")
    expected = [data.read_image(row["image"]["bytes"]) for row in (*rows[1::2], *rows[::2])]
    for i, image in enumerate(expected):
        np.testing.assert_array_equal(np.asarray(images[i]), image)
    strange = pyarrow.table({"image": ["a.jpg"], "label": [0]})
    parquet.write_table(strange, tmp_path / "hub/test-0.parquet")
    with pytest.raises(ValueError, match=r"name their classes differently"):
        data.prepare("folder", tmp_path / "tars", tmp_path / "hub")
    parquet.write_table(strange.replace_schema_metadata(table.schema.metadata), tmp_path / "hub/test-0.parquet")
    with pytest.raises(ValueError, match="needs columns image, with bytes, and label"):
        data.prepare("folder", tmp_path / "tars", tmp_path / "hub")


@pytest.mark.slow
def test_other_processes_make_the_same_batches(folder):
    images = data.stream_images("folder", "train", folder)
    ds = data.image_batches(images, batch_size=4, seed=0, frame=data.Frame((8, 8), host=(CROP, FLIP)))
    batches = [{name: array.copy() for name, array in batch.items()} for batch in data.epoch(ds, 3, 8, workers=2)]
    assert len(batches) == 5
    for step, batch in enumerate(batches, 3):
        np.testing.assert_array_equal(batch["image"], ds[step]["image"])
    pathlib.Path(folder, "train/cat/1.jpg").write_bytes(b"?")
    with pytest.raises(ValueError, match=r"cat/1\.jpg is damaged"):
        list(data.epoch(ds, 0, 4, workers=2))
