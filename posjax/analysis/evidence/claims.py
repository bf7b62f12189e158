"""What papers found, each with its source and the contrast of ours that decides it.

A claim is data: who says it and where, what in one sentence without numbers, the paper's own numbers, and the expectations
on our records that it amounts to. Where no number could be read at its source there is none, and `place` says so.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import NamedTuple

from posjax.analysis.evidence.contrast import Contrast, Table, mean
from posjax.analysis.report.lengths import CHUNKED, SLIDING

_FLAT = 0.02  # nats: a loss that rises by no more over all lengths is called flat
_CLOSE = 0.1  # nats: called competitive; the published gap of Haviv et al. is below it
_TIE = 0.005  # of accuracy: what the ViT paper calls little to no difference


class Source(NamedTuple):
    """Who published it, and where."""

    authors: str
    year: int
    arxiv: str

    def __str__(self) -> str:
        return f"{self.authors} ({self.year}), arXiv {self.arxiv}"


class Expectation(NamedTuple):
    """A contrast of ours, and the open range in which it lies if the claim is right."""

    contrast: Contrast
    low: float = -math.inf
    high: float = math.inf
    name: str = ""  # what it is called; "" for the contrast's own text


@dataclasses.dataclass(frozen=True)
class Claim:
    """One claim.

    Attributes:
      id: by which other pages and texts name it.
      folder: of results, whose records decide it; Holm's correction is over the claims of one folder.
      place: of the claim in the paper, and how it was read if not there.
      says: the claim, without numbers.
      paper: what -> the paper's number, in the paper's unit.
      expects: all of them together are the claim.
      points: whether differences are shared out of one, and shown in points of a hundred.
      tried: what was done to explain a result against the claim.
    """

    id: str
    folder: str
    source: Source
    place: str
    says: str
    expects: tuple[Expectation, ...]
    paper: Mapping[str, float] = dataclasses.field(default_factory=dict)
    points: bool = False
    tried: str = ""


def above(contrast: Contrast, low: float = 0.0, name: str = "") -> Expectation:
    return Expectation(contrast, low=low, name=name)


def below(contrast: Contrast, high: float = 0.0, name: str = "") -> Expectation:
    return Expectation(contrast, high=high, name=name)


def within(contrast: Contrast, margin: float, name: str = "") -> Expectation:
    return Expectation(contrast, -margin, margin, name)


PRESS = Source("Press et al.", 2022, "2108.12409")
HAVIV = Source("Haviv et al.", 2022, "2203.16634")
VIT = Source("Dosovitskiy et al.", 2020, "2010.11929")
ROPE = Source("Su et al.", 2021, "2104.09864")
HEO = Source("Heo et al.", 2024, "2403.13298")
RUOSS = Source("Ruoss et al.", 2023, "2305.16843")
KAZEMNEJAD = Source("Kazemnejad et al.", 2023, "2305.19466")
PI = Source("Chen et al.", 2023, "2306.15595")
YARN = Source("Peng et al.", 2023, "2309.00071")
LONGROPE = Source("Ding et al.", 2024, "2402.13753")
SELF_EXTEND = Source("Jin et al.", 2024, "2401.01325")
SINKS = Source("Xiao et al.", 2023, "2309.17453")
COPE = Source("Golovneva et al.", 2024, "2405.18719")
FIRE = Source("Li et al.", 2023, "2310.04418")
KERPLE = Source("Chi et al.", 2022, "2205.09921")
SANDWICH = Source("Chi et al.", 2022, "2212.10356")
XPOS = Source("Sun et al.", 2022, "2212.10554")
FOX = Source("Lin et al.", 2025, "2503.02130")
LAPE = Source("Yu et al.", 2023, "2212.05262")
CPVT = Source("Chu et al.", 2021, "2102.10882")
LOOKHERE = Source("Fuller et al.", 2024, "2405.13985")
DINOV3 = Source("Simeoni et al.", 2025, "2508.10104")
ABACUS = Source("McLeish et al.", 2024, "2405.17399")
COUPLING = Source("Cho et al.", 2024, "2405.20671")
P_ROPE = Source("Barbero et al.", 2024, "2410.06205")


def _rises(table: Table, row: str, start: int, end: int) -> Contrast:
    """What a row's loss gains from one length to another; below 0 where longer is better."""
    return table(row, end) - table(row, start)


