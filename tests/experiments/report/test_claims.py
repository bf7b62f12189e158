"""Contrasts of records, verdicts on claims, answers to questions, and the claims of configs/, by hand-worked cases."""

import itertools
import math
import pathlib

import pytest
from study_records import of_metric

from experiments.records import Records, read_study
from experiments.report import claims
from experiments.report.claims import (
    CONTROL,
    FAILS,
    HOLDS,
    NOT_RUN,
    ROLES,
    UNSETTLED,
    Claim,
    Question,
    Source,
    Table,
    above,
    answer_to,
    below,
    estimate_contrast,
    judge_claims,
    mean,
    within,
)
from experiments.report.statistics import estimate
from experiments.report.studies import studies
from experiments.studies.engine import plan
from experiments.studies.measures import sizes_of
from experiments.studies.plan import measures_of, tables_of

RESULTS = pathlib.Path(__file__).parents[3] / "results"


def made(values):
    return Records(of_metric("accuracy", values))


IMAGES = Table("made", "digits", "accuracy")
FOLDERS = {"made": made({"none": [0.1, 0.2, 0.3], "rope": [0.8, 0.9, 0.91], "alibi": [0.1, 0.25, 0.32]})}


def test_a_contrast_is_welchs_or_paired_and_says_its_cells():
    difference = IMAGES("rope") - IMAGES("none")
    assert str(difference) == "rope - none"
    expected = estimate([(1, [0.8, 0.9, 0.91]), (-1, [0.1, 0.2, 0.3])]).interval()
    assert estimate_contrast(difference, FOLDERS).interval() == pytest.approx(expected)
    by_size = {"made": made({"rope": [{28: 0.5, 56: 0.4}, {28: 0.7, 56: 0.6}]})}
    paired = estimate_contrast(IMAGES("rope", 56) - IMAGES("rope", 28), by_size)
    assert (paired.value, paired.error) == pytest.approx((-0.1, 0.0), abs=1e-9)
    assert str(mean([IMAGES("rope", 56), IMAGES("rope", 28)])) == "0.5 rope @56 + 0.5 rope @28"
    other = Table("made", "more", "accuracy")
    assert str(mean([table("a") - table("b") for table in (IMAGES, other)])) == "mean over digits, more of a - b"
    assert estimate_contrast(IMAGES("rope") - other("rope"), FOLDERS) is None


def claim(name, *expects):
    return Claim(name, Source("Nobody", 2020, "2001.00001"), "table 1", "Something.", expects)


def test_verdicts():
    """Four of five claims of one folder can be tested; the largest Holm factor is four."""
    tie = within(IMAGES("rope") - IMAGES("none"), 0.1)
    asked = [
        claim("right", above(IMAGES("rope") - IMAGES("none"))),
        claim("wrong", below(IMAGES("rope") - IMAGES("none"))),
        claim("unclear", above(IMAGES("alibi") - IMAGES("none"))),
        claim("one of two is wrong", above(IMAGES("rope") - IMAGES("alibi")), tie),
        claim("not run", above(IMAGES("fox") - IMAGES("none"))),
    ]
    judged = judge_claims(asked, FOLDERS)
    assert [each.verdict for each in judged] == [HOLDS, FAILS, UNSETTLED, FAILS, NOT_RUN]
    assert {each.tests for each in judged} == {4}
    alone = judge_claims(asked[:1], FOLDERS)[0]
    assert alone.p == pytest.approx(estimate_contrast(asked[0].expects[0].contrast, FOLDERS).p())
    assert alone.p < judged[0].p <= 4 * alone.p
    single = {"made": made({"none": [0.1], "rope": [0.9]})}  # a single seed tells nothing
    assert judge_claims(asked[:1], single)[0].verdict == UNSETTLED


def test_a_tie_is_shown_by_an_interval_within_it_and_not_by_a_wide_one():
    narrow = {"a": [0.500, 0.501, 0.502], "b": [0.500, 0.501, 0.502]}
    aside = {"a": [0.508, 0.510, 0.512], "b": [0.500, 0.501, 0.502]}  # 0.009 apart
    wide = {"a": [0.3, 0.5, 0.7], "b": [0.3, 0.5, 0.7]}
    tie = [claim("tie", within(IMAGES("a") - IMAGES("b"), 0.01))]
    verdicts = [judge_claims(tie, {"made": made(values)})[0].verdict for values in (narrow, wide, aside)]
    assert verdicts == [HOLDS, UNSETTLED, UNSETTLED]


