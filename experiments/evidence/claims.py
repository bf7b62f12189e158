"""What papers found, each with its source and the contrast of ours that decides it.

A claim is data: who says it and where, what in one sentence without numbers, the paper's own numbers, and the expectations
on our records that it amounts to. Where no number could be read at its source there is none, and `place` says so.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import NamedTuple

from experiments.evidence.contrast import Cell, Contrast, Table, mean, unit_of
from experiments.report.lengths import CHUNKED, SLIDING
from experiments.report.table import Unit

_FLAT = 0.02  # nats: a loss that rises by no more over all lengths is called flat
_FAILING = 0.5  # nats: a loss that rises by more over all lengths is called failing
_FREE = 0.005  # nats: what costs no more is called free
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


class Looked(NamedTuple):
    """A contrast of ours that is shown, and what it is called."""

    contrast: Contrast
    name: str


ROLES = PUBLISHED, CONTROL, REPEAT = "published", "control", "repeat"


@dataclasses.dataclass(frozen=True)
class Claim:
    """One claim.

    Attributes:
      id: by which other pages and texts name it.
      place: of the claim in the paper, and how it was read if not there.
      says: the claim, without numbers.
      expects: all of them together are the claim; all read one folder of results.
      paper: what -> the paper's number, in the paper's unit; empty where none was read.
      role: PUBLISHED, CONTROL where it is ours, beside what the paper says, or REPEAT of another claim on other data.
      doubt: what a reader should know before taking the verdict further than it goes.
      tried: what was done to explain a result against the claim.
      remains: what would have to be done next, where ours is against the claim.
      follow_up: the contrasts that were looked at to explain or to bound it, shown with it and not tested.
    """

    id: str
    source: Source
    place: str
    says: str
    expects: tuple[Expectation, ...]
    paper: Mapping[str, float] = dataclasses.field(default_factory=dict)
    role: str = PUBLISHED
    doubt: str = ""
    tried: str = ""
    remains: str = ""
    follow_up: tuple[Looked, ...] = ()

    @property
    def cells(self) -> tuple[Cell, ...]:
        """All that are read, each once."""
        return tuple(dict.fromkeys(cell for each in self.expects for _, cell in each.contrast.terms))

    @property
    def folder(self) -> str:
        """The folder of results that decides it; Holm's correction is over the claims of one folder."""
        return self.cells[0].folder

    @property
    def unit(self) -> Unit:
        """How its contrasts are shown: shares out of one in points of a hundred."""
        return unit_of(self.cells[0].metric)


def above(contrast: Contrast, low: float = 0.0, name: str = "") -> Expectation:
    """The contrast is larger than `low`."""
    return Expectation(contrast, low=low, name=name)


def below(contrast: Contrast, high: float = 0.0, name: str = "") -> Expectation:
    """The contrast is smaller than `high`."""
    return Expectation(contrast, high=high, name=name)


def within(contrast: Contrast, margin: float, name: str = "") -> Expectation:
    """The contrast is a tie: closer to 0 than `margin`."""
    return Expectation(contrast, -margin, margin, name)


def rise(table: Table, row: str, start: int, end: int) -> Contrast:
    """By how much a row's loss is higher at `end` than at `start`."""
    return table(row, end) - table(row, start)


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
PATH = Source("Yang et al.", 2025, "2505.16381")
STICKS = Source("Tan et al.", 2024, "2410.17980")
P_ROPE = Source("Barbero et al.", 2024, "2410.06205")


# Train short, test long: trained on 128 bytes, windows that do not overlap as in the paper's tables.
_L, _2L, _4L, _8L, _32L = 128, 256, 512, 1024, 4096
_SHORT, _BOOKS = (Table(folder, CHUNKED, "loss") for folder in ("train_short_test_long", "train_short_test_long_books"))
_DIGITS, _PYDOC = Table("quickstart", "digits_vit", "accuracy"), Table("quickstart", "pydoc_decoder", "loss")
_TABLE2 = "table 2, WikiText-103"


def _beyond(loss: Table, name: str, role: str = PUBLISHED) -> tuple[Claim, ...]:
    """What table 2 says of reading beyond the training length; `name` ends the ids."""
    claims = (
        Claim(
            f"alibi-extrapolates{name}",
            PRESS,
            _TABLE2,
            "ALiBi reads far beyond its training length without a rise in loss.",
            (below(rise(loss, "alibi", _L, _32L), _FLAT),),
            {"perplexity at 512": 19.73, "at 15512": 18.31},
        ),
        Claim(
            f"sinusoidal-fails-beyond{name}",
            PRESS,
            _TABLE2,
            "Sinusoidal codes fail beyond the training length.",
            (above(rise(loss, "sinusoidal", _L, _32L), _FAILING),),
            {"perplexity at 512": 20.05, "at 15512": 406.01},
        ),
        Claim(
            f"rope-fails-beyond{name}",
            PRESS,
            _TABLE2,
            "RoPE fails beyond the training length.",
            (above(rise(loss, "rope", _L, _32L), _FAILING),),
            {"perplexity at 512": 20.07, "at 15512": 79.25},
        ),
        Claim(
            f"t5-reads-twice{name}",
            PRESS,
            _TABLE2,
            "T5's buckets read twice the training length without a rise in loss.",
            (below(rise(loss, "t5", _L, _2L), _FLAT),),
            {"perplexity at 512": 19.65, "at 1012": 18.79},
        ),
        Claim(
            f"alibi-at-training-length{name}",
            PRESS,
            _TABLE2,
            "At the training length ALiBi is ahead of sinusoidal codes.",
            (below(loss("alibi", _L) - loss("sinusoidal", _L)),),
            {"perplexity, ALiBi": 19.73, "sinusoidal": 20.05},
        ),
        Claim(
            f"alibi-short-beats-sinusoidal-long{name}",
            PRESS,
            "table 5, WikiText-103",
            "ALiBi trained short is ahead, on longer inputs, of sinusoidal codes trained on them for the same time.",
            (below(loss("alibi", _4L) - loss("sinusoidal, trained at 512", _4L)),),
            {"perplexity at 3072, ALiBi trained on 512": 18.40, "sinusoidal trained on 3072": 18.67},
            doubt="In that time the sinusoidal codes have not been learned on the longer windows: they are no better than "
            "no encoding there, so the gap is far larger than the paper's.",
            follow_up=(
                Looked(
                    loss("sinusoidal, trained at 512", _4L) - loss("none", _4L), "sinusoidal, trained at 512 - none"
                ),
            ),
        ),
    )
    return tuple(dataclasses.replace(claim, role=role) for claim in claims)