def _train_short_test_long() -> tuple[Claim, ...]:
    folder, near, far = "train_short_test_long", 128, 4096
    loss = Table(folder, CHUNKED, "loss")
    return (
        Claim(
            "alibi-extrapolates",
            folder,
            PRESS,
            "table 2, non-overlapping windows",
            "ALiBi reads far beyond its training length without a rise in loss.",
            (below(_rises(loss, "alibi", near, far), _FLAT),),
            {"perplexity at 512": 19.73, "at 15512": 18.31},
        ),
        Claim(
            "sinusoidal-fails-beyond",
            folder,
            PRESS,
            "table 2, non-overlapping windows",
            "Sinusoidal codes fail beyond the training length.",
            (above(_rises(loss, "sinusoidal", near, far)),),
            {"perplexity at 512": 20.05, "at 15512": 406.01},
        ),
        Claim(
            "rope-fails-beyond",
            folder,
            PRESS,
            "table 2, non-overlapping windows",
            "RoPE fails beyond the training length.",
            (above(_rises(loss, "rope", near, far)),),
            {"perplexity at 512": 20.07, "at 15512": 79.25},
        ),
        Claim(
            "rope-fails-less",
            folder,
            PRESS,
            "table 2, non-overlapping windows",
            "Beyond the training length RoPE loses less than sinusoidal codes.",
            (below(_rises(loss, "rope", near, far) - _rises(loss, "sinusoidal", near, far)),),
            {"RoPE, 15512 over 512": 3.95, "sinusoidal": 20.25},
        ),
        Claim(
            "t5-reads-twice",
            folder,
            PRESS,
            "table 2, non-overlapping windows",
            "T5's buckets read twice the training length without a rise in loss.",
            (below(_rises(loss, "t5", near, 2 * near), _FLAT),),
            {"perplexity at 512": 19.65, "at 1012": 18.79},
        ),
        Claim(
            "alibi-at-training-length",
            folder,
            PRESS,
            "table 2",
            "At the training length ALiBi is ahead of sinusoidal codes.",
            (below(loss("alibi", near) - loss("sinusoidal", near)),),
            {"perplexity, ALiBi": 19.73, "sinusoidal": 20.05},
        ),
        Claim(
            "alibi-short-beats-sinusoidal-long",
            folder,
            PRESS,
            "table 5",
            "ALiBi trained short is ahead, on long inputs, of sinusoidal codes trained on them for the same time.",
            (below(loss("alibi", 1024) - loss("sinusoidal, trained long", 1024)),),
            {"perplexity at 3072, ALiBi trained on 512": 18.40, "sinusoidal trained on 3072": 18.67},
        ),
        Claim(
            "kerple-beyond-alibi",
            folder,
            KERPLE,
            "abstract",
            "KERPLE's logarithmic bias extrapolates better than ALiBi's linear one.",
            (below(loss("kerple", far) - loss("alibi", far)),),
        ),
        Claim(
            "sandwich-extrapolates",
            folder,
            SANDWICH,
            "abstract",
            "Sandwich reads far beyond its training length without a rise in loss.",
            (below(_rises(loss, "sandwich", near, far), _FLAT),),
        ),
        Claim(
            "fire-beyond-rope-and-alibi",
            folder,
            FIRE,
            "abstract",
            "FIRE generalises to longer contexts better than RoPE and ALiBi.",
            (below(loss("fire", far) - loss("rope", far)), below(loss("fire", far) - loss("alibi", far))),
        ),
        Claim(
            "xpos-beyond-rope",
            folder,
            XPOS,
            "abstract",
            "xPos extrapolates better than RoPE.",
            (below(loss("xpos", far) - loss("rope", far)),),
        ),
        Claim(
            "fox-ahead-of-rope",
            folder,
            FOX,
            "abstract",
            "Forget gates are ahead of RoPE at the training length and beyond it.",
            (below(loss("fox", near) - loss("rope", near)), below(loss("fox", far) - loss("rope", far))),
        ),
        Claim(
            "none-competitive",
            folder,
            HAVIV,
            "table 1, WikiText-103",
            "A causal decoder without any encoding is competitive with sinusoidal codes.",
            (below(loss("none", near) - loss("sinusoidal", near), _CLOSE),),
            {"perplexity, none": 20.97, "sinusoidal": 20.16},
        ),
    )


