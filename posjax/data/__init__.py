"""Data: tensorflow-datasets sets as arrays, without TensorFlow, and grain pipelines that batch them.

For example:

    from posjax import data

    images = data.load_images("digits", "train")                      # decoded once, cached beside the prepared set
    ds = data.image_batches(images, batch_size=64, seed=0)
    for batch in data.epoch(ds, start_step=0, end_step=100): ...      # ds[step] is always the same batch

    photographs = data.load_native_images("caltech101", "train")      # of different sizes; "folder" for one's own pictures
    source = data.NativePatches(photographs, patch_size=8, max_patches=64)
    ds = data.native_batches(source, batch_size=64, seed=0, prefix=1) # in their own aspects; data.site_of(batch): positions

    @data.register("mine", classes=2)                                 # a set of your own, usable by this name everywhere
    def mine(split, data_dir): return images, labels
"""

from posjax.data.augment import IMAGENET_MEAN, IMAGENET_STD, flip_native, mix, normalise
from posjax.data.containers import Images, NativeImages, StreamedImages, Text
from posjax.data.documents import Documents, check_text, load_documents, load_stream
from posjax.data.host_augment import Frame
from posjax.data.image_sets import as_images, images_of_size, load_native_images, open_images, stream_images
from posjax.data.loading import load_images, load_text
from posjax.data.native import NativePatches, native_batches, native_epoch, site_of
from posjax.data.pipelines import epoch, image_batches, image_epoch, text_batches, text_epoch
from posjax.data.preparing import Prepared, prepare
from posjax.data.preprocess import native_grids, preprocess, read_image
from posjax.data.recipe import Recipe, parse_augment
from posjax.data.retrieval import retrieval_batch
from posjax.data.sets import SETS, SYNTHETIC, SYNTHETIC_IMAGES, SYNTHETIC_TOKENS, register, registered
from posjax.data.subsets import held_out_names, spread, subset
from posjax.data.synthetic import repeated, synthetic_images, synthetic_tokens
from posjax.data.tokens import BYTES, Tokenizer, load_tokenizer
from posjax.extras import require

require(__name__, "grain", "tensorflow_datasets", "PIL")

__all__ = [
    "BYTES",
    "IMAGENET_MEAN",
    "IMAGENET_STD",
    "SETS",
    "SYNTHETIC",
    "SYNTHETIC_IMAGES",
    "SYNTHETIC_TOKENS",
    "Documents",
    "Frame",
    "Images",
    "NativeImages",
    "NativePatches",
    "Prepared",
    "Recipe",
    "StreamedImages",
    "Text",
    "Tokenizer",
    "as_images",
    "check_text",
    "epoch",
    "flip_native",
    "held_out_names",
    "image_batches",
    "image_epoch",
    "images_of_size",
    "load_documents",
    "load_images",
    "load_native_images",
    "load_stream",
    "load_text",
    "load_tokenizer",
    "mix",
    "native_batches",
    "native_epoch",
    "native_grids",
    "normalise",
    "open_images",
    "parse_augment",
    "prepare",
    "preprocess",
    "read_image",
    "register",
    "registered",
    "repeated",
    "retrieval_batch",
    "site_of",
    "spread",
    "stream_images",
    "subset",
    "synthetic_images",
    "synthetic_tokens",
    "text_batches",
    "text_epoch",
]
