"""Decoders trained on 128 bytes, read at up to 16 times that: as trained, under other encodings, and fine-tuned.

    python -m experiments.ablate --config=configs/extrapolate.py
    python -m experiments.ablate --config=configs/extrapolate.py --checkpoint=runs/decoder --workdir=runs/decoder/lengths
    python -m experiments.ablate --config=configs/extrapolate.py --config.data.name=mine --config.data.files=DIR
    python -m experiments.ablate --config=configs/extrapolate.py --checkpoint=runs/decoder --variants "alibi + window(64)"

Cost: about 10 minutes on 2 CPU cores, on Python's own documentation (no download).
"""

from ml_collections import ConfigDict, config_dict

from configs import decoder
from experiments.studies.readings import Layers, Place, Reading, scaled_rope


def get_config() -> ConfigDict:
    config = decoder.get_config()
    del config.seed
    config.name = "extrapolate"
    config.title = "Decoders beyond their training length"
    config.point = "What is left of a decoder beyond its training length, by encoding and by what is done about it?"
    config.notes = (
        "A row is a model trained at the training length, or its weights under another encoding without further "
        "training, or after a short fine-tune. Every length scores the same part of the same documents; in sliding windows "
        "each token stands behind at least half a window."
    )
    config.seeds = (0,)

    config.data.length = 128
    config.data.positions = "window"  # so that longer contexts ask for positions never seen
    config.data.retrieval = ConfigDict()
    config.data.retrieval.share = 0.75  # of the rows of a batch: a model this small does not learn it from text alone
    config.data.retrieval.weight = 10.0  # of a byte of an answer, where one of text weighs 1
    config.data.retrieval.tasks = ("copy", "recall", "passkey")  # copying teaches to look for what stood there before

    config.model.width = 64
    config.model.depth = 2
    config.model.num_heads = 8  # see configs/papers/heads.py
    config.optimizer.learning_rate = 3e-3
    config.steps = 2000
    config.optimizer.warmup_steps = config.get_ref("steps") // 20  # 100
    config.eval_lengths = (128,)
    config.eval_tokens = 8193
    config.eval_every = 0

    config.trained_length = config_dict.placeholder(int)  # of a --checkpoint; None: what its config.json says
    config.encodings = ConfigDict({"none": "none", "rope": "rope", "alibi": "alibi"}, sort_keys=False)
    config.variants = ConfigDict({"rope": rope_variants()}, sort_keys=False)
    config.finetune = ConfigDict({"rope": rope_finetunes(steps=60, target=1024, trained=128)}, sort_keys=False)

    config.measures = ConfigDict(sort_keys=False)
    lengths = config.measures.lengths = ConfigDict()
    lengths.documents = 1  # the longest ones of the evaluation split
    lengths.bytes = 4096  # of each, the same ones at every length
    lengths.stride = 0.5  # of sliding windows, as a share of their length: the overlap is the rest
    lengths.lengths = (128, 256, 512, 1024, 2048)
    lengths.batch_tokens = 8192  # windows are read together up to so many bytes, longer ones one by one
    retrieval = config.measures.retrieval = ConfigDict()
    retrieval.tasks = ("passkey", "recall", "copy")
    retrieval.lengths = (128, 256, 512, 1024)
    retrieval.depths = (0.0, 0.25, 0.5, 0.75, 1.0)
    retrieval.examples = 8  # of each length and depth
    retrieval.seed = 0
    retrieval.batch_tokens = 8192
    return config


def rope_variants() -> ConfigDict:
    """Ways to extend a trained rope without training."""
    return ConfigDict(
        {
            "PI": scaled_rope("linear"),
            "NTK": scaled_rope("ntk"),
            "dynamic NTK": lambda layers, at: f"rope(scaling=dynamic_ntk(factor=1, original_length={at.trained}))",
            "YaRN": scaled_rope("yarn"),
            "Llama 3": scaled_rope("llama3"),
            "LongRoPE": rising_factors,
            "SelfExtend": lambda layers, at: (
                f"self_extend(group={2 * at.factor:g}, window={at.trained // 2}) >> rope()"
            ),
            "ReRoPE": lambda layers, at: f"rerope(window={at.trained // 2}) >> rope()",
            "dual chunk": lambda layers, at: (
                f"dual_chunk(chunk={3 * at.trained // 4}, local={at.trained // 4}) >> rope()"
            ),
            "window": lambda layers, at: f"rope() + window({at.trained})",
            "sinks": lambda layers, at: f"rope() + sinks(num_sinks=4, window={at.trained})",
            "streaming": lambda layers, at: f"streaming(num_sinks=4, window={at.trained // 2}) >> rope()",
        },
        sort_keys=False,
    )


def rising_factors(layers: Layers, at: Place) -> str:
    """LongRoPE without its search: factors that rise geometrically from 1 to the factor of the length."""
    last = max(at.frequencies - 1, 1)
    rising = ", ".join(f"{at.factor ** (c / last):.6g}" for c in range(at.frequencies))
    scaling = f"longrope(short_factor=({'1, ' * at.frequencies}), long_factor=({rising},), factor={at.factor}, "
    return f"rope(scaling={scaling}original_length={at.trained}))"


def rope_finetunes(*, steps: int, target: int, trained: int) -> ConfigDict:
    """Short fine-tunes of a rope trained on `trained` bytes: on windows of `target` bytes, or (PoSE) the trained length."""

    def tuning(read: Reading, size: int) -> dict:
        return dict(read=read, target=target, size=size, steps=steps, learning_rate=1e-3)

    return ConfigDict(
        {
            "PI, tuned": tuning(scaled_rope("linear"), target),
            "YaRN, tuned": tuning(scaled_rope("yarn"), target),
            "PoSE + PI, tuned": tuning(
                lambda layers, at: f"pose(length={at.size}) >> rope(scaling=linear(factor={at.factor}))", trained
            ),
        },
        sort_keys=False,
    )
