"""Writes the encoders of encoders.npz, loaded and saved by posjax, into folders that transformers is to read:

cd tests && python -m goldens.save_encoders FOLDER
/tmp/goldens/bin/python goldens/make_encoders.py FOLDER/*      # their largest error there, over the largest output
"""

import sys
import tempfile
from pathlib import Path

from goldens.encoder_cases import CASES, written
from posjax import pretrained


def main(folder: Path) -> None:
    for case, told in CASES.items():
        with tempfile.TemporaryDirectory() as theirs:
            model, params = pretrained.load(written(case, Path(theirs)))
        pretrained.save(folder / case.replace(" ", "_"), model, params, family=told["config"]["model_type"])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
