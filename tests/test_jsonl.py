"""JSON that is no object is a mistake of one line, whatever file it stands in."""

import pytest

from posjax import data
from posjax.audits.configuration import read_config
from posjax.jsonl import read_jsonl
from posjax.pretrained.files import read_json
from posjax.pretrained.vision.saving import read_header
from posjax.training.identity import read_run

READERS = {  # file: the function that reads its path
    "run.json": lambda path: read_run(path.parent),
    "config.json": read_json,
    "config.json of an audit": read_config,
    "tokenizer.json": data.load_tokenizer,
    "records.jsonl": read_jsonl,
    "texts.jsonl": lambda path: data.load_documents("mine", "train", files=str(path)),
    "header of a ViT": lambda path: read_header(path.read_text()),
}


@pytest.mark.parametrize("name", READERS)
def test_a_value_that_is_no_object_is_told(name, tmp_path):
    path = tmp_path / name.split()[0]
    path.write_text("null\n")
    with pytest.raises(ValueError, match="is not a JSON object but null"):
        READERS[name](path)
