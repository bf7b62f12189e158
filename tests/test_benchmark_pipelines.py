"""The suite of pipelines: its clock, the files that it reads, and posjax's side of it."""

import subprocess
import sys
import time

import numpy as np

from experiments.benchmarks import jax_reading, reading, table, worker
from experiments.benchmarks.contender import Seconds

CASE = {"workers": 0, "count": 3, "pictures": 8, "tokens": 3000, "image": 16, "batch": 4, "length": 10}


def test_a_pipeline_is_opened_warmed_and_closed_outside_of_its_time():
    log = []

    def batches():
        time.sleep(0.2)
        try:
            for number in range(100):
                log.append(number)
                yield number
        finally:
            log.append("closed")

    call = reading.reading(batches, CASE, 5, "images")
    assert call.figures == {"runs": 3, "items": 5, "unit": "images"}
    taken = worker.timed(call, 1)
    assert 0 < taken["wall"] < 0.1
    assert log == [0, 1, 2, 3, 4, "closed"]
    record = {**call.figures, "cpu": [taken["cpu"]], "wall": [1.5], "threads": 2, "skip": None}
    assert table.outcome(record) == "10 images/s, 500 ms"  # of a batch of five
    assert table.outcome({**record, "skip": "no answer", "cpu": [], "wall": []}) == "no answer"
    call.run()
    assert log[6] == 0


def test_the_time_of_other_processes_counts():
    began = reading.cpu_seconds()
    program = "import time\nwhile time.process_time() < 0.3: pass\nprint(flush=True)\ninput()"
    with subprocess.Popen([sys.executable, "-c", program], stdin=-1, stdout=-1) as child:
        child.stdout.readline()
        taken = reading.cpu_seconds() - began
        child.communicate(b"\n")
    assert 0.25 < taken < 1.5
    assert isinstance(reading.reading(lambda: iter(range(9)), {**CASE, "workers": 1}, 1, "images").run(), Seconds)


def test_posjax_reads_what_was_painted(tmp_path):
    case = {**CASE, "folder": str(tmp_path)}
    for packing in ("folder", "tars"):
        call = jax_reading.images({**case, "augment": "inception_crop + flip + timm_randaug", "packing": packing})
        assert call.run().wall > 0
    root = reading.pictures(case)
    assert len([*(root / "folder").rglob("*.jpg")]) == 8
    share = (root / "tars/train.tar").stat().st_size / sum(h * w for h, w in map(reading.size_of, range(8)))
    assert 0.2 < share < 0.5  # bytes a pixel, as photographs have
    assert jax_reading.tokens(case).figures["items"] == 40
    assert (np.fromfile(reading.tokens(case), "<u2")[512:] == reading.OPENS).sum() == 3
