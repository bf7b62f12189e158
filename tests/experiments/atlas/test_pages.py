"""Cards, measured numbers, answers and the whole site, on made-up records."""

import json
import pathlib
import re
import shlex

import jax
import numpy as np
import pytest
from study_records import of_metric, record

import posjax as pj
from experiments.atlas import cards, charts, measured, site, sizes, which
from experiments.records import Records
from experiments.report.overview import Results
from experiments.report.statistics import mean_interval
from experiments.report.studies import studies

SET = r'atlas\.data\("\w+", (.*)\);\n'  # a file of data
REPO = pathlib.Path(__file__).parents[3]


IMAGES = of_metric("accuracy", {"none": (0.5, 0.52, 0.51), "rope": (0.7, 0.72, 0.74)}, study="fashion_vit")
ALIKE = of_metric("accuracy", {"none": (0.5, 0.52, 0.51), "rope": (0.7, 0.72, 0.74)}, study="stem")
RECALL = [
    record(
        "rope",
        seed,
        {
            "loss in separate windows": {128: 2.0, 512: 3.5},
            "passkey exact match": {128: (exact + 1) / 2},
            "passkey exact match by depth": {(128, 0): exact, (128, 1): 1.0},
            "passkey accuracy by depth": {(128, 0): 0.5, (128, 1): 0.5},
        },
        study="retrieval",
        trained_at=128,
        unit="byte",
    )
    for seed, exact in enumerate((0.2, 0.4))
]
FOLDERS = {"fashion_vit": Records(IMAGES), "vit_table8": Records(ALIKE), "retrieval": Records(RECALL)}
CARD = {
    "encoding": "alibi()",
    "measured_on": [256],
    "measures": {"R_norm": {"value": 0.0, "verdict": "pass", "note": ""}},
}
CARDS = {"alibi()": CARD, "rope(scaling=yarn(factor=4))": CARD | {"encoding": "yarn"}}
RESULTS = Results(studies(), FOLDERS, CARDS)


@pytest.fixture(scope="module")
def told():
    return cards.cards(RESULTS)


@pytest.fixture(scope="module")
def shown():
    """The data of the measured pages: all of it, studies by folder, claims by id."""
    made = measured.measured(RESULTS)
    return made, {study["folder"]: study for study in made["studies"]}, {claim["id"]: claim for claim in made["claims"]}


def test_a_card_says_what_the_sources_say(told):
    by_name = {card["name"]: card for card in told["cards"]}
    assert by_name["alibi"]["measured"]["cells"] == {"R_norm": ["✓", "0", ""]}
    assert by_name["yarn"]["measured"]["spec"] == "yarn"
    assert by_name["rope"]["measured"] is None
    assert by_name["alibi"]["golden"]["references"]
    assert any("slopes" in each["what"] for each in by_name["alibi"]["errata"])
    assert "interpolat" not in by_name["alibi"]["words"]
    assert by_name["linear"]["words"].startswith("Position interpolation")
    assert "Args:" not in by_name["alibi"]["words"]
    study = next(each for each in by_name["rope"]["studied"] if each["folder"] == "fashion_vit")
    assert study["sign"] == "ahead"
    assert study["text"].startswith("+21.0 ±")
    assert by_name["axis"]["family"] == cards.MAPS
    assert by_name["self_extend"]["family"] == "windows and views"
    assert by_name["yarn"]["family"] == "rescaled rotary"


def test_what_a_card_offers_to_copy_is_read_back(told):
    for card in told["cards"]:
        for what in ("python", "config", "explain"):
            pj.parse(re.search(r'"(.*)"', card[what])[1])
        assert (REPO / re.search(r"--config=(\S+\.py)", card["train"])[1]).is_file()
        assert card["family"] in site.families()


def test_commands_of_cards_fit_their_scalings(told):
    """Factors of each pair of channels need heads of their size."""
    line = pj.sites(4)
    for card in told["cards"]:
        if card["kind"] == "frequency scaling":
            _, _, spec, *flags = shlex.split(card["explain"])
            channels = int(dict(flag.split("=") for flag in flags).get("--head-dim", 8))
            rope, q = pj.parse(spec), np.ones((4, 1, channels), np.float32)
            params = rope.init(jax.random.key(0), pj.Dims(channels, 1, channels))
            jax.eval_shape(lambda q, rope=rope, params=params: rope.rotate(params, q, line, q, line), q)


