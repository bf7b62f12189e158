"""An encoding is entered: checked, trained beside RoPE and ALiBi, and compared with them."""

import pathlib

import pytest
from scipy.stats import ttest_ind
from study_records import of_metric

import posjax as pj
import posjax.spec
from experiments import enter
from experiments.records import Records, read_study

REPO = pathlib.Path(__file__).parents[2]
SMALL = f"""
import runpy

def get_config():
    config = runpy.run_path({str(REPO / "configs" / "enter.py")!r})["get_config"]()
    config.seeds = (0, 1)
    for study in config.studies.values():
        study.data.data_dir = "data"
        study.model.update(dict(width=8, depth=1, num_heads=2))
        study.steps, study.batch_size, study.optimizer.warmup_steps = 2, 8, 1
    config.studies.pydoc_decoder.update(dict(eval_lengths=(16, 64), eval_batch_size=512))
    config.studies.pydoc_decoder.data.length = 16
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


def test_differences_are_judged_as_one_family():
    """Welch's p-values of four differences, each with Holm's factor."""
    loss = {
        "entry": [{64: 2.00, 512: 2.10}, {64: 2.02, 512: 2.12}, {64: 2.01, 512: 2.09}],
        "rope": [{64: 2.50, 512: 3.00}, {64: 2.52, 512: 3.30}, {64: 2.49, 512: 2.90}],
        "alibi": [{64: 2.03, 512: 2.10}, {64: 2.01, 512: 2.13}, {64: 2.04, 512: 2.08}],
    }
    records = Records(of_metric("loss", loss, trained_at=64, unit="byte", study="pydoc_decoder"))
    lines = enter.comparison(records, pj.parse("t5")).splitlines()[2:]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    p = {
        (other, at): ttest_ind(*([each[at] for each in loss[row]] for row in ("entry", other)), equal_var=False).pvalue
        for at in (64, 512)
        for other in ("rope", "alibi")
    }
    adjusted, largest = {}, 0.0
    for rank, key in enumerate(sorted(p, key=p.get)):
        adjusted[key] = largest = max(largest, min(1.0, (4 - rank) * p[key]))
    for at, (name, own, beside_rope, p_rope, beside_alibi, p_alibi) in zip((64, 512), cells, strict=True):
        assert name == f"pydoc_decoder: loss (nats per byte) at {at}"
        assert own.startswith("2.010" if at == 64 else "2.103")
        assert (float(p_rope), float(p_alibi)) == pytest.approx((adjusted["rope", at], adjusted["alibi", at]), rel=0.05)
        assert beside_rope.endswith("better")
        assert beside_alibi.startswith("not settled (")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("laplacian(pos_enc_dim=6)", "nothing to run"),
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


@pytest.mark.slow
def test_an_entry_leaves_a_page_that_ends_with_its_comparison(workplace, capsys):
    assert enter.main(["mine.py", "--config=small.py"]) == 0
    printed = capsys.readouterr().out
    (workdir,) = (workplace / "runs" / "enter").glob("nothing-*")
    page = (workdir / "README.md").read_text()
    section = page.partition("## nothing() beside RoPE and ALiBi\n\n")[2].strip()
    assert section in printed
    assert section.count("\n") == 1 + 3  # a score of the ViT, and two lengths of the decoder
    records = read_study(workdir)
    assert {(record.study, record.row) for record in records} == {
        (study, row) for study in ("digits_vit", "pydoc_decoder") for row in ("entry", "rope", "alibi")
    }


def test_edited_code_has_records_of_its_own(workplace):
    encoding, file = pj.parse("none"), workplace / "mine.py"
    before = enter.folder_of(encoding, [str(file), "package.module"])
    file.write_text(f"{file.read_text()}\n# edited\n")
    assert enter.folder_of(encoding, [str(file), "package.module"]) != before
