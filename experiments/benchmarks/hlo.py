"""The text of a compiled program: its attention kernels, its collectives, and the cycles that the compiler for TPUs expects.

The body of a loop counts as often as it runs. Compilers for GPUs write down how often; elsewhere it is the one bound that the
loop's condition compares with. The body of a loop whose runs are not known counts once.
"""

import collections
import functools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

IN_A_LOOP = ", in a loop"  # ends the kind of a collective whose number of runs is not known
_COLLECTIVES = (
    *("all-gather", "all-reduce", "all-to-all", "ragged-all-to-all", "reduce-scatter"),
    *("collective-broadcast", "collective-permute"),
)
_KERNELS = re.compile(r'custom_call_target="(tpu_custom_call|[^"]*(?:fmha|mosaic_gpu)[^"]*)"')
_OPERATION = re.compile(r"\s+(?:ROOT )?%?([\w.-]+) = (.*?)([a-z][a-z-]*)\(([^)]*)\)")
_CALLEES = re.compile(r"(?:calls|to_apply|body|true_computation|false_computation)=%?([\w.-]+)")
_BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")
_ARRAY = re.compile(r"\b(pred|[a-z]+(\d+)\w*)\[([\d,]*)\]")


class Operation(NamedTuple):
    """A line of a computation; `type` and `operands` (names, with commas) as they are written."""

    name: str
    type: str
    opcode: str
    operands: str
    line: str


def read_program(text: str) -> dict[str, Any]:
    """Returns what a device does in one run of a program.

    Args:
      text: `jax.stages.Compiled.as_text()`.

    Returns:
      "kernels" {name: calls}; "collectives" {kind: [number, bytes]}, bytes of the larger of operands and results; "cycles",
      the sum of the compiler's estimates, 0 but for TPUs: Pallas kernels have none, and operations that overlap are added.
    """
    computations, entry = _computations(text)

    @functools.cache
    def count(name: str) -> collections.Counter:
        total = collections.Counter()
        operations = computations.get(name, ())
        types = {operation.name: operation.type for operation in operations}
        for operation in operations:
            total.update(dict(_own(operation, types)))
            runs = _runs(operation, computations) if operation.opcode == "while" else 1
            for callee in _callees(operation.line):
                for (quantity, kind), number in count(callee).items():
                    if quantity == "cycles" and operation.opcode == "fusion":
                        continue  # the estimate of a fusion holds those of its parts
                    open_ended = runs is None and quantity in ("number", "bytes") and not kind.endswith(IN_A_LOOP)
                    total[quantity, kind + IN_A_LOOP * open_ended] += number * (runs or 1)
        return total

    total = count(entry)
    kinds = sorted(kind for quantity, kind in total if quantity == "number")
    return {
        "kernels": {kind: number for (quantity, kind), number in total.items() if quantity == "kernels"},
        "collectives": {kind: [total["number", kind], total["bytes", kind]] for kind in kinds},
        "cycles": total["cycles", ""],
    }


def _computations(text: str) -> tuple[dict[str, list[Operation]], str]:
    """Returns the operations of each computation, and the name of the one that runs first."""
    computations: dict[str, list[Operation]] = {}
    operations, entry = [], ""
    for line in text.splitlines():
        if head := re.match(r"(ENTRY )?%?([\w.-]+) \(.*\) -> .* \{$", line):
            operations = computations[head[2]] = []
            entry = head[2] if head[1] else entry
        elif match := _OPERATION.match(line):
            operations.append(Operation(*match.groups(), line))
        elif operations:  # the rest of a line that holds a kernel's own text
            operations[-1] = operations[-1]._replace(line=operations[-1].line + line)
    return computations, entry


def _own(operation: Operation, types: Mapping[str, str]) -> Iterator[tuple[tuple[str, str], int]]:
    """Yields the quantities of an operation, without those of the computations that it calls."""
    if match := _KERNELS.search(operation.line):
        name = re.sub(r"[.\d]+$", "", operation.name).strip("_") if match[1] == "tpu_custom_call" else match[1]
        yield ("kernels", name), 1
    if cycles := re.search(r'"estimated_cycles":"(\d{1,18})"', operation.line):  # without an estimate stands 2^64 - 1
        yield ("cycles", ""), int(cycles[1])
    kind = operation.opcode.removesuffix("-done")  # one that computes beside others counts where it ends
    if kind in _COLLECTIVES:
        operands = "" if kind != operation.opcode else re.findall(r"[\w.-]+", operation.operands)
        yield ("number", kind), 1
        yield ("bytes", kind), max(_bytes(operation.type), sum(_bytes(types.get(name, "")) for name in operands))


def _bytes(type_text: str) -> int:
    """Returns the bytes of the arrays in a type, of a tuple too."""
    return sum(
        math.prod(map(int, filter(None, sizes.split(",")))) * int(bits or 8) // 8
        for _, bits, sizes in _ARRAY.findall(type_text)
    )


def _callees(line: str) -> list[str]:
    branches = _BRANCHES.search(line)
    return _CALLEES.findall(line) + (re.findall(r"[\w.-]+", branches[1]) if branches else [])


def _runs(loop: Operation, computations: Mapping[str, Sequence[Operation]]) -> int | None:
    """Returns how often the body of a loop runs; None where its text does not say."""
    if known := re.search(r'"known_trip_count":\{"n":"(\d+)"', loop.line):
        return int(known[1])
    condition = re.search(r"condition=%?([\w.-]+)", loop.line)
    lines = [operation.line for operation in computations.get(condition[1] if condition else "", ())]
    lines += [operation.line for line in lines for name in _callees(line) for operation in computations.get(name, ())]
    bounds = {int(bound) for line in lines for bound in re.findall(r" = s32\[\]\S* constant\((\d+)\)", line)}
    below = any("direction=LT" in line for line in lines)
    return bounds.pop() if below and len(bounds) == 1 else None
