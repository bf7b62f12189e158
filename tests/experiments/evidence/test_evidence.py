"""Numbers in texts, contrasts of records and verdicts on claims, by hand-worked cases."""

import math
import pathlib
import runpy

import numpy as np
import pytest

from experiments.evidence import matrix, numbers, page
from experiments.evidence.advice import SITUATIONS, Field, standing
from experiments.evidence.claims import CLAIMS, CONTROL, ROLES, Claim, Source, above, below, within
from experiments.evidence.contrast import Table, evaluate, mean
from experiments.evidence.inventory import STUDIES, core_hours, folder_of, passes, regime_of
from experiments.evidence.verdicts import FAILS, HOLDS, NOT_RUN, UNCLEAR, judge_claims
from experiments.report.lengths import CHUNKED, SLIDING
from experiments.report.statistics import difference_interval

REPO = pathlib.Path(__file__).parents[3]
CONFIG = {"studies": {"images": {"batch_size": 60, "data": {"fraction": 0.5}, "optimizer": {"learning_rate": 0.01}}}}
WHO = Source("Nobody", 2020, "2001.00001")


def record(label, seed, accuracy, **more):
    return {
        "study": "images",
        "task": "classification",
        "label": label,
        "encoding": f"{label}()",
        "seed": seed,
        "data": "fashion_mnist",
        "steps": 500,
        "parameters": 10,
        "step_time": 0.1,
        "wall_time": 3600.0,
        "config_hash": label,
        "device": "cpu",
        "versions": {"commit": "0123456789ab-dirty", "cpus": 2},
        "metrics": {"accuracy": accuracy},
    } | more


def made(**rows):
    """A folder with a table `images` of these rows: label -> accuracies by seed, or {resolution: accuracy} by seed."""
    return folder_of(
        [record(label, seed, v) for label, values in rows.items() for seed, v in enumerate(values)], CONFIG
    )


IMAGES = Table("made", "images", "accuracy")
FOLDERS = {"made": made(none=[0.1, 0.2, 0.3], rope=[0.8, 0.9, 0.91], alibi=[0.1, 0.25, 0.32])}
TABLES = {name: folder.tables for name, folder in FOLDERS.items()}


def test_a_contrast_is_welchs_or_paired_and_says_what_it_is():
    difference = IMAGES("rope") - IMAGES("none")
    assert str(difference) == "rope - none"
    expected = difference_interval([0.8, 0.9, 0.91], [0.1, 0.2, 0.3])
    assert evaluate(difference, TABLES).interval() == pytest.approx(expected)
    by_size = {"made": made(rope=[{"28": 0.5, "56": 0.4}, {"28": 0.7, "56": 0.6}]).tables}
    paired = evaluate(IMAGES("rope", 56) - IMAGES("rope", 28), by_size)
    assert (paired.value, paired.error) == pytest.approx((-0.1, 0.0), abs=1e-9)
    assert str(mean([IMAGES("rope", 56), IMAGES("rope", 28)])) == "0.5 rope @56 + 0.5 rope @28"
    other = Table("made", "more", "accuracy")
    assert str(mean([table("a") - table("b") for table in (IMAGES, other)])) == "mean over images, more of a - b"
    assert evaluate(IMAGES("rope") - other("rope"), TABLES) is None


def claim(name, *expects):
    return Claim(name, WHO, "table 1", "Something.", expects)


def test_verdicts():
    """Of five claims of one folder four can be tested; the largest Holm factor is four."""
    claims = [
        claim("right", above(IMAGES("rope") - IMAGES("none"))),
        claim("wrong", below(IMAGES("rope") - IMAGES("none"))),
        claim("unclear", above(IMAGES("alibi") - IMAGES("none"))),
        claim(
            "one of two is wrong", above(IMAGES("rope") - IMAGES("alibi")), within(IMAGES("rope") - IMAGES("none"), 0.1)
        ),
        claim("not run", above(IMAGES("fox") - IMAGES("none"))),
    ]
    judged = judge_claims(claims, TABLES)
    assert [each.verdict for each in judged] == [HOLDS, FAILS, UNCLEAR, FAILS, NOT_RUN]
    assert {each.tests for each in judged} == {4}
    alone = judge_claims(claims[:1], TABLES)[0]
    assert alone.p == pytest.approx(evaluate(claims[0].expects[0].contrast, TABLES).p())
    assert alone.p < judged[0].p <= 4 * alone.p
    single = {"made": made(none=[0.1], rope=[0.9]).tables}  # a single seed tells nothing
    assert judge_claims(claims[:1], single)[0].verdict == UNCLEAR


