"""A row of a study as the config of a single run on random data: what plans count and compile."""

import pathlib

from ml_collections import ConfigDict

from experiments.studies.plan import AS_LOADED, finetune_config, rows_of, seeds_of, tables_of
from experiments.studies.readings import spec_of, text_place
from experiments.studies.weights import config_of_start
from posjax.spec import nearest
from posjax.training.initial import Start


def planned(config: ConfigDict, label: str | None = None, checkpoint: pathlib.Path | None = None) -> ConfigDict:
    """Returns the config of one training of a study, with the study's `seeds`; nothing is read but weights.

    Args:
      label: of a row that is trained; of several tables the first one that has it. None: the first row.
      checkpoint: weights of a decoder, for a study that tunes them; then the rows are its fine-tunes.

    Raises:
      ValueError: no row is trained, or none of this label.
    """
    trained: dict[str, tuple[ConfigDict, ConfigDict]] = {}
    for name, table in tables_of(config).items():
        restored = {AS_LOADED: config_of_start(Start(checkpoint), table)} if checkpoint else None
        for row in rows_of(name, table, restored):
            if checkpoint is None:
                trained.setdefault(row.base, (row.training, table))
            elif row.finetune is not None:
                place = text_place(row.training, row.finetune.size)
                spec = spec_of(row.read, row.training.model.encoding, place)
                trained.setdefault(row.label, (finetune_config(row.training, row.finetune, spec), table))
    if not trained:
        raise ValueError(f"no row of --config is trained from --checkpoint={checkpoint}: its config has no finetune")
    label = next(iter(trained)) if label is None else label
    if label not in trained:
        raise ValueError(f"--row={label}: the study trains no such row; {nearest(label, list(trained))}")
    training, table = trained[label]
    made = on_random_data(training)
    with made.unlocked():
        made.seeds = seeds_of(config, table)
    return made


def on_random_data(training: ConfigDict) -> ConfigDict:
    """Returns a config of the same model and batches, on data that need no files."""
    made = training.copy_and_resolve_references()
    with made.unlocked():
        match made.task:
            case "classification":
                made.data.name = "synthetic_images"
            case "language_model":
                made.data.update(name="synthetic_tokens", files=None, tokenizer=None)
                made.eval_tokens = None
            case "algorithmic" if made.data.name == "scan":
                made.data.update(name="copy_string", files=None)
    return made
