"""Data: tensorflow-datasets sets as arrays, without TensorFlow, and grain pipelines that batch them.

from posjax import data

images = data.load_images("digits", "train")                      # decoded once, cached beside the prepared set
ds = data.image_batches(images, batch_size=64, seed=0)
for batch in data.epoch(ds, start_step=0, end_step=100): ...      # ds[step] is the batch of that step, always
"""

from posjax.data.augment import augment, mixup, normalise
from posjax.data.catalog import CATALOG
from posjax.data.containers import Images, Text
from posjax.data.documents import Documents, load_documents
from posjax.data.loading import load_images, load_text
from posjax.data.pipelines import epoch, image_batches, image_epoch, text_batches, text_epoch
from posjax.data.preparing import Prepared, prepare
from posjax.data.retrieval import retrieval_batch

__all__ = [
    "CATALOG",
    "Documents",
    "Images",
    "Prepared",
    "Text",
    "augment",
    "epoch",
    "image_batches",
    "image_epoch",
    "load_documents",
    "load_images",
    "load_text",
    "mixup",
    "normalise",
    "prepare",
    "retrieval_batch",
    "text_batches",
    "text_epoch",
]
