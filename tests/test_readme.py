"""The documents of the root and of docs/ as they stand: python blocks run, commands run or parse, and named files exist.

The python blocks of a document run in their order, in one namespace and an empty directory, with no other names or files.
A block that begins with `# name.py` is also a file of that name, for the commands that import it.

Commands, by their treatment (`HOW`):
  run     in this process, as it stands
  slow    in a process of its own, made small by the arguments given here; marked slow
  parsed  the real parser reads the line, the config loads, and every override names a field and fits its type; because the
          command needs a checkpoint, a download or minutes
"""

import argparse
import importlib
import pathlib
import re
import shlex

import jax
import pytest
from flax import linen as nn
from forked import forked

import posjax.cli
import posjax.spec
from experiments import cli
from posjax.attention import backends
from posjax.data import sets

REPO = pathlib.Path(__file__).parents[1]
DOCUMENTS = [*sorted(REPO.glob("*.md")), *sorted((REPO / "docs").rglob("*.md"))]
TRANSLATED = {REPO / "README.zh.md"}  # tests/test_languages.py finds the code of README.md in it
FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
SHELL = ("git", "make", "pip", "posjax", "python")  # first words of a block of commands
TINY = ["--config.steps=2", "--config.batch_size=8", "--config.model.width=8", "--config.model.depth=1"]
TINY += ["--config.model.num_heads=2", "--config.optimizer.warmup_steps=1", "--config.checkpoint_every=2"]
TEXT = [
    "--config.data.length=16",
    "--config.eval_lengths=(16,)",
    "--config.eval_batch_size=512",
    "--config.eval_every=0",
]
# (start of the command behind "python -m experiments.", or "posjax.cli" for posjax, treatment, arguments that make it
# small); else it is parsed.
HOW = [
    ("posjax.cli explain --cite", "run", []),
    ("posjax.cli explain inverse", "run", []),
    ("posjax.cli explain steps", "run", []),
    ("catalogue", "run", []),
    ("prepare --list", "run", []),
    ("posjax.cli explain", "parsed", []),  # tests/describe/test_explain.py draws and explains
    ("posjax.cli check", "parsed", []),  # the guide's encodings are checked by tests/test_docs.py
    ("scorecard inverse", "slow", ["--length=64"]),
    ("train --config=configs/decoder.py --config.data.name=mine", "parsed", []),
    ("train --config=configs/decoder.py --config.data.name=novels", "parsed", []),
    ("train --config=configs/decoder.py --config.data.name=fineweb", "parsed", []),
    ("train --config=configs/vit.py --workdir", "parsed", []),  # tests/test_commands.py trains one
    ("train --config=configs/decoder.py --config.model", "parsed", []),  # others train below
    ("train --config=configs/vit.py --config.data.name=stripes", "slow", TINY),
    ("train --config=configs/decoder.py --config.mesh", "parsed", []),  # needs devices
    ("train --config=configs/decoder.py --config.data.ladder", "parsed", []),  # drawn in test_data_text.py
    ("train --config=configs/decoder.py --workdir=runs/two", "parsed", []),  # tests/test_processes.py runs two
    ("train --config=configs/decoder.py", "slow", TINY + TEXT),
]


def blocks(path, language):
    """The texts of a document's blocks in that language; "sh" also where a block without one begins like a command."""
    found = FENCED.findall(path.read_text())
    return [
        text for name, text in found if name == language or (language == "sh" and not name and text.split()[0] in SHELL)
    ]


def commands(path):
    """The command lines of a document, as words; those within a sentence too, where nothing is left out of them."""
    inline = re.findall(r"`((?:python -m experiments|posjax (?:explain|check|audit) )[^`]*)`", path.read_text())
    for text in [*blocks(path, "sh"), *(line for line in inline if "..." not in line)]:
        lines = text.replace("\\\n", " ").splitlines()
        yield from (shlex.split(line, comments=True) for line in lines if line.strip())


def experiments(path):
    """(module, arguments) of each `python -m experiments.X` and each `posjax`."""
    for words in commands(path):
        if words[:2] == ["python", "-m"]:
            yield words[2].removeprefix("experiments."), words[3:]
        elif words[0] == "posjax":
            yield "posjax.cli", words[1:]


def command(module):
    """The module that a command runs."""
    if module == "posjax.cli":
        return posjax.cli
    package = (REPO / "experiments" / module).is_dir()
    return importlib.import_module(f"experiments.{module}.__main__" if package else f"experiments.{module}")


