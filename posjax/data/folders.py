"""The user's own pictures: a folder per class, in a folder, zip or tars per split or without splits."""

import hashlib
import os
import pathlib
import re

import numpy as np

from posjax.data.archives import ENDINGS, Pictures, counts, is_hidden, listed
from posjax.data.subsets import SPLITS, split_among

CLASSES = "classes.txt"  # names of numbered classes beside tars, a line each
_HELD_OUT = 5  # a fifth of each class is held out where there are no splits


def pictures(data_dir: pathlib.Path, split: str) -> Pictures:
    """Lists the pictures of a split.

    `data_dir` holds a folder, a zip or tars of <class>/<picture>, named after the split (the folder counts where several are
    there). Tars are <split>.tar, or many with the split as a word of their names, as "imagenet-train-0001.tar", also in the
    folder of the split; instead of classes they may have WebDataset's <key>.jpg and <key>.cls, the number of the class;
    classes.txt in `data_dir` may have the names, a line each. Where `data_dir` holds <class>/<picture> itself, "train" is
    four fifths of each class and any other split the other fifth, by a hash of the pictures' names. Hidden files and files
    that are no pictures by name are passed over.

    Classes are numbered in the order of their names in the split "train" if there is one, so that splits number them alike.

    Raises:
      FileNotFoundError: the folder is missing or empty.
      ValueError: the split is unknown, it has no pictures, has pictures outside <class>/ or of a class that "train" lacks, or
        an archive cannot be read by index.
    """
    there = _splits(data_dir) if data_dir.is_dir() else {}
    paths, share = _paths(data_dir, split, there)
    table = every = listed(paths)
    if share is not None:
        held = _held_out(table)
        if not held.any() and share != "train":
            raise ValueError(f"{data_dir} has one picture of each class, to train on: {share!r} needs a second one")
        table = table[held != (share == "train")]
    elif there.get("train", paths) != paths:
        every = listed(there["train"])
    if every["numbered"][0]:
        label = table["label"].astype(np.int32)
        classes = _names(data_dir / CLASSES, every["label"].astype(np.int64).max() + 1)
        strange = np.flatnonzero(label >= len(classes))
    else:
        known = np.unique(every["label"])
        classes = tuple(map(os.fsdecode, known.tolist()))
        label = np.searchsorted(known, table["label"]).astype(np.int32)
        strange = np.flatnonzero(~np.isin(table["label"], known))
    made = Pictures(paths, table, classes, label)
    if strange.size:
        raise ValueError(f"{made.name(strange[0])} is of none of the {len(classes)} classes of 'train'")
    return made


def _names(path: pathlib.Path, count: int) -> tuple[str, ...]:
    """Returns the names of `count` or more classes, one a line; without the file the numbers are the names."""
    if not path.exists():
        return tuple(map(str, range(count)))
    names = tuple(path.read_text().splitlines())
    if len(names) < count:
        raise ValueError(f"{path} names {len(names)} classes, pictures are of {count}: add the others, or take it away")
    return names


def _splits(data_dir: pathlib.Path) -> dict[str, list[pathlib.Path]]:
    """Returns the folder, the zip or the tars of each split that a folder may hold, by the split's name."""
    shown = sorted(path for path in data_dir.iterdir() if not is_hidden([path.name]))
    zips = {path.stem: [path] for path in shown if path.suffix == ".zip"}
    tars: dict[str, list[pathlib.Path]] = {}
    for path in shown:
        if path.suffix == ".tar":
            words = re.split(r"[^a-z]+", path.stem.lower())
            number = re.compile(r"[-_.]*\d+(-of-\d+)?$")
            split = next((split for split in SPLITS if split in words), number.sub("", path.stem))
            tars.setdefault(split, []).append(path)
    found = zips | tars | {path.name: sorted(path.glob("*.tar")) or [path] for path in shown if path.is_dir()}
    for path in shown if not found else ():
        if {".tar", ".tgz", ".parquet"} & {*path.suffixes}:
            prepare = f"python -m experiments.prepare --name=folder --from={data_dir} --data_dir=DIR"
            way = f"{prepare} makes tars" if path.suffix == ".parquet" else "unpack it to a plain .tar"
            raise ValueError(f"{path} cannot be read by index: {way}")
    return found


def _paths(
    data_dir: pathlib.Path, split: str, there: dict[str, list[pathlib.Path]]
) -> tuple[list[pathlib.Path], str | None]:
    """Returns the folder or archives of a split, and the split's name if all splits share the folder (else None)."""
    if not there:
        ways = f"<class>/<picture>, <split>/<class>/<picture> or <split>.tar in it, as {split}.zip"
        raise FileNotFoundError(
            f"{data_dir} holds no folders of pictures: --config.data.data_dir= names one with {ways}"
        )
    named = {name for name in there if name.lower() in (split, *SPLITS)}
    holding = {name for name, paths in there.items() if _has_pictures(paths[0])}
    if len(named) < 2 and named < holding:  # no split is named, or one class is called "train"
        return [data_dir], split
    return there[split_among(split, there, str(data_dir))], None


def _has_pictures(path: pathlib.Path) -> bool:
    return path.is_dir() and any(each.is_file() and counts(each.name) for each in path.iterdir())


def _held_out(table: np.ndarray) -> np.ndarray:
    """Returns [N] bool: the fifth of each class with the smallest hashes, at least one picture and never the only one."""
    rows = table[["label", "name"]].tolist()
    hashes = [hashlib.sha256(b"/".join(row)).digest() for row in rows]
    held, classes = np.zeros(len(rows), bool), {}
    for i in sorted(range(len(rows)), key=hashes.__getitem__):
        classes.setdefault(rows[i][0], []).append(i)
    for own in classes.values():
        held[own[: max(len(own) // _HELD_OUT, int(len(own) > 1))]] = True
    return held


def pictures_in(folder: pathlib.Path) -> list[pathlib.Path]:
    """Returns the pictures in a folder and the folders below it, sorted; skips the same files as `pictures`.

    Raises:
      ValueError: the folder is missing or holds no pictures.
    """
    if not folder.is_dir():
        raise ValueError(f"there is no folder {folder}")
    found = sorted(path for path in folder.rglob("*") if path.is_file() and counts(path.relative_to(folder).as_posix()))
    if not found:
        raise ValueError(f"{folder} holds no pictures that end in {', '.join(ENDINGS)}")
    return found
