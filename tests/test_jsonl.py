"""JSON that is nested too deeply is a mistake of one line, whatever file it stands in."""

import pytest

from experiments.report.scorecard import rewrite_scorecard
from posjax import data
from posjax.audits.configuration import read_config
from posjax.jsonl import parse_json, read_jsonl
from posjax.pretrained.files import read_json
from posjax.pretrained.vision.saving import read_header
from posjax.training.identity import read_run

READERS = {  # file: the function that reads its path
    "run.json": lambda path: read_run(path.parent),
    "scorecard.json": lambda path: rewrite_scorecard(path.parent),
    "config.json": read_json,
    "config.json of an audit": read_config,
    "tokenizer.json": data.load_tokenizer,
    "records.jsonl": read_jsonl,
    "texts.jsonl": lambda path: data.load_documents("mine", "train", files=str(path)),
    "header of a ViT": lambda path: read_header(path.read_text()),
}


@pytest.mark.parametrize(("name", "depth"), [*((name, 200_000) for name in READERS), ("run.json", 900)])
def test_deeply_nested_json_is_refused_in_one_line(name, depth, tmp_path):
    path = tmp_path / name.split()[0]
    path.write_text('{"seal": "", "text": ' + "[" * depth + "]" * depth + "}\n")
    with pytest.raises(ValueError, match=r"^[^\n]*$"):
        READERS[name](path)


@pytest.mark.parametrize("name", [name for name in READERS if "scorecard" not in name])
def test_a_value_that_is_no_object_is_told(name, tmp_path):
    path = tmp_path / name.split()[0]
    path.write_text("null\n")
    with pytest.raises(ValueError, match="is not a JSON object but null"):
        READERS[name](path)


def test_a_number_beyond_floats_is_refused():
    with pytest.raises(ValueError, match="a whole number has 400 digits"):
        parse_json("[" + "9" * 400 + "]", "results.jsonl")