_TRAIN_SHORT = (
    *_beyond(_SHORT, ""),
    Claim(
        "rope-fails-less",
        PRESS,
        "table 2",
        "Beyond the training length RoPE loses less than sinusoidal codes.",
        (below(rise(_SHORT, "rope", _L, _32L) - rise(_SHORT, "sinusoidal", _L, _32L)),),
        {
            "RoPE, perplexity at 512": 20.07,
            "at 15512": 79.25,
            "sinusoidal, at 512": 20.05,
            "sinusoidal, at 15512": 406.01,
        },
        tried="The length at which RoPE falls behind: what it is ahead by within the training length is what it has to lose.",
        follow_up=tuple(
            Looked(_SHORT("rope", length) - _SHORT("sinusoidal", length), f"RoPE - sinusoidal at {length}")
            for length in (_L, _2L, _4L, _8L)
        ),
    ),
    Claim(
        "kerple-extrapolates",
        KERPLE,
        "title; no number",
        "KERPLE's logarithmic bias reads far beyond its training length without a rise in loss.",
        (below(rise(_SHORT, "kerple", _L, _32L), _FLAT),),
    ),
    Claim(
        "sandwich-extrapolates",
        SANDWICH,
        "title; no number",
        "Sandwich reads far beyond its training length without a rise in loss.",
        (below(rise(_SHORT, "sandwich", _L, _32L), _FLAT),),
    ),
    Claim(
        "fire-beyond-rope-and-alibi",
        FIRE,
        "abstract; no number",
        "FIRE generalises to longer contexts better than RoPE and ALiBi.",
        tuple(below(_SHORT("fire", _32L) - _SHORT(row, _32L)) for row in ("rope", "alibi")),
        tried="Its own learning rate, and the length at which it falls behind ALiBi.",
        remains="Its threshold: FIRE counts distances in shares of the length from a learned threshold on, which starts "
        "above the trained length here and at a quarter of it in the paper; it is beyond it that it falls behind. Also "
        "longer trainings, and texts whose far past matters.",
        follow_up=tuple(
            Looked(_SHORT("fire", length) - _SHORT("alibi", length), f"FIRE - ALiBi at {length}")
            for length in (_L, _2L, _4L, _8L)
        ),
    ),
    Claim(
        "xpos-beyond-rope",
        XPOS,
        "abstract; no number",
        "xPos extrapolates better than RoPE.",
        (below(_SHORT("xpos", _32L) - _SHORT("rope", _32L)),),
    ),
    Claim(
        "fox-ahead-of-rope",
        FOX,
        "abstract; no number",
        "Forget gates are ahead of RoPE at the training length and beyond it.",
        tuple(below(_SHORT("fox", length) - _SHORT("rope", length)) for length in (_L, _32L)),
    ),
    Claim(
        "rope-learns-faster",
        ROPE,
        "faster convergence of pre-training; no number",
        "Early in training RoPE is ahead of sinusoidal codes at the training length.",
        (below(_SHORT("rope", _L) - _SHORT("sinusoidal", _L)),),
    ),
    Claim(
        "none-competitive",
        HAVIV,
        "table 1, WikiText-103",
        "A causal decoder without any encoding is competitive with sinusoidal codes.",
        (below(_SHORT("none", _L) - _SHORT("sinusoidal", _L), _CLOSE),),
        {"perplexity, none": 20.97, "sinusoidal": 20.16},
        tried="A learning rate of its own, shorter trainings, in which neither has learned positions, and other texts; and "
        "probes of what its layers know (causal-none-knows-positions).",
        remains="Depth: these decoders have two blocks to count predecessors with, the paper's many more; an accelerator "
        "form by --config.model.depth is ready.",
        follow_up=(
            Looked(_PYDOC("none", 64) - _PYDOC("sinusoidal", 64), "none - sinusoidal, quickstart"),
            Looked(_BOOKS("none", _L) - _BOOKS("sinusoidal", _L), "novels"),
        ),
    ),
)

# How many heads ALiBi's slopes are shared out over: our own control of the study above.
_HEADS = {heads: Table("heads", f"heads_{heads}", "loss") for heads in (2, 8)}
_HEAD_COUNT = (
    Claim(
        "heads-confound-alibi",
        PRESS,
        "section 3, slopes by head; our own control, no number",
        "ALiBi's gap to RoPE at the training length shrinks with more heads.",
        (
            below(
                (_HEADS[8]("alibi", _L) - _HEADS[8]("rope", _L)) - (_HEADS[2]("alibi", _L) - _HEADS[2]("rope", _L)),
            ),
        ),
        role=CONTROL,
    ),
)


# No positions at all: how far off (bytes) a probe reads positions from a model's features, behind so many of its two blocks.
def _error(table: str, row: str, blocks: int, tokens: str = "") -> Contrast:
    return Table("no_positions", table, f"position error after {blocks} blocks{tokens}")(row)


_RANDOM = ", random tokens"
_NO_POSITIONS = (
    Claim(
        "causal-none-knows-positions",
        HAVIV,
        "abstract; no number",
        "Without an encoding the blocks of a causal decoder make absolute positions readable.",
        (
            below(
                _error("causal", "none", 2) - _error("causal", "none", 0), name="none, after the blocks - before them"
            ),
        ),
        doubt="Readable is a matter of degree: the error that is left, and that of sinusoidal codes, stand beside.",
        follow_up=tuple(
            Looked(_error("causal", row, 2), f"error of {row} after the blocks") for row in ("none", "sinusoidal")
        ),
    ),
    Claim(
        "causal-none-knows-as-others",
        HAVIV,
        "abstract; no number",
        "They are read about as well as with sinusoidal codes: better than midway between those and no information.",
        (
            below(
                _error("causal", "none", 2) - (_error("causal", "sinusoidal", 2) + _error("causal", "none", 0)) / 2,
                name="none - midway between sinusoidal and none before the blocks",
            ),
        ),
    ),
    Claim(
        "bidirectional-none-does-not",
        HAVIV,
        "the control with masked language models; no number",
        "Without an encoding positions are read off a causal model and not off a bidirectional one.",
        (
            below(_error("causal", "none", 2) - _error("bidirectional", "none", 2), name="causal - bidirectional"),
            above(
                _error("bidirectional", "none", 2)
                - (_error("causal", "none", 2) + _error("bidirectional", "none", 0)) / 2,
                name="bidirectional - midway between causal and no information",
            ),
        ),
        doubt="An encoder without positions cannot know them, whatever it learns: this half is a check of the probe.",
    ),
    Claim(
        "the-mask-tells-positions",
        HAVIV,
        "abstract, on how many predecessors a token sees; no number",
        "It is the causal mask that tells them: in random tokens they are readable too.",
        (
            below(
                _error("causal", "none", 2, _RANDOM) - _error("causal", "none", 0, _RANDOM),
                name="none, random tokens, after the blocks - before them",
            ),
        ),
    ),
)

