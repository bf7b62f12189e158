"""Users' mistakes on a command line are answered by one line and exit code 2."""

import importlib
import json
import os
import pathlib
import platform
import runpy
import subprocess
import sys

import pytest
from flax.traverse_util import flatten_dict
from ml_collections import ConfigDict

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


def test_overrides_reach_main(directory, tmp_path):
    overrides = [
        "--config.model.width",
        "8",
        "--config.model.flag=False",
        "--config.model.shape=(7,)",
        "--config.seed=5",
    ]
    overrides += ['--config.rows["rope(base=0.5)"]=rope(base=0.7)']
    command = [sys.executable, "-m", "throwaway", "--config=x.py", *overrides, f"--workdir={tmp_path}"]
    environment = os.environ | {"PYTHONPATH": f"{REPO}{os.pathsep}{directory}"}
    result = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True)
    assert (result.returncode, result.stderr) == (0, "")
    config, workdir = result.stdout.splitlines()
    assert json.loads(config) == {
        "model": {"width": 8, "flag": False, "shape": [7], "name": "a", "rate": 0.1},
        "steps": 3,
        "seed": 5,
        "raises": "",
        "rows": {"rope(base=0.5)": "rope(base=0.7)"},
    }
    assert workdir == str(tmp_path)


def test_jax_is_not_imported_for_help():
    code = "import sys; from experiments import cli; cli.config_parser('train', ''); print('jax' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", code], cwd=REPO, text=True) == "False\n"


def test_a_name_that_is_no_identifier_is_quoted():
    config = ConfigDict({"studies": {"1%": {"steps": 3}, "plain": {"shape": (1, 2)}}, "word": "a"})
    for name, value in (('studies["1%"].steps', 4), ("studies['1%'].steps", 5)):
        cli.set_fields(config, [f"--config.{name}={value}"])
        assert config.studies["1%"].steps == value
    cli.set_fields(config, ["--config.studies.plain.shape=3,4", "--config.studies.plain.shape=5"])
    assert config.studies.plain.shape == (5,)  # of a field given twice the last counts
    cli.set_fields(config, ["--config.word="])
    assert config.word == ""
    with pytest.raises(ValueError, match="expected str"):
        cli.set_fields(config, ["--config.word"])
    with pytest.raises(ValueError, match=r'no such field; did you mean studies\["1%"\].steps\?'):
        cli.set_fields(config, ["--config.studies.1%.steps=4"])


@pytest.mark.parametrize("name", ["vit", "decoder", "encoder", "algorithmic", "finetune", "finetune.py:vit"])
def test_none_may_be_said_of_each_field_that_is_none(name):
    """It is not the text "None", and no number is asked for."""
    config = cli.load(f"configs/{name}" if ":" in name else f"configs/{name}.py")
    unset = [field for field, value in flatten_dict(config.to_dict(), sep=".").items() if value is None]
    cli.set_fields(config, [f"--config.{field}=None" for field in unset])
    assert unset == [field for field, value in flatten_dict(config.to_dict(), sep=".").items() if value is None]


def test_a_word_that_is_set_may_become_none_and_a_number_may_not():
    config = ConfigDict({"variant": "S/16", "steps": 3})
    cli.set_fields(config, ["--config.variant=None"])
    assert config.variant is None
    with pytest.raises(ValueError, match="expected int"):
        cli.set_fields(ConfigDict({"steps": 3}), ["--config.steps=None"])


def test_the_default_workdir_is_named_after_the_config(call):
    assert call("--config=x.py").stdout.splitlines()[1] == "runs/x"
    assert call("--config=x.py:large").stdout.splitlines()[1] == "runs/big"


def test_a_stopped_run_has_an_exit_code_of_its_own(call):
    result = call("--config=x.py", "--config.raises=StoppedRun")
    assert (result.returncode, result.stderr) == (cli.EXIT_STOPPED, "")
    assert result.stdout == "stopped at step 3; the same command goes on from there\n"
    assert cli.EXIT_STOPPED not in (0, 1, cli.EXIT_MISTAKE)
    result = call("--config=x.py", "--config.raises=KeyboardInterrupt")  # before there is anything to go on with
    assert (result.returncode, result.stdout, result.stderr) == (cli.EXIT_STOPPED, "", "interrupted\n")


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        ([], "python -m throwaway --config=configs/throwaway.py --workdir=DIR"),
        (["--config=configs/vti.py"], str(REPO / "configs")),
        (["--config=notes.txt"], "'notes.txt'"),
        (["--config=empty.py"], "'empty.py' has no get_config()"),
        (["--config=broken.py"], "broken.py, line 1"),
        (["--config=x.py:huge"], "'huge'"),
        (["--config=configs/quickstart.py"], "python -m experiments.ablate"),
        (["--config.stesp", "1", "--config", "x.py"], "--config.stesp=1: no such field; did you mean steps?"),
        (["--config=x.py", "--config.qqqq=1"], 'rows["rope(base=0.5)"], seed, steps'),
        (["--config=x.py", '--config.rows["rope(base=5)"]=t5'], 'did you mean rows["rope(base=0.5)"]?'),
        (["--config=x.py", "--config.model.width=a"], "--config.model.width=a: expected int"),
        (["--config=x.py", "--config.model=3"], "--config.model=3: expected group of fields"),
        (["--config=x.py", "--config.model.shape[0]=3"], "model.shape"),
        (["--config=x.py", "--wrokdir=a"], "--wrokdir=a; did you mean --workdir?"),
        (["--config=x.py", "steps=3"], "--name=value"),
        (["--config=x.py", "--workdir=x.py/y"], "--workdir=x.py/y"),
        (["--config=x.py", "--config.raises=ValueError"], "line one line two"),
    ],
)
def test_a_mistake_is_one_line(call, arguments, part):
    result = call(*arguments)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    assert part in result.stderr


