"""Published models and their positions: claims of the literature, on a decoder, an encoder and a vision transformer.

    python -m experiments.analyse --checkpoint=gemma-3-270m.gguf --data=books_pd --files=BOOKS --num_texts=20 \
        --out=results/real_models/gemma-3-270m

One command a model, Gemma's again with --noise; the page of claims is then python -m experiments.report
results/real_models. Gemma 3 270M: 18 layers, every sixth global with a RoPE of base 1e6, the others with a window of 512 and
base 1e4. all-MiniLM-L6-v2: an embedding model with a learned table of 512 rows. DINOv2 ViT-S/14: a learned table of 37x37.

Weights have no seeds: the unit of repetition is the text or the image, and a claim about Gemma holds only if it holds for the
weights as they are, quantised, and again with noise of the size of their quantisation.
"""

import functools
from collections.abc import Callable

from ml_collections import ConfigDict

from experiments.report.claims import (
    CONTROL,
    Claim,
    Contrast,
    Expectation,
    Looked,
    Source,
    Table,
    above,
    below,
    mean,
    within,
)

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
    names = {"Gemma 3 270M": GEMMA, "all-MiniLM-L6-v2": MINILM, "DINOv2 ViT-S/14": DINO}
    pages = {f"{name}: figures and tables": f"{folder}/README.md" for name, folder in names.items()}
    config.page.links = ConfigDict(pages, allow_dotted_keys=True, sort_keys=False)
    config.page.command = (
        "analyse --checkpoint=gemma-3-270m.gguf --data=books_pd --files=BOOKS --num_texts=20 "
        "--out=results/real_models/gemma-3-270m"
    )
    config.page.says = (
        "Half of RoPE's pairs in Gemma's global layers may stop turning for 0.001 ± 0.002 nats a token, and all of them not "
        "for less than 0.25; its windowed layers need nearly all. Its heads sink on the BOS, and on nothing without one. The "
        "fastest pairs look back, the most used ones turn a quarter of a circle in what a layer sees. Tables of text wind "
        "in few directions, a ViT's table is rows plus columns, and both can be stretched."
    )
    config.notes = (
        "Weights are as published: Gemma's dequantised from GGUF (Q4_K_M), the others in float32. The unit of "
        "repetition is the text or the image, for a table the group of channels; 20 of each are chosen by a hash. "
        "Claims about Gemma are asked of the weights as they are and again with noise of the size of their "
        "quantisation, on 10 texts: they hold only if both lie in the range. The fine-tuned weights have no such twin. "
        "Bootstrapped intervals are 0.7 to 1.0 times as wide as Student's here, and put no claim on the other side."
    )
    return config


def _massive(table: Callable[[str], Table], tensor: str) -> Contrast:
    """Returns the massive channels a head of queries or keys over those of values."""
    return table(f"massive channels, {tensor}")(OWN) - table("massive channels, values")(OWN)


def _opened(scaling: str) -> str:
    return f"no window and {scaling}, windowed layers"


def _of(study: str) -> Callable[[str], Table]:
    """Returns {metric -> table} of a model."""
    return functools.partial(Table, "real_models", study)


_gemma, _minilm, _dino = map(_of, (GEMMA, MINILM, DINO))


def _twice(make: Callable[[Callable[[str], Table]], Expectation]) -> tuple[Expectation, ...]:
    """Returns an expectation for Gemma's weights as they are, and for the weights with noise."""
    noisy = make(_of(f"{GEMMA} with noise"))
    return make(_gemma), noisy._replace(name=f"{noisy.name}, with noise")


def _rise(table: Callable[[str], Table], row: str, other: str = OWN) -> Contrast:
    """Returns the loss of a row over that of another."""
    return table(LOSS)(row) - table(LOSS)(other)


BARBERO = Source("Barbero et al.", 2024, "2410.06205")
GU = Source("Gu et al.", 2024, "2410.10781")
XIAO = Source("Xiao et al.", 2023, "2309.17453")
JIN = Source("Jin et al.", 2025, "2502.01563")
JONASSON = Source("Jonasson", 2025, "2503.01832")
GELBERG = Source("Gelberg et al.", 2025, "2512.12167")
YANG = Source("Yang et al.", 2025, "2501.18795")
PENG = Source("Peng et al.", 2023, "2309.00071")
SINHA = Source("Sinha et al.", 2022, "2210.12574")
LEE = Source("Lee et al.", 2024, "2412.15241")
ZHU = Source("Zhu et al.", 2024, "2404.12096")
VIT = Source("Dosovitskiy et al.", 2020, "2010.11929")
OLSSON = Source("Olsson et al.", 2022, "2209.11895")
LOSS, PASSKEY = "loss", "pass key found"
SINKS, BEFORE = "heads that are sinks", "attention on the token before, its heads"
SLOW, LEAD = "share of the slowest quarter", "fastest quarter's lead"
BOTH = "variance in row + column codes"
BAND = "wavelength of the most used pair over the tokens seen, octaves"
MOVED, FOUND = "cosine distance to the original", "pass key retrieved"
RADIUS, CLS = "spread of the helix's radius", "cosine of the class token"
_FREE = 0.02  # nats per token
_OF_GEMMA = "One model of 270 million parameters with norms of queries and keys, quantised."

