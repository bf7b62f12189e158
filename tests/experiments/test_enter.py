"""An encoding is entered: checked, trained beside RoPE and ALiBi, and compared with them."""

import pathlib

import pytest
from study_records import made

import posjax as pj
import posjax.cli
import posjax.spec
from experiments import cli, enter
from experiments.records import read_study
from experiments.report.table import tables
from experiments.studies import environment

REPO = pathlib.Path(__file__).parents[2]
SMALL = f"""
import runpy

def get_config():
    config = runpy.run_path({str(REPO / "configs" / "enter.py")!r})["get_config"]()
    config.seeds = (0, 1)
    del config.studies["digits_vit"]
    for study in config.studies.values():
        study.data.data_dir = "data"
        study.model.update(dict(width=8, depth=1, num_heads=2))
        study.steps, study.batch_size, study.optimizer.warmup_steps = 2, 8, 1
        study.update(dict(eval_lengths=(16, 64), eval_batch_size=512))
        study.data.length = 16
    return config
"""
MINE = '''
from dataclasses import dataclass
import posjax as pj

@pj.register("nothing")
@dataclass(frozen=True)
class Nothing(pj.Encoding):
    """No position."""
'''


@pytest.fixture
def workplace(tmp_path, monkeypatch):
    """An empty folder with an encoding and a small study, and a registry that forgets additions."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(posjax.spec, "REGISTRY", dict(posjax.spec.REGISTRY))
    (tmp_path / "mine.py").write_text(MINE)
    (tmp_path / "small.py").write_text(SMALL)
    return tmp_path


def test_a_page_has_one_verdict_on_each_difference():
    """The tests of a table are one family: entry, rope and alibi beside each other, at two lengths."""
    loss = {
        "entry": [{64: 2.00, 512: 2.10}, {64: 2.02, 512: 2.12}, {64: 2.01, 512: 2.09}],
        "rope": [{64: 2.50, 512: 3.00}, {64: 2.52, 512: 3.05}, {64: 2.49, 512: 2.90}],
        "alibi": [{64: 2.03, 512: 2.10}, {64: 2.01, 512: 2.13}, {64: 2.04, 512: 2.08}],
    }
    (found,) = tables(made("loss", loss, trained_at=64, unit="byte"), "", enter.BESIDE)
    assert found.tests == 6
    cells = dict(zip(found.columns, (cell.text for cell in found.rows["entry"]), strict=True))
    for at in (64, 512):
        assert cells[f"{at} bytes against rope"].endswith("better")
        assert cells[f"{at} bytes against alibi"].startswith("not settled (")
    assert "entry, 2.010 ± 0.025, not clearly ahead of alibi" in found.finding


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("laplacian(pos_enc_dim=6)", "suits no study"),
        ("two.py", "registers 2 encodings: enter one as a spec, with --import"),
        ("empty.py", "registers no encoding"),
    ],
)
def test_what_cannot_be_entered_is_one_line(spec, message, workplace, capsys):
    (workplace / "two.py").write_text(MINE + MINE.replace("nothing", "nought").replace("Nothing", "Nought"))
    (workplace / "empty.py").write_text("")
    assert enter.main([spec]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line


def test_an_encoding_that_fails_a_property_is_not_trained(workplace, capsys):
    wrong = "    def embed(self, params, x, site):\n        return x[0]\n"
    (workplace / "mine.py").write_text(MINE + wrong)
    assert enter.main(["mine.py"]) == 1
    assert "embed returned" in capsys.readouterr().out
    assert not (workplace / "runs").exists()


def test_own_pictures_or_texts_take_the_place_of_the_data(workplace, monkeypatch):
    plans = []
    monkeypatch.setattr(cli, "run_study", lambda study, *_: plans.append(study))
    monkeypatch.setattr(posjax.cli, "check_all", lambda encodings: 0)
    for name in ("pictures/train/cats/1.png", "texts/a.txt"):
        (workplace / name).parent.mkdir(parents=True)
        (workplace / name).touch()
        assert enter.main(["mine.py", f"--data_dir={name.partition('/')[0]}", "--config.seeds=(3,)"]) == 0
    vit, decoder = (study.rows[0].training for study in plans)
    assert (vit.data.name, vit.data.data_dir, vit.data.image_size) == ("folder", "pictures", (32, 32))
    assert (decoder.data.name, decoder.data.files) == ("texts", "texts")
    assert [study.seeds(study.rows[0]) for study in plans] == [(3,), (3,)]


@pytest.mark.slow
def test_an_entry_leaves_a_page_beside_rope_and_alibi(workplace, monkeypatch, capsys):
    monkeypatch.setattr(posjax.cli, "check_all", lambda encodings: 0)
    monkeypatch.setattr(environment, "compilation_cache", lambda directory: None)  # it would stay on for other tests
    assert enter.main(["mine.py", "--config=small.py"]) == 0
    printed = capsys.readouterr().out
    (workdir,) = (workplace / "runs" / "enter").glob("nothing-*")
    page = (workdir / "README.md").read_text()
    assert "against rope" in page
    assert "against alibi" in page
    assert "against rope" in " ".join(printed.split())
    records = read_study(workdir)
    assert {record.row for record in records} == {"entry", "rope", "alibi"}


def test_edited_code_has_records_of_its_own(workplace):
    encoding, file = pj.parse("none"), workplace / "mine.py"
    before = enter.folder_of(encoding, [str(file), "package.module"])
    file.write_text(f"{file.read_text()}\n# edited\n")
    assert enter.folder_of(encoding, [str(file), "package.module"]) != before
