"""Published models and their positions: claims of the literature, on a decoder, an encoder and a vision transformer.

    python -m experiments.analyse --checkpoint=gemma-3-270m.gguf --data=books_pd --files=BOOKS --num_texts=20 \
        --out=results/real_models/gemma-3-270m

One command a model, and each again with --noise; the page of claims is then python -m experiments.report
results/real_models. Gemma 3 270M: 18 layers, every sixth global with a RoPE of base 1e6, the others with a window of 512 and
base 1e4. all-MiniLM-L6-v2: an embedding model with a learned table of 512 rows. DINOv2 ViT-S/14: a learned table of 37x37.

Weights have no seeds: the unit of repetition is the text or the image, and a claim holds only if it holds for the weights as
they are, quantised, and again with noise of the size of their quantisation.
"""

from collections.abc import Callable, Sequence

from ml_collections import ConfigDict

from experiments.report.claims import CONTROL, Claim, Contrast, Expectation, Looked, Source, Table, above, below, within

GEMMA, MINILM, DINO = "gemma-3-270m", "all-MiniLM-L6-v2", "dinov2-small-saliency"
OWN = "as loaded"


def get_config() -> ConfigDict:
    config = ConfigDict()
    config.name = "real_models"
    config.title = "Published models and their positions"
    config.point = "What do a language model, an embedding model and a ViT that people use do with their positions?"
    config.seeds = (0,)
    config.studies = ConfigDict()
    config.page = ConfigDict()
    config.page.tables = False  # the pages of the models show the numbers
    config.page.command = (
        "analyse --checkpoint=gemma-3-270m.gguf --data=books_pd --files=BOOKS --num_texts=20 "
        "--out=results/real_models/gemma-3-270m"
    )
    config.page.says = ""
    config.notes = (
        "Weights are as published, Gemma's dequantised from GGUF (Q4_K_M). The unit of repetition is the text or the image; "
        "20 of each are chosen by a hash. Each claim is asked of the weights as they are and again with noise of the size of "
        "their quantisation: it holds only if both lie in the range."
    )
    return config


def _twice(model: str, make: Callable[[Callable[[str], Table]], Expectation]) -> tuple[Expectation, ...]:
    """Returns an expectation for the weights of a model, and for the weights with noise."""
    own, noisy = (make(lambda metric, study=study: Table("real_models", study, metric)) for study in (model, f"{model} with noise"))
    return own, noisy._replace(name=f"{noisy.name}, with noise")
