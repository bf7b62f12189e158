"""Users' mistakes on a command line are answered by one line and exit code 2."""

import argparse
import importlib
import json
import os
import pathlib
import platform
import runpy
import subprocess
import sys

import numpy as np
import pytest
from flax.traverse_util import flatten_dict
from ml_collections import ConfigDict

import posjax.cli
from experiments import ablate, cli, tune_allocator
from posjax import environment as environment_of_code

REPO = pathlib.Path(__file__).parents[1]

CONFIG = """
from ml_collections import ConfigDict, config_dict
def get_config(size="small"):
    if size not in ("small", "large"):
        raise ValueError(f"size {size!r} is not one of small, large")
    model = {"width": 4, "flag": True, "shape": (1, 2), "name": "a", "rate": 0.1}
    rows = ConfigDict({"rope(base=0.5)": "rope(base=0.5)"}, allow_dotted_keys=True)
    config = ConfigDict({"model": model, "steps": 3, "seed": config_dict.placeholder(int), "raises": "", "rows": rows})
    if size == "large":
        config.name = "big"
    return config
"""
MODULE = '''
"""A throwaway.

    python -m throwaway --config=configs/throwaway.py --workdir=DIR
"""
import pathlib
import platform
import sys
from experiments.cli import StoppedRun, run

def main(config, workdir):
    if config.raises == "StoppedRun":
        raise StoppedRun("stopped at step 3")
    if config.raises == "FileExistsError":
        pathlib.Path(__file__).mkdir()
    if config.raises:
        raise __import__("builtins").__dict__[config.raises]("line one\\n  line two")
    print(config.to_json(sort_keys=True))
    print(workdir)
    print("jax" in sys.modules)

if __name__ == "__main__":
    run(main, __doc__)
'''


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    path = tmp_path_factory.mktemp("cli")
    (path / "x.py").write_text(CONFIG)
    (path / "throwaway.py").write_text(MODULE)
    (path / "broken.py").write_text("def get_config(:\n")
    (path / "empty.py").write_text("")
    (path / "notes.txt").write_text("steps = 3")
    return path


@pytest.fixture
def call(directory, monkeypatch, capsys):
    """Runs the command in this process, which takes a hundredth of the time of another one."""
    monkeypatch.chdir(directory)

    def function(*arguments):
        monkeypatch.setattr(sys, "argv", [str(directory / "throwaway.py"), *arguments])
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(sys.argv[0], run_name="__main__")
        return subprocess.CompletedProcess(arguments, ended.value.code or 0, *capsys.readouterr())

    return function


def test_overrides_reach_main_and_jax_is_not_imported(directory, tmp_path):
    overrides = ["--config.model.width", "8", "--noconfig.model.flag", "--config.model.shape=(7,)", "--config.seed=5"]
    overrides += ['--config.rows["rope(base=0.5)"]=rope(base=0.7)']
    command = [sys.executable, "-m", "throwaway", "--config=x.py", *overrides, f"--workdir={tmp_path}"]
    environment = os.environ | {"PYTHONPATH": f"{REPO}{os.pathsep}{directory}"}
    result = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True)
    assert (result.returncode, result.stderr) == (0, "")
    config, workdir, jax_imported = result.stdout.splitlines()
    assert json.loads(config) == {
        "model": {"width": 8, "flag": False, "shape": [7], "name": "a", "rate": 0.1},
        "steps": 3,
        "seed": 5,
        "raises": "",
        "rows": {"rope(base=0.5)": "rope(base=0.7)"},
    }
    assert (workdir, jax_imported) == (str(tmp_path), "False")


def test_a_name_that_is_no_identifier_is_quoted():
    config = ConfigDict({"studies": {"1%": {"steps": 3}, "plain": {"shape": (1, 2)}}})
    for name, value in (('studies["1%"].steps', 4), ("studies['1%'].steps", 5)):
        cli.set_fields(config, [f"--config.{name}={value}"])
        assert config.studies["1%"].steps == value
    cli.set_fields(config, ["--config.studies.plain.shape=3,4", "--config.studies.plain.shape=5"])
    assert config.studies.plain.shape == (5,)  # of a field given twice the last counts
    with pytest.raises(cli.UsageError, match=r'no such field; did you mean studies\["1%"\].steps\?'):
        cli.set_fields(config, ["--config.studies.1%.steps=4"])