def _heads() -> tuple[Claim, ...]:
    folder = "heads"

    def gap(heads: int) -> Contrast:
        loss = Table(folder, f"{heads} heads", "loss")
        return loss("alibi", 128) - loss("rope", 128)

    return (
        Claim(
            "heads-confound-alibi",
            folder,
            PRESS,
            "section 3: slopes are a sequence over the heads; no number",
            "ALiBi's gap to RoPE at the training length shrinks with more heads, because its slopes are shared out over them.",
            (below(gap(8) - gap(2)),),
        ),
    )


def _no_positions() -> tuple[Claim, ...]:
    folder = "no_positions"
    error = Table(folder, "position by layer", "error")
    last = 2
    return (
        Claim(
            "causal-none-knows-positions",
            folder,
            HAVIV,
            "figure 2 and section 5",
            "Without an encoding a causal decoder's layers tell absolute positions better than chance.",
            (below(error("causal, none", last) - error("causal, none, before the blocks", 0)),),
        ),
        Claim(
            "bidirectional-none-does-not",
            folder,
            HAVIV,
            "table 4, masked language models",
            "Without an encoding a bidirectional model does not tell positions: a causal one reads them better.",
            (below(error("causal, none", last) - error("bidirectional, none", last)),),
        ),
    )


def _randomized_positions() -> tuple[Claim, ...]:
    folder = "randomized_positions"
    bucket, missing = Table(folder, "bucket_sort", "accuracy"), Table(folder, "missing_duplicate", "accuracy")
    place = "table 1, cited from memory"

    def gains(table: Table, row: str) -> Contrast:
        return table(f"randomized {row}") - table(row)

    return (
        Claim(
            "randomized-sinusoidal-sorts",
            folder,
            RUOSS,
            place,
            "Randomised positions let sinusoidal codes sort sequences longer than those of training.",
            (above(gains(bucket, "sinusoidal")),),
            {"sinusoidal": 30.1, "randomised": 100.0},
            points=True,
        ),
        Claim(
            "randomized-rope-sorts",
            folder,
            RUOSS,
            place,
            "Randomised positions let RoPE sort sequences longer than those of training.",
            (above(gains(bucket, "rope")),),
            {"RoPE": 30.6, "randomised": 99.6},
            points=True,
        ),
        Claim(
            "randomized-finds-missing",
            folder,
            RUOSS,
            place,
            "Randomised positions help RoPE to find the missing duplicate beyond the training length.",
            (above(gains(missing, "rope")),),
            {"RoPE": 56.5, "randomised": 88.7},
            points=True,
        ),
    )