def test_a_tie_is_shown_by_an_interval_within_it_and_not_by_a_wide_one():
    narrow = {"made": made(a=[0.500, 0.501, 0.502], b=[0.500, 0.501, 0.502]).tables}
    aside = {"made": made(a=[0.508, 0.510, 0.512], b=[0.500, 0.501, 0.502]).tables}  # 0.009 apart
    wide = {"made": made(a=[0.3, 0.5, 0.7], b=[0.3, 0.5, 0.7]).tables}
    tie = [claim("tie", within(IMAGES("a") - IMAGES("b"), 0.01))]
    assert judge_claims(tie, narrow)[0].verdict == HOLDS
    assert judge_claims(tie, wide)[0].verdict == UNCLEAR
    assert judge_claims(tie, aside)[0].verdict == UNCLEAR


def test_regime():
    regime = regime_of([IMAGES(row).terms[0][1] for row in ("rope", "none", "gone")], FOLDERS)
    assert numbers.plain(regime.text()) == "10 parameters, 500 steps, 1 pass, 3 seeds, rate 0.01, cpu"
    chosen = record("rope", 0, 0.5, tuned={"learning_rate": 0.003})
    tuned = {"made": folder_of([chosen], CONFIG)}
    assert regime_of([IMAGES("rope").terms[0][1]], tuned).rates == (0.003,)
    taken = {"made": folder_of([record("rope", 0, 0.5, learning_rate=0.02)], CONFIG)}
    assert regime_of([IMAGES("rope").terms[0][1]], taken).rates == (0.02,)
    config = CONFIG["studies"]["images"]
    assert passes(chosen | {"data": "made up"}, config) is None
    mixed = {"data": {"fraction": 0.5, "retrieval": {"share": 0.5, "first_steps": 100}}}
    assert passes(chosen, config | mixed) == pytest.approx(0.4)  # half of the rows of 400 of 500 steps
    assert passes(chosen, config | {"data": {"retrieval": {"share": 1.0}}}) is None
    apart = [record("rope", seed, 0.5, wall_time=1800.0 + seed) for seed in (0, 0, 1)]  # two runs, one of them shared
    assert core_hours(folder_of(apart[:1], CONFIG, apart[1:])) == pytest.approx(2 * (1800 + 1801) / 3600)


def test_the_matrix_and_who_leads():
    assert matrix.name_of("rope(scaling=yarn(factor=4, original_length=8))") == "rope"
    assert matrix.name_of("raster(width=8) >> learned()") == "learned"
    assert matrix.name_of("randomized(length=8) >> rope()") == "randomized >> rope"
    found = standing(Field(IMAGES, None, "none", "accuracy"), FOLDERS)
    assert (found.leader, found.tied, found.behind) == ("rope", (), ())
    assert found.lead.separated
    leads = standing(Field(IMAGES, None, "rope", "accuracy"), FOLDERS)
    assert leads == ("rope", None, (), ("alibi", "none"))  # best first
    assert standing(Field(IMAGES, None, "rope", "accuracy", ("alibi",)), FOLDERS).behind == ("none",)
    assert standing(Field(IMAGES, None, "fox", "accuracy"), FOLDERS) is None


def test_numbers_that_come_from_nowhere_are_found():
    text = f"ALiBi gains {numbers.ink('+8.8 ± 0.7')} in 2-D (Press et al. 2022, arXiv 2108.12409, table 2), `f(3)`."
    assert numbers.loose(text) == []
    assert numbers.loose(f"{text} About 8.8 points, 95% sure, -1e-3, ±2.") == ["8.8", "95", "-1e-3", "±2"]
    assert numbers.plain(numbers.ink(5)) == "5"
    facts = {r"holds (\d+) encodings": (68,)}
    assert numbers.unexplained("It holds 68 encodings.", facts) == []
    assert len(numbers.unexplained("It holds 67 encodings.", facts)) == 1
    assert len(numbers.unexplained("It holds 68 encodings in 2 models.", facts)) == 1