@pytest.mark.parametrize("name", ["vit", "decoder", "encoder", "algorithmic", "finetune", "finetune.py:vit"])
def test_none_may_be_said_of_each_field_that_is_none(name):
    """It is not the text "None", and no number is asked for."""
    config = cli.load(f"configs/{name}" if ":" in name else f"configs/{name}.py")
    unset = [field for field, value in flatten_dict(config.to_dict(), sep=".").items() if value is None]
    cli.set_fields(config, [f"--config.{field}=None" for field in unset])
    assert unset == [field for field, value in flatten_dict(config.to_dict(), sep=".").items() if value is None]


def test_the_default_workdir_is_named_after_the_config(call):
    assert call("--config=x.py").stdout.splitlines()[1] == "runs/x"
    assert call("--config=x.py:large").stdout.splitlines()[1] == "runs/big"


@pytest.mark.slow
def test_a_config_is_found_beside_the_installed_package(directory):
    """From any folder; configs import from each other there too."""
    command = [sys.executable, "-m", "experiments.ablate", "--config=configs/quickstart.py", "--config.seeds=()"]
    result = subprocess.run(
        command, cwd=directory, env=os.environ | {"PYTHONPATH": str(REPO)}, capture_output=True, text=True
    )
    assert (result.returncode, result.stderr[:42]) == (2, "error: seeds must be given and differ, got")


def test_a_stopped_run_has_an_exit_code_of_its_own(call):
    result = call("--config=x.py", "--config.raises=StoppedRun")
    assert (result.returncode, result.stderr) == (cli.EXIT_STOPPED, "")
    assert result.stdout == "stopped at step 3; the same command goes on from there\n"
    assert cli.EXIT_STOPPED not in (0, 1, cli.EXIT_MISTAKE)
    result = call("--config=x.py", "--config.raises=KeyboardInterrupt")  # before there is anything to go on with
    assert (result.returncode, result.stdout, result.stderr) == (cli.EXIT_STOPPED, "", "interrupted\n")


def test_help_is_the_docstring(call):
    result = call("--help")
    assert (result.returncode, result.stderr) == (0, "")
    assert "python -m throwaway --config=configs/throwaway.py" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ([], "--config=FILE is missing, for example: python -m throwaway --config=configs/throwaway.py --workdir=DIR"),
        (["--config=y.py"], "--config=y.py: there is no file 'y.py'; did you mean x.py?"),
        (["--config="], f"--config=: there is no file ''; those of posjax are in {REPO / 'configs'}"),
        (["--config=notes.txt"], "--config=notes.txt: 'notes.txt' is not a Python file"),
        (["--config=empty.py"], "--config=empty.py: 'empty.py' has no get_config()"),
        (["--config=broken.py"], "invalid syntax (broken.py, line 1)"),
        (["--config=x.py:huge"], "size 'huge' is not one of small, large"),
        (
            ["--config=x.py", "--config.model.witdh=1"],
            "--config.model.witdh=1: no such field; did you mean model.width?",
        ),
        (["--config=x.py", "--config.width=1"], "--config.width=1: no such field; did you mean model.width?"),
        (["--config.stesp", "1", "--config", "x.py"], "--config.stesp=1: no such field; did you mean steps?"),
        (
            ["--config=x.py", "--config.qqqq=1"],
            "--config.qqqq=1: no such field; the fields are model, model.flag, model.name, model.rate, model.shape, "
            'model.width, raises, rows, rows["rope(base=0.5)"], seed, steps',
        ),
        (
            ["--config=configs/quickstart.py"],
            "--config=configs/quickstart.py is of a study: run it by python -m experiments.ablate",
        ),
        (["--config=x.py", "--config.model.width=a"], "--config.model.width=a: expected int"),
        (["--config=x.py", "--config.seed=1.5"], "--config.seed=1.5: expected int"),
        (["--config=x.py", "--config.model.rate=fast"], "--config.model.rate=fast: expected float"),
        (["--config=x.py", "--config.model.flag=maybe"], "--config.model.flag=maybe: expected bool"),
        (["--config=x.py", "--config.model=3"], "--config.model=3: expected group of fields"),
        (
            ["--config=x.py", "--config.model.shape[0]=3"],
            "0 is not a valid index for <class 'tuple'> (in: model.shape[0])",
        ),
        (["--config=x.py", "--wrokdir=a"], "unrecognized arguments: --wrokdir=a; did you mean --workdir?"),
        (["--config=x.py", "steps=3"], "unrecognized arguments: steps=3; options are written --name=value"),
        (["--config=x.py", "--config.raises=ValueError"], "line one line two (--traceback shows where)"),
        (
            ["--config=x.py", '--config.rows["rope(base=5)"]=t5'],
            '--config.rows["rope(base=5)"]=t5: no such field; did you mean rows["rope(base=0.5)"]?',
        ),
        (
            ["--config=configs/vti.py"],
            f"--config=configs/vti.py: there is no file 'configs/vti.py'; did you mean {REPO / 'configs' / 'vit.py'}?",
        ),
        (
            ["--config=nowhere/x_y_z.py"],
            f"--config=nowhere/x_y_z.py: there is no file 'nowhere/x_y_z.py'; those of posjax are in {REPO / 'configs'}",
        ),
        (
            ["--config=x.py", "--workdir=\udcff"],
            r"--workdir='\udcff': the name is no UTF-8; give another directory",
        ),
        (
            ["--config=x.py", "--workdir=x.py"],
            "--workdir=x.py: nothing can be written there (File exists); give another directory",
        ),
        (
            ["--config=x.py", "--workdir=x.py/y"],
            "--workdir=x.py/y: nothing can be written there (Not a directory); give another directory",
        ),
        (["--config=x.py", "--config.raises=FileNotFoundError"], "line one line two (--traceback shows where)"),
        (["--config=x.py", "--config.raises=PermissionError"], "line one line two (--traceback shows where)"),
        (["--config=x.py", "--config.raises=ImportError"], "line one line two (--traceback shows where)"),
        (["--config=x.py", "--config.raises=FloatingPointError"], "line one line two (--traceback shows where)"),
    ],
)
def test_a_mistake_is_one_line(call, arguments, line):
    result = call(*arguments)
    assert (result.returncode, result.stdout, result.stderr) == (2, "", f"error: {line}\n")