# Randomised positions: mean accuracy at lengths that were not trained.
_TASKS = ("bucket_sort", "reverse_string", "odds_first", "cycle_navigation")
_SOLVED = {task: Table("randomized_positions", task, "accuracy") for task in _TASKS}
_REVERSED = Table("randomized_positions", "reverse_string", "accuracy by length")


def _randomized(task: str, base: str) -> Contrast:
    """What randomised positions add to a base."""
    return _SOLVED[task](f"randomized {base}") - _SOLVED[task](base)


_AVERAGED = ("sinusoidal", "relative", "alibi", "rope")
_INSTANCE = "abstract, one of its tasks; no number"
_RANDOMIZED = (
    Claim(
        "randomized-helps-on-average",
        RUOSS,
        "abstract, mean over tasks",
        "Over tasks and encodings randomised positions raise accuracy on longer sequences.",
        (
            above(
                mean([_randomized(task, base) for task in _TASKS for base in _AVERAGED]),
                name="randomised - plain, mean over tasks and encodings",
            ),
        ),
        {"points": 12.0},
        doubt="One task, sorting, makes most of it, and ALiBi loses by it on two of them.",
        follow_up=(
            *(Looked(mean([_randomized(task, base) for base in _AVERAGED]), task) for task in _TASKS),
            *(Looked(_randomized(task, "alibi"), f"ALiBi, {task}") for task in ("reverse_string", "cycle_navigation")),
        ),
    ),
    Claim(
        "randomized-sinusoidal-sorts",
        RUOSS,
        _INSTANCE,
        "Randomised positions let sinusoidal codes sort sequences longer than those of training.",
        (above(_randomized("bucket_sort", "sinusoidal")),),
    ),
    Claim(
        "randomized-rope-sorts",
        RUOSS,
        _INSTANCE,
        "Randomised positions let RoPE sort sequences longer than those of training.",
        (above(_randomized("bucket_sort", "rope")),),
    ),
    Claim(
        "randomized-learned-sorts",
        RUOSS,
        _INSTANCE,
        "Randomised positions let a learned table sort sequences longer than those of training.",
        (above(_randomized("bucket_sort", "learned")),),
    ),
    Claim(
        "randomized-reverses",
        RUOSS,
        _INSTANCE,
        "Randomised positions help relative attention and RoPE to reverse longer strings.",
        tuple(above(_randomized("reverse_string", base)) for base in ("relative", "rope")),
        doubt="Reversing is not solved at the trained lengths either: more training may change it.",
        follow_up=tuple(
            Looked(_REVERSED(f"randomized {base}", 20), f"accuracy of randomized {base} at 20, trained")
            for base in ("relative", "rope")
        ),
    ),
    Claim(
        "randomized-finds-odds",
        RUOSS,
        _INSTANCE,
        "Randomised positions help sinusoidal codes and RoPE to gather every other symbol of longer sequences.",
        tuple(above(_randomized("odds_first", base)) for base in ("sinusoidal", "rope")),
        doubt="No row has learned the task at the trained lengths.",
    ),
    Claim(
        "randomized-navigates",
        RUOSS,
        _INSTANCE,
        "Randomised positions help sinusoidal codes and RoPE to follow a cycle for longer.",
        tuple(above(_randomized("cycle_navigation", base)) for base in ("sinusoidal", "rope")),
    ),
)

# Context extension: trained on 256 bytes, read under other encodings without tuning, or after a tuning on 1024.
_EXTENDED, _PASSKEY = Table("context_extension", SLIDING, "loss"), Table("context_extension", "passkey", "exact match")
_TRAINED, _TARGET, _BEYOND, _FAR = 256, 1024, 2048, 8192


