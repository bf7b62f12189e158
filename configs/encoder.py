"""One bidirectional encoder of bytes, trained to name those that are masked.

    python -m experiments.train --config=configs/encoder.py
    python -m experiments.train --config=configs/encoder.py --config.model.encoding=none --workdir=runs/encoder_none

Cost: Python's own documentation (no download), about 3 minutes on 2 CPU cores. The loss is that of the masked bytes.
"""

from ml_collections import ConfigDict

from configs import decoder


def get_config() -> ConfigDict:
    config = decoder.get_config()
    config.task = "masked_language_model"
    config.model.kind = "encoder"
    del config.data.bos  # masked windows have none
    config.data.masked = 0.15  # share of the bytes of a window
    return config
