"""The number of heads: a control for comparisons of ALiBi, whose slopes are spread over them.

    python -m experiments.prepare --name=tiny_shakespeare
    python -m experiments.ablate --config=configs/papers/heads.py

ALiBi gives head h of H the slope 2^(-8h/H): two heads have 1/16 and 1/256, eight have all powers of 1/2 from 1/2 to 1/256. So
decoders that read text have eight; those that retrieve (configs/papers/retrieval.py, context_extension.py) have four, of 16
channels. The width is that of configs/papers/train_short_test_long.py in all rows, and so is the learning rate's choice.

Cost: 25 ms of one CPU core a step and seed: 25 minutes on one core, half of it as two processes with NPROC=1, --rows=0/2 and
--rows=1/2. Expected: results/heads. On an accelerator override sizes only, in each of the studies heads_2, heads_4, heads_8:
--config.studies.heads_2.model.width=512 --config.studies.heads_2.steps=20000 --config.studies.heads_2.batch_size=64
"""

from ml_collections import ConfigDict

from configs import decoder
from experiments.report.claims import CONTROL, Claim, Source, Table, below

_HEADS = (2, 4, 8)


def get_config() -> ConfigDict:
    config = ConfigDict()
    config.name = "heads"
    config.title = "ALiBi, RoPE and no encoding in decoders with 2, 4 and 8 heads"
    config.point = "ALiBi has one slope a head: does what it loses to RoPE depend on the number of heads?"
    config.page = ConfigDict()
    config.page.says = (
        "With eight heads ALiBi comes close to RoPE, with two it is far behind: its slopes are shared out over "
        "the heads. RoPE itself hardly depends on how many heads there are."
    )
    config.page.headings = ConfigDict({f"heads_{heads}": f"{heads} heads" for heads in _HEADS})
    config.notes = (
        "Bytes of Tiny Shakespeare in windows of 128. Heads share a width of 64: all rows have as many parameters."
    )
    config.seeds = (0, 1, 2, 3, 4)
    config.tune = ConfigDict(dict(learning_rates=(3e-3, 1e-2, 3e-2), seeds=(100,), share=0.1))
    config.axis = ConfigDict({"title": "number of heads", "values": {f"heads_{heads}": heads for heads in _HEADS}})
    config.studies = ConfigDict({f"heads_{heads}": _study(heads) for heads in _HEADS}, sort_keys=False)
    return config


def _study(heads: int) -> ConfigDict:
    study = decoder.get_config()
    study.encodings = ConfigDict({"none": "none", "rope": "rope", "alibi": "alibi"}, sort_keys=False)
    study.data.update(name="tiny_shakespeare", length=128, positions="window", eval_split="test")
    study.model.update(width=64, depth=2, num_heads=heads)
    study.update(steps=800, batch_size=8, eval_lengths=(128,), eval_every=0, eval_batch_size=64, checkpoint_every=400)
    study.optimizer.warmup_steps = study.get_ref("steps") // 20  # 40
    return study


PRESS = Source("Press et al.", 2022, "2108.12409")
_LOSS = {heads: Table("heads", f"heads_{heads}", "loss") for heads in _HEADS}

CLAIMS = (
    Claim(
        "heads-confound-alibi",
        PRESS,
        "section 3, slopes by head; our own control, no number",
        "ALiBi's gap to RoPE at the training length shrinks with more heads.",
        (below((_LOSS[8]("alibi", 128) - _LOSS[8]("rope", 128)) - (_LOSS[2]("alibi", 128) - _LOSS[2]("rope", 128))),),
        role=CONTROL,
    ),
)