@pytest.mark.parametrize("arguments", [("--config.raises=TypeError",), ("--config.raises=ValueError", "--traceback")])
def test_other_errors_and_traceback_show_where(call, arguments):
    with pytest.raises((TypeError, ValueError), match="line one"):
        call("--config=x.py", *arguments)


def test_checkpoint_errors_are_user_errors():
    from experiments.cli import USER_ERRORS
    from posjax.training.checkpoints import CheckpointError

    assert issubclass(CheckpointError, USER_ERRORS)


def test_the_allocator_can_be_left_alone(monkeypatch):
    monkeypatch.setenv("POSJAX_ALLOCATOR", "default")
    assert tune_allocator() == "default"
    monkeypatch.delenv("POSJAX_ALLOCATOR")
    expected = "mallopt" if platform.libc_ver()[0] == "glibc" else "default"
    code = "from experiments import tune_allocator as tune; print(tune(), tune())"
    result = subprocess.run([sys.executable, "-c", code], cwd=REPO, capture_output=True, text=True, check=True)
    assert result.stdout.split() == [expected, expected]


def test_the_environment_is_described_in_json(tmp_path):
    described = json.loads(json.dumps(environment_of_code.describe()))
    assert {"python", "jax", "jaxlib", "flax", "optax", "numpy", "posjax", "commit", "device", "cpus"} <= set(described)
    assert described["devices"] >= 1


def test_the_commit_is_ours_or_none(tmp_path):
    def git(*arguments):
        author = ["-c", "user.name=a", "-c", "user.email=a@b"]
        subprocess.run(["git", *author, *arguments], cwd=tmp_path, capture_output=True, check=True)

    def commit():
        code = "import environment; print(environment.commit())"
        return subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True).stdout.strip()

    copy = tmp_path / "environment.py"
    copy.write_text(pathlib.Path(environment_of_code.__file__).read_text())
    assert commit() == "None"  # no repository
    git("init")
    git("commit", "--allow-empty", "-m", "theirs")
    assert commit() == "None"  # a repository that does not hold this file
    git("add", ".")
    git("commit", "-m", "ours")
    assert len(commit().removesuffix("-dirty")) == 12
    copy.write_text(copy.read_text() + "\n")
    assert commit().endswith("-dirty")


def test_one_process_at_a_time_works_in_a_directory(tmp_path):
    with (
        cli.alone_in(tmp_path, "train"),
        pytest.raises(cli.UsageError, match=r"another process is at work in .*--workdir"),
        cli.alone_in(tmp_path, "train"),
    ):
        pass
    with cli.alone_in(tmp_path, "train"):  # the lock went with its holder
        pass