def test_who_leads_a_question():
    found = answer_to(Question("Images", (IMAGES,), "accuracy"), FOLDERS, ())
    assert (found.leader, found.tied, found.behind) == ("rope", (), ())
    assert found.lead.separated
    leads = answer_to(Question("Images", (IMAGES,), "accuracy", reference="rope"), FOLDERS, ())
    assert (leads.leader, leads.lead, leads.behind) == ("rope", None, ("alibi", "none"))  # best first
    without = Question("Images", (IMAGES,), "accuracy", reference="rope", others=("alibi",))
    assert answer_to(without, FOLDERS, ()).behind == ("none",)
    assert answer_to(Question("Images", (IMAGES,), "accuracy", reference="fox"), FOLDERS, ()) is None


KNOWN = studies()
CLAIMS = [each for study in KNOWN for each in study.claims]


def test_claims_of_configs_are_data_that_can_be_read():
    names = [each.id for each in CLAIMS]
    assert len(set(names)) == len(names) == 156
    questions = [question for study in KNOWN for question in study.questions]
    assert {name for question in questions for name in question.claims} <= {*names}
    for each in CLAIMS:
        assert {cell.folder for cell in each.cells} == {each.folder}, each.id
        assert each.role in ROLES
        assert (each.role == CONTROL) == ("our own control" in each.place), each.id
        assert each.paper or "no number" in each.place or "no accuracy" in each.place, each.id
        for expected in each.expects:
            assert -math.inf < expected.low < expected.high or expected.low < expected.high < math.inf, each.id


def measured(study):
    """planned(study) of a study that its config does not plan: by its records."""
    tables = read_study(RESULTS / study.name, parts=True).studies
    return {name: ([*each.rows], {at for ats in each.metrics.values() for at in ats}) for name, each in tables.items()}


def planned(study):
    """study -> (labels of its rows, the places where it is read), by its config."""
    if not (study.config.get("encodings", True) or "rows" in study.config):  # its rows are those of a checkpoint
        labels = {"loaded", *study.config.variants.loaded, *study.config.finetune.loaded}
        return {study.name: (labels, {*sizes_of(study.config)})}
    found = {}
    if study.name == "released_vits":  # its rows are models of the hub
        for name, table in tables_of(study.config).items():
            found[name] = {*table.rows, *itertools.chain(*table.variants.values())}, {*sizes_of(table)}
        return found
    made = plan(study.config)
    for name, table in made.tables.items():
        rows = [row for row in made.rows if row.study == name]
        sizes = {*sizes_of(table)} | {*table.get("eval_lengths", ())}
        blocks = range(1 + table.model.depth) if {"positions", "first_token"} & {*measures_of(table)} else ()
        found[name] = {row.label for row in rows}, {*sizes, *blocks}
    return found


@pytest.mark.parametrize("study", KNOWN, ids=lambda study: study.name)
def test_claims_are_of_rows_and_lengths_that_the_study_has(study):
    """Else they would be called not run for ever."""
    looked = {cell for each in CLAIMS for other in each.follow_up for _, cell in other.contrast.terms}
    read = {cell for each in CLAIMS for cell in each.cells}
    asked = {cell for question in study.questions for _, cell in question.contrast(question.reference).terms}
    tables = measured(study) if study.has_parts else planned(study)
    for cell in (cell for cell in looked | read | asked if cell.folder == study.name):
        labels, sizes = tables[cell.study]
        assert cell.row in labels, cell
        assert cell.at is None or cell.at in sizes, cell


def test_claims_that_fail_say_what_was_tried_and_what_is_open():
    from experiments.report.overview import read_results

    judged = read_results(RESULTS).judged
    against = [each.claim for each in judged if each.verdict == claims.FAILS]
    assert against
    assert [each.id for each in against if not (each.tried and each.remains)] == []
