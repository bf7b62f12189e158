"""The command line that every experiment shares.

    python -m experiments.X --config=configs/x.py[:argument] --config.a.b=1 --workdir=DIR [--import=my_encoding.py]

An experiment ends with `if __name__ == "__main__": run(main, __doc__)`. What a user can get wrong is answered by one
line on stderr and exit code 2. jax is not imported here, so that `--help` answers at once.
"""

import contextlib
import difflib
import fcntl
import importlib.util
import pathlib
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

from absl import app, flags, logging
from ml_collections import ConfigDict, config_flags

from experiments._environment import tune_allocator
from experiments._user_code import import_user_code

# Raised by posjax (CheckpointError is a ValueError) for what a user can mend; anything else keeps its traceback.
USER_ERRORS = (ValueError, FileNotFoundError, FloatingPointError, ImportError)
_OVERRIDE = re.compile(r"--?(?:no)?config\.([^=]+)")


class UsageError(Exception):
    """The command line itself is wrong; the message is one line."""


def run(
    main: Callable[[ConfigDict, pathlib.Path], None],
    doc: str | None,
    default_workdir: Callable[[ConfigDict], pathlib.Path] | None = None,
) -> None:
    """Reads the command line, calls `main(config, workdir)` and exits.

    Args:
      main: the experiment. Import jax inside it (or inside what it imports), to keep `--help` fast.
      doc: the module's docstring: what `--help` prints; its first line with "python -m" serves as the example.
      default_workdir: the directory of a run without --workdir, from its config; None makes --workdir mandatory.
    """
    if {"-h", "-help", "--help", "--helpfull", "--helpshort"} & set(sys.argv[1:]):
        print(doc or __doc__)
        return
    config_flags.DEFINE_config_file("config", None, "file whose get_config() is the experiment", lock_config=True)
    flags.DEFINE_string("workdir", None, "directory for checkpoints and metrics")
    flags.DEFINE_multi_string("import", [], "Python file or module with encodings of your own; may be repeated")
    flags.DEFINE_bool("traceback", False, "show where an error came from")

    def checked(argv: Sequence[str]) -> None:
        del argv
        config = flags.FLAGS.config
        logging.set_verbosity(logging.WARNING)  # libraries tell at INFO what nobody asked
        tune_allocator()
        try:
            import_user_code(flags.FLAGS["import"].value)
            workdir = _workdir(config, default_workdir)
            with _alone_in(workdir):
                main(config, workdir)
        except UsageError as error:
            _fail(error)
        except USER_ERRORS as error:
            if flags.FLAGS.traceback:
                raise
            _fail(f"{error} (--traceback shows where)")

    app.run(checked, flags_parser=lambda argv: _parse(argv, doc or __doc__))


