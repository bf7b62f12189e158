"""An encoding of your own beside RoPE and ALiBi, in a ViT and in a decoder, on data that need no download.

    python -m experiments.enter mine.py
    python -m experiments.ablate --config=configs/enter.py      # RoPE and ALiBi alone

The two trainings of configs/quickstart.py, four times as long. Cost: under ten minutes of one core.
`experiments.enter` adds the encoding, as the row "entry", to each of them that it can run in.
"""

from ml_collections import ConfigDict

from configs import quickstart


def get_config() -> ConfigDict:
    config = quickstart.get_config()
    del config.page
    config.name, config.title = "enter", "An encoding beside RoPE and ALiBi"
    config.point = (
        "Is an encoding ahead of RoPE or ALiBi in a small ViT and a small decoder, and beyond the trained length?"
    )
    for study in config.studies.values():
        study.encodings = ConfigDict({name: study.encodings[name] for name in ("rope", "alibi")}, sort_keys=False)
        study.steps *= 4
    return config