def test_numbers_are_those_of_the_tables(shown):
    _, studies, _ = shown
    point = studies["fashion_vit"]["tables"]["fashion_vit"]["metrics"]["accuracy"]["points"]["rope"][0]
    interval = mean_interval([0.7, 0.72, 0.74]).scaled(100)
    assert point["text"] == interval.text(2)
    assert point["seeds"] == pytest.approx([70, 72, 74])
    assert studies["fashion_vit"]["kinds"] == ["one"]
    assert studies["fashion_vit"]["rows"]["rope"]["card"] == "rope"
    recall = studies["retrieval"]
    assert recall["kinds"] == ["length", "one", "depth"]
    (near, far) = recall["depth"]["passkey"]["rope"]
    assert near[:3] == [128, 0.0, pytest.approx(30)]
    assert far[2] == 100
    length = recall["tables"]["retrieval"]
    assert length["metrics"]["loss in separate windows"]["at"] == [128, 512]
    assert length["trained"] == 128


def test_what_has_not_been_run_has_its_command(shown):
    _, studies, claims = shown
    books = studies["context_extension"]
    assert "count" not in books
    assert books["command"].startswith("python -m experiments.ablate --config=configs/papers/context_extension.py")
    assert claims["yarn-beats-ntk-untuned"]["verdict"] == "not run"
    assert claims["vit-rope-beats-learned"]["ours"][0]["text"] == ""


def test_each_number_of_a_claim_names_all_of_its_tables(shown):
    places = [each["records"] for claim in shown[2].values() for each in claim["ours"]]
    assert all(places)
    assert any(len(each) > 1 for each in places)
    for each in places:
        assert len({tuple(place.values()) for place in each}) == len(each)


def test_every_situation_is_a_question():
    answers = which.which(RESULTS)
    asked = [question.asks for study in RESULTS.studies for question in study.questions]
    assert [each["title"] for each in answers] == [*asked, which.PACKED]
    images = next(answer for answer in answers if answer["title"] == "Images of one size")
    assert images["told"][0]["leader"] == "rope"
    assert images["told"][0]["separated"]
    digits = next(answer for answer in answers if answer["title"] == "Sums of longer numbers")
    assert digits["told"] == []
    assert [each["folder"] for each in digits["missing"]] == ["length_generalization"]


def test_leads_over_sizes_are_those_of_the_trends(shown):
    """Studies along an axis: losses of three sizes, and their leads where the axis names a reference."""
    losses = {"none": (2.4, 2.2), "rope": (2.0, 1.6)}
    made = [
        record(
            row, seed, {"loss in sliding windows": {256: loss + 0.01 * seed}}, study=size, trained_at=256, unit="byte"
        )
        for place, size in enumerate(("0.05M", "0.1M"))
        for row, values in losses.items()
        for seed, loss in enumerate(values[place : place + 1] * 2)
    ]
    (found,) = sizes.sizes(Results(studies(), {"size": Records(made)}))
    assert found["names"] == [[5e4, "0.05M"], [1e5, "0.1M"]]
    headline, lead = found["charts"]
    assert [each["mean"] for each in headline["rows"]["none"]] == pytest.approx([2.405, 2.205])
    assert list(lead["rows"]) == ["rope"]
    assert [each["mean"] for each in lead["rows"]["rope"]] == pytest.approx([0.4, 0.6])
    assert [line[:2] for line in found["lines"]] == [["rope", "256"]]
    assert len(found["lines"][0]) == len(found["head"])


def test_every_script_is_loaded_and_data_are_json(shown):
    assert {*site.SCRIPTS, "atlas.js", "start.js"} == {path.name for path in site.STATIC.glob("*.js")}
    assert json.loads(site.to_json(shown[0]))["level"] == "95%"
    assert all(f'"name":"{charts.VALUES}"' in site.to_json(chart) for chart in charts.charts().values())
    assert json.loads(site.to_json({"a": float("nan"), "b": (1.23456789, "é")})) == {"a": None, "b": [1.23457, "é"]}


