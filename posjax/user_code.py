"""Python files and modules of the user, imported so that they register encodings, backends and data sets."""

import importlib
import importlib.util
import pathlib
import sys
import traceback
from collections.abc import Sequence
from types import ModuleType

import jax

from posjax import spec
from posjax.attention import backends

# What user code may raise. A program that it ended with sys.exit(0) would look like one without a fault.
_IMPORT = (ImportError, OSError, SyntaxError, NameError)
BROKEN = (
    *(*_IMPORT, ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, StopIteration, SystemExit),
    *(TypeError, ValueError),
)
_MODULE = "posjax_user_"  # of a file


def import_user_code(sources: Sequence[str]) -> None:
    """Imports Python files (names that end in .py) and modules, each once; warns of a source that registers nothing.

    Raises:
      ValueError: a source is missing or cannot be imported.
    """
    for source in sources:
        loaded, registered = set(sys.modules), _count_registered()
        module = import_source(source)
        if module.__name__ not in loaded and _count_registered() == registered:
            print(f'--import={source} registers nothing: put @pj.register("name") above an encoding', file=sys.stderr)


def import_source(source: str) -> ModuleType:
    """Returns the module of a Python file, or the module of that name; what lies beside it can be imported too.

    Raises:
      ValueError: it is missing or cannot be imported.
    """
    try:
        if source.endswith(".py"):
            return _import_file(pathlib.Path(source))
        if "" not in sys.path:
            sys.path.insert(0, "")  # the working directory, as under `python -m`
        return importlib.import_module(source)
    except ValueError as error:
        if "use default_factory" not in str(error):  # which would make a list again: it has no hash
            raise
        raise ValueError(f"{source}: {str(error).replace('use default_factory', 'write a tuple')}") from error
    except BROKEN as error:
        raise ValueError(f"{source}: {type(error).__name__}: {error}") from error


def place_of(error: BaseException) -> str | None:
    """Returns an error of a function in a user's file as one line with file, line and function.

    None for another error, also for a ValueError that posjax raises below such a function: its message is a line already.
    """
    files = {module.__file__ for name, module in sys.modules.items() if name.startswith(_MODULE)}
    files |= {getattr(sys.modules.get(cls.__module__), "__file__", None) for cls in spec.REGISTRY.values()}
    ours = str(pathlib.Path(__file__).parent)
    stack = traceback.extract_tb(error.__traceback__)
    stack = [frame for frame in stack if frame.filename in files or frame.filename.startswith(ours)]
    frames = [frame for frame in stack if not frame.filename.startswith(ours)]
    if not frames or (isinstance(error, ValueError) and stack[-1] is not frames[-1]):
        return None
    says = " ".join(str(error).split())[:200]
    if isinstance(error, jax.errors.TracerBoolConversionError):
        says = "a branch on an array is not possible under jax.jit; use jnp.where"
    at = frames[-1]
    return f"{at.filename}, line {at.lineno}, in {at.name}: {type(error).__name__}: {says}"


def _count_registered() -> int:
    data = sys.modules.get("posjax.data.sets")  # a module that is not loaded has none
    return sum(
        map(len, (spec.registered_names(), spec.patterns(), backends.names(), data.registered() if data else ()))
    )


def _import_file(path: pathlib.Path) -> ModuleType:
    name = f"{_MODULE}{path.resolve().as_posix().replace('/', '_').replace('.', '_')}"
    if name in sys.modules:
        return sys.modules[name]
    if not path.is_file():
        raise ValueError(f"there is no file {str(path)!r}")
    if (folder := str(path.resolve().parent)) not in sys.path:
        sys.path.append(folder)  # last: a file of the user's does not hide a library's
    source = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(source)
    sys.modules[name] = module  # dataclasses look their module up while it is being imported
    whole = False
    try:
        source.loader.exec_module(module)
        whole = True
    finally:
        if not whole:
            del sys.modules[name]
    return module
