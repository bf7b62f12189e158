"""Gates behind attention, learned sinks and encodings, crossed: sinks, loss, and loss beyond the trained length.

    NPROC=1 python -m experiments.ablate --config=configs/papers/gates.py --config.files=books_pd

Qiu et al. (2025), gated attention, arXiv 2505.06708: 1.7 billion parameters, and mixtures of experts of 15 billion.
Godavarti (2026), arXiv 2606.24975: its abstract alone was read. Here: the decoders and bytes of configs/papers/size.py
in windows of 128, of 0.05 million parameters, and some rows at 0.1M, 0.4M and 0.8M; gates.py:0.1M,0.4M trains two sizes.

Cost: a step of 4,096 bytes takes about 0.1 s of a CPU core for each seed, and twice that under FoX: some 80 minutes of one
core for the 22 rows with six seeds. At 0.1M, 0.4M and 0.8M it takes 0.12, 0.35 and 0.45 s, and a row of three seeds 3, 35 and
90 minutes: another 100 minutes for the rows of the first two, and three hours for those of the third.
"""

from collections.abc import Callable

from ml_collections import ConfigDict, config_dict

from configs.papers import size
from experiments.report.claims import CONTROL, Claim, Contrast, Looked, Source, Table, above, below, mean, rise
from experiments.studies.readings import scaled_rope

_ENCODINGS = {
    "rope": "rope",
    "alibi": "alibi",
    "turned values": "selective_rope + value_rotary",
    "none": "none",
    "fox": "fox",
}
_GATE, _SINK, _YARN = "gate", "sink", "YaRN"
_LENGTH, _LENGTHS = 128, (128, 512, 2048, 8192)
_LARGER = {  # the rows that are trained there, with three seeds
    "0.1M": (
        "selective",
        "rope",
        "rope gate",
        "rope sink",
        "rope gate sink",
        "alibi",
        "alibi gate",
        "turned values",
        "none",
    ),
    "0.4M": ("rope", "rope gate"),
    "0.8M": ("rope", "rope gate"),
}


def get_config(sizes: str = "0.05M,0.1M,0.4M,0.8M") -> ConfigDict:
    config = ConfigDict()
    config.name = "gates"
    config.title = "Gates behind attention, sinks and encodings"
    config.point = (
        "Does a gate remove sinks (Qiu et al. 2025), does it help beyond the trained length, and do accumulated rotations "
        "read further than RoPE (Godavarti 2026)?"
    )
    config.page = ConfigDict()
    config.page.arguments = "--config.files=books_pd"
    config.page.says = (
        "ALiBi keeps its loss at 64 times the trained length, with gates and sinks as without, and rotations do not. A "
        "learned sink takes attention from the first token. Decoders this small, of 0.05 to 0.8 million parameters, have "
        "no sinks for a gate to remove, and gates gain nothing that shows: at 0.4 and 0.8 million they cost 0.01 nats, at "
        "one rate of learning."
    )
    config.notes = (
        "Bytes. Decoders, data and numbers of bytes are those of the study of sizes, in windows of 128, at one rate of "
        "learning, 0.01, the best one for every row there at 0.2M and 0.8M. gate: every channel of a head's result is "
        "multiplied by a sigmoid of the layer's input; these rows have more parameters. gate by head: one number a head. "
        "sink: learned_sink. turned values: selective_rope + value_rotary; selective: selective_rope alone. YaRN: the "
        "weights of that row, read under YaRN for the length. Attention on the first token is the mean over heads, of the "
        "queries among the first 64 bytes of a window; attention that is spread evenly over the bytes seen has 7.4 %. A "
        "learned sink is no token. Seeds 3 to 5 were trained after the claims had been read off three. Of 0.1M, 0.4M and "
        "0.8M some rows were trained, with three seeds; no claim is read at them, and they are shown beside."
    )
    config.seeds = (0, 1, 2, 3, 4, 5)
    config.files = config_dict.placeholder(str)  # the folder of the books
    studies = {name: _table(name, config) for name in sizes.split(",")}
    config.studies = ConfigDict(studies, sort_keys=False, allow_dotted_keys=True)
    return config