_CONTEXT = (
    Claim(
        "pi-untuned-beats-extrapolation",
        PI,
        "table 1, PG-19",
        "Position interpolation reads beyond the trained length better than extrapolation, even without any tuning.",
        (below(_EXTENDED("PI", _TARGET) - _EXTENDED("rope", _TARGET)),),
        {"perplexity at 8192, PI untuned": 16.10, "extrapolated, above": 1000.0},
    ),
    Claim(
        "pi-tuned-keeps-loss",
        PI,
        "table 1, PG-19",
        "After a short tuning position interpolation reads a longer context with no more loss than RoPE, tuned for as long, "
        "has at the trained length.",
        (below(_EXTENDED("PI, tuned", _TARGET) - _EXTENDED("rope, tuned", _TRAINED), _FLAT),),
        {"perplexity at 2048, as trained": 7.20, "at 8192, tuned PI": 6.95},
        tried="What the same tuning costs at the trained length (pi-tuned-beats-tuning-alone).",
        remains="How long a tuning brings the loss of the trained length back.",
        follow_up=(
            Looked(_EXTENDED("PI, tuned", _TARGET) - _EXTENDED("rope", _TRAINED), "less RoPE as it was trained"),
        ),
    ),
    Claim(
        "pi-tuned-beats-tuning-alone",
        PI,
        "table 1, PG-19",
        "Tuning with position interpolation is ahead of the same tuning without it.",
        (below(_EXTENDED("PI, tuned", _TARGET) - _EXTENDED("rope, tuned", _TARGET)),),
        {"perplexity at 8192, PI": 6.95, "tuning alone": 7.69},
        tried="Whether it is the length that costs, or the finer positions that a short tuning has not brought back: the "
        "same difference at the trained length, and beyond the tuned one.",
        remains="Longer tunings, and bases trained so long that positions beyond the trained ones are as foreign as the "
        "paper's.",
        follow_up=tuple(
            Looked(_EXTENDED("PI, tuned", length) - _EXTENDED("rope, tuned", length), f"PI - tuning alone at {length}")
            for length in (_TRAINED, _BEYOND)
        ),
    ),
    Claim(
        "pi-tuned-finds-passkeys",
        PI,
        "pass keys, the farthest found after 200 steps",
        "Tuned with position interpolation a model finds more pass keys in the longer context than tuned without.",
        (above(_PASSKEY("PI, tuned", _TARGET) - _PASSKEY("rope, tuned", _TARGET)),),
        {"tokens, PI": 8192, "tuning alone": 1792},
        tried="How many keys each finds at the trained length.",
        follow_up=(Looked(_PASSKEY("PI, tuned", _TRAINED) - _PASSKEY("rope, tuned", _TRAINED), f"at {_TRAINED}"),),
        remains="Larger models, which have frequencies to spare, and longer tunings.",
    ),
    Claim(
        "ntk-beats-pi-untuned",
        YARN,
        "motivation of NTK-aware scaling; no number",
        "NTK-aware scaling is ahead of position interpolation without any tuning.",
        (below(_EXTENDED("NTK", _TARGET) - _EXTENDED("PI", _TARGET)),),
    ),
    Claim(
        "yarn-beats-ntk-untuned",
        YARN,
        "motivation of YaRN; no number",
        "YaRN is ahead of NTK-aware scaling without any tuning.",
        (below(_EXTENDED("YaRN", _TARGET) - _EXTENDED("NTK", _TARGET)),),
    ),
    Claim(
        "yarn-beats-pi-beyond-tuning",
        YARN,
        "table 1, Proof-pile, beyond the tuned length",
        "Beyond the length of an equal tuning YaRN is ahead of position interpolation.",
        (below(_EXTENDED("YaRN, tuned", _BEYOND) - _EXTENDED("PI, tuned", _BEYOND)),),
        {"perplexity at 10240, YaRN": 6.04, "PI": 8.07},
    ),
    Claim(
        "yarn-ties-pi-at-tuning",
        YARN,
        "table 1, Proof-pile, at the tuned length",
        "At the length of an equal tuning YaRN and position interpolation are alike (a tie, exploratory).",
        (within(_EXTENDED("YaRN, tuned", _TARGET) - _EXTENDED("PI, tuned", _TARGET), _FLAT),),
        {"perplexity at 8192, YaRN": 3.35, "PI": 3.34},
        tried="Whether they differ at the trained length too, where nothing is read further.",
        remains="Whether they meet after longer tunings.",
        follow_up=(
            Looked(_EXTENDED("YaRN, tuned", _TRAINED) - _EXTENDED("PI, tuned", _TRAINED), "at the trained length"),
        ),
    ),
    Claim(
        "dynamic-ntk-free-at-trained-length",
        YARN,
        "dynamic scaling; no number",
        "Dynamic scaling costs nothing at the trained length, where tuned position interpolation does.",
        (
            within(_EXTENDED("dynamic NTK", _TRAINED) - _EXTENDED("rope", _TRAINED), _FREE),
            above(_EXTENDED("PI, tuned", _TRAINED) - _EXTENDED("rope, tuned", _TRAINED)),
        ),
        doubt="Its first half is so by construction: within the trained length nothing is scaled.",
    ),
    Claim(
        "longrope-search-wins",
        LONGROPE,
        "table 1, PG-19, four times the trained length",
        "Searched factors are ahead of position interpolation, dynamic NTK and YaRN without any tuning.",
        tuple(below(_EXTENDED("LongRoPE", _TARGET) - _EXTENDED(row, _TARGET)) for row in ("PI", "dynamic NTK", "YaRN")),
        {"perplexity at 16384, searched": 11.34, "PI": 20.49, "dynamic NTK": 23.29, "YaRN": 87.89},
    ),
    Claim(
        "self-extend-reads-on",
        SELF_EXTEND,
        "title, without tuning; no number",
        "SelfExtend reads beyond the trained length better than extrapolation, without any tuning.",
        (below(_EXTENDED("SelfExtend", _TARGET) - _EXTENDED("rope", _TARGET)),),
    ),
    Claim(
        "self-extend-finds-passkeys",
        SELF_EXTEND,
        "title, without tuning; no number",
        "SelfExtend finds more pass keys beyond the trained length than extrapolation, without any tuning.",
        (above(_PASSKEY("SelfExtend", _TARGET) - _PASSKEY("rope", _TARGET)),),
    ),
    Claim(
        "windows-need-sinks",
        SINKS,
        "abstract; no number",
        "Far beyond the trained length a sliding window is behind one that keeps the first tokens too, near by.",
        (above(_EXTENDED("window", _FAR) - _EXTENDED("streaming", _FAR)),),
    ),
    Claim(
        "windows-do-not-retrieve",
        SINKS,
        "our own control; no number",
        "A window reads on without finding what lies beyond it: SelfExtend finds more pass keys.",
        (above(_PASSKEY("SelfExtend", _TARGET) - _PASSKEY("window", _TARGET)),),
        role=CONTROL,
    ),
)

# Retrieval: pass keys of which all digits are found, trained at 128 bytes.
_KEYS = Table("retrieval", "passkey", "exact match")
_RETRIEVAL = (
    Claim(
        "rope-and-alibi-lose-keys-beyond",
        KAZEMNEJAD,
        "abstract; no number",
        "RoPE, ALiBi and absolute codes retrieve worse beyond the training length.",
        tuple(below(rise(_KEYS, row, _L, _8L)) for row in ("rope", "alibi", "sinusoidal")),
    ),
    Claim(
        "none-finds-further-than-rope",
        KAZEMNEJAD,
        "abstract; no number",
        "Beyond the training length a decoder without an encoding retrieves better than RoPE.",
        (above(_KEYS("none", _8L) - _KEYS("rope", _8L)),),
        doubt="Without an encoding few seeds find keys at the trained length.",
        follow_up=(Looked(_KEYS("none", _L) - _KEYS("rope", _L), f"none - rope at {_L}"),),
    ),
    Claim(
        "fire-finds-further",
        FIRE,
        "abstract, benchmarks of long texts; no number",
        "Beyond the training length FIRE retrieves better than RoPE and ALiBi.",
        tuple(above(_KEYS("fire", _8L) - _KEYS(row, _8L)) for row in ("rope", "alibi")),
    ),
    Claim(
        "alibi-sees-no-further",
        SANDWICH,
        "title, on receptive fields; our own control of the flat loss, no number",
        "ALiBi's flat loss is no sight: far beyond the training length it retrieves worse than at it.",
        (below(rise(_KEYS, "alibi", _L, _8L)),),
        role=CONTROL,
        doubt="Its seeds differ: some find every key at eight times the trained length, others none.",
    ),
)

