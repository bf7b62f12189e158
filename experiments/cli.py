"""The command line of every experiment, and its messages.

    python -m experiments.X --config=configs/x.py[:argument] --config.a.b=1 --workdir=DIR [--import=my_encoding.py]

An experiment with a config ends with `if __name__ == "__main__": run(main, __doc__)`; other commands make their `parser` and
return the exit code of `answer`. A command writes under runs/ by default. Configs need absl and ml_collections; only `run`
imports them, so other commands work without.

Exit codes: 0 done; 2 for a user's mistake, in one line on stderr; 75 for a stop (Ctrl-C; for runs also SIGTERM): the same
command resumes the run. jax is not imported before a command line is read, so `--help` answers at once.
"""

import argparse
import ast
import contextlib
import difflib
import fcntl
import functools
import importlib.util
import os
import pathlib
import re
import shlex
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from experiments import tune_allocator

if TYPE_CHECKING:
    from ml_collections import ConfigDict

    from experiments.records import Records

EXIT_MISTAKE = 2
EXIT_STOPPED = os.EX_TEMPFAIL  # 75 in sysexits.h: temporary failure, try again
_LAST_WORDS = 3.0  # seconds for the other processes to report why they end
RUNS = pathlib.Path("runs")  # default folder of results
_HOME = pathlib.Path(__file__).parents[1]  # the folder of configs/
# A label in brackets may hold any character, such as = or a dot: encodings["rope(base=0.5)"]
_LABEL = r"""\[(?:"[^"]*"|'[^']*')\]"""
_OVERRIDE = re.compile(rf"--config\.(?P<field>(?:{_LABEL}|[^=])+)")


class StoppedRun(Exception):
    """A stop by request, after the run saved its state; the message names the step."""


def answer(work: Callable[[], int | None], imports: Sequence[str] = (), *, traceback: bool = False) -> int:
    """Does the work of a command and returns its exit code; see the module's docstring.

    Args:
      work: function that returns None or an exit code.
      imports: files and modules of user code, imported before `work` runs.
      traceback: raises users' errors instead of printing one line.
    """
    tune_allocator()  # before jax is imported
    try:
        import posjax.cli

        return posjax.cli.answer(work, imports, traceback=traceback)
    except StoppedRun as stopped:
        print(f"{stopped}; the same command goes on from there", flush=True)
    except KeyboardInterrupt:  # before a run has begun, or a second time
        print("interrupted", file=sys.stderr)
    return EXIT_STOPPED


def tell(error: Any) -> int:
    """Prints an error as one line on stderr; returns the exit code."""
    from posjax.extras import message_of  # posjax imports jax

    print("error:", message_of(error), file=sys.stderr)
    return EXIT_MISTAKE


def writable(directory: str | os.PathLike, flag: str = "--out") -> pathlib.Path:
    """Makes and returns a directory. Long computations call this before they begin.

    Raises:
      ValueError: the directory is not writable.
    """
    path = pathlib.Path(directory)
    try:
        path.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=path).close()
    except OSError as error:
        reason = f"{flag}={path}: nothing can be written there ({error.strerror}); give another directory"
        raise ValueError(reason) from error
    return path


class _Parser(argparse.ArgumentParser):
    """A parser that reports a mistake in one line."""

    def error(self, message: str) -> NoReturn:
        unknown = re.match(r"unrecognized arguments: ([^\s=]+)", message)
        near = difflib.get_close_matches(unknown[1], self._option_string_actions, n=1) if unknown else ()
        hint = f"; did you mean {near[0]}?" if near else "; options are written --name=value" if unknown else ""
        sys.exit(tell(message + hint))


