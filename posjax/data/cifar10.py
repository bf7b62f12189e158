"""CIFAR-10 from its official binary batches, already unpacked."""

import pathlib

from posjax.files import sha256_of

FOLDER = "cifar-10-batches-bin"

# Cut from a copy whose batches, written as the Python version's pickles, have all six official md5 sums.
_SHA256 = {
    "data_batch_1.bin": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
    "data_batch_2.bin": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
    "data_batch_3.bin": "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
    "data_batch_4.bin": "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
    "data_batch_5.bin": "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
    "test_batch.bin": "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
}
_CLASSES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]


def unpacked_folder(source: pathlib.Path) -> pathlib.Path | None:
    """Returns the folder `cifar-10-batches-bin` (`source` itself or a folder in it), or None."""
    source = source.absolute()
    candidates = (source, source / FOLDER)
    return next((folder for folder in candidates if folder.name == FOLDER and folder.is_dir()), None)


def check_batches(folder: pathlib.Path) -> None:
    """Checks that the six batches and the class names are the official ones, bit by bit.

    Raises:
      FileNotFoundError: a file is missing.
      ValueError: a file is not the official one.
    """
    missing = [name for name in (*_SHA256, "batches.meta.txt") if not (folder / name).is_file()]
    if missing:
        raise FileNotFoundError(f"{folder} lacks {', '.join(missing)}: unpack cifar-10-binary.tar.gz again")
    for name, expected in _SHA256.items():
        found = sha256_of(folder / name)
        if found != expected:
            raise ValueError(f"{folder / name} is not the official batch: sha256 {found}, expected {expected}")
    classes = (folder / "batches.meta.txt").read_text().split()
    if classes != _CLASSES:
        raise ValueError(f"{folder / 'batches.meta.txt'} names {classes}, expected {_CLASSES}")


class Unpacked:
    """A download manager for TFDS's CIFAR-10 builder that returns a folder that is already here."""

    downloaded_size = 0

    def __init__(self, folder: pathlib.Path):
        self._folder = folder

    def download_and_extract(self, url: str) -> str:
        return str(self._folder)