def test_claims_are_data_that_can_be_read():
    names = [each.id for each in CLAIMS]
    assert len(set(names)) == len(names) >= 24
    folders = {study.folder for study in STUDIES}
    for each in CLAIMS:
        assert {cell.folder for cell in each.cells} == {each.folder} <= folders, each.id
        assert numbers.loose(f"{each.says} {each.doubt} {each.tried} {each.remains}") == [], each.id
        assert each.role in ROLES
        assert (each.role == CONTROL) == ("our own control" in each.place), each.id
        assert each.paper or "no number" in each.place or "no accuracy" in each.place, each.id
        for expected in each.expects:
            assert -math.inf < expected.low < expected.high or expected.low < expected.high < math.inf, each.id


def planned(study):
    """table -> (labels of its rows, what it is read at), by its config; labels of resolutions without policies."""
    path, _, argument = study.config.partition(":")
    config = runpy.run_path(str(REPO / path))["get_config"](*([argument] if argument else []))
    if study.module == "extrapolate":
        of_bases = [*config.variants.values(), *config.finetune.values()]
        labels = {*config.encodings, *config.get("rows", {}), *(label for rows in of_bases for label in rows)}
        lengths = {*config.evaluation.lengths, *config.evaluation.long_lengths}
        of_tasks = dict.fromkeys(config.retrieval.tasks, (labels, {*config.retrieval.lengths}))
        return dict.fromkeys((SLIDING, CHUNKED), (labels, lengths)) | of_tasks
    found = {}
    for name, table in (config.get("studies") or config.sets).items():
        sizes = table.evaluation.resolutions if study.module == "resolutions" else table.get("eval_lengths", ())
        found[name] = {*table.get("encodings", {}), *table.get("rows", {})}, {*sizes}
    return found


@pytest.mark.parametrize("study", STUDIES, ids=lambda study: study.folder)
def test_claims_are_of_rows_and_lengths_that_the_study_has(study):
    """Else they would be called not run for ever."""
    looked = {cell for each in CLAIMS for other in each.follow_up for _, cell in other.contrast.terms}
    cells = {cell for cell in {cell for each in CLAIMS for cell in each.cells} | looked if cell.folder == study.folder}
    if not cells:
        pytest.skip("no claim is decided by it")
    tables = planned(study)
    for cell in cells:
        labels, sizes = tables[cell.table]
        assert (cell.row.split(", ")[0] if study.module == "resolutions" else cell.row) in labels, cell
        assert cell.at is None or cell.at in sizes, cell


def test_a_page_with_every_claim_judged():
    """Made-up values for every cell that a claim reads: no claim is left out, and no sentence breaks."""
    rng, rows = np.random.default_rng(0), {}
    for cell in {cell: None for each in CLAIMS for cell in each.cells}:
        level = rng.uniform(0.2, 0.8)
        for seed in range(3):
            metrics = rows.setdefault((cell.folder, cell.table, cell.row, seed), {})
            value = level + rng.uniform(-0.01, 0.01)
            if cell.at is None:
                metrics[cell.metric] = value
            else:
                metrics.setdefault(cell.metric, {})[str(cell.at)] = value
    records = {}
    for (folder, table, row, seed), metrics in rows.items():
        found = record(row, seed, 0.0, study=table, metrics=metrics, config_hash=f"{table}, {row}")
        records.setdefault(folder, []).append(found)
    folders = {name: folder_of(found, CONFIG) for name, found in records.items()}
    text = page.render(folders, {})
    assert {each.verdict for each in page.judge(folders)} == {HOLDS, UNCLEAR, FAILS}
    assert numbers.loose(text) == []
    assert "Not run: " not in text
    assert text.count("*Doubt*: ") == len(SITUATIONS) + sum(bool(each.doubt) for each in CLAIMS)
    assert matrix.figure(matrix.matrix(folders, page.judge(folders))).axes
