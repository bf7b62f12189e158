"""Converts the records of today's engine to those of results.jsonl and back, until the engine makes the latter itself."""

import math
from collections.abc import Mapping
from typing import Any

from experiments.records import Record, point_text

SLIDING, SEPARATE = "loss in sliding windows", "loss in separate windows"
PERPLEXITY = "perplexity in sliding windows"
_SHARES = {"exact match": "exact", "accuracy": "accuracy", "log probability": "log_prob"}
_COMMON = ("study", "encoding", "seed", "config_hash", "data", "data_digest", "steps", "parameters", "step_time")
_COMMON += ("wall_time", "device", "versions", "evaluation_time")
_UNITS = {"algorithmic": "symbol", "language_model": "byte", "masked_language_model": "byte", "extrapolate": "byte"}


def to_record(fields: Mapping[str, Any], run: str | None = None, rate: float | None = None, passes=None) -> Record:
    """The record of flat fields.

    Args:
      run: name of the base's weights; that of the fields where None.
      rate: learning rate, where the fields do not tell it.
    """
    made = {name: fields[name] for name in _COMMON if name in fields}
    base = fields.get("point_of") or fields.get("base")
    made |= {"row": fields["label"], "base": base or fields["label"], "passes": passes}
    made["run"] = run or fields.get("training_hash") or fields["config_hash"]
    made["unit"] = _unit(fields)
    made["trained_at"] = fields.get("trained_at") or fields.get("train_length")
    made["documents"], made["bos"] = tuple(fields.get("documents", ())), fields.get("bos", "")
    if "spec" in fields:
        made["encoding"] = fields["spec"]
    made |= _tuning(fields, rate)
    made["metrics"] = _metrics(fields)
    return Record(**made)


def _unit(fields: Mapping[str, Any]) -> str:
    if fields["task"] == "resolutions":
        return "patch" if fields.get("native") else "pixel"
    return "token" if fields.get("tokenizer") else _UNITS.get(fields["task"], "")


def _tuning(fields: Mapping[str, Any], rate: float | None) -> dict[str, Any]:
    if fields.get("kind") == "point":
        point = {"optimizer.learning_rate": fields["point"]["learning_rate"]}
        return {"point": point, "learning_rate": fields["point"]["learning_rate"], "on": fields["chosen_on"]}
    if "point" in fields:  # of a sweep
        return {"point": dict(fields["point"]), "on": fields["chosen_on"]}
    if tuned := fields.get("tuned"):
        chosen = {"optimizer.learning_rate": tuned["learning_rate"]}
        about = {"metric": tuned["by"].removeprefix("choosing "), "on": tuned["on"], "seeds": list(tuned["seeds"])}
        return {
            "learning_rate": tuned["learning_rate"],
            "tuned": {"chosen": chosen, "scores": dict(tuned["from"]), **about},
        }
    return {"learning_rate": fields.get("learning_rate") or rate}