def _context_extension() -> tuple[Claim, ...]:
    folder, trained, twice, target, far = "context_extension", 256, 512, 2048, 8192
    loss = Table(folder, SLIDING, "loss")
    zero_shot = "without any tuning"
    return (
        Claim(
            "pi-zero-shot-beats-extrapolation",
            folder,
            PI,
            "table 1 and section 2.2",
            f"Position interpolation reads beyond the trained length better than extrapolation, even {zero_shot}.",
            (below(loss("PI", target) - loss("rope", target)),),
            {"perplexity at 8192, PI untuned": 16.10, "extrapolated, above": 1000.0},
        ),
        Claim(
            "pi-tuned-keeps-loss",
            folder,
            PI,
            "table 1",
            "After a short tuning position interpolation reads a longer context with no more loss than the trained length.",
            (below(loss("PI, tuned", target) - loss("rope", trained), _FLAT),),
            {"perplexity at 2048, untuned model": 7.20, "at 8192, tuned PI": 6.96},
        ),
        Claim(
            "ntk-beats-pi-untuned",
            folder,
            YARN,
            "section 3.1, on NTK-aware scaling",
            f"NTK-aware scaling is ahead of position interpolation {zero_shot}.",
            (below(loss("NTK", target) - loss("PI", target)),),
        ),
        Claim(
            "yarn-beats-ntk-untuned",
            folder,
            YARN,
            "section 3",
            f"YaRN is ahead of NTK-aware scaling {zero_shot}.",
            (below(loss("YaRN", target) - loss("NTK", target)),),
        ),
        Claim(
            "yarn-beats-pi-tuned",
            folder,
            YARN,
            "table 1, beyond the tuned length",
            "Tuned equally long YaRN is ahead of position interpolation.",
            (below(loss("YaRN, tuned", target) - loss("PI, tuned", target)),),
            {"perplexity at 10240, YaRN": 6.04, "PI": 8.07},
        ),
        Claim(
            "dynamic-ntk-free-at-trained-length",
            folder,
            YARN,
            "section 3.3",
            "Dynamic scaling costs nothing at the trained length.",
            (within(loss("dynamic NTK", trained) - loss("rope", trained), _TIE),),
        ),
        Claim(
            "longrope-search-wins",
            folder,
            LONGROPE,
            "table 1",
            f"Searched factors are ahead of position interpolation, dynamic NTK and YaRN {zero_shot}.",
            tuple(below(loss("LongRoPE", target) - loss(row, target)) for row in ("PI", "dynamic NTK", "YaRN")),
            {"perplexity at 8192, searched": 9.37, "PI": 10.65, "dynamic NTK": 10.21, "YaRN": 32.64},
        ),
        Claim(
            "self-extend-reads-on",
            folder,
            SELF_EXTEND,
            "abstract",
            f"SelfExtend reads beyond the trained length better than extrapolation, {zero_shot}.",
            (below(loss("SelfExtend", target) - loss("rope", target)),),
        ),
        Claim(
            "windows-need-sinks",
            folder,
            SINKS,
            "table 1 and figure 3",
            "A sliding window fails far beyond the trained length unless it keeps the first tokens.",
            (above(loss("window", far) - loss("sinks", far)),),
            {"perplexity, window": 5158.07, "window with sinks": 5.40},
            tried="Read with windows that slide and that do not; the model is trained on windows that begin anywhere in a "
            "document, so that its first tokens are no sinks; a model that learns sinks was not trained.",
        ),
    )


def _vit_table8() -> tuple[Claim, ...]:
    folder, place = "vit_table8", "table 8, stem column"
    stem, every, lape = (Table(folder, name, "accuracy") for name in ("stem", "every_layer", "LaPE"))
    none = stem("none")
    return (
        Claim(
            "vit-1d-beats-none",
            folder,
            VIT,
            place,
            "A learned table in raster order is ahead of no encoding.",
            (above(stem("1-D") - none),),
            {"1-D": 64.206, "none": 61.382},
            points=True,
        ),
        Claim(
            "vit-2d-beats-none",
            folder,
            VIT,
            place,
            "A learned 2-D table is ahead of no encoding.",
            (above(stem("2-D") - none),),
            {"2-D": 64.001, "none": 61.382},
            points=True,
        ),
        Claim(
            "vit-relative-beats-none",
            folder,
            VIT,
            place,
            "Relative attention over raster differences is ahead of no encoding.",
            (above(stem("relative") - none),),
            {"relative": 64.032, "none": 61.382},
            points=True,
            tried="The same differences along rows and columns (2-D) were added as a row, and every row has a learning rate of "
            "its own, so that neither the raster nor the rate would be the reason.",
        ),
        Claim(
            "vit-1d-ties-2d",
            folder,
            VIT,
            place,
            "It makes little difference whether a table is 1-D or 2-D (exploratory: a tie).",
            (within(stem("2-D") - stem("1-D"), _TIE),),
            {"2-D": 64.001, "1-D": 64.206},
            points=True,
        ),
        Claim(
            "vit-injection-does-not-matter",
            folder,
            VIT,
            "table 8, cited from memory but for the stem column",
            "It makes little difference whether the table is added once or in every layer (exploratory: a tie).",
            (within(every("1-D") - stem("1-D"), _TIE), within(every("2-D") - stem("2-D"), _TIE)),
            {"1-D, every layer": 63.964, "stem": 64.206},
            points=True,
        ),
        Claim(
            "lape-ahead",
            folder,
            LAPE,
            "abstract, ViT-Lite on CIFAR-10",
            "A table with a normalisation of its own in each layer (LaPE) is ahead of one added at the stem.",
            (above(mean([lape(row) - stem(row) for row in ("1-D", "2-D")]), name="LaPE - stem, mean of 1-D and 2-D"),),
            {"points": 0.94},
            points=True,
        ),
    )