def test_a_log_has_lines_and_nothing_before_the_first_step(monkeypatch, capsys):
    from experiments.studies import running

    monkeypatch.setattr(running, "LINE_EVERY", 0.0)
    monkeypatch.setattr(running, "NOTHING_YET", 1e-9)
    with running.Progress(2) as progress:
        on_step = progress.row("first")
        for step in (1, 2):
            on_step(step, {"loss": np.ones(1)})
    shown = capsys.readouterr().err
    assert "\r" not in shown
    assert len(shown.splitlines()) >= 2
    assert all(line.startswith("first: ") and "loss=1.000" in line for line in shown.splitlines())
    monkeypatch.undo()
    with pytest.raises(ValueError, match="early"), running.Progress(2) as progress:
        progress.row("first")
        progress.skip(1)
        raise ValueError("early")
    assert capsys.readouterr().err == ""


def test_a_bar_within_another_moves_no_cursor_in_a_log(monkeypatch, capsys):
    from experiments.studies import running

    monkeypatch.setattr(running, "LINE_EVERY", 0.0)
    monkeypatch.setattr(running, "NOTHING_YET", 1e-9)
    with running.bar(1, "step") as outer, running.bar(2, "tok", leave=False) as inner:
        inner.update()
        outer.update()
    shown = capsys.readouterr().err
    assert "tok/s" in shown
    assert "\x1b" not in shown


LONG = ["9" * 5000, "é" * 5000, "to be " * 1000, "[1]," * 2000]


@pytest.mark.parametrize("value", LONG, ids=["digits", "letters", "words", "values"])
@pytest.mark.parametrize("error", [ValueError, cli.UsageError, OSError, ImportError])
def test_a_long_value_is_told_by_its_beginning_and_end(error, value, capsys):
    def work():
        raise error(f"steps must be positive, got {value} ; give --config.steps=1")

    assert cli.answer(work) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: steps must be positive, got {value[:80]}")
    assert "; give --config.steps=1" in line
    assert len(line) < 2700


def full_disk(monkeypatch, run):
    """Runs a function with a stdout that is full, and ends it as the interpreter does."""
    with open("/dev/full", "w") as full:
        monkeypatch.setattr("sys.stdout", full)
        try:
            return run()
        finally:
            monkeypatch.undo()


@pytest.mark.parametrize("lines", [1, 5000])  # written at the end, or before it
@pytest.mark.parametrize("command", ["experiments", "posjax"])
def test_a_full_stdout_is_one_line(command, lines, monkeypatch, capsys):
    def work(*_):
        for _ in range(lines):
            print("some text")
        return 0

    monkeypatch.setattr(posjax.cli, "check_all", work)
    run = {"experiments": lambda: cli.answer(work), "posjax": lambda: posjax.cli.main(["check", "rope"])}[command]
    assert full_disk(monkeypatch, run) == 2
    assert capsys.readouterr().err.startswith("error: standard output: No space left on device")


def test_two_commands_do_not_share_a_directory(tmp_path):
    """Each would overwrite the other's config.json and report."""
    (tmp_path / ".lock").touch()  # of a run from before locks said whose they are
    for _ in range(2):
        with cli.alone_in(tmp_path, "train"):
            (tmp_path / "run.json").touch()
    with (
        pytest.raises(cli.UsageError, match=r"holds what experiments\.train has written .*: give another --workdir"),
        cli.alone_in(tmp_path, "ablate"),
    ):
        pass
    (tmp_path / ".lock").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(cli.UsageError, match=rf"{tmp_path} holds .*\.lock says so"), cli.alone_in(tmp_path, "train"):
        pass


def test_a_refused_command_leaves_nothing_behind(tmp_path):
    """The folder is free for another command, and is gone if the first one made it."""
    for workdir in (tmp_path / "new", tmp_path):
        with pytest.raises(ValueError, match="refused"), cli.alone_in(workdir, "train"):
            raise ValueError("refused")
        assert workdir == tmp_path or not workdir.exists()
        assert not [*tmp_path.iterdir()]


def test_the_compilation_cache_is_filled(tmp_path):
    code = (
        "from experiments.studies.environment import compilation_cache as cache; import sys; cache(sys.argv[1]); "
        "import jax; print(jax.jit(lambda x: x * 3)(2))"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], cwd=REPO, capture_output=True, check=True)
    assert any(tmp_path.iterdir())


def test_a_config_hash_ignores_order_and_kind_of_sequence():
    from posjax.jsonl import config_hash

    config = ConfigDict({"b": {"y": (1, 2), "x": 0.5}, "a": None})
    assert config_hash(config) == config_hash({"a": None, "b": {"x": 0.5, "y": [1, 2]}})
    assert len(config_hash(config)) == 12
    assert config_hash(config) != config_hash({"a": None, "b": {"x": 0.5, "y": [2, 1]}})
    with pytest.raises(TypeError, match="set"):
        config_hash({"a": {1}})