# Table 8 of the ViT paper.
_STEM, _EVERY, _LAPE = (Table("vit_table8", table, "accuracy") for table in ("stem", "every_layer", "LaPE"))
_FASHION = Table("fashion_vit", "fashion_vit", "accuracy")
_TABLE8 = (
    Claim(
        "vit-1d-beats-none",
        VIT,
        "table 8, read in citations",
        "A learned table in raster order is ahead of no encoding.",
        (above(_STEM("1-D") - _STEM("none")),),
        {"1-D (%)": 64.206, "none": 61.382},
    ),
    Claim(
        "vit-2d-beats-none",
        VIT,
        "table 8, read in citations",
        "A learned 2-D table is ahead of no encoding.",
        (above(_STEM("2-D") - _STEM("none")),),
        {"2-D (%)": 64.001, "none": 61.382},
    ),
    Claim(
        "vit-relative-beats-none",
        VIT,
        "table 8, read in citations",
        "Relative attention over raster differences is ahead of no encoding.",
        (above(_STEM("relative") - _STEM("none")),),
        {"relative (%)": 64.032, "none": 61.382},
        tried="Raster differences know no rows: differences of rows and columns are a row of the same study "
        "(vit-relative-needs-the-grid).",
    ),
    Claim(
        "vit-2d-relative-beats-none",
        CPVT,
        "DeiT-Ti on ImageNet-1k, read in a review of the paper",
        "Relative attention over rows and columns is ahead of no encoding.",
        (above(_STEM("2-D Shaw") - _STEM("none")),),
        {"relative (%)": 70.5, "none": 68.2},
        tried="A learning rate of its own, and another bias of rows and columns, T5's; no training as long as theirs.",
        follow_up=(Looked(_STEM("T5") - _STEM("none"), "T5 - none"),),
    ),
    Claim(
        "vit-relative-needs-the-grid",
        VIT,
        "our own control of the relative row; no number",
        "Relative attention over rows and columns is ahead of that over raster differences.",
        (above(_STEM("2-D Shaw") - _STEM("relative")),),
        role=CONTROL,
    ),
    Claim(
        "vit-views-lead",
        LOOKHERE,
        "abstract, mean over encodings, ImageNet at the trained resolution",
        "Heads that look one way, with nothing learned, are ahead of learned tables.",
        (
            above(
                _STEM("LookHere") - mean([_STEM("1-D"), _STEM("2-D")]),
                name="LookHere - mean of 1-D and 2-D",
            ),
        ),
        {"points": 1.6},
        tried="Another data set, and whether it is ahead of no encoding here.",
        remains="Trainings and images of the paper's size: its views drop what lies outside them, and with few heads a patch "
        "has few ways to look.",
        follow_up=(
            Looked(_FASHION("lookhere") - _FASHION("learned"), "LookHere - learned on Fashion-MNIST"),
            Looked(_STEM("LookHere") - _STEM("none"), "LookHere - none"),
        ),
    ),
    Claim(
        "vit-1d-ties-2d",
        VIT,
        "table 8, read in citations",
        "It makes little difference whether a table is 1-D or 2-D (a tie, exploratory).",
        (within(_STEM("2-D") - _STEM("1-D"), _TIE),),
        {"2-D (%)": 64.001, "1-D": 64.206},
        doubt="The intervals of these seeds are wider than the tie that is asked for.",
    ),
    Claim(
        "vit-injection-does-not-matter",
        VIT,
        "table 8, read in citations",
        "It makes little difference whether the table is added once or in every layer (a tie, exploratory).",
        tuple(within(_EVERY(row) - _STEM(row), _TIE, f"{row}, every layer - stem") for row in ("1-D", "2-D")),
        {"1-D, every layer (%)": 63.964, "stem": 64.206, "2-D, every layer": 64.046, "2-D, stem": 64.001},
        doubt="The intervals of these seeds are wider than the tie that is asked for.",
    ),
    Claim(
        "lape-ahead",
        LAPE,
        "abstract, ViT-Lite on CIFAR-10",
        "A table with a normalisation of its own in each layer (LaPE) is ahead of one added at the stem.",
        (above(mean([_LAPE(row) - _STEM(row) for row in ("1-D", "2-D")]), name="LaPE - stem, mean of 1-D and 2-D"),),
        {"points": 0.94},
        doubt="Its rows chose the lowest of the rates that were tried.",
    ),
)

# Contextual counting: the flip-flop language as it was trained on, and with writes that stand far away.
_INSIDE = Table("contextual_counting", "flip_flop", "accuracy by length")
_SPARSE = Table("contextual_counting", "flip_flop", "accuracy by length, flip_flop_sparse")
_LONGER_INSIDE = Table("contextual_counting", "longer", "accuracy by length")
_LONGER_SPARSE = Table("contextual_counting", "longer", "accuracy by length, flip_flop_sparse")
_SYMBOLS = 128
_COUNTING = (
    Claim(
        "cope-ahead-on-flip-flop",
        COPE,
        "abstract; no number",
        "Contextual positions are ahead of RoPE on flip-flop out of distribution.",
        (above(_SPARSE("cope", _SYMBOLS) - _SPARSE("rope", _SYMBOLS)),),
        tried="A learning rate of its own, whether the language was learned as it was trained on, and a training four times "
        "as long.",
        follow_up=(
            Looked(_INSIDE("cope", _SYMBOLS) - _INSIDE("rope", _SYMBOLS), "CoPE - RoPE in distribution"),
            Looked(
                _LONGER_SPARSE("cope", _SYMBOLS) - _LONGER_SPARSE("rope", _SYMBOLS),
                "CoPE - RoPE out of distribution, trained longer",
            ),
        ),
    ),
    Claim(
        "cope-beats-alibi-and-none",
        COPE,
        "abstract; no number",
        "Contextual positions are ahead of ALiBi and of no encoding on flip-flop out of distribution.",
        tuple(above(_SPARSE("cope", _SYMBOLS) - _SPARSE(row, _SYMBOLS)) for row in ("alibi", "none")),
        tried="See cope-ahead-on-flip-flop.",
        follow_up=(Looked(_INSIDE("cope", _SYMBOLS) - _INSIDE("alibi", _SYMBOLS), "CoPE - ALiBi in distribution"),),
    ),
    Claim(
        "cope-in-distribution",
        COPE,
        "abstract; no number",
        "In distribution contextual positions are not behind RoPE.",
        (above(_INSIDE("cope", _SYMBOLS) - _INSIDE("rope", _SYMBOLS), -_TIE),),
        tried="A learning rate of its own, and a training four times as long, after which some of its seeds have learned the "
        "language as RoPE has and others have not.",
        remains="A training until every seed has learned the language, as the paper's; only then can contexts be compared.",
        follow_up=(
            Looked(_LONGER_INSIDE("cope", _SYMBOLS) - _LONGER_INSIDE("rope", _SYMBOLS), "CoPE - RoPE, trained longer"),
            Looked(_LONGER_INSIDE("cope", _SYMBOLS) - _INSIDE("cope", _SYMBOLS), "CoPE, trained longer - shorter"),
        ),
    ),
    Claim(
        "fox-ahead-on-flip-flop",
        FOX,
        "gates that see content; our own control, no number",
        "Forget gates, which see content too, are ahead of RoPE on flip-flop out of distribution.",
        (above(_SPARSE("fox", _SYMBOLS) - _SPARSE("rope", _SYMBOLS)),),
        role=CONTROL,
    ),
)