def _contextual_counting() -> tuple[Claim, ...]:
    folder = "contextual_counting"
    inside = Table(folder, "flip_flop", "accuracy")
    outside = Table(folder, "flip_flop, out of distribution", "accuracy")
    return (
        Claim(
            "cope-solves-flip-flop",
            folder,
            COPE,
            "abstract",
            "Contextual positions solve flip-flop where RoPE fails, out of distribution.",
            (above(outside("cope") - outside("rope")),),
            points=True,
        ),
        Claim(
            "cope-in-distribution",
            folder,
            COPE,
            "abstract",
            "Contextual positions are not behind RoPE in distribution.",
            (above(inside("cope") - inside("rope"), -_TIE),),
            points=True,
        ),
    )


def _length_generalization() -> tuple[Claim, ...]:
    folder = "length_generalization"
    tasks = ("copy", "addition", "sort")
    tables = [Table(folder, task, "accuracy") for task in tasks]
    addition = Table(folder, "addition", "accuracy")

    def over(a: str, b: str) -> Contrast:
        return mean([table(a) - table(b) for table in tables])

    place = "figure 2; mean reciprocal ranks from the authors' notebook"
    return (
        Claim(
            "none-generalises-best",
            folder,
            KAZEMNEJAD,
            place,
            "A decoder without an encoding generalises to longer problems better than ALiBi, RoPE and absolute codes.",
            tuple(above(over("none", row)) for row in ("alibi", "rope", "sinusoidal")),
            {"rank of none": 0.687, "ALiBi": 0.502, "RoPE": 0.330, "absolute": 0.215},
            points=True,
        ),
        Claim(
            "t5-generalises-beyond-rope",
            folder,
            KAZEMNEJAD,
            place,
            "T5's buckets generalise to longer problems better than RoPE.",
            (above(over("t5", "rope")),),
            {"rank of T5": 0.549, "RoPE": 0.330},
            points=True,
        ),
        Claim(
            "abacus-adds",
            folder,
            ABACUS,
            "abstract: trained on 20 digits, tested on 100",
            "Positions within numbers (Abacus) let a decoder add longer numbers than those of training.",
            (above(addition("abacus") - addition("none")),),
            {"accuracy (%)": 99.0},
            points=True,
        ),
        Claim(
            "coupled-positions-add",
            folder,
            COUPLING,
            "abstract: trained on 30 digits, tested on 200",
            "Coupled positions let a decoder add longer numbers than those of training.",
            (above(addition("position coupling") - addition("none")),),
            points=True,
        ),
    )