@pytest.mark.parametrize(
    ("line", "encodings"),
    [
        ("--encodings none rope --seeds 0,1", ["none", "rope"]),
        ("--encodings --config.steps 1", []),
        ("--encodings=none --encodings alibi", ["none", "alibi"]),
    ],
)
def test_an_option_may_be_followed_by_several_values(line, encodings, directory):
    made = cli.config_parser("ablate", "", ablate.options, rows=True)
    assert cli.read(made, [f"--config={directory / 'x.py'}", *line.split()])[1].encodings == encodings


def test_a_part_of_the_rows_is_two_numbers(directory, capsys):
    made, config = cli.config_parser("ablate", "", ablate.options, rows=True), f"--config={directory / 'x.py'}"
    assert cli.read(made, [config, "--rows=1/3"])[1].part == (1, 3)
    for wrong in ("3/3", "1", "x/2"):
        with pytest.raises(SystemExit, match="2"):
            cli.read(made, [config, f"--rows={wrong}"])
        assert f"expected I/N with I from 0 to N - 1, as 0/4 for the first of four parts, got '{wrong}'" in str(
            capsys.readouterr().err
        )


@pytest.mark.parametrize("closed", ["2>&-", "1>&-", "0<&-", "0<&- 1>&- 2>&-"])
def test_a_closed_stream_gives_its_number_to_no_file(closed, tmp_path):
    code = (
        "import experiments, os, sys; file = open('record', 'w'); file.write('kept'); file.flush()\n"
        "for number in (1, 2): os.write(number, b'noise')\n"
        "print('lost', flush=True); print('lost', file=sys.stderr, flush=True)"
    )
    shell = f'exec "$0" -c "$1" {closed}'
    environment = os.environ | {"PYTHONPATH": str(REPO)}
    done = subprocess.run(["sh", "-c", shell, sys.executable, code], cwd=tmp_path, env=environment, capture_output=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "record").read_text() == "kept"


def test_a_closed_stderr_stops_no_command(call, directory):
    command = f'exec "{sys.executable}" -m throwaway --config=x.py 2>&-'
    environment = os.environ | {"PYTHONPATH": f"{REPO}{os.pathsep}{directory}"}
    done = subprocess.run(["sh", "-c", command], cwd=directory, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout.splitlines()[:2]) == (0, call("--config=x.py").stdout.splitlines()[:2])


def test_commands_need_their_docstrings(directory):
    environment = os.environ | {"PYTHONPATH": f"{REPO}{os.pathsep}{directory}", "PYTHONOPTIMIZE": "2"}
    command = [sys.executable, "-m", "throwaway", "--config=x.py"]
    done = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True)
    line = "error: PYTHONOPTIMIZE=2 takes the docstrings out, which commands show: set it to 1 or 0\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", line)


@pytest.mark.parametrize("name", ["result.jsonl", "results.jsonl", "metrics.jsonl", "config.json", "report.html"])
def test_a_folder_where_a_file_would_be_written_is_refused_before_any_work(call, name, tmp_path):
    (tmp_path / name).mkdir()
    done = call("--config=x.py", f"--workdir={tmp_path}")
    line = f"error: {tmp_path / name} is a folder where a file would be written: move it, or give another --workdir\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", line)


@pytest.mark.parametrize("address", ["gs://bucket/run", "s3:/bucket/run"])
@pytest.mark.parametrize("command", ["analyse", "atlas", "benchmark", "enter", "export", "scorecard", "train"])
def test_an_address_is_no_directory(command, address, tmp_path, capsys, monkeypatch):
    """The message names what the user gave: a path drops the second slash."""
    flag = "--workdir" if command in ("enter", "train") else "--out"
    monkeypatch.setattr(sys, "argv", [command, f"{flag}={address}"])
    monkeypatch.chdir(tmp_path)
    module = importlib.import_module(f"experiments.{command}{'.__main__' if command == 'atlas' else ''}")
    with pytest.raises(SystemExit, match="2"):
        cli.run(module.main, None) if command == "train" else module.main()
    line = f"error: argument {flag}: expected a directory of this machine, got {address!r}\n"
    assert capsys.readouterr().err == line
    with pytest.raises(argparse.ArgumentTypeError, match="got ''"):
        cli.directory("")
