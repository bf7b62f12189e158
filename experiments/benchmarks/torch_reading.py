"""The pipelines of torch, and tf.data's where TensorFlow is installed beside it."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch

from experiments.benchmarks import reading
from experiments.benchmarks.contender import Call, Skip


def images(case: Mapping[str, Any]) -> Call:
    """timm's transforms of a folder of pictures in torch's DataLoader."""
    try:
        from timm.data import create_transform
        from timm.data.loader import fast_collate
        from torchvision.datasets import ImageFolder
    except ImportError as error:
        raise Skip(f"{error.name} is not installed beside torch") from error
    hflip = 0.5 if case["policy"] else 0.0
    options = dict(interpolation="bicubic", color_jitter=None, hflip=hflip, auto_augment=case["policy"])
    transform = create_transform(case["image"], is_training=True, use_prefetcher=True, **options)
    pictures = ImageFolder(reading.pictures(case) / "folder/train", transform=transform)
    order = torch.utils.data.RandomSampler(pictures, replacement=True, num_samples=10**7)
    batching = dict(batch_size=case["batch"], num_workers=case["workers"], collate_fn=fast_collate)
    loader = torch.utils.data.DataLoader(pictures, sampler=order, **batching)
    return reading.reading(lambda: iter(loader), case, case["batch"], "images")


def tf_data(case: Mapping[str, Any]) -> Call:
    """tf.data's way from files to crops, bicubic and antialiased as all others are."""
    try:
        import tensorflow as tf
    except ImportError as error:
        raise Skip("TensorFlow is not installed beside torch") from error
    threads, side = torch.get_num_threads(), case["image"]
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    whole = tf.constant([[[0.0, 0.0, 1.0, 1.0]]])
    law = dict(min_object_covered=0.0, area_range=(0.08, 1.0), aspect_ratio_range=(3 / 4, 4 / 3), max_attempts=10)

    def crop(path):
        content = tf.io.read_file(path)
        shape = tf.io.extract_jpeg_shape(content)
        corner, size, _ = tf.image.sample_distorted_bounding_box(shape, whole, **law)
        box = tf.concat([corner[:2], size[:2]], axis=0)
        part = tf.io.decode_and_crop_jpeg(content, box, channels=3)
        pixels = tf.image.resize(part, (side, side), "bicubic", antialias=True)
        return tf.cast(tf.clip_by_value(tf.round(pixels), 0, 255), tf.uint8)

    paths = sorted(map(str, (reading.pictures(case) / "folder/train").rglob("*.jpg")))
    pictures = tf.data.Dataset.from_tensor_slices(paths).shuffle(len(paths)).repeat()
    batches = pictures.map(crop, num_parallel_calls=threads).batch(case["batch"]).prefetch(2)
    options = tf.data.Options()
    options.threading.private_threadpool_size = threads
    return reading.reading(lambda: iter(batches.with_options(options)), case, case["batch"], "images")


def tokens(case: Mapping[str, Any]) -> Call:
    """Windows at random places of a shard on numpy's memmap, and the tokens that follow theirs."""
    drawn, length = np.memmap(reading.tokens(case), np.uint16, "r", offset=1024), case["length"]

    def batches() -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        rng = np.random.default_rng(0)
        while True:
            rows = [drawn[i : i + length + 1] for i in rng.integers(len(drawn) - length, size=case["batch"])]
            rows = torch.stack([torch.from_numpy(row.astype(np.int64)) for row in rows])
            yield rows[:, :-1], rows[:, 1:]

    return reading.reading(batches, case, case["batch"] * length, "tokens")
