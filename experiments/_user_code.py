"""`--import=FILE_OR_MODULE`: brings a user's own encodings into the registry before a spec is read."""

import importlib
import importlib.util
import pathlib
import sys
from collections.abc import Sequence

_BROKEN = (ImportError, SyntaxError, NameError, AttributeError, TypeError, OSError)


def import_user_code(sources: Sequence[str]) -> None:
    """Imports Python files (what ends in .py) and modules (anything else), each once.

    Raises:
      ValueError: for one that is missing or cannot be imported.
    """
    for source in sources:
        try:
            _import_file(pathlib.Path(source)) if source.endswith(".py") else importlib.import_module(source)
        except _BROKEN as error:
            raise ValueError(f"--import={source}: {type(error).__name__}: {error}") from error


def add_import_flag(parser) -> None:
    """The flag, of an argparse parser."""
    parser.add_argument(
        "--import",
        dest="imports",
        action="append",
        default=[],
        metavar="FILE_OR_MODULE",
        help="Python file or module with encodings of your own (@pj.register); may be repeated",
    )


def _import_file(path: pathlib.Path) -> None:
    name = f"posjax_user_{path.resolve().as_posix().replace('/', '_').replace('.', '_')}"
    if name in sys.modules:
        return
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {str(path)!r}")
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up while it is being imported
    whole = False
    try:
        spec.loader.exec_module(module)
        whole = True
    finally:
        if not whole:
            del sys.modules[name]
