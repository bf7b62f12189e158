"""The attention of the small trained models, by distance and by direction.

    python -m experiments.atlas.trained         # writes results/trained/attention.json, which the atlas shows

configs/trained.py made the models in results/trained. A head's attention is a mean over queries, and over texts or images
that the model was not trained on.
"""

import json
import pathlib
import sys
from typing import Any

import numpy as np
from jaxtyping import Float

from experiments import cli
from experiments.analysis.layers import look
from experiments.analysis.subject import choose_pictures, draw_texts, load_subject
from experiments.analysis.tables import mean_by_offset
from posjax import data
from posjax.encoding import sites

FOLDER = pathlib.Path(__file__).parents[2] / "results" / "trained"
FILE = FOLDER / "attention.json"
_TEXTS, _IMAGES = 8, 64


def trained() -> dict[str, Any]:
    """Returns the contents of attention.json.

    {"decoder": {row: {"spec", "heads": [L][H][distances]}}, "vit": {row: {"spec", "heads": [H][rows][columns]}}}. A decoder
    has all of its heads, at distances from 0 to half of the trained length. A ViT has the heads of its first layer, by the
    offset of the key from the query, which is in the middle. Weights are in units of uniform attention.
    """
    from posjax.jsonl import parse_json

    return parse_json(FILE.read_bytes(), FILE)


def attention_by_distance(weights: Float[np.ndarray, "N H T T"]) -> Float[np.ndarray, "H D"]:
    """Returns each head's mean weight at each distance below T // 2, of the later half of queries, times their keys."""
    length = weights.shape[-1]
    queries = np.arange(length // 2, length)
    found = [weights[:, :, queries, queries - distance] * (queries + 1) for distance in range(length // 2)]
    return np.stack([each.mean(axis=(0, 2)) for each in found], axis=-1)


def attention_by_offset(weights: Float[np.ndarray, "N H T T"], height: int, width: int) -> Float[np.ndarray, "H R C"]:
    """Returns each head's mean weight at each offset (rows, columns) of the key, [2 * height - 1, 2 * width - 1], times T."""
    places = np.stack(np.unravel_index(np.arange(height * width), (height, width)), axis=-1)
    return height * width * mean_by_offset(weights.mean(axis=0), places)


def look_at_decoder(folder: pathlib.Path) -> dict[str, Any]:
    """Returns the encoding of a decoder, and the weights of its heads by distance."""
    subject = load_subject(folder)
    texts = draw_texts(data.load_documents("pydoc_topics", "validation"), _TEXTS, subject.trained)
    site = sites(subject.trained)
    seen = [look(subject.model, subject.params[0], text[None, :-1], site).weights for text in texts.tokens]
    layers = [attention_by_distance(np.concatenate(each)) for each in zip(*seen, strict=True)]
    return {"spec": subject.encoding, "heads": _rounded(layers)}


def look_at_vit(folder: pathlib.Path) -> dict[str, Any]:
    """Returns the encoding of a ViT, and the weights of its first layer's heads by offset."""
    vit = load_subject(folder)
    images = choose_pictures(vit, None, None, None, _IMAGES)
    layers = look(vit.model, vit.params[0], vit.normalised(images.pixels), images.site)
    return {
        "spec": vit.model.encoding,
        "heads": _rounded(attention_by_offset(np.asarray(layers.weights[0]), *images.grid)),
    }


def _rounded(values: Any) -> Any:
    return np.round(np.asarray(values, np.float64), 3).tolist()


def main(argv: list[str] | None = None) -> int:
    """Runs the command line; returns the exit code."""
    args = cli.parser("atlas.trained", __doc__).parse_args(argv)
    return cli.answer(_write, args.imports, traceback=args.traceback)


def _write() -> None:
    from experiments.progress import bar
    from posjax.files import replace_file

    found: dict[str, dict[str, Any]] = {"decoder": {}, "vit": {}}
    folders = sorted(path.parent for path in FOLDER.glob("*/*/run.json"))
    with bar(len(folders), "model") as progress:
        for folder in folders:
            kind = folder.parent.name
            found[kind][folder.name] = look_at_decoder(folder) if kind == "decoder" else look_at_vit(folder)
            progress.update()
    replace_file(FILE, json.dumps(found, separators=(",", ":")).encode() + b"\n")
    print(f"wrote {FILE}")


if __name__ == "__main__":
    sys.exit(main())
