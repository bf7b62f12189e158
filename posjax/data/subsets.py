"""Parts of a set: a share of its images, and a held-out share of a split.

"10% of train" is held out of "train", and "train without 10%" is the rest: two splits that share nothing, one to train on and
one to choose by. Every loader of a split takes these names.
"""

import dataclasses
import difflib
import functools
import re
from collections.abc import Callable, Collection
from typing import Any

import numpy as np

from posjax.data.containers import Images, NativeImages, StreamedImages, Text, digest_of

AnyImages = Images | NativeImages | StreamedImages
_HELD_OUT = re.compile(r"(?P<percent>\d+(?:\.\d+)?)% of (?P<split>.+)")
_LEFT = re.compile(r"(?P<split>.+) without (?P<percent>\d+(?:\.\d+)?)%")


VALIDATION = ("validation", "valid", "val", "dev")  # synonyms of one split
SPLITS = ("train", *VALIDATION, "test")  # usual names of files and folders of splits


def split_among(split: str, there: Collection[str], whose: str) -> str:
    """Returns a set's own name for a split: "validation", "valid", "val" and "dev" are synonyms, in upper or lower case.

    Args:
      there: names of the set's splits.
      whose: the set's name in messages.

    Raises:
      ValueError: the set has no such split; the message lists its splits and the flag that chooses one.
    """
    own = {name.lower(): name for name in there} | {name: name for name in there}
    for name in (split, *(VALIDATION if split in VALIDATION else ())):
        if name in own:
            return own[name]
    message = f"{whose} has no split {split!r}, only {', '.join(there) or 'nothing'}; "
    if near := difflib.get_close_matches(split, there, n=1):
        message += f"did you mean {near[0]!r}? "
    if [*there] == ["train"]:
        left, held = held_out_names("train", 0.1)
        message += f"--config.data.train_split='{left}' --config.data.eval_split='{held}' hold a tenth out"
    else:
        field = "train_split" if split == "train" else "eval_split"
        message += f"--config.data.{field}= takes another one (--split= of experiments.evaluate)"
    raise ValueError(message)


def held_out_names(split: str, share: float) -> tuple[str, str]:
    """The names of the rest of a split, and of the share that is held out of it.

    Raises:
      ValueError: the share is outside (0, 1).

    >>> held_out_names("train", 0.1)
    ('train without 10%', '10% of train')
    """
    if not 0 < share < 1:
        raise ValueError(f"a share of {share} of {split!r} cannot be held out: it must lie in (0, 1)")
    percent = f"{100 * share:.10g}"
    return f"{split} without {percent}%", f"{percent}% of {split}"


def whole_split(split: str) -> str:
    """Returns the split that a name of `held_out_names` is a part of; any other name as it is."""
    found = _HELD_OUT.fullmatch(split) or _LEFT.fullmatch(split)
    return found["split"] if found else split


def parted(load: Callable[..., Any]) -> Callable[..., Any]:
    """Lets `load(name, split, ...)` of images or text take the names of `held_out_names`, too."""

    @functools.wraps(load)
    def loaded(name: str, split: str, *arguments: Any, **options: Any) -> Any:
        found = _HELD_OUT.fullmatch(split) or _LEFT.fullmatch(split)
        if not found:
            return load(name, split, *arguments, **options)
        whole, share = load(name, found["split"], *arguments, **options), float(found["percent"]) / 100
        held_out_names(split, share)
        return _part(whole, share, found.re is _HELD_OUT)

    return loaded


def _part(whole: AnyImages | Text, share: float, held: bool) -> AnyImages | Text:
    """Holds out the end of text, or an equal share of every class of images."""
    if isinstance(whole, Text):
        cut = len(whole) - round(share * len(whole))
        return whole.part(cut, len(whole)) if held else whole.part(0, cut)
    chosen = np.zeros(len(whole), bool)
    for members in _by_class(whole):
        chosen[members[len(members) - round(share * len(members)) :]] = True
    return _taken(whole, np.flatnonzero(chosen if held else ~chosen))


def _by_class(images: AnyImages) -> list[np.ndarray]:
    """Returns the images of each class, in an order that is always the same."""
    order = np.random.default_rng(0).permutation(len(images))
    return [order[images.label[order] == label] for label in np.unique(images.label)]


def subset(images: AnyImages, fraction: float) -> AnyImages:
    """Returns a share of every class, at least one image of each.

    The order within a class is fixed, whatever a run's seed: smaller shares lie within larger ones, so a study of data
    efficiency changes nothing but the amount of data.

    Raises:
      ValueError: the fraction is outside (0, 1].

    >>> from posjax.data import Images
    >>> label = np.repeat(np.int32([0, 1]), [8, 2])
    >>> images = Images("mine", np.zeros((10, 8, 8, 1), np.uint8), label, num_classes=2, digest="")
    >>> subset(images, 0.25).label.tolist()
    [0, 0, 1]
    """
    if not 0 < fraction <= 1:
        raise ValueError(f"fraction={fraction} of a set must lie in (0, 1]")
    if fraction == 1:
        return images
    kept = [members[: max(1, round(fraction * len(members)))] for members in _by_class(images)]
    return _taken(images, np.sort(np.concatenate(kept)))


def spread(images: AnyImages, count: int) -> AnyImages:
    """Returns `count` images spread evenly over the set, which may be sorted by class; all images if there are fewer.

    Raises:
      ValueError: the count is below 1.
    """
    if count < 1:
        raise ValueError(f"the number of images must be at least 1, got {count}")
    if count >= len(images):
        return images
    return _taken(images, np.arange(count) * len(images) // count)


def _taken(images: AnyImages, index: np.ndarray) -> AnyImages:
    digest = digest_of(np.frombuffer(images.digest.encode(), np.uint8), index)
    if isinstance(images, StreamedImages):
        return dataclasses.replace(images, index=images.index[index], digest=digest)
    if isinstance(images, Images):
        return dataclasses.replace(images, image=images.image[index], label=images.label[index], digest=digest)
    pixels = np.concatenate([images[i].reshape(-1) for i in index.tolist()])
    return dataclasses.replace(images, pixels=pixels, size=images.size[index], label=images.label[index], digest=digest)