def _table(name: str, config: ConfigDict) -> ConfigDict:
    table = size.table_of(name, config.get_ref("files"))
    del table.seeds, table.tune, table.encodings
    table.data.length, table.batch_size = _LENGTH, table.batch_size * table.data.length // _LENGTH
    table.update(eval_lengths=(_LENGTH,), eval_tokens=16_385)
    table.optimizer.learning_rate = 1e-2
    rows = {
        "selective": {"model": {"encoding": "selective_rope"}},
        "rope gate by head": {"model": {"encoding": "rope", "attention_gate": "head"}},
    }
    for label, spec in _ENCODINGS.items():
        with_sink = "learned_sink" if spec == "none" else f"{spec} + learned_sink"
        for sink, encoding in (("", spec), (f" {_SINK}", with_sink)):
            rows[f"{label}{sink}"] = {"model": {"encoding": encoding}}
            rows[f"{label} {_GATE}{sink}"] = {"model": {"encoding": encoding, "attention_gate": "channel"}}
    if name in _LARGER:
        table.seeds, rows = (0, 1, 2), {label: rows[label] for label in _LARGER[name]}
    table.rows = ConfigDict(rows, sort_keys=False)
    read = {label: ConfigDict({f"{label} {_YARN}": scaled_rope("yarn")}) for label in ("rope", f"rope {_GATE}")}
    table.variants = ConfigDict(read, sort_keys=False)
    table.measures.lengths.lengths = _LENGTHS
    table.measures.first_token = ConfigDict(dict(windows=32))
    return table


QIU = Source("Qiu et al.", 2025, "2505.06708")
GODAVARTI = Source("Godavarti", 2026, "2606.24975")
GU = Source("Gu et al.", 2024, "2410.10781")


def _loss_of(at: str) -> Table:
    return Table("gates", at, "loss in sliding windows")


_AT = "0.05M"  # the size that the claims are read at
_LOSS = _loss_of(_AT)


def _first(row: str, at: str = _AT) -> Contrast:
    """Returns a row's attention on the first token at a size, the mean over its layers."""
    return mean([Table("gates", at, "attention on the first token")(row, layer) for layer in range(size.SIZES[at][1])])


def _rise(row: str, at: int, read: str = "") -> Contrast:
    """Returns the rise of a row's loss from the trained length to another, under another reading if one is named."""
    return _LOSS(f"{row} {read}".strip(), at) - _LOSS(row, _LENGTH)


def _gain(row: str, other: str, at: int = _LENGTH, loss: Table = _LOSS) -> Contrast:
    """Returns the loss of a row less that of another."""
    return loss(row, at) - loss(other, at)


def _larger(contrast: Callable[[str], Contrast], what: str) -> tuple[Looked, ...]:
    """Returns a contrast of each larger size, to be shown beside a claim."""
    return tuple(Looked(contrast(at), f"{what}, at {at}") for at in _LARGER)


_ALL = tuple(_ENCODINGS)

