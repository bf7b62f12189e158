"""Commands in processes of their own, forked from one that has imported everything: that takes longer than they do."""

import json
import multiprocessing
import os
import pathlib
import runpy
import subprocess
import sys
import tempfile

REPO = pathlib.Path(__file__).parents[1]
PARENT = """
import json, os, pathlib, runpy, sys
import posjax.training.loop, posjax.training.tasks, experiments.ablate, experiments.train, tensorflow_datasets
directory = pathlib.Path(sys.argv[2])
codes = {}
for name, (cwd, module, *arguments) in json.loads(sys.argv[1]).items():
    child = os.fork()
    if not child:
        for stream, kind in ((1, "out"), (2, "err")):
            os.dup2(os.open(directory / f"{name}.{kind}", os.O_WRONLY | os.O_CREAT), stream)
        os.chdir(cwd)
        sys.argv[1:] = arguments
        module = module if "." in module else f"experiments.{module}"
        sys.modules.pop(module, None)
        runpy.run_module(module, run_name="__main__", alter_sys=True)
        sys.exit(0)
    codes[name] = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
print(json.dumps(codes))
"""


def forked(calls, directory):
    """{name: (exit code, stdout, stderr)} of {name: (cwd, module, *arguments)}; their outputs are files in `directory`."""
    code = [sys.executable, "-c", PARENT, json.dumps(calls, default=str), str(directory)]
    environment = os.environ | {"PYTHONPATH": str(REPO), "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(code, cwd=REPO, env=environment, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr[-3000:]
    outputs = {name: [(directory / f"{name}.{kind}").read_text() for kind in ("out", "err")] for name in calls}
    return {name: (code, *outputs[name]) for name, code in json.loads(done.stdout.splitlines()[-1]).items()}


SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(
    ["experiments.train", "posjax.training.loop", "posjax.training.tasks", "tensorflow_datasets"]
)


class Command:
    """A command that runs beside the tests, as `subprocess.Popen` shows one."""

    def __init__(self, module, *arguments):
        self._folder = tempfile.TemporaryDirectory()
        self._streams = [pathlib.Path(self._folder.name) / name for name in ("out", "err")]
        arguments = f"experiments.{module}", [*map(str, arguments)], self._streams
        self._process = SERVER.Process(target=_run, args=arguments)
        self._process.start()

    def send_signal(self, number):
        os.kill(self._process.pid, number)

    def poll(self):
        return self._process.exitcode

    def communicate(self, timeout):
        self._process.join(timeout)
        assert self.poll() is not None, "it does not end"
        return [stream.read_text() for stream in self._streams]


def _run(module, arguments, streams):
    for number, name in enumerate(streams, 1):
        os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT), number)
    os.chdir(REPO)
    sys.argv[1:] = arguments
    sys.modules.pop(module, None)
    runpy.run_module(module, run_name="__main__", alter_sys=True)