def _resolutions() -> tuple[Claim, ...]:
    folder = "resolutions"
    fashion, cifar, caltech = (Table(folder, name, "accuracy") for name in ("fashion_mnist", "cifar10", "caltech101"))
    doubled = ((fashion, 28, 56), (cifar, 32, 64), (caltech, 64, 256))

    def over_sets(better: str, worse: str) -> Contrast:
        """Differences of what is kept from 1x to 2x, mean over the sets."""
        kept = [
            (table(better, end) - table(better, start)) - (table(worse, end) - table(worse, start))
            for table, start, end in doubled
        ]
        return mean(kept)

    return (
        Claim(
            "rescaled-beats-extrapolated",
            folder,
            VIT,
            "section 3.2, the practice of interpolating position embeddings; no number",
            "On larger images positions fitted to the trained grid are ahead of positions beyond it.",
            tuple(
                above(t("sincos2d, rescaled", end) - t("sincos2d", end), name=f"{t.table} at 2x")
                for t, _, end in doubled
            ),
            points=True,
        ),
        Claim(
            "mixed-beats-learned-at-2x",
            folder,
            HEO,
            "README of the authors' code, ViT-S trained at 224, at 384",
            "On larger images mixed rotary frequencies keep more accuracy than a resized learned table.",
            (
                above(
                    mean(
                        [
                            (t("mixed", end) - t("mixed", start)) - (t(row, end) - t(row, start))
                            for (t, start, end), row in zip(
                                doubled, ("learned, resized", "learned, resized", "learned"), strict=True
                            )
                        ]
                    ),
                    name="mixed - learned, from 1x to 2x, mean over sets",
                ),
            ),
            {"mixed, 384 less 224": 0.9, "learned": -1.0},
            points=True,
            tried="Rescaled and fine-tuned rows; three data sets. After so short a training a learned table does little, so that "
            "resizing it costs little. The paper's own sizes are configs/papers/rope_vit.py, not run here.",
        ),
        Claim(
            "mixed-beats-axial-at-2x",
            folder,
            HEO,
            "README of the authors' code, ViT-S trained at 224, at 384",
            "On larger images mixed rotary frequencies keep more accuracy than axial ones.",
            (above(over_sets("mixed", "axial"), name="mixed - axial, from 1x to 2x, mean over sets"),),
            {"mixed, 384 less 224": 0.9, "axial": -0.9},
            points=True,
        ),
        Claim(
            "dinov3-needs-no-policy",
            folder,
            DINOV3,
            "section on rotary embeddings; no number",
            "Coordinates relative to the image keep more accuracy on larger images than coordinates in patches.",
            (above(over_sets("dinov3", "axial"), name="dinov3 - axial, from 1x to 2x, mean over sets"),),
            points=True,
        ),
        Claim(
            "accuracy-peaks-above-1x",
            folder,
            HEO,
            "figure of the authors' README, ViT-B mixed, read off to a tenth of a point",
            "Accuracy is higher somewhat above the trained resolution than at it.",
            (above(cifar("mixed", 40) - cifar("mixed", 32)),),
            {"at 320": 84.7, "at 224": 83.8},
            points=True,
        ),
    )


def _data_size() -> tuple[Claim, ...]:
    folder, place = "data_size", "figure 4 and section 4.3; no number"
    few, all_of = (Table(folder, name, "accuracy") for name in ("1%", "100%"))
    models = ("ResNet", "ViT, learned")

    def lead(table: Table) -> Contrast:
        return table(models[0]) - table(models[1])

    return (
        Claim(
            "resnet-ahead-on-few-images",
            folder,
            VIT,
            place,
            "With few images a ResNet is ahead of a ViT.",
            (above(lead(few)),),
            points=True,
        ),
        Claim(
            "vit-catches-up-with-data",
            folder,
            VIT,
            place,
            "A ResNet's lead over a ViT shrinks as there are more images.",
            (above(lead(few) - lead(all_of), name="lead of the ResNet at 1% - at 100%"),),
            points=True,
            tried="Every share trains for as many images seen, so that the ViT does not overfit the small ones; a training "
            "of many more passes was not run.",
        ),
    )


def _images() -> tuple[Claim, ...]:
    folder = "fashion_vit"
    accuracy = Table(folder, folder, "accuracy")
    return (
        Claim(
            "vit-learned-beats-none",
            folder,
            CPVT,
            "introduction, DeiT-Ti on ImageNet-1k, read in a review of the paper",
            "A ViT with a learned table is ahead of one without any encoding.",
            (above(accuracy("learned") - accuracy("none")),),
            {"learned": 72.2, "none": 68.2},
            points=True,
        ),
        Claim(
            "vit-rope-beats-learned",
            folder,
            HEO,
            "README of the authors' code, ViT-S at 224",
            "A ViT with rotary positions is ahead of one with a learned table.",
            (above(accuracy("rope") - accuracy("learned")),),
            {"axial": 80.9, "learned": 80.4},
            points=True,
        ),
        Claim(
            "vit-alibi-beats-none",
            folder,
            LOOKHERE,
            "the paper's comparison of encodings; no number read",
            "A ViT with 2-D ALiBi, which knows distance and no direction, is ahead of one without any encoding.",
            (above(accuracy("alibi") - accuracy("none")),),
            points=True,
            tried="Directed attention with nothing learned either (`lookhere`) is a row of vit_table8: what ALiBi lacks there "
            "would be direction, not slopes.",
        ),
    )