CLAIMS = (
    Claim(
        "slow-pairs-carry-the-norm",
        BARBERO,
        "section 4, figures on Gemma 7B; no number",
        "The slowest frequencies of RoPE carry more of the norms of queries and keys than their share.",
        _twice(lambda t: above(t(f"{SLOW}, all layers")(OWN), 0.25, "slowest quarter's share of |q||k|")),
        doubt=_OF_GEMMA,
        follow_up=(
            Looked(_gemma(f"{SLOW}, global layers")(OWN), "global layers"),
            Looked(_gemma(f"{SLOW}, windowed layers")(OWN), "windowed layers"),
            Looked(_gemma(f"{SLOW}, gains, all layers")(OWN), "by the gains of the norms alone"),
        ),
    ),
    Claim(
        "fast-pairs-look-back",
        BARBERO,
        "section 5; no number",
        "Heads that look at the token before need the fastest quarter of the frequencies for it, and not the slowest.",
        _twice(
            lambda t: above(
                t(BEFORE)("slowest quarter still") - t(BEFORE)("fastest quarter still"),
                0.1,
                "attention on the token before: slowest quarter still - fastest quarter still",
            )
        ),
        doubt=_OF_GEMMA,
        follow_up=(
            Looked(_gemma(LEAD)(OWN), "fastest quarter's part of the lead of the token before, in its heads"),
            Looked(_gemma(f"{LEAD}, other heads")(OWN), "in other heads"),
        ),
    ),
    Claim(
        "rope-below-the-band-is-free",
        JONASSON,
        "the paper bounds which frequencies turn too little to be used; as a claim about loss by Oka (2026), openreview "
        "PR1PPxvG9Q; no number",
        "The slowest quarter of the pairs may stop turning for less than 0.02 nats a token.",
        _twice(lambda t: within(_rise(t, "slowest quarter still"), _FREE, "rise in loss")),
        doubt=f"{_OF_GEMMA} Texts of 768 tokens.",
        follow_up=(
            Looked(_rise(_gemma, "p_rope(0.75), global layers"), "p_rope(0.75) in global layers"),
            Looked(_rise(_gemma, "fastest quarter still"), "fastest quarter still"),
        ),
    ),
    Claim(
        "band-follows-base-and-length",
        JONASSON,
        "section 4: pairs that do not turn fully in the context; read by us as 0 to 3 octaves above it; no number",
        "In the mean of heads, the most used pair turns neither fully nor hardly at all in the tokens that a layer sees.",
        (
            *_twice(lambda t: Expectation(t(f"{BAND}, windowed layers")(OWN), 0.0, 3.0, "windowed layers, octaves")),
            *_twice(lambda t: Expectation(t(f"{BAND}, global layers")(OWN), 0.0, 3.0, "global layers, octaves")),
        ),
        doubt=f"{_OF_GEMMA} Windowed layers have a base of 1e4 and saw 512 tokens, global ones 1e6 and 32,768.",
    ),
    Claim(
        "sinks-in-real-models",
        GU,
        "section 3: sinks in every model that was tried, from 14 million parameters on; no number",
        "Most heads put more than 0.3 of their attention on the first token.",
        _twice(lambda t: above(t(SINKS)(OWN), 0.5, "heads that are sinks")),
        doubt=_OF_GEMMA,
    ),
    Claim(
        "sink-is-not-position-0",
        GU,
        "section 4; read as a claim about positions by us; no number",
        "The sink is not of position 0: it stays when all positions are moved by 1,000.",
        _twice(lambda t: within(t(SINKS)("positions + 1000") - t(SINKS)(OWN), 0.01, "heads that are sinks")),
        doubt="An encoding of differences cannot tell: this holds by construction.",
    ),
    Claim(
        "sink-is-the-first-token",
        GU,
        "section 4: the first token, whatever it is; no number",
        "The sink is the first token, and needs no BOS.",
        _twice(lambda t: above(t(SINKS)("without BOS"), 0.5, "heads that are sinks, without BOS")),
        tried="A second BOS in the middle of a text: it draws attention of its own.",
        remains="Gemma saw a BOS before every text in training; a model without one may do otherwise.",
        follow_up=(
            Looked(_gemma("attention on the second BOS")("BOS again in the middle"), "attention on a second BOS"),
        ),
    ),
    Claim(
        "windows-need-sinks-in-gemma",
        XIAO,
        "table 1",
        "A window alone fails, and four first tokens beside it mend that.",
        _twice(
            lambda t: above(
                _rise(t, "window 96, global layers", "4 sinks and window 96, global layers"),
                0.5,
                "loss under a window of 96 in global layers - with 4 sinks too",
            )
        ),
        paper={"perplexity of Llama 2 13B under a window": 5158, "with 4 sinks": 5.40},
        doubt="Global layers alone: windowed ones were trained without the first tokens.",
        follow_up=(
            Looked(_rise(_gemma, "4 sinks and window 96, global layers"), "rise with 4 sinks over the model as loaded"),
        ),
    ),
    Claim(
        "massive-in-queries-and-keys",
        JIN,
        "section 3, figures; no number",
        "Massive values stand in queries and keys and not in values.",
        (
            *_twice(
                lambda t: above(
                    _massive(t, "queries") - _massive(t, "values"), 0.5, "queries - values, channels a head"
                )
            ),
            *_twice(
                lambda t: above(_massive(t, "keys") - _massive(t, "values"), 0.5, "keys - values, channels a head")
            ),
        ),
        doubt=_OF_GEMMA,
    ),
    Claim(
        "massive-values-find-keys",
        JIN,
        "tasks of context fall when massive values are disturbed; no number",
        "Pass keys are lost when massive channels of queries and keys are fixed at their mean, and not with others.",
        _twice(
            lambda t: above(
                t(PASSKEY)("as many others fixed") - t(PASSKEY)("massive channels fixed"),
                0.1,
                "pass keys found: other channels fixed - massive ones",
            )
        ),
        doubt="Means are of one text. Keys stand among repeating sentences, within 768 tokens.",
        tried="The loss: it rises when massive channels are fixed, and hardly with as many others.",
        follow_up=(
            Looked(
                _rise(_gemma, "massive channels fixed", "as many others fixed"), "loss, massive channels fixed - others"
            ),
        ),
    ),
    Claim(
        "global-layers-without-rope-at-once",
        YANG,
        "the paper trains such layers; SWAN (2504.08719) and DroPE (2512.12167) convert trained ones by further training; "
        "read as a claim without training by us; no number",
        "Global layers can do without RoPE at once.",
        _twice(lambda t: below(_rise(t, "no rope, global layers"), _FREE, "rise in loss")),
        doubt=_OF_GEMMA,
        tried="p_rope(0.75) in the same layers, which keeps the fastest three quarters.",
        remains="A short fine-tune, which the papers have.",
        follow_up=(
            Looked(
                _gemma(PASSKEY)("no rope, global layers") - _gemma(PASSKEY)(OWN),
                "pass keys found: without rope - as loaded",
            ),
        ),
    ),
    Claim(
        "global-layers-without-rope-tuned",
        GELBERG,
        "section 4: below 1 % of pretraining; read for global layers alone by us; no number",
        "Global layers do without RoPE after a short fine-tune.",
        (
            below(
                _of(f"{GEMMA} tuned without rope in global layers")(LOSS)(OWN) - _of(f"{GEMMA} tuned")(LOSS)(OWN),
                _FREE,
                "loss, tuned without RoPE in global layers - tuned with it",
            ),
        ),
        doubt="60 steps of 512 tokens of novels, a millionth of the training, all weights; one fine-tune of each.",
        tried="The same steps with RoPE in all layers stand beside it.",
        remains="The papers train for thousands of times as long.",
        follow_up=(
            Looked(_of(f"{GEMMA} tuned")(LOSS)(OWN) - _gemma(LOSS)(OWN), "tuned with RoPE - as loaded"),
            Looked(_rise(_gemma, "no rope, global layers"), "without RoPE there, not tuned - as loaded"),
        ),
    ),
    Claim(
        "yarn-beyond-the-window",
        PENG,
        "figures on Llama 2; read for layers without their window by us; no number",
        "Where layers look further than in training, YaRN does better than PI and NTK without training.",
        (
            *_twice(lambda t: below(_rise(t, _opened("YaRN"), _opened("PI")), name="YaRN - PI, loss")),
            *_twice(lambda t: below(_rise(t, _opened("YaRN"), _opened("NTK")), name="YaRN - NTK, loss")),
        ),
        doubt="The window of 512 taken off, 768 tokens: a factor of 1.5. 32,768 tokens and more were not read here.",
        follow_up=(
            Looked(_rise(_gemma, "no window, windowed layers"), "no window alone, rise in loss"),
            Looked(_rise(_gemma, _opened("YaRN")), "with YaRN, rise in loss"),
        ),
    ),
    Claim(
        "induction-heads-in-real-models",
        OLSSON,
        "section 4; no number",
        "A head looks behind the earlier copy of a random token.",
        _twice(lambda t: above(t("induction score")(OWN, 6), 0.5, "best head of the first global layer")),
        doubt=_OF_GEMMA,
    ),
    Claim(
        "rope-shifts-exactly",
        SINHA,
        "our own control, no number",
        "A shift of all positions changes nothing for RoPE.",
        _twice(lambda t: within(_rise(t, "positions + 1000"), 1e-3, "rise in loss, positions + 1,000")),
        role=CONTROL,
    ),
    Claim(
        "tables-do-not-shift",
        SINHA,
        "sentences that begin at later positions; figures on GPT-2, OPT and RoBERTa; no number",
        "A model with a table reads a text otherwise when all positions are shifted.",
        (above(_minilm(MOVED)("positions + 64"), 0.01, "cosine distance, positions + 64"),),
        doubt="An embedding model, and no loss.",
        follow_up=(
            Looked(_minilm("components for 90 %")("the table"), "components for 90 % of the table's variance"),
            Looked(_minilm("components for 90 %")("a random walk"), "of a random walk's"),
            Looked(_minilm(RADIUS)("the table"), "spread of the radius of the table's largest helix"),
            Looked(_minilm(RADIUS)("a random walk"), "of a random walk's"),
        ),
    ),
    Claim(
        "embeddings-look-at-the-beginning",
        LEE,
        "abstract",
        "Words that are inserted at the start move an embedding further than at the end.",
        (
            above(
                _minilm(MOVED)("words inserted at the start") - _minilm(MOVED)("words inserted at the end"),
                name="cosine distance, start - end",
            ),
        ),
        paper={"most that is lost at the start beyond the end, per cent of the cosine": 12.3},
        doubt="What stands at the start shifts all words behind it by 64 rows of the table, which alone moves the embedding.",
        follow_up=(
            Looked(_minilm(MOVED)("positions + 64"), "the shift alone"),
            Looked(
                _minilm(MOVED)("words removed at the start") - _minilm(MOVED)("words removed at the end"),
                "words removed, start - end",
            ),
        ),
    ),
    Claim(
        "tables-can-be-interpolated",
        ZHU,
        "interpolated positions ahead of truncation on LongEmbed; no number",
        "A table with its rows interpolated finds pass keys beyond its end that truncation misses.",
        (
            above(
                mean(
                    [_minilm(FOUND)("interpolated", at) - _minilm(FOUND)("truncated", at) for at in (1024, 2048, 4096)]
                ),
                name="pass keys retrieved, interpolated - truncated, mean of 1,024 to 4,096 tokens",
            ),
        ),
        doubt="20 documents a length.",
    ),
    Claim(
        "vit-tables-are-two-dimensional",
        VIT,
        "figure 7 centre; no number",
        "A ViT's table is mostly a code of the row plus a code of the column.",
        (above(_dino(BOTH)("the table"), 0.5, BOTH),),
        doubt="DINOv2 resizes its table as a picture in training, to our knowledge, which may teach it neighbours.",
        follow_up=(Looked(_dino(BOTH)("the table with its rows shuffled"), "its rows shuffled"),),
    ),
    Claim(
        "resized-tables-keep-features",
        VIT,
        "section 3.2, interpolated tables at higher resolution; no number",
        "A ViT keeps its features better at half the size if its table is resized by interpolation than if it is cut.",
        (
            above(
                _dino(CLS)("252x252, torch_bicubic") - _dino(CLS)("252x252, not resized"),
                name="cosine of the class token to that at 518x518, resized - not resized",
            ),
        ),
        doubt="Photographs of 128 pixels, enlarged; images are stretched.",
        follow_up=(
            Looked(_dino(CLS)("252x252, torch_bicubic"), "cosine, resized"),
            Looked(_dino(CLS)("other images"), "cosine to other images"),
        ),
    ),
    Claim(
        "vits-use-their-positions",
        VIT,
        "table 8; read as a claim about features by us",
        "Features change when the patches of an image are shuffled and their positions stay in place.",
        (below(_dino(CLS)("patches shuffled, positions in place"), 0.95, "cosine of the class token"),),
        paper={"accuracy without positions": 0.614, "with a 1-D table": 0.642},
        doubt="Patches are shuffled too: content and position are not parted.",
        follow_up=(Looked(_dino(CLS)("patches shuffled with their positions"), "shuffled with their positions"),),
    ),
)