# State tracking: what encodings that read the content claim to follow and others to lose.
_FLIPS = Table("state_tracking", "flip_flop", "accuracy by length")
_SPARSELY, _DENSELY = (
    Table("state_tracking", "flip_flop", f"accuracy by length, flip_flop_{how}") for how in ("sparse", "dense")
)
_RECALL, _WORDS, _SUMS = (
    Table("state_tracking", task, "accuracy by length") for task in ("recall", "words", "addition")
)
_BIT, _ROW_OF_KEYS, _LETTERS, _DIGITS_ADDED = 64, 32, 8, 6  # tokens, tokens, letters, digits: what is trained
_BASELINES = ("rope", "stick_breaking", "fox")  # the paper's


def _path_ahead(table: Table, at: int) -> tuple[Expectation, ...]:
    return tuple(above(table("path", at) - table(row, at)) for row in _BASELINES)


_TRACKING = (
    Claim(
        "path-follows-far-writes",
        PATH,
        "table 1, flip-flop with 98 % ignored, one layer",
        "One layer of PaTH follows a bit that was written far away, which RoPE, stick-breaking and forget gates lose.",
        _path_ahead(_SPARSELY, _BIT),
        doubt="After so few steps: the others have hardly learned the language as it was trained on (path-learns-flip-flop).",
        paper={"error (%), PaTH": 0.0001, "RoPE": 40.3, "stick-breaking": 38.9, "FoX": 36.3},
    ),
    Claim(
        "path-learns-flip-flop",
        PATH,
        "table 1, flip-flop as trained, one layer",
        "As it was trained, too, flip-flop is learned sooner by one layer of PaTH than by one of the others.",
        _path_ahead(_FLIPS, _BIT),
        doubt="In the paper the others learn it too, with a few errors; after these steps RoPE is where no encoding is.",
        follow_up=(Looked(_FLIPS("rope", _BIT) - _FLIPS("none", _BIT), "RoPE - none"),),
        paper={"error (%), PaTH": 0.0, "RoPE": 6.9, "stick-breaking": 9.6, "FoX": 8.3},
    ),
    Claim(
        "near-writes-are-easy",
        PATH,
        "table 1, flip-flop with 10 % ignored, one layer",
        "Where little is ignored, stick-breaking and forget gates make no more errors than RoPE.",
        tuple(above(_DENSELY(row, _BIT) - _DENSELY("rope", _BIT), -_TIE) for row in _BASELINES[1:]),
        {"error (%), RoPE": 0.01, "stick-breaking": 0.0, "FoX": 0.0},
    ),
    Claim(
        "gates-lose-far-writes-less",
        PATH,
        "table 1, flip-flop with 98 % ignored, one layer",
        "Forget gates lose a bit that was written far away less often than RoPE.",
        (above(_SPARSELY("fox", _BIT) - _SPARSELY("rope", _BIT)),),
        {"error (%), FoX": 36.3, "RoPE": 40.3},
    ),
    Claim(
        "path-recalls",
        PATH,
        "section 4.1, the last value of each key; no number; there keys have several values, here one",
        "Two layers of PaTH recall more values of keys than two layers with RoPE, stick-breaking or forget gates.",
        _path_ahead(_RECALL, _ROW_OF_KEYS),
        tried="Which of them: with so few keys stick-breaking and forget gates recall all of them too, as they were trained.",
        remains="More keys with several values each, as the paper's.",
    ),
    Claim(
        "sticks-recall-further",
        STICKS,
        "abstract, which speaks of language; our own control, no number",
        "Of twice as many keys as were trained stick-breaking attention recalls more than RoPE.",
        (above(_RECALL("stick_breaking", 2 * _ROW_OF_KEYS) - _RECALL("rope", 2 * _ROW_OF_KEYS)),),
        role=CONTROL,
    ),
    Claim(
        "path-multiplies",
        PATH,
        "figure 2; no number; there the layers are counted that reach 90 %",
        "With as many layers PaTH tells more products of A5 than RoPE, stick-breaking and forget gates.",
        _path_ahead(_WORDS, _LETTERS),
    ),
    Claim(
        "path-adds-further",
        PATH,
        "our own control of arithmetic; no number",
        "PaTH adds numbers twice as long as those of training better than RoPE.",
        (above(_SUMS("path", 2 * _DIGITS_ADDED) - _SUMS("rope", 2 * _DIGITS_ADDED)),),
        role=CONTROL,
    ),
)

# Length generalisation, mean over lengths that were not trained. The papers count exact matches, which are rare at this size:
# the share of right tokens is what can separate rows.
_LONGER = {task: Table("length_generalization", task, "accuracy") for task in ("addition", "copy", "sort", "scan")}


_ACTIONS = Table("length_generalization", "scan", "accuracy by length")


def _longer(better: str, worse: str) -> Contrast:
    """How much better one row does than another, mean over the tasks."""
    return mean([task(better) - task(worse) for task in _LONGER.values()])


_SUM_LENGTHS = (8, 16)  # digits: the trained length, and twice that
_DIGITS_ONLY = "The papers count whole sums; of these hardly any is right, at the trained length either."


def _whole_sums(row: str) -> tuple[Looked, ...]:
    """Sums whose digits are all right."""
    exact = Table("length_generalization", "addition", "exact match by length")
    return tuple(Looked(exact(row, digits), f"whole sums of {digits} digits") for digits in _SUM_LENGTHS)