def test_the_first_page_says_the_same_in_both_languages():
    words = site.home()["words"]
    english, chinese = words["en"], words["zh"]
    assert chinese.keys() - {"questions"} == english.keys()
    assert chinese["questions"].keys() == {answer["question"] for answer in which.which(RESULTS)}
    for name, text in english.items():
        if name != "tour":
            assert sorted(re.findall(r"\{\w+\}", text)) == sorted(re.findall(r"\{\w+\}", chinese[name]))
    assert len(english["tour"]) == len(chinese["tour"]) == 3
    for one, other in zip(english["tour"], chinese["tour"], strict=True):
        for a, b in zip(one["steps"], other["steps"], strict=True):
            assert sorted(re.findall(r"\*[^*]+\*", a)) == sorted(re.findall(r"\*[^*]+\*", b))


def test_every_question_has_an_answer_on_the_site():
    lines = (REPO / "docs" / "answers" / "index.md").read_text().splitlines()
    found = site.answers()
    assert len(found) == sum(line.startswith("| ") for line in lines) - 2  # the head and its rule
    assert {path.stem for path in (REPO / "docs" / "answers").glob("*.md")} - {"index"} <= {
        row["name"] for row in found
    }
    elsewhere = [row["answer"] for row in found if row["name"] == "answers"]  # a notebook, and a page beside the site
    assert elsewhere == ["extending a context", "weights of vision transformers"]


def test_no_script_makes_html_of_a_text():
    """Records from somebody else name rows and studies: `el` appends them as text, and links of theirs have our prefix."""
    for path in site.STATIC.glob("*.js"):
        script = path.read_text()
        assert not re.search(
            r"(inner|outer)HTML|insertAdjacentHTML|document\.write|srcdoc|\beval\(|new Function", script
        )
        assert [*re.findall(r'parseFromString\(\w+, "(?!application/xml)', script)] == []
        assert not re.search(r"href: `\$\{(?!name\}\.html)", script), path  # models.js: a page of the site


@pytest.mark.slow
def test_the_whole_site_is_made_by_its_command(atlas, pictured):
    """From the committed records, in files that no page has to ask a server for."""
    files = [path for path in atlas.rglob("*") if path.is_file()]
    made = {
        path.stem: json.loads(re.fullmatch(SET, path.read_text())[1]) for path in files if path.parent.name == "data"
    }
    drawn = {row["name"] for row in made["landscapes"]["pictures"]}
    assert drawn | made["landscapes"]["refused"].keys() == {*pictured, "rope() + alibi()"}
    assert {card["name"] for card in made["cards"]["cards"]} >= {*pj.names()}
    bugs = made["breaks"]["breaks"]  # a switch that changes nothing would show nothing
    assert [bug["name"] for bug in bugs if bug["cells"]["right"] == bug["cells"]["wrong"]] == []
    assert [bug["name"] for bug in bugs if not bug["refusal"] and not bug["difference"] > 0.01] == []
    assert [bug["name"] for bug in bugs if bug["refusal"]] == ["table-end"]
    scripts = re.findall(r'<script src="([^"]+)"', (atlas / "index.html").read_text())
    stories = {name: (atlas / f"{name}.html").read_text() for name in site.DOCUMENTS}
    pictures = {name: re.findall(r'<img src="([^"]+)"', story) for name, story in stories.items()}
    assert len(pictures["vit_and_llm"]) == 4
    assert all('href="index.html"' in story for story in stories.values())
    assert 'href="vit_and_llm.html"' in (atlas / "index.html").read_text()
    pages = {f"{name}.html" for name in stories}
    figures = {picture for each in pictures.values() for picture in each}
    expected = {*scripts, *figures, *pages, "index.html", "atlas.css", "LICENSE.txt"}
    assert {str(path.relative_to(atlas)) for path in files} == expected