@contextlib.contextmanager
def _alone_in(workdir: pathlib.Path) -> Iterator[None]:
    """Keeps a second process out: each would delete the other's unfinished checkpoints and record every run twice.

    The system drops the lock with the process, however it ends.
    """
    workdir.mkdir(parents=True, exist_ok=True)
    with (workdir / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(
                f"another process is at work in {workdir}: wait for it, or give another --workdir"
            ) from None
        yield


def _fail(error: Any) -> NoReturn:
    print("error:", " ".join(str(error).split()), file=sys.stderr)
    sys.exit(2)


def _workdir(config: ConfigDict, default: Callable[[ConfigDict], pathlib.Path] | None) -> pathlib.Path:
    if flags.FLAGS.workdir:
        return pathlib.Path(flags.FLAGS.workdir)
    if default is None:
        raise UsageError("--workdir=DIR is missing: where checkpoints and metrics go")
    return default(config)


def _parse(argv: Sequence[str], doc: str) -> list[str]:
    """Fills absl's flags; everything wrong with the line ends here."""
    try:
        # The file is read here first: absl would report its absence, and a misspelt field, late and in 30 lines.
        config = _load(_config_value(argv[1:], doc))
        _check_fields(argv[1:], config)
    except (UsageError, SyntaxError, *USER_ERRORS) as error:
        _fail(error)
    try:
        rest = flags.FLAGS(argv)
    except (flags.Error, IndexError) as error:  # IndexError: --config.tuple[0]=1
        _fail(_type_error(argv[1:], config, error) or error)
    if len(rest) > 1:
        _fail(f"unexpected argument {rest[1]!r}; options are written --name=value")
    return rest


def _config_value(arguments: Sequence[str], doc: str) -> str:
    for index, argument in enumerate(arguments):
        if re.match(r"--?config=", argument):
            return argument.partition("=")[2]
        if argument in ("--config", "-config") and index + 1 < len(arguments):
            return arguments[index + 1]
    example = next((line.strip() for line in doc.splitlines() if "python -m" in line), "--config=configs/x.py")
    raise UsageError(f"--config=FILE is missing, for example: {example}")


def _load(value: str) -> ConfigDict:
    """The config that `FILE[:argument]` names, without overrides."""
    name, colon, argument = value.partition(":")
    if not pathlib.Path(name).is_file():
        raise UsageError(f"--config={value}: there is no file {name!r}{_nearest_file(name)}")
    spec = importlib.util.spec_from_file_location("_posjax_config", name)
    if spec is None:
        raise UsageError(f"--config={value}: {name!r} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if not hasattr(module, "get_config"):
        raise UsageError(f"--config={value}: {name!r} has no get_config()")
    return module.get_config(argument) if colon else module.get_config()


def _nearest_file(name: str) -> str:
    directory = pathlib.Path(name).parent
    near = difflib.get_close_matches(pathlib.Path(name).name, [path.name for path in directory.glob("*.py")], n=1)
    return f"; did you mean {directory / near[0]}?" if near else ""


def _fields(config: ConfigDict, prefix: str = "") -> Iterator[tuple[str, str]]:
    """(name as overrides spell it, `a.b` or `a["1%"].b`, name of its type) of every field, groups included."""
    for key in config:
        value, name = config[key], f"{prefix}.{key}" if prefix else key
        if not key.isidentifier():
            name = f'{prefix}["{key}"]'
        yield name, "group of fields" if isinstance(value, ConfigDict) else config.get_type(key).__name__
        if isinstance(value, ConfigDict):
            yield from _fields(value, name)


def _overrides(arguments: Sequence[str]) -> Iterator[tuple[str, str]]:
    """(argument, the field it is about) of every override; `shape[0]` is about `shape`."""
    for argument in arguments:
        if match := _OVERRIDE.match(argument):
            yield argument, re.sub(r"\[\d+\]", "", match[1]).replace("'", '"')


def _check_fields(arguments: Sequence[str], config: ConfigDict) -> None:
    fields = dict(_fields(config))
    for argument, field in _overrides(arguments):
        if field not in fields:
            near = _nearest(field, fields)
            hint = f"did you mean {near}?" if near else f"the fields are {', '.join(fields)}"
            raise UsageError(f"{argument}: no such field; {hint}")


def _nearest(field: str, fields: Sequence[str]) -> str | None:
    """The most similar field, by its whole name or (somewhat less) by its last part alone."""

    def likeness(other: str) -> float:
        last = difflib.SequenceMatcher(None, field.split(".")[-1], other.split(".")[-1]).ratio()
        return max(difflib.SequenceMatcher(None, field, other).ratio(), 0.95 * last)

    best = max(fields, key=likeness, default=None)
    return best if best is not None and likeness(best) >= 0.6 else None


def _type_error(arguments: Sequence[str], config: ConfigDict, error: Exception) -> str | None:
    """One line for a value of the wrong type, of which absl names only the conversion that failed."""
    fields = dict(_fields(config))
    for argument, field in _overrides(arguments):
        if isinstance(error, flags.IllegalFlagValueError) and f"config.{field}" in str(error):
            return f"{argument}: expected {fields[field]}"
    return None