CLAIMS = (
    Claim(
        "gate-removes-sinks",
        QIU,
        "abstract; numbers of the text, means over the layers",
        "With a gate behind attention the first token gets less attention, under RoPE.",
        (below(_first("rope gate") - _first("rope")),),
        {"attention on the first token (%), without": 46.7, "with a gate": 4.8},
        doubt="Decoders of so few parameters have no sinks: the first token of results/trained's rope gets half of what even "
        "attention would give it.",
        follow_up=(
            *(Looked(_first(row), f"on the first token, {row}") for row in ("rope", "rope gate", "rope gate by head")),
            *(Looked(_first(f"{row} gate") - _first(row), f"gate, {row}") for row in _ALL if row != "rope"),
            *_larger(lambda at: _first("rope gate", at) - _first("rope", at), "gate, rope"),
        ),
    ),
    Claim(
        "gate-lowers-loss",
        QIU,
        "mixtures of experts of 15 billion parameters, 400 billion tokens, gates by channel",
        "A gate behind attention lowers the loss at the trained length, under RoPE.",
        (below(_gain("rope gate", "rope")),),
        {"perplexity, without": 6.026, "with a gate": 5.761},
        follow_up=(
            Looked(_gain("rope gate by head", "rope"), "gate by head, which has hardly more parameters"),
            *(Looked(_gain(f"{row} gate", row), row) for row in _ALL if row != "rope"),
            *_larger(lambda at: _gain("rope gate", "rope", loss=_loss_of(at)), "rope"),
        ),
    ),
    Claim(
        "gate-reads-further-under-yarn",
        QIU,
        "RULER after YaRN from 32,768 to 131,072 tokens; read as a claim about loss",
        "Read at four times the trained length under YaRN, a decoder with RoPE loses less if it has a gate.",
        (below(_rise("rope gate", 4 * _LENGTH, _YARN) - _rise("rope", 4 * _LENGTH, _YARN)),),
        {"RULER at 128k (%), without": 31.65, "with a gate": 58.82},
        follow_up=(
            *(Looked(_rise(row, 4 * _LENGTH, _YARN), f"rise of {row} under YaRN") for row in ("rope", "rope gate")),
            Looked(_rise("rope gate", 4 * _LENGTH) - _rise("rope", 4 * _LENGTH), "gate, without YaRN"),
        ),
    ),
    Claim(
        "learned-sink-removes-sinks",
        GU,
        "abstract, sinks as biases of keys; our own control of the gate, no number",
        "A learned sink takes attention from the first token too, under RoPE.",
        (below(_first("rope sink") - _first("rope")),),
        follow_up=(
            Looked(_first("rope gate sink") - _first("rope gate"), "sink, beside a gate"),
            Looked(_first("rope sink", "0.1M") - _first("rope", "0.1M"), "sink, at 0.1M"),
        ),
        role=CONTROL,
    ),
    Claim(
        "accumulated-angles-read-further",
        GODAVARTI,
        "abstract, no number; learned angles of tokens, as selective_rope has them",
        "Angles that tokens accumulate lose less than RoPE at four times the trained length.",
        (below(rise(_LOSS, "selective", _LENGTH, 4 * _LENGTH) - rise(_LOSS, "rope", _LENGTH, 4 * _LENGTH)),),
        follow_up=tuple(Looked(_rise("selective", at) - _rise("rope", at), f"at {at}") for at in _LENGTHS[2:]),
    ),
    Claim(
        "turned-values-read-further",
        GODAVARTI,
        "abstract, no number; there values turn by the accumulated angles, here by RoPE's",
        "Turning values too lowers the loss at sixteen times the trained length.",
        (below(_gain("turned values", "selective", 16 * _LENGTH)),),
        follow_up=tuple(
            Looked(_gain("turned values", "selective", at), f"at {at}") for at in (*_LENGTHS[:2], _LENGTHS[3])
        ),
    ),
    Claim(
        "rotations-fail-at-last",
        GODAVARTI,
        "abstract, no number; 'extreme lengths', read as 64 times",
        "Encodings that only rotate lose at 64 times the trained length.",
        tuple(above(_rise(row, 64 * _LENGTH), 0.02, name=row) for row in ("rope", "selective", "turned values")),
    ),
    Claim(
        "alibi-holds-where-rotations-fail",
        GODAVARTI,
        "abstract, no number; the gate and the sink are ours",
        "ALiBi reads 64 times its training length without a rise in loss, with a gate and a sink as without.",
        tuple(
            below(_rise(row, 64 * _LENGTH), 0.02, name=row)
            for row in ("alibi", "alibi gate", "alibi sink", "alibi gate sink")
        ),
    ),
)