def _metrics(fields: Mapping[str, Any]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for name, value in fields["metrics"].items():
        if fields["task"] == "extrapolate":
            made[{"sliding": SLIDING, "chunked": SEPARATE}[name]] = _by_int(value)
            continue
        own = name.removeprefix("choosing ") if fields.get("kind") == "point" else name
        what, after, rest = own.partition(" after ")
        if after:
            block, _, of = rest.partition(" blocks")
            made.setdefault(f"{what}{of}", {})[int(block)] = value
        else:
            made[what] = _by_int(value) if isinstance(value, Mapping) else value
    if fields.get("tokenizer") and SLIDING in made:
        exps = {at: None if loss is None else math.exp(loss) for at, loss in made[SLIDING].items()}
        made[PERPLEXITY] = exps
    made |= _retrieval(fields.get("retrieval", {}))
    curves = {
        (int(length), _whole(x)): y for length, points in fields.get("by_position", {}).items() for x, y in points
    }
    made |= {"loss by position": curves} if curves else {}
    cost = fields.get("cost", {})
    for name, key in (("seconds per window", "seconds"), ("temporary bytes", "temp_bytes")):
        found = {int(n): each[key] for n, each in cost.items() if each.get(key) is not None}
        if found:
            shares = {n: cost[str(n)]["batch"] if key == "seconds" else 1 for n in found}
            made[name] = {n: value / shares[n] for n, value in found.items()}
    if curve := fields.get("curve"):
        made["training loss"] = {int(step): loss for step, loss in curve}
    return made


def _retrieval(retrieval: Mapping[str, Any]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for task, lengths in retrieval.items():
        for name, key in _SHARES.items():
            for length, cells in lengths.items():
                values = [cell[key] for cell in cells]
                at = made.setdefault(f"{task} {name}", {})
                at[int(length)] = None if None in values else sum(values) / len(values)
                by_depth = made.setdefault(f"{task} {name} by depth", {})
                by_depth |= {(int(length), _whole(cell["depth"])): cell[key] for cell in cells}
    return made


def _by_int(values: Mapping[str, Any]) -> dict[int, Any]:
    return {int(at): value for at, value in values.items()}


def _whole(number: float) -> int | float:
    return int(number) if number == int(number) else number


def to_fields(record: Record) -> dict[str, Any]:
    """The flat fields of a record, as far as the engine and the reports of today read them."""
    fields = record.fields()
    made = {name: fields[name] for name in _COMMON if name in fields}
    made |= {"label": record.row, "metrics": {}, "base": record.base, "allocator": None}
    made |= {"step_time": record.step_time, "documents": list(record.documents), "training_hash": record.run}
    made["task"] = {"symbol": "algorithmic", "pixel": "resolutions", "patch": "resolutions"}.get(record.unit, "")
    if record.point and "optimizer.learning_rate" in record.point:
        made |= {"kind": "point", "point_of": record.base, "chosen_on": record.on}
        made["point"] = {"learning_rate": record.point["optimizer.learning_rate"]}
    elif record.point:  # of a sweep
        made |= {"point_of": record.base, "point": dict(record.point), "chosen_on": record.on}
    if record.tuned:
        tuned = {name: record.tuned[name] for name in ("metric", "on", "seeds")}
        made["tuned"] = {
            "learning_rate": record.learning_rate,
            "from": record.tuned["scores"],
            "by": tuned.pop("metric"),
        }
        made["tuned"] |= tuned
    if record.learning_rate is not None:
        made["learning_rate"] = record.learning_rate
    if record.trained_at:
        made |= {"train_length": record.trained_at, "trained_at": record.trained_at}
    if record.unit == "token":
        made["tokenizer"] = "tokenizer"
    if record.bos:
        made["bos"] = record.bos
    made["native"] = record.unit == "patch"
    if made["task"] == "resolutions":
        made |= {"kind": "trained" if record.base == record.row else "at evaluation", "policy": "as trained"}
    for name, value in record.metrics.items():
        _to_metric(made, name, value)
    if SLIDING in record.metrics:
        made |= {"task": "extrapolate", "kind": "trained" if record.base == record.row else "at evaluation"}
        made = {"by_position": {}, "retrieval": {}, "cost": {}} | made
    return made


def _to_metric(made: dict[str, Any], name: str, value: Any) -> None:
    if name in (SLIDING, SEPARATE):
        made["metrics"]["sliding" if name == SLIDING else "chunked"] = _by_text(value)
    elif name.startswith("position error"):
        of = name.removeprefix("position error")
        made["metrics"] |= {f"position error after {block} blocks{of}": each for block, each in value.items()}
    elif name == "training loss":
        made["curve"] = [[step, loss] for step, loss in value.items()]
    elif name == "loss by position":
        for (length, x), y in value.items():
            made.setdefault("by_position", {}).setdefault(str(length), []).append([x, y])
    elif name in ("seconds per window", "temporary bytes"):
        for length, each in value.items():
            cell = made.setdefault("cost", {}).setdefault(str(length), {"batch": 1})
            cell["seconds" if name == "seconds per window" else "temp_bytes"] = each
    elif name.endswith(" by depth"):
        task, _, what = name.removesuffix(" by depth").partition(" ")
        for (length, depth), each in value.items():
            cells = made.setdefault("retrieval", {}).setdefault(task, {}).setdefault(str(length), [])
            cell = next((each for each in cells if each["depth"] == depth), None)
            if cell is None:
                cells.append(cell := {"depth": depth})
            cell[_SHARES[what]] = each
    elif any(f"{name} by depth" == other for other in made.get("_names", ())):
        pass
    elif made.get("kind") == "point":
        made["metrics"][f"choosing {name}"] = value
    else:
        made["metrics"][name] = _by_text(value) if isinstance(value, Mapping) else value


def _by_text(values: Mapping[Any, Any]) -> dict[str, Any]:
    return {str(at): value for at, value in values.items()}


__all__ = ["SEPARATE", "SLIDING", "point_text", "to_fields", "to_record"]
