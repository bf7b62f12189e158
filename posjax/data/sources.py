"""The user's own data sets: functions that return arrays or texts, registered under a name.

    from posjax import data

    @data.register("rings", classes=("thin", "thick"))
    def rings(split, data_dir):
        return images, labels       # [N, h, w] or [N, h, w, c] uint8, or a list of images of many sizes; [N] integers

    @data.register("poems", splits=("train", "validation"))
    def poems(split, data_dir):
        return ["one document", "another", ...]

From then on `load_images`, `load_native_images` or `load_text` know the name, and so does `config.data.name`.
"""

import os

import numpy as np

from posjax.data.containers import Images, Text, digest_of
from posjax.data.preprocess import read_image
from posjax.data.sets import Source


def images_of(source: Source, split: str, data_dir: str | os.PathLike | None) -> Images:
    """Reads a split as images of one size.

    Raises:
      ValueError: the images differ in size, or the function's result is malformed.
    """
    images, label = labelled(source, split, data_dir)
    if {image.shape for image in images} != {images[0].shape}:
        raise ValueError(f"{source.name!r} mixes sizes of images: give data.image_size, or data.mode='native'")
    image = np.stack(images)
    return Images(source.name, image, label, len(source.classes), digest_of(image, label), source.classes)


def text_of(source: Source, split: str, data_dir: str | os.PathLike | None) -> Text:
    """Reads a split as a stream of UTF-8 bytes.

    Raises:
      ValueError: for anything but a list of texts.
    """
    texts = source.content(split, data_dir, "text")
    if isinstance(texts, (str, bytes)) or not all(isinstance(text, (str, bytes)) for text in texts):
        raise ValueError(f"{source.name!r} is a set of text: its function returns a list of documents, str or bytes")
    documents = [text.encode() if isinstance(text, str) else text for text in texts]
    documents = [document for document in documents if document]
    if not documents:
        raise ValueError(f"split {split!r} of {source.name!r} has no text")
    tokens = np.frombuffer(b"".join(documents), np.uint8)
    starts = np.cumsum([0, *map(len, documents)], dtype=np.int64)[:-1]
    return Text(source.name, tokens, starts, digest_of(tokens, starts))


def labelled(source: Source, split: str, data_dir) -> tuple[list[np.ndarray], np.ndarray]:
    """Checks and returns images [h, w, 1 or 3] uint8 and labels [N] int32."""
    found = source.content(split, data_dir, "images")
    if not isinstance(found, tuple) or len(found) != 2:
        raise ValueError(f"{source.name!r} is a set of images: its function returns (images, labels)")
    images, label = list(found[0]), np.asarray(found[1])
    if not images or label.shape != (len(images),) or not np.issubdtype(label.dtype, np.integer):
        raise ValueError(f"{source.name!r} needs an integer for each image, got {label.shape} of {label.dtype}")
    if label.min() < 0 or label.max() >= len(source.classes):
        raise ValueError(f"{source.name!r} has labels {label.min()}..{label.max()}, not 0..{len(source.classes) - 1}")
    try:
        arrays = [np.asarray(image) for image in images]
        grey = [image.ndim == 2 or image.shape[-1] == 1 for image in arrays]
        return [read_image(x, channels=1 if g else 3) for x, g in zip(arrays, grey, strict=True)], label.astype(
            np.int32
        )
    except ValueError as error:
        raise ValueError(f"images of {source.name!r}: {error}") from None
