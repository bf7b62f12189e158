"""Decoders trained on 128 bytes, read at up to 16 times that: as trained, under other encodings, and fine-tuned.

    python -m experiments.extrapolate --config=configs/extrapolate.py
    python -m experiments.extrapolate --config=configs/extrapolate.py --checkpoint=runs/decoder --workdir=runs/decoder/lengths
    python -m experiments.extrapolate --config=configs/extrapolate.py --config.data.name=mine --config.data.files=DIR
    python -m experiments.extrapolate --config=configs/extrapolate.py --checkpoint=Llama-3.2-1B --config.data.files=DIR \
        --config.encoding="rope(scaling=yarn(factor={factor}, original_length={trained}))"

Cost: about 10 minutes on 2 CPU cores, on Python's own documentation (no download).
"""

from ml_collections import ConfigDict, config_dict

from configs import decoder


def get_config() -> ConfigDict:
    config = decoder.get_config()
    del config.task, config.seed
    config.name = "extrapolate"
    config.title = "Decoders beyond their training length"
    config.point = "What is left of a decoder beyond its training length, by encoding and by what is done about it?"
    config.notes = (
        "Bytes. A row is a model trained at the training length, or its weights under another encoding without further "
        "training, or after a short fine-tune. Every length scores the same bytes of the same documents; in sliding windows "
        "each of them stands behind at least half a window."
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

    config.encoding = config_dict.placeholder(str)  # how a checkpoint is read beside its own; {own} is its own
    config.trained_length = config_dict.placeholder(int)  # of a pretrained one; None: what its config.json says
    config.encodings = ConfigDict({"none": "none", "rope": "rope", "alibi": "alibi"}, sort_keys=False)
    config.variants = ConfigDict({"rope": rope_variants()}, sort_keys=False)
    config.finetune = ConfigDict({"rope": rope_finetunes(steps=60, target=1024, trained=128)}, sort_keys=False)

    config.evaluation = ConfigDict()
    config.evaluation.documents = 1  # the longest ones of the evaluation split
    config.evaluation.bytes = 4096  # of each, the same ones at every length
    config.evaluation.stride = 0.5  # of sliding windows, as a share of their length: the overlap is the rest
    config.evaluation.lengths = (128, 256, 512, 1024, 2048)
    config.evaluation.long_lengths = ()  # these for long_rows only
    config.evaluation.long_rows = ()
    config.evaluation.batch_tokens = 8192  # windows are read together up to so many bytes, longer ones one by one

    config.retrieval = ConfigDict()
    config.retrieval.tasks = ("passkey", "recall", "copy")
    config.retrieval.lengths = (128, 256, 512, 1024)
    config.retrieval.depths = (0.0, 0.25, 0.5, 0.75, 1.0)
    config.retrieval.examples = 8  # of each length and depth
    config.retrieval.seed = 0
    return config


def rope_variants() -> ConfigDict:
    """What can be done to a trained rope without training. In braces: see experiments/studies/extrapolation.py."""
    return ConfigDict(
        {
            "PI": "rope(scaling=linear(factor={factor}))",
            "NTK": "rope(scaling=ntk(factor={factor}))",
            "dynamic NTK": "rope(scaling=dynamic_ntk(factor=1, original_length={trained}))",
            "YaRN": "rope(scaling=yarn(factor={factor}, original_length={trained}))",
            "Llama 3": "rope(scaling=llama3(factor={factor}, original_length={trained}))",
            "LongRoPE": (
                "rope(scaling=longrope(short_factor={ones}, long_factor={ramp}, factor={factor}, original_length={trained}))"
            ),
            "SelfExtend": "self_extend(group={2*factor}, window={trained/2}) >> rope()",
            "ReRoPE": "rerope(window={trained/2}) >> rope()",
            "dual chunk": "dual_chunk(chunk={3*trained/4}, local={trained/4}) >> rope()",
            "window": "rope() + window({trained})",
            "sinks": "rope() + sinks(num_sinks=4, window={trained})",
            "streaming": "streaming(num_sinks=4, window={trained/2}) >> rope()",
        },
        sort_keys=False,
    )


def rope_finetunes(*, steps: int, target: int, trained: int) -> ConfigDict:
    """Short fine-tunes of a rope trained on `trained` bytes: on windows of `target` bytes, or (PoSE) on those of training."""

    def tuning(spec: str, length: int) -> ConfigDict:
        return ConfigDict(dict(spec=spec, target=target, length=length, steps=steps, learning_rate=1e-3))

    pi, yarn = "rope(scaling=linear(factor={factor}))", "rope(scaling=yarn(factor={factor}, original_length={trained}))"
    return ConfigDict(
        {
            "PI, tuned": tuning(pi, target),
            "YaRN, tuned": tuning(yarn, target),
            "PoSE + PI, tuned": tuning("pose(length={length}) >> " + pi, trained),
        },
        sort_keys=False,
    )