def _text() -> tuple[Claim, ...]:
    folder = "shakespeare_decoder"
    loss = Table(folder, folder, "loss")
    short = Table("quickstart", "pydoc_decoder", "loss")
    digits = Table("quickstart", "digits_vit", "accuracy")
    return (
        Claim(
            "rope-learns-faster",
            folder,
            ROPE,
            "figure 3, pre-training loss by step; no number",
            "Early in training RoPE is ahead of sinusoidal codes at the training length.",
            (below(loss("rope", 128) - loss("sinusoidal", 128)),),
        ),
        Claim(
            "alibi-flat-at-8x",
            folder,
            PRESS,
            "table 2",
            "ALiBi reads eight times its training length without a rise in loss.",
            (below(_rises(loss, "alibi", 128, 1024), _FLAT),),
            {"perplexity at 512": 19.73, "at 3512": 18.40},
        ),
        Claim(
            "rope-rises-less-at-8x",
            folder,
            PRESS,
            "table 2",
            "At some eight times the training length RoPE has lost less than sinusoidal codes.",
            (below(_rises(loss, "rope", 128, 1024) - _rises(loss, "sinusoidal", 128, 1024)),),
            {"RoPE, 3512 over 512": 1.77, "sinusoidal": 8.93},
            tried="Heads (configs/papers/heads.py) and windows that slide (train_short_test_long). A model that uses its "
            "positions more loses more where they are new: at the training length RoPE is ahead by far.",
        ),
        Claim(
            "quickstart-rope-leads",
            "quickstart",
            ROPE,
            "figure 3, pre-training loss by step; no number",
            "Early in training RoPE is ahead of sinusoidal codes at the training length.",
            (below(short("rope", 64) - short("sinusoidal", 64)),),
        ),
        Claim(
            "quickstart-sinusoidal-beats-none",
            "quickstart",
            VIT,
            "table 8: with an encoding against without",
            "A ViT with an absolute code is ahead of one without any encoding.",
            (above(digits("sinusoidal") - digits("none")),),
            {"1-D": 64.206, "none": 61.382},
            points=True,
        ),
    )


def _not_here() -> tuple[Claim, ...]:
    """Claims that need an accelerator."""
    p_rope = Table("p_rope", "p_rope", "loss")
    rope_vit = Table("rope_vit", "rope_vit", "accuracy")
    return (
        Claim(
            "p-rope-ahead",
            "p_rope",
            P_ROPE,
            "table 2, Gemma-2B from scratch",
            "RoPE without its lowest frequencies has a slightly lower loss.",
            (below(p_rope("p_rope") - p_rope("rope")),),
            {"perplexity, RoPE": 4.463, "three quarters of RoPE": 4.441},
        ),
        Claim(
            "rope-vit-order",
            "rope_vit",
            HEO,
            "README of the authors' code, ViT-B trained at 224, at 384",
            "On larger images mixed rotary frequencies are ahead of axial ones, and those of a learned table.",
            (
                above(rope_vit("mixed", 384) - rope_vit("axial", 384)),
                above(rope_vit("axial", 384) - rope_vit("learned", 384)),
            ),
            {"mixed": 84.4, "axial": 83.9, "learned": 82.8},
            points=True,
        ),
    )


CLAIMS: tuple[Claim, ...] = (
    *_train_short_test_long(),
    *_randomized_positions(),
    *_no_positions(),
    *_context_extension(),
    *_vit_table8(),
    *_contextual_counting(),
    *_length_generalization(),
    *_resolutions(),
    *_heads(),
    *_data_size(),
    *_images(),
    *_text(),
    *_not_here(),
)
