"""Files that appear whole or not at all."""

import os
import pathlib


def replace_file(path: pathlib.Path, content: bytes | memoryview) -> None:
    """Writes a file so that a kill leaves either the old or the new one; of several writers the last one wins whole."""
    new = path.with_name(f".{path.name}.{os.getpid()}")
    with new.open("wb") as file:
        file.write(content)
        os.fsync(file.fileno())
    new.replace(path)
