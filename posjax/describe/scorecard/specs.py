"""Every registered encoding as a spec that fits sequences of some length."""

import dataclasses

import posjax as pj
from posjax.describe.catalogue import defining_module

# Arguments by name, or by name of the encoding and argument: those without a default, and those whose default is made for
# sequences much longer than the ones here. Functions of the length that counts as trained.
_ARGUMENTS = {
    "original_length": lambda n: n,
    "factor": lambda n: 4,
    "window": lambda n: n // 4,
    "size": lambda n: n // 4,
    "sections": lambda n: (4, 6, 6),
    "chunk": lambda n: 3 * n // 4,
    "local": lambda n: n // 8,
    "index": lambda n: 1,
    "height": lambda n: round(n**0.5),
    "width": lambda n: round(n**0.5),
    "views": lambda n: round(n ** (1 / 3)),
    "block_size": lambda n: n // 16,
    "floor_scale": lambda n: n // 4,
    "max_position": lambda n: 4 * n,
    "max_offset": lambda n: n // 4,
    "abacus.length": lambda n: 8 * n,
    "abacus.max_offset": lambda n: 99,
    "clipped.count": lambda n: 5,  # of 16 frequencies, as 20 of the paper's 64
    "pose.length": lambda n: 4 * n,
    "random_float.length": lambda n: 8 * n,
    "riflex.length": lambda n: 4 * n,
    "riflex.repetition": lambda n: n,
    "randomized.length": lambda n: 8 * n,
    "laplacian.pos_enc_dim": lambda n: 2,
    "random_walk.pos_enc_dim": lambda n: 2,
    "tree.depth": lambda n: 2,
    "tree.degree": lambda n: 2 * round(n**0.5),  # as many rows and columns as the longest boxes have
    "short_factor": lambda n: (1.0,) * 16,
    "long_factor": lambda n: tuple(1 + 3 * c / 15 for c in range(16)),
}
_HOSTS = {"position_coupling": "learned()"}  # what a position map is measured with; rope() where nothing is said


def every_spec(length: int) -> tuple[dict[str, str], list[str]]:
    """({spec: family}, names without a spec): position maps as `map >> rope()`, frequency scalings as `rope(scaling=...)`.

    A name is left out if it needs an argument that cannot be made up here.
    """
    specs, unknown = {}, []
    for name in every_name():
        text = measured_spec(name, length)
        if text is None:
            unknown.append(name)
        else:
            specs[text] = defining_module(pj.spec.registered(name))
    order = sorted(set(specs.values()))
    return dict(sorted(specs.items(), key=lambda item: (order.index(item[1]), item[0]))), unknown


def every_name() -> list[str]:
    """The names of the library that stand in specs; its patterns over layers do not."""
    registered = {*pj.spec.registered_names()}
    return [name for name in pj.encodings.__all__ if name in registered]


def measured_spec(name: str, length: int) -> str | None:
    """The spec that a name is measured by; None for a pattern over layers, or an argument that cannot be made up here."""
    if name not in pj.spec.registered_names():
        return None
    cls = pj.spec.registered(name)
    text = _call(name, cls, length)
    if text is None:
        return None
    if not issubclass(cls, pj.Encoding):
        return f"rope(scaling={text})"
    return f"{text} >> {_HOSTS.get(name, 'rope()')}" if issubclass(cls, pj.PositionMap) else text


def _call(name: str, cls: type, length: int) -> str | None:
    arguments = []
    for field in dataclasses.fields(cls):
        value = _ARGUMENTS.get(f"{name}.{field.name}", _ARGUMENTS.get(field.name))
        if value is not None:
            arguments.append(f"{field.name}={value(length)}")
        elif field.default is dataclasses.MISSING:
            return None
    return f"{name}({', '.join(arguments)})"
