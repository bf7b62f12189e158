"""Data and workdirs in buckets: fsspec's memory or a folder stands for one, and moto, which speaks S3, if it is installed."""

import json
import os
import pathlib
import signal
import time

import fsspec
import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from small import metrics_of
from test_commands import SMALL, start, succeed

from posjax import data, remote
from posjax.data.sets import resolve_data_dir
from posjax.remote import Mirror, is_remote, local_copy, mirrored, publish
from posjax.training.checkpoints import CheckpointError, Checkpoints

TEMPORARY = ".orbax-checkpoint-tmp"


class Killed(BaseException):
    """The end of a process between two writes."""


@pytest.fixture
def bucket(tmp_path, monkeypatch):
    """The objects of an empty memory://, {name: bytes}; copies lie in a folder of the test."""
    monkeypatch.setenv("POSJAX_CACHE", str(tmp_path / "cache"))
    store = fsspec.filesystem("memory")
    local_copy.cache_clear()
    yield lambda: {name: store.cat(name) for name in store.find("/")}
    store.store.clear()
    store.pseudo_dirs[:] = [""]


def kill_after(writes, monkeypatch):
    """Ends this process, as Killed, before one more object would be written or removed than `writes`."""
    left = [writes]

    def counted(change):
        def counting(*arguments, **kwargs):
            if not left[0]:
                raise Killed
            left[0] -= 1
            return change(*arguments, **kwargs)

        return counting

    for change in ("put_file", "rm_file"):
        monkeypatch.setattr(MemoryFileSystem, change, counted(getattr(MemoryFileSystem, change)))


def write(folder, files):
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)


def save(folder, step, unfinished=False, draw=0):
    """Files of a save, as orbax lays them before it names the folder, with names that it draws; returns the folder."""
    end = TEMPORARY if unfinished else ""
    made = folder / f"checkpoints/{step}{end}"
    files = {f"{name}{step}": "x" * step for name in (f"tree/a{draw}-", "tree/b")}
    write(made, files | {f"record{end}/seal.json": json.dumps([*files])})
    write(folder, {"metrics.jsonl": "".join(f"{i}\n" for i in range(step + 1))})
    return made


def whole_saves(folder):
    """The steps that have a seal, and all that it names; the lines of metrics.jsonl reach the newest."""
    steps = sorted(int(path.name) for path in (folder / "checkpoints").iterdir())
    for step in steps:
        sealed = json.loads((folder / f"checkpoints/{step}/record/seal.json").read_text())
        assert all((folder / f"checkpoints/{step}" / name).read_text() == "x" * step for name in sealed)
    assert max(map(int, (folder / "metrics.jsonl").read_text().split())) >= steps[-1]
    return steps


def test_a_kill_between_any_two_writes_of_a_save_leaves_the_newest_whole_one(tmp_path, bucket, monkeypatch):
    outcomes, kills = set(), 0
    for kills in range(30):
        before = Mirror("memory://bucket/run", tmp_path / "run")
        before.pull()
        for step in (2, 4):
            save(before.folder, step)
            before.push()
        ended = False
        with monkeypatch.context() as patches:
            kill_after(kills, patches)
            try:
                (tmp_path / "run/checkpoints/2").rename(tmp_path / "gone")  # the policy keeps the newer ones
                before.push(save(tmp_path / "run", 6, unfinished=True))
                ended = True
            except Killed:
                pass
        after = Mirror("memory://bucket/run", tmp_path / "run")
        after.pull()
        steps = whole_saves(after.folder)
        outcomes.add(tuple(steps))
        if steps[-1] < 6:  # the same command comes there again
            after.push(save(after.folder, 6, unfinished=True, draw=1))
        assert len([name for name in bucket() if "/6/" in name]) == 3
        last = Mirror("memory://bucket/run", tmp_path / "run")
        last.pull(), last.push()
        assert {name.split("/")[4] for name in bucket() if "/checkpoints/" in name} == {
            *map(str, whole_saves(last.folder))
        }
        fsspec.filesystem("memory").rm("/bucket", recursive=True)
        (tmp_path / "gone").rename(tmp_path / f"gone{kills}")
        if ended:
            break
    assert outcomes == {(2, 4), (2, 4, 6), (4, 6)}
    assert kills == 4 + 3  # metrics.jsonl and 3 files of the save; 3 of the old one