_RANKS = "mean reciprocal ranks in the authors' notebook"
_GENERALIZATION = (
    Claim(
        "none-generalises-best",
        KAZEMNEJAD,
        _RANKS,
        "A decoder without an encoding solves longer problems better than with ALiBi, RoPE and absolute codes.",
        tuple(above(_longer("none", row)) for row in ("alibi", "rope", "sinusoidal")),
        {"rank, none": 0.687, "ALiBi": 0.502, "RoPE": 0.330, "absolute": 0.215},
        doubt="The ranking does not separate at this size, and addition is not learned at the trained length.",
    ),
    Claim(
        "t5-generalises-beyond-rope",
        KAZEMNEJAD,
        _RANKS,
        "T5's buckets solve longer problems better than RoPE.",
        (above(_longer("t5", "rope")),),
        {"rank, T5": 0.549, "RoPE": 0.330},
    ),
    Claim(
        "scan-needs-no-rope",
        KAZEMNEJAD,
        "authors' notebook, SCAN's split by length, overall accuracy",
        "On SCAN's split by length a decoder without an encoding is ahead of RoPE and of absolute codes.",
        tuple(above(_LONGER["scan"]("none") - _LONGER["scan"](row)) for row in ("rope", "sinusoidal")),
        {"none (%)": 79.7, "RoPE": 28.3, "absolute": 5.7},
        tried="A learning rate of its own, and whether the commands were learned as they were trained on: sinusoidal codes "
        "learn them sooner; no longer training, which the paper's has.",
        remains="A training until all of them solve the commands that they are trained on.",
        follow_up=tuple(
            Looked(_ACTIONS("sinusoidal", length) - _ACTIONS("none", length), f"sinusoidal - none at {length} actions")
            for length in (22, 48)
        ),
    ),
    Claim(
        "absolute-codes-do-not-copy",
        KAZEMNEJAD,
        "authors' tables of results, copying to twice the length",
        "Sinusoidal codes copy longer sequences worse than no encoding.",
        (above(_LONGER["copy"]("none") - _LONGER["copy"]("sinusoidal")),),
        {"none, at least (%)": 42.0, "absolute, at most": 4.2},
    ),
    Claim(
        "abacus-adds",
        ABACUS,
        "abstract, additions five times as long",
        "With positions within numbers (Abacus) a decoder gets more digits of longer sums right.",
        tuple(above(_LONGER["addition"]("abacus") - _LONGER["addition"](row)) for row in ("none", "rope", "fire")),
        {"accuracy (%)": 99.0},
        doubt=_DIGITS_ONLY,
        follow_up=_whole_sums("abacus"),
    ),
    Claim(
        "coupled-positions-add",
        COUPLING,
        "abstract; no accuracy",
        "With coupled positions a decoder gets more digits of longer sums right.",
        tuple(above(_LONGER["addition"]("coupling") - _LONGER["addition"](row)) for row in ("none", "rope")),
        doubt=_DIGITS_ONLY,
        follow_up=_whole_sums("coupling"),
    ),
)

# Resolutions: (set, resolution of training, twice that), of Caltech-101 in patches.
_SETS = (("fashion_mnist", 28, 56), ("caltech101", 64, 256))
_AT = {name: Table("resolutions", name, "accuracy") for name, _, _ in _SETS}
_RESIZED = {"caltech101": "learned"}  # whose learned table is resized as it is evaluated; elsewhere by a policy


def _kept(better: str, worse: str | None) -> Contrast:
    """What a row keeps of its accuracy from 1x to 2x less what another keeps, mean over sets; None is the learned table."""
    return mean(
        [
            (_AT[name](better, end) - _AT[name](better, start)) - (_AT[name](other, end) - _AT[name](other, start))
            for name, start, end in _SETS
            for other in [worse or _RESIZED.get(name, "learned, resized")]
        ]
    )


_RESOLUTIONS = (
    Claim(
        "rescaled-beats-extrapolated",
        VIT,
        "section 3.2, interpolating position embeddings; no number",
        "On larger images positions fitted to the trained grid are ahead of positions beyond it.",
        tuple(
            above(_AT[name]("sincos2d, rescaled", end) - _AT[name]("sincos2d", end), name=f"sincos2d, {name}")
            for name, _, end in _SETS
        ),
    ),
    Claim(
        "mixed-keeps-more-than-learned",
        HEO,
        "README of the authors' code, ViT-S trained at 224",
        "On larger images mixed rotary frequencies keep more accuracy than a resized learned table.",
        (above(_kept("mixed", None), name="mixed - learned, 2x less 1x, mean over sets"),),
        {"mixed at 224 (%)": 80.9, "at 384": 81.8, "learned at 224": 80.4, "learned at 384": 79.4},
        tried="Two data sets, positions fitted to the trained grid, and a control that learned nothing of positions: if "
        "the table keeps what no encoding keeps, it has little to lose after so short a training.",
        remains="RoPE-ViT's own sizes: configs/papers/rope_vit.py is ready for an accelerator.",
        follow_up=(
            Looked(_kept("mixed, rescaled", None), "mixed rescaled - learned, 2x less 1x"),
            Looked(_kept("none", None), "none - learned, 2x less 1x"),
        ),
    ),
    Claim(
        "mixed-keeps-more-than-axial",
        HEO,
        "README of the authors' code, ViT-S trained at 224",
        "On larger images mixed rotary frequencies keep more accuracy than axial ones.",
        (above(_kept("mixed", "axial"), name="mixed - axial, 2x less 1x, mean over sets"),),
        {"mixed at 224 (%)": 80.9, "at 384": 81.8, "axial at 224": 80.9, "axial at 384": 80.0},
    ),
    Claim(
        "relative-coordinates-keep-more",
        DINOV3,
        "the design of its rotary embedding; no number",
        "On larger images coordinates relative to the image keep more accuracy than coordinates in patches.",
        (above(_kept("dinov3", "axial"), name="dinov3 - axial, 2x less 1x, mean over sets"),),
    ),
    Claim(
        "accuracy-peaks-above-1x",
        HEO,
        "figure in the README of the authors' code, ViT-B mixed, read off",
        "Accuracy is higher somewhat above the trained resolution than at it.",
        (above(_AT["caltech101"]("mixed", 81) - _AT["caltech101"]("mixed", 64)),),
        {"at 224 (%)": 83.8, "at 320": 84.7},
        tried="Positions fitted to the trained grid, and another data set.",
        remains="Models of RoPE-ViT's size, and trainings on random parts of images, after which larger ones hold things of "
        "the size that was seen.",
        follow_up=(
            Looked(
                _AT["caltech101"]("mixed, rescaled", 81) - _AT["caltech101"]("mixed, rescaled", 64), "rescaled, 81 - 64"
            ),
            Looked(_AT["fashion_mnist"]("mixed", 32) - _AT["fashion_mnist"]("mixed", 28), "Fashion-MNIST, 32 - 28"),
        ),
    ),
)

