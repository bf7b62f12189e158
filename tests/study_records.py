"""Made-up records of studies, for tests of pages and figures."""

from experiments.records import Record, StudyRecords


def record(row="rope", seed=0, metrics=None, **fields):
    """One seed of a row."""
    about = {
        "study": "digits",
        "row": row,
        "encoding": f"{row}()",
        "seed": seed,
        "run": row,
        "config_hash": row,
        "base": row,
        "data": "digits",
        "data_digest": "0123456789abcdef",
        "steps": 500,
        "parameters": 41_234,
        "step_time": 0.0123,
        "wall_time": 3600.0,
        "device": "cpu",
        "versions": {"commit": "0123456789ab-dirty", "cpus": 2, "jax": "0.10.2"},
        "metrics": {"accuracy": 0.5} if metrics is None else metrics,
    }
    return Record(**about | fields)


def of_metric(metric, values, **fields):
    """Records of {row: [value of each seed]}; a value may be {at: value}."""
    return [
        record(row, seed, {metric: value}, **fields)
        for row, found in values.items()
        for seed, value in enumerate(found)
    ]


def made(metric, values, **fields):
    """The table of `of_metric`, of one study."""
    return StudyRecords("digits", of_metric(metric, values, **fields))