def test_objects_of_others_and_files_of_this_machine_stay_where_they_are(tmp_path, bucket):
    one, other = (Mirror("memory://bucket/run", tmp_path / name) for name in ("one", "other"))
    one.pull(), other.pull()
    write(one.folder, {"one.jsonl": "1", ".lock": "ablate", ".shared": "7", f"checkpoints/3{TEMPORARY}/tree/a": "half"})
    write(other.folder, {"other.jsonl": "2"})
    write(other.folder, {"checkpoints/damaged-2-17/record/seal.json": "{}", "checkpoints/2/record/seal.json": "{}"})
    one.push(), other.push(), one.push()
    saves = [f"checkpoints/{step}/record/seal.json" for step in ("2", "damaged-2-17")]
    assert {*bucket()} == {f"/bucket/run/{name}" for name in (".lock", "one.jsonl", "other.jsonl", *saves)}
    (one.folder / "one.jsonl").unlink()
    one.push()
    assert "/bucket/run/one.jsonl" not in bucket()
    fsspec.filesystem("memory").pipe(
        {f"/bucket/run/checkpoints/{step}/tree/a": b"" for step in (1, 3)}
    )  # 3 is being saved
    one.pull(), one.push()
    assert [path.name for path in sorted((one.folder / "checkpoints").iterdir())] == ["2", "damaged-2-17"]
    assert {name.split("/")[4] for name in bucket() if "/tree/" in name} == {"3"}


def test_checkpoints_of_a_bucket_come_back_and_a_store_that_refuses_ends_the_run(bucket, monkeypatch):
    with mirrored("memory://bucket/run") as workdir, Checkpoints(workdir / "checkpoints", keep_last=1) as checkpoints:
        for step in (1, 2):
            checkpoints.save(step, {"x": np.arange(step)})
            checkpoints.wait()
            assert f"/bucket/run/checkpoints/{step}/record/seal.json" in bucket()
    assert {name.split("/")[4] for name in bucket()} == {"2"}
    with mirrored("memory://bucket/run") as workdir, Checkpoints(workdir / "checkpoints") as checkpoints:
        step, tree = checkpoints.restore({"x": np.zeros(2, int)})
        assert (step, tree["x"].tolist()) == (2, [0, 1])
        with pytest.raises(ValueError, match="another process is at work in memory://bucket/run"):
            mirrored("memory://bucket/run").__enter__()

        write(workdir, {"metrics.jsonl": "3"})

        def refuse(*_, **__):
            raise PermissionError("access denied")

        monkeypatch.setattr(MemoryFileSystem, "put_file", refuse)
        with pytest.raises(
            CheckpointError, match=r"step 3 could not be saved in .*access denied.* step 2, which is whole"
        ):
            checkpoints.save(3, {"x": np.arange(3)})
            checkpoints.wait()
    assert {name.split("/")[4] for name in bucket()} == {"2"}
    publish(workdir)  # which is no mirror any more


def test_data_is_copied_once_and_anew_once_it_changes(bucket, caplog, monkeypatch):
    store = fsspec.filesystem("memory")
    store.pipe({f"/bucket/texts/{split}/{i}.txt": b"abc" * i for split in ("train", "test") for i in (1, 2)})
    folder = pathlib.Path(local_copy("memory://bucket/texts"))
    assert folder.name == "texts"
    assert (folder / "test/2.txt").read_bytes() == b"abcabc"
    assert "memory://bucket/texts: 4 files, 0.0 KiB, are copied to" in caplog.text
    part = local_copy("memory://bucket/texts/test/*.txt")
    assert part.endswith("/test/*.txt")
    assert [path.name for path in sorted(pathlib.Path(part).parent.iterdir())] == ["1.txt", "2.txt"]
    assert pathlib.Path(local_copy("memory://bucket/texts/train/2.txt")).read_bytes() == b"abcabc"
    local_copy.cache_clear()  # as another process
    with monkeypatch.context() as patches:
        patches.setattr(MemoryFileSystem, "get_file", None)
        assert local_copy("memory://bucket/texts/") == str(folder)
    time.sleep(0.001)
    store.pipe("/bucket/texts/train/1.txt", b"xyz")
    local_copy.cache_clear()
    assert (pathlib.Path(local_copy("memory://bucket/texts")) / "train/1.txt").read_bytes() == b"xyz"
    assert (folder / "train/1.txt").read_bytes() == b"abc"


def test_a_download_that_was_killed_goes_on(bucket, monkeypatch):
    fsspec.filesystem("memory").pipe({f"/bucket/texts/{i}.txt": b"abc" for i in range(4)})
    get, got = MemoryFileSystem.get_file, []

    def slow(self, path, there, **kwargs):
        got.append(path)
        if len(got) == 3:
            pathlib.Path(there).write_bytes(b"a")  # half of it
            raise Killed
        return get(self, path, there, **kwargs)

    monkeypatch.setattr(MemoryFileSystem, "get_file", slow)
    with pytest.raises(Killed):
        local_copy("memory://bucket/texts")
    folder = pathlib.Path(local_copy("memory://bucket/texts"))
    assert [path.read_bytes() for path in sorted(folder.iterdir())] == [b"abc"] * 4
    assert len(got) == 5