# Shares of the images, for as many images seen.
_FEW, _ALL = (Table("data_size", share, "accuracy") for share in ("1%", "100%"))
_LEAD = {table.table: table("ResNet") - table("ViT, learned") for table in (_FEW, _ALL)}
_DATA_SIZE = (
    Claim(
        "resnet-ahead-on-few-images",
        VIT,
        "figure 4; no number",
        "With few images a ResNet is ahead of a ViT.",
        (above(_LEAD["1%"], name="ResNet - ViT with learned, 1% of the images"),),
    ),
    Claim(
        "vit-catches-up-with-data",
        VIT,
        "figure 4; no number",
        "A ResNet's lead over a ViT shrinks as there are more images.",
        (above(_LEAD["1%"] - _LEAD["100%"], name="lead of the ResNet at 1% of the images - at 100%"),),
        tried="Every share is seen for as many images in all, so that small shares are seen more often. Longer trainings, in "
        "which the ViT could catch up, were not run.",
    ),
)

# ViTs on Fashion-MNIST, and both in minutes.
_SMALL = (
    Claim(
        "vit-learned-beats-none",
        CPVT,
        "DeiT-Ti on ImageNet-1k, read in a review of the paper",
        "A ViT with a learned table is ahead of one without any encoding.",
        (above(_FASHION("learned") - _FASHION("none")),),
        {"learned (%)": 72.2, "none": 68.2},
    ),
    Claim(
        "vit-rope-beats-learned",
        HEO,
        "README of the authors' code, ViT-S at 224",
        "A ViT with rotary positions is ahead of one with a learned table.",
        (above(_FASHION("rope") - _FASHION("learned")),),
        {"axial (%)": 80.9, "learned": 80.4},
    ),
    Claim(
        "vit-alibi-beats-none",
        LOOKHERE,
        "our own control of distance without direction; no number",
        "A ViT with 2-D ALiBi is ahead of one without any encoding.",
        (above(_FASHION("alibi") - _FASHION("none")),),
        role=CONTROL,
        tried="Its symmetric form says how far a patch is and never in which direction: `lookhere` is directed and learns "
        "nothing either (vit-direction-helps).",
    ),
    Claim(
        "vit-direction-helps",
        LOOKHERE,
        "our own control of 2-D ALiBi; no number",
        "Heads that look one way, with nothing learned either, are ahead of 2-D ALiBi and of no encoding.",
        tuple(above(_FASHION("lookhere") - _FASHION(row)) for row in ("alibi", "none")),
        role=CONTROL,
    ),
    Claim(
        "vit-direction-beats-learned-decay",
        LOOKHERE,
        "our own control of 2-D KERPLE; no number",
        "Heads that look one way, with nothing learned, are ahead of biases that learn how to fall with the distance.",
        (above(_FASHION("lookhere") - _FASHION("kerple")),),
        role=CONTROL,
        follow_up=(Looked(_FASHION("kerple") - _FASHION("alibi"), "KERPLE - ALiBi"),),
    ),
    Claim(
        "alibi-flat-at-8x-quickstart",
        PRESS,
        "table 2",
        "ALiBi reads eight times its training length without a rise in loss.",
        (below(rise(_PYDOC, "alibi", 64, 512), _FLAT),),
        {"perplexity at 512": 19.73, "at 3512": 18.40},
        REPEAT,
    ),
    Claim(
        "rope-fails-beyond-quickstart",
        PRESS,
        "table 2",
        "RoPE loses beyond the training length.",
        (above(rise(_PYDOC, "rope", 64, 512)),),
        {"perplexity at 512": 20.07, "at 3512": 35.54},
        REPEAT,
    ),
    Claim(
        "rope-learns-faster-quickstart",
        ROPE,
        "faster convergence of pre-training; no number",
        "Early in training RoPE is ahead of sinusoidal codes at the training length.",
        (below(_PYDOC("rope", 64) - _PYDOC("sinusoidal", 64)),),
        role=REPEAT,
    ),
    Claim(
        "vit-sinusoidal-beats-none",
        VIT,
        "table 8, with an encoding against without",
        "A ViT with an absolute code is ahead of one without any encoding.",
        (above(_DIGITS("sinusoidal") - _DIGITS("none")),),
        {"1-D (%)": 64.206, "none": 61.382},
    ),
)

# Ready to run on an accelerator.
_P_ROPE, _ROPE_VIT = Table("p_rope", "books", "loss"), Table("rope_vit", "cifar10", "accuracy")
_ACCELERATOR = (
    Claim(
        "p-rope-ahead",
        P_ROPE,
        "table 2, Gemma-2B from scratch",
        "RoPE without its lowest frequencies has a slightly lower loss.",
        (below(_P_ROPE("p_rope 3/4", 1024) - _P_ROPE("rope", 1024)),),
        {"perplexity, RoPE": 4.463, "three quarters of RoPE": 4.441},
    ),
    Claim(
        "rope-vit-order",
        HEO,
        "README of the authors' code, ViT-S trained at 224",
        "On larger images mixed rotary frequencies are ahead of axial ones, and those of a resized learned table.",
        (
            above(_ROPE_VIT("mixed", 64) - _ROPE_VIT("axial", 64)),
            above(_ROPE_VIT("axial", 64) - _ROPE_VIT("learned, resized", 64)),
        ),
        {"mixed at 384 (%)": 81.8, "axial": 80.0, "learned": 79.4},
    ),
)

CLAIMS = (
    *_TRAIN_SHORT,
    *_beyond(_BOOKS, "-books", REPEAT),
    *_RANDOMIZED,
    *_NO_POSITIONS,
    *_CONTEXT,
    *_RETRIEVAL,
    *_TABLE8,
    *_COUNTING,
    *_TRACKING,
    *_GENERALIZATION,
    *_RESOLUTIONS,
    *_HEAD_COUNT,
    *_DATA_SIZE,
    *_SMALL,
    *_ACCELERATOR,
)