def parser(command: str, doc: str | None, *, imports: bool = True) -> argparse.ArgumentParser:
    """Returns the parser of a command, with --traceback and, for encodings of the user's own, --import."""
    made = _Parser(
        prog=f"python -m experiments.{command}",
        description=doc,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    if imports:
        about = "Python file or module with encodings of your own (@pj.register); may be repeated"
        made.add_argument("--import", dest="imports", action="append", default=[], metavar="FILE_OR_MODULE", help=about)
    made.add_argument("--traceback", action="store_true", help="show where an error came from")
    return made


def positive(text: str) -> int:
    """Reads a positive whole number; the type of an argument."""
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a positive whole number, got {text!r}")
    return int(text)


def directory(text: str) -> pathlib.Path:
    """Reads a directory, not an address as gs://bucket/run; the type of an argument."""
    if re.match(r"\w+:/|$", text):
        raise argparse.ArgumentTypeError(f"expected a directory of this machine, got {text!r}")
    return pathlib.Path(text)


def workdir(text: str) -> str | pathlib.Path:
    """Reads the directory of a run or study, or its address in a bucket, which stays text; the type of an argument."""
    return text if re.match(r"\w+://.", text) else directory(text)


def run(
    main: "Callable[..., None]",
    doc: str | None,
    default_workdir: "Callable[[ConfigDict, str], pathlib.Path] | None" = None,
    *,
    options: Callable[[argparse.ArgumentParser], None] | None = None,
    many_processes: bool = False,
    rows: bool = False,
) -> None:
    """Reads the command line of an experiment with a config, calls `main(config, workdir, **options)` and exits.

    Args:
      main: the experiment. Import jax inside it (or inside its imports), to keep `--help` fast.
      doc: the module's docstring: `--help` prints it; its first line with "python -m" is the example.
      default_workdir: function from the config and the value of --config to the directory of a run without --workdir; None:
        runs/<name of the config>, or of its file if the config has no name.
      options: function that adds the command's own options to the parser.
      many_processes: whether several processes may do the work together, each with --coordinator.
      rows: whether the command is a study, which --rows=I/N splits; `main` then gets `part`, (I, N) or None.
    """
    tune_allocator()  # configs may import jax
    parser = config_parser(pathlib.Path(sys.argv[0]).stem, doc, options, many_processes=many_processes, rows=rows)
    config, args = read(parser, sys.argv[1:])
    if not rows and is_study(config):
        sys.exit(tell(f"--config={args.config} is of a study: run it by python -m experiments.ablate"))
    shared = ("config", "workdir", "imports", "traceback", "coordinator", "processes", "process")
    own = {name: value for name, value in vars(args).items() if name not in shared}
    together = many_processes and args.coordinator is not None

    def work() -> int | None:
        from absl import flags, logging

        flags.FLAGS.mark_as_parsed()  # otherwise absl's first warning says that flags are not parsed
        logging.use_absl_handler()
        logging.set_verbosity(logging.WARNING)
        if together:
            from posjax.training.processes import join

            join(args.coordinator, args.processes, args.process)
        with contextlib.ExitStack() as stack:
            workdir, part = args.workdir or (default_workdir or runs_of)(config, args.config), own.get("part")
            if isinstance(workdir, str):
                workdir = stack.enter_context(_mirrored(workdir, part, together=together))
            stack.enter_context(alone_in(workdir, pathlib.Path(sys.argv[0]).stem, part, together=together))
            run_main = functools.partial(main, config, workdir, **own)
            return _among_others(run_main, workdir) if together else run_main()

    code = None
    try:
        code = answer(work, args.imports, traceback=args.traceback)
    finally:
        if together and code != 0:
            _leave(code)
    sys.exit(code)


def config_parser(
    command: str,
    doc: str | None,
    options: Callable[[argparse.ArgumentParser], None] | None = None,
    *,
    many_processes: bool = False,
    rows: bool = False,
) -> argparse.ArgumentParser:
    """Returns the parser of a command with a config; see `run` for the arguments."""
    made = parser(command, doc)
    made.add_argument("--config", metavar="FILE[:ARGUMENT]", help="Python file whose get_config() is the experiment")
    about = "directory for checkpoints, metrics and records; also in a bucket, as s3://bucket/run or gs://bucket/run"
    made.add_argument("--workdir", type=workdir, metavar="DIR", help=about)
    if many_processes:
        made.add_argument("--coordinator", help="HOST:PORT of the first of several processes, or auto")
        made.add_argument("--processes", type=int, help="number of processes")
        made.add_argument("--process", type=int, help="number of this one, from 0 on")
    if rows:
        about = "only the I-th of N equal parts of the rows, from 0 on"
        made.add_argument("--rows", dest="part", type=part_from(0), metavar="I/N", help=about)
    if options is not None:
        options(made)
    return made


def read(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> "tuple[ConfigDict, argparse.Namespace]":
    """Returns the config with its overrides, locked, and all other options; a mistake ends the process, as in argparse."""
    overrides, others = _split(arguments)
    args = parser.parse_args(others)
    try:
        if args.config is None:
            lines = (line.strip() for line in (parser.description or "").splitlines())
            example = next((line for line in lines if line.startswith("python -m")), "--config=configs/x.py")
            raise ValueError(f"--config=FILE is missing, for example: {example}")
        config = load(args.config)
        set_fields(config, overrides)
    except (ValueError, OSError, ImportError, SyntaxError) as error:
        sys.exit(tell(error))
    return config, args


def _split(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Separates overrides such as --config.a.b=1 from other arguments; --config.a.b 1 becomes --config.a.b=1."""
    overrides, others, waits = [], [], False
    for word in arguments:
        if waits and not word.startswith("--"):
            overrides[-1] += f"={word}"
            waits = False
            continue
        match = _OVERRIDE.match(word)
        waits = match is not None and match.end() == len(word)
        (others if match is None else overrides).append(word)
    return overrides, others


def refuse_length(model: Any, params: Any, length: int, flag: str) -> None:
    """Refuses more tokens than the tables of a model of text hold; the model is traced, and computes nothing.

    Raises:
      ValueError: begins with the flag that asks for so many.
    """
    import jax
    import jax.numpy as jnp

    from posjax.encoding import sites

    try:
        tokens = jax.ShapeDtypeStruct((1, length), jnp.int32)
        jax.eval_shape(lambda params, tokens: model.apply({"params": params}, tokens, sites(length)), params, tokens)
    except ValueError as error:
        raise ValueError(f"{flag}: {error}") from error


def run_study(study: Any, workdir: pathlib.Path, command: str, part: tuple[int, int] | None = None) -> "Records":
    """Runs a `Study`, or one part of it, and returns its records; its report names this command line, without the workdir.

    Raises:
      StoppedRun: the user stopped the run.
    """
    from experiments.studies.engine import run
    from posjax.training.loop import Stopped

    try:
        return run(study, workdir, command=command_line(command), part=part)
    except Stopped as stopped:
        raise StoppedRun(stopped) from None


def part_from(first: int) -> Callable[[str], tuple[int, int]]:
    """Returns the type of an argument I/N: the I-th of N parts, counted from `first`."""

    def part(text: str) -> tuple[int, int]:
        match = re.fullmatch(r"(\d+)/(\d+)", text)
        if not match or not first <= int(match[1]) < int(match[2]) + first:
            ends = f"I from {first} to N{' - 1' * (first == 0)}"
            raise argparse.ArgumentTypeError(f"expected I/N with {ends}, as {first}/4 for the first of 4, got {text!r}")
        return int(match[1]), int(match[2])

    return part


def command_line(command: str, given: Sequence[str] | None = None) -> str:
    """Returns the command line without its workdir, for a report; `given` defaults to the arguments of this process."""
    kept = [each for each in (sys.argv[1:] if given is None else given) if not each.startswith("--workdir")]
    return shlex.join(["python", "-m", f"experiments.{command}", *kept])


def is_study(config: "ConfigDict") -> bool:
    """Says whether a config has rows, and is not that of a single run."""
    return bool({"encodings", "studies"} & {*config})


def runs_of(config: "ConfigDict", given: str) -> pathlib.Path:
    """Returns runs/<name of the config>, or of the file that --config gives."""
    return RUNS / (config.get("name") or pathlib.Path(given.partition(":")[0]).stem)


def _among_others(work: Callable[[], int | None], workdir: pathlib.Path) -> int | None:
    """Does one process's part of the work; the loss of another process is reported in one line."""
    import jax

    from posjax.training.processes import is_loss, is_shared

    try:
        if not is_shared(workdir):  # which the first process holds and has filled
            raise ValueError(
                f"{workdir} is not one folder for all {jax.process_count()} processes: give a --workdir on a disk that they "
                "share, or for one in a bucket set POSJAX_CACHE to a folder there"
            )
        return work()
    except (jax.errors.JaxRuntimeError, ValueError, RuntimeError) as error:
        if not is_loss(error):
            raise
        tell(
            f"process {jax.process_index()}: another process of this run is gone; the same command, of as many processes or "
            "another number of them, goes on from the last checkpoint"
        )
        return EXIT_STOPPED


def _leave(code: int | None) -> NoReturn:
    """Ends this process at once: an orderly exit would wait for processes that may be gone. None means an active error."""
    import jax

    if code is None:
        traceback.print_exc()
    if jax.process_index() == 0:
        time.sleep(_LAST_WORDS)  # the first process coordinates: without it the others are cut off
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1 if code is None else code)


def _mirrored(
    address: str, part: tuple[int, int] | None, *, together: bool
) -> contextlib.AbstractContextManager[pathlib.Path]:
    """Returns a context with the folder of a workdir in a bucket; the first of several processes fills and uploads it."""
    from posjax.remote import folder_of, mirrored

    if together:
        import jax

        if jax.process_index() > 0:
            return contextlib.nullcontext(folder_of(address))
    return mirrored(address, "" if part is None else f"part-{part[0]}-of-{part[1]}")


@contextlib.contextmanager
def alone_in(
    workdir: pathlib.Path, command: str, part: tuple[int, int] | None = None, *, together: bool = False
) -> Iterator[None]:
    """Locks a workdir.

    A second process would delete unfinished checkpoints and record every run twice; another command would mix its records
    with earlier ones. The system drops the lock when the process ends in any way; the command's name stays in the file.

    Args:
      workdir: the workdir.
      command: name of the command.
      part: (I, N) of a study: other parts may work in the same workdir, the whole study may not.
      together: whether several processes do the work; the first one holds the lock.

    Raises:
      ValueError: the workdir is locked, belongs to another command, or is not writable.
    """
    if together:
        from posjax.training.processes import is_first

        if not is_first():
            yield
            return
    existed = workdir.exists()
    writable(workdir, "--workdir")
    with contextlib.ExitStack() as stack:
        lock = stack.enter_context(_locked(workdir / ".lock", fcntl.LOCK_EX if part is None else fcntl.LOCK_SH))
        if part is not None:
            stack.enter_context(_locked(workdir / f".lock-{part[0]}-of-{part[1]}", fcntl.LOCK_EX))
        before = lock.read().strip()
        if before and before != command:
            raise ValueError(
                f"{workdir} holds what experiments.{before} has written (.lock says so): give another --workdir"
            )
        if not before:
            os.pwrite(lock.fileno(), command.encode(), 0)  # parts that begin together write the same content
        try:
            yield
        finally:
            if [*workdir.iterdir()] == [workdir / ".lock"]:  # refused before anything was written
                (workdir / ".lock").unlink()
                if not existed:
                    workdir.rmdir()


@contextlib.contextmanager
def _locked(path: pathlib.Path, kind: int) -> Iterator[Any]:
    """Yields the file at `path`, open for reading, locked."""
    path.touch()
    with path.open("r+") as lock:
        try:
            fcntl.flock(lock, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(
                f"another process is at work in {path.parent}: wait for it, or give another --workdir"
            ) from None
        yield lock


def load(value: str) -> "ConfigDict":
    """Returns the config that `FILE[:argument]` names, without overrides.

    Raises:
      ValueError: the file is missing, or is not a config.
    """
    name, colon, argument = value.partition(":")
    found = [path for path in (pathlib.Path(name), _HOME / name) if path.is_file()]  # configs/vit.py, from any folder
    if not found:
        raise ValueError(f"--config={value}: there is no file {name!r}; those of posjax are in {_HOME / 'configs'}")
    spec = importlib.util.spec_from_file_location("_posjax_config", found[0])
    if spec is None:
        raise ValueError(f"--config={value}: {name!r} is not a Python file")
    if str(_HOME) not in sys.path:
        sys.path.append(str(_HOME))  # configs import from each other
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if not hasattr(module, "get_config"):
        raise ValueError(f"--config={value}: {name!r} has no get_config()")
    return module.get_config(argument) if colon else module.get_config()


def set_fields(config: "ConfigDict", overrides: Sequence[str]) -> None:
    """Sets the fields of a config, and locks it.

    Args:
      overrides: --config.a.b=1, --config.a["1%"].b=1 and so on; of a field named twice the last counts.

    Raises:
      ValueError: the field is unknown, or the value has another type.
    """
    fields = {name: (group, key) for name, group, key in _fields(config)}
    for word in overrides:
        match = _OVERRIDE.match(word)
        name = re.sub(_LABEL, lambda label: f'["{label[0][2:-2]}"]', match["field"])
        if name not in fields:
            near = difflib.get_close_matches(name, fields, n=1)
            hint = f"did you mean {near[0]}?" if near else f"the fields are {', '.join(fields)}"
            raise ValueError(f"{word}: no such field; {hint}")
        (group, key), value = fields[name], word[match.end() :]
        if isinstance(group[key], type(config)):
            raise ValueError(f"{word}: expected group of fields")
        kind = group.get_type(key)
        if value == "=None" and (group[key] is None or kind is str):
            group[key] = None
            continue
        try:
            if not value:
                raise ValueError
            group[key] = _READERS.get(kind, _literal)(value[1:])
        except (ValueError, TypeError, KeyError):
            raise ValueError(f"{word}: expected {kind.__name__}") from None
    config.lock()


def _literal(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def _tuple(text: str) -> tuple:
    value = _literal(text)
    return tuple(value.split(",")) if value == text else tuple(value) if isinstance(value, list | tuple) else (value,)


_BOOLS = {"true": True, "t": True, "1": True, "false": False, "f": False, "0": False}
# How a value of each type is read.
_READERS: dict[type, Callable[[str], Any]] = {
    **{str: str, int: int, float: float, tuple: _tuple},
    bool: lambda text: _BOOLS[text.lower()],
}


def _fields(config: "ConfigDict", prefix: str = "") -> "Iterator[tuple[str, ConfigDict, str]]":
    """Yields (name, group, key) of every field, groups included; names are spelled `a.b` or `a["1%"].b`."""
    for key in config:
        name = (f"{prefix}.{key}" if prefix else key) if key.isidentifier() else f'{prefix}["{key}"]'
        yield name, config, key
        if isinstance(config[key], type(config)):
            yield from _fields(config[key], name)