@pytest.mark.parametrize("arguments", [("--config.raises=TypeError",), ("--config.raises=ValueError", "--traceback")])
def test_other_errors_and_traceback_show_where(call, arguments):
    with pytest.raises((TypeError, ValueError), match="line one"):
        call("--config=x.py", *arguments)


def test_the_allocator_can_be_left_alone(monkeypatch):
    monkeypatch.setenv("POSJAX_ALLOCATOR", "default")
    assert tune_allocator() == "default"
    monkeypatch.delenv("POSJAX_ALLOCATOR")
    expected = "mallopt" if platform.libc_ver()[0] == "glibc" else "default"
    code = "from experiments import tune_allocator as tune; print(tune(), tune())"
    result = subprocess.run([sys.executable, "-c", code], cwd=REPO, capture_output=True, text=True, check=True)
    assert result.stdout.split() == [expected, expected]


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


def test_a_long_value_is_told_by_its_beginning_and_end(capsys):
    def work():
        raise ValueError(f"steps must be positive, got {'9' * 5000} ; give --config.steps=1")

    assert cli.answer(work) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: steps must be positive, got {'9' * 80}")
    assert "; give --config.steps=1" in line
    assert len(line) < 2700


def test_a_directory_has_one_process_at_a_time_and_one_command(tmp_path):
    (tmp_path / ".lock").touch()  # of a run from before locks said whose they are
    for _ in range(2):  # the lock goes with its holder
        with (
            cli.alone_in(tmp_path, "train"),
            pytest.raises(ValueError, match=r"another process is at work in .*--workdir"),
            cli.alone_in(tmp_path, "train"),
        ):
            pass
        (tmp_path / "run.json").touch()
    with pytest.raises(ValueError, match=r"experiments\.train has written"), cli.alone_in(tmp_path, "ablate"):
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


def test_an_option_may_be_followed_by_several_values(directory):
    made = cli.config_parser("ablate", "", ablate.options, rows=True)
    for line, encodings in (
        ("--encodings none rope --seeds 0,1", ["none", "rope"]),
        ("--encodings --config.steps 1", []),
    ):
        assert cli.read(made, [f"--config={directory / 'x.py'}", *line.split()])[1].encodings == encodings


def test_a_part_of_the_rows_is_two_numbers(directory, capsys):
    made, config = cli.config_parser("ablate", "", ablate.options, rows=True), f"--config={directory / 'x.py'}"
    assert cli.read(made, [config, "--rows=1/3"])[1].part == (1, 3)
    with pytest.raises(SystemExit, match="2"):
        cli.read(made, [config, "--rows=3/3"])
    assert "got '3/3'" in capsys.readouterr().err


def test_a_closed_stream_gives_its_number_to_no_file(tmp_path):
    code = (
        "import experiments, os, sys; file = open('record', 'w'); file.write('kept'); file.flush()\n"
        "for number in (1, 2): os.write(number, b'noise')\n"
        "print('lost', flush=True); print('lost', file=sys.stderr, flush=True)"
    )
    shell = 'exec "$0" -c "$1" 0<&- 1>&- 2>&-'
    environment = os.environ | {"PYTHONPATH": str(REPO)}
    done = subprocess.run(["sh", "-c", shell, sys.executable, code], cwd=tmp_path, env=environment, capture_output=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "record").read_text() == "kept"


def test_an_address_is_a_workdir_and_no_other_directory(directory, tmp_path, capsys, monkeypatch):
    """Both name what the user gave: a path drops the second slash."""
    made = cli.config_parser("train", "")
    assert (
        cli.read(made, [f"--config={directory / 'x.py'}", "--workdir=gs://bucket/run"])[1].workdir == "gs://bucket/run"
    )
    monkeypatch.setattr(sys, "argv", ["benchmark", "--out=gs://bucket/run"])
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match="2"):
        importlib.import_module("experiments.benchmark").main()
    assert "'gs://bucket/run'" in capsys.readouterr().err