def test_texts_in_a_bucket_are_what_they_are_on_a_disk_and_sets_are_copied_alone(bucket, tmp_path):
    store = fsspec.filesystem("memory")
    write(tmp_path / "texts", {"train.txt": "to be or not", "test.txt": "to be"})
    store.put(str(tmp_path / "texts"), "/bucket/", recursive=True)
    for split in ("train", "test"):
        there, here = (
            data.load_stream("mine", split, files=files) for files in ("memory://bucket/texts", str(tmp_path / "texts"))
        )
        assert there.digest == here.digest
    store.pipe({f"/bucket/sets/{name}/letters/1.0.0/dataset_info.json": b"{}" for name in ("emnist", "imagenet")})
    folder = resolve_data_dir("memory://bucket/sets", "emnist/letters")
    assert [str(path.relative_to(folder)) for path in folder.rglob("*.json")] == [
        "emnist/letters/1.0.0/dataset_info.json"
    ]
    assert resolve_data_dir("memory://bucket/sets").name == "sets"


def test_addresses_that_cannot_be_read_are_one_line(bucket, monkeypatch):
    assert [is_remote(path) for path in ("s3://a/b", "runs/s3:/a", pathlib.Path("/a"))] == [True, False, False]
    assert local_copy("runs/vit") == "runs/vit"
    with pytest.raises(OSError, match="nothing at this address") as error:
        local_copy("memory://bucket/none")
    assert error.value.filename == "memory://bucket/none"
    with pytest.raises(ValueError, match=r"foo://a/b: Protocol not known: foo; give s3://"):
        local_copy("foo://a/b")
    monkeypatch.setitem(remote.PACKAGES, "s3", ("no_such_s3fs", []))
    with pytest.raises(ImportError, match=r"s3://a/b needs no_such_s3fs"):
        local_copy("s3://a/b")
    fsspec.filesystem("memory").store["/bucket/texts/../../x.txt"] = None
    monkeypatch.setattr(MemoryFileSystem, "find", lambda *_, **__: {"/bucket/texts/../x": {"type": "file", "size": 1}})
    with pytest.raises(ValueError, match=r"'/texts/../x', which is no path of a file"):
        local_copy("memory://bucket/texts")


@pytest.fixture(params=["folder", "s3"])
def store(request, tmp_path, monkeypatch):
    """The address of a bucket that outlives the commands."""
    monkeypatch.setenv("POSJAX_CACHE", str(tmp_path / "cache"))
    if request.param == "folder":
        monkeypatch.setenv("FSSPEC_FILE_AUTO_MKDIR", "true")
        yield f"file://{tmp_path}/bucket"
        return
    for package in ("moto", "s3fs", "flask"):
        pytest.importorskip(package, reason=f"{package} is not installed: pip install -e '.[s3]' 'moto[server]'")
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    for name, value in dict(
        ENDPOINT_URL="http://{}:{}".format(*server.get_host_and_port()), DEFAULT_REGION="us-east-1"
    ).items():
        monkeypatch.setenv(f"AWS_{name}", value)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    fsspec.filesystem("s3", skip_instance_cache=True).mkdir("bucket")
    yield "s3://bucket"
    server.stop()


@pytest.mark.slow
def test_a_run_in_a_bucket_that_is_killed_while_it_saves_ends_as_if_it_had_not_been(store, data_dir, tmp_path):
    files, root = fsspec.url_to_fs(store, skip_instance_cache=True, use_listings_cache=False)
    data.load_images("digits", "test", data_dir)
    files.put(f"{data_dir}/digits", f"{root}/sets/", recursive=True)
    fields = {**SMALL, "steps": 60, "checkpoint_every": 5}
    arguments = ["--config=configs/vit.py", *(f"--config.{name}={value}" for name, value in fields.items())]
    there = [*arguments, f"--config.data.data_dir={store}/sets", f"--workdir={store}/run"]
    environment = {name: value for name, value in os.environ.items() if name.startswith(("AWS", "FSSPEC", "POSJAX"))}
    for step in (10, 40):  # a kill in the save of this step, or a later one, or just behind it
        process = start("train", *there, **environment)
        while process.poll() is None and not files.find(f"{root}/run/checkpoints/{step}"):
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=60)
        assert process.poll() == -signal.SIGKILL
    succeed("train", *there, **environment)
    succeed("train", *arguments, f"--config.data.data_dir={data_dir}", f"--workdir={tmp_path / 'alone'}", **environment)
    (tmp_path / "run").mkdir()
    files.get(f"{root}/run/metrics.jsonl", str(tmp_path / "run/metrics.jsonl"))
    assert metrics_of(tmp_path / "run") == metrics_of(tmp_path / "alone")
    local = Checkpoints(tmp_path / "alone" / "checkpoints").steps()
    assert {
        path.removeprefix(f"{root}/run/checkpoints/").split("/")[0] for path in files.find(f"{root}/run/checkpoints")
    } == {*map(str, local)}