EXPERIMENTS = [(path, *each) for path in DOCUMENTS for each in experiments(path)]
ONCE = list({(module, *arguments): (path, module, arguments) for path, module, arguments in EXPERIMENTS[::-1]}.values())


def treatment(module, arguments):
    """("run", "slow" or "parsed", extra arguments) of a command."""
    line = " ".join([module, *arguments])
    return next((rest for start, *rest in HOW if line.startswith(start)), ("parsed", []))


def commands_by(how):
    return [each for each in ONCE if treatment(*each[1:])[0] == how]


@pytest.fixture
def empty(tmp_path, monkeypatch):
    """An empty directory to work in, and registries that forget additions."""
    monkeypatch.chdir(tmp_path)
    for module, name in ((posjax.spec, "REGISTRY"), (backends, "BACKENDS"), (sets, "SOURCES")):
        monkeypatch.setattr(module, name, dict(getattr(module, name)))
    return tmp_path


def write_files(path, directory):
    """The files that a document shows."""
    for text in blocks(path, "python"):
        if named := re.match(r"# ([\w/]+\.py)\n", text):
            (directory / named[1]).write_text(text)


@pytest.mark.slow
@pytest.mark.parametrize(
    "path",
    [path for path in DOCUMENTS if blocks(path, "python") and path not in TRANSLATED],
    ids=lambda path: path.name,
)
def test_python_blocks_run_in_their_order(path, empty, monkeypatch):
    def compiled(method):
        return lambda self, first, *args, **kwargs: jax.jit(lambda given: method(self, given, *args, **kwargs))(first)

    for name in ("init", "apply"):  # eager, a model compiles hundreds of programs
        monkeypatch.setattr(nn.Module, name, compiled(getattr(nn.Module, name)))
    namespace = {"__name__": "readme"}
    write_files(path, empty)
    for number, text in enumerate(blocks(path, "python")):
        exec(compile(text, f"{path.name}, python block {number}", "exec"), namespace)


@pytest.mark.parametrize(("path", "module", "arguments"), commands_by("run"))
def test_commands_that_run(path, module, arguments, empty, capsys):
    write_files(path, empty)
    assert command(module).main(arguments) == 0, capsys.readouterr().err
    assert "FAIL" not in capsys.readouterr().out


@pytest.mark.slow
def test_commands_that_run_when_small(tmp_path):
    """All of them in one test, each from a directory with its document's files: their processes are forked from one."""
    calls = {}
    for number, (path, module, arguments) in enumerate(commands_by("slow")):
        folder = tmp_path / f"of {number}"
        folder.mkdir()
        write_files(path, folder)
        (folder / "configs").symlink_to(REPO / "configs")
        data = [f"--config.data.data_dir={tmp_path / 'data'}"] if module == "train" else []
        calls[" ".join([module, *arguments])] = (folder, module, *arguments, *treatment(module, arguments)[1], *data)
    done = forked({str(number): call for number, call in enumerate(calls.values())}, tmp_path)
    failed = {line: err[-2000:] for line, (code, _, err) in zip(calls, done.values(), strict=True) if code}
    assert not failed, failed


class Parsed(Exception):
    """The arguments were read without complaint."""


def test_commands_parse(monkeypatch):
    monkeypatch.chdir(REPO)
    assert len(ONCE) >= 20

    def parse(self, argv=None, namespace=None):
        _, unknown = self.parse_known_args(argv, namespace)
        raise Parsed(unknown)

    for path, module, arguments in ONCE:
        print(path.name, module, *arguments)  # shown if it fails
        if "cli.run(" in pathlib.Path(command(module).__file__).read_text():
            read(command(module), arguments)
            continue
        with monkeypatch.context() as patched, pytest.raises(Parsed) as parsed:
            patched.setattr(argparse.ArgumentParser, "parse_args", parse)
            command(module).main(arguments)
        assert parsed.value.args == ([],)


def read(module, arguments):
    """Reads the command line of a module as `cli.run` does."""
    options = getattr(module, "options", None)
    made = cli.config_parser(module.__name__, module.__doc__, options, many_processes=True, rows=True)
    return cli.read(made, arguments)


def test_what_is_named_exists():
    known = re.compile(r"(?<![\w/.-])(?:docs|results|configs|tests|posjax|experiments)/[\w./-]*\w")
    for path in DOCUMENTS:
        text = path.read_text()
        links = [link for link in re.findall(r"\]\(([^)#]+)", text) if "://" not in link]
        missing = [name for name in known.findall(text) if not (REPO / name).exists()]
        missing += [link for link in links if not (path.parent / link).exists()]
        assert missing == [], path.name
