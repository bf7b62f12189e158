"""The text form of an encoding, the same in Python, in a config, on a command line and in a row of a table.

    "rope(base=500000) + alibi()"           sums
    "raster(width=14) >> learned()"         position maps, which bind less tightly than +
    "rope, rope, rope, none"                a pattern over the layers of a model, repeated (`parse_layers`)
    "swan(window=512)"                      such a pattern by its name (posjax/encodings/patterns.py)

Specs are read over `ast` with names from the registry only; nothing is ever evaluated.
"""

import ast
import dataclasses
import difflib
import functools
import re
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from posjax.encoding import HOOKS, Encoding, refuse_unhashable

_Class = typing.TypeVar("_Class")
REGISTRY: dict[str, type] = {}
PATTERNS: dict[str, type] = {}
_NUMBERS = (int, float)
_LARGEST_INT, _LARGEST_FLOAT = 2**31 - 1, 3e38  # in int32 and float32


def register(name: str) -> Callable[[type[_Class]], type[_Class]]:
    """Class decorator that makes an encoding known to `parse` as `name` (lower snake case).

    A frozen dataclass that is no encoding may be registered too: a value that encodings take as an argument, such as a
    frequency scaling.

    Raises:
      ValueError: for a name that is taken or that no spec could spell, or a class that is not ready: no frozen dataclass, or
        with hooks of an encoding and not derived from `Encoding`.

    >>> @register("mine")
    ... class Mine(Encoding):
    ...     pass
    Traceback (most recent call last):
    ValueError: posjax.register('mine'): Mine is no dataclass: write @dataclass(frozen=True) between ...
    """

    def add(cls: type[_Class]) -> type[_Class]:
        if name in REGISTRY:
            raise ValueError(f"an encoding named {name!r} is registered already: {REGISTRY[name].__qualname__}")
        if problem := _unfit(name, cls):
            raise ValueError(f"posjax.register({name!r}): {problem}")
        cls.spec_name = name
        REGISTRY[name] = cls
        return plain_arguments(cls)

    return add


def register_pattern(name: str) -> Callable[[type[_Class]], type[_Class]]:
    """Class decorator that makes a pattern over layers known to `parse_layers` as `name` (lower snake case).

    The class is a frozen dataclass whose method `layers()` gives the encodings, as text or as values.

    Raises:
      ValueError: for a name that is taken, by an encoding too, or that no spec could spell; for another class.
    """

    def add(cls: type[_Class]) -> type[_Class]:
        if name in REGISTRY or name in PATTERNS:
            raise ValueError(f"an encoding or a pattern named {name!r} is registered already")
        if problem := _unfit(name, cls) or (not hasattr(cls, "layers") and f"{cls.__name__} has no method layers()"):
            raise ValueError(f"posjax.spec.register_pattern({name!r}): {problem}")
        PATTERNS[name] = cls
        return plain_arguments(cls)

    return add


def plain_arguments(cls: type[_Class]) -> type[_Class]:
    """Class decorator for arguments that JSON spells and that have a hash.

    NumPy scalars become numbers of Python, lists tuples. Arrays, dicts and sets raise a ValueError.
    """
    init = cls.__init__

    @functools.wraps(init)
    def made(self, *args, **kwargs):
        args, kwargs = _plain(args), {name: _plain(value) for name, value in kwargs.items()}
        names = (field.name for field in dataclasses.fields(self))
        for name, value in [*zip(names, args, strict=False), *kwargs.items()]:
            refuse_unhashable(cls, name, value)
        init(self, *args, **kwargs)

    cls.__init__ = made
    return cls


def _plain(value: Any) -> Any:
    if type(value) in (tuple, list):
        return tuple(map(_plain, value))
    return value.item() if isinstance(value, np.generic) else value


def patterns() -> list[str]:
    """The names of patterns over layers, sorted."""
    return sorted(PATTERNS)


def _unfit(name: str, cls: type) -> str | None:
    """Why a class cannot be registered under a name; None if it can."""
    if not (name.isidentifier() and name == name.lower()):
        return f"a name is lower snake case, as in {re.sub(r'[^a-z0-9]+', '_', name.lower()).strip('_') or 'mine'!r}"
    if not isinstance(cls, type):
        return f"it decorates a class, got {cls!r}"
    if "__dataclass_fields__" not in vars(cls):  # inherited fields do not make a class a dataclass
        return f"{cls.__name__} is no dataclass: write @dataclass(frozen=True) between @posjax.register and the class"
    if not cls.__dataclass_params__.frozen:
        return f"{cls.__name__} can be changed, an encoding cannot: @dataclass(frozen=True)"
    if issubclass(cls, Encoding) and (hooks := sorted({*HOOKS} & {field.name for field in dataclasses.fields(cls)})):
        return (
            f"{cls.__name__} has an argument named {', '.join(hooks)}, which is the name of a hook: rename the argument"
        )
    if not issubclass(cls, Encoding) and (hooks := sorted({*HOOKS} & {*dir(cls)})):
        return f"{cls.__name__} has {', '.join(hooks)} but is no encoding: class {cls.__name__}(posjax.Encoding)"
    return None


def encoding_value(value: object) -> Encoding:
    """The encoding itself.

    Raises:
      ValueError: for anything else, such as its text.
    """
    if isinstance(value, Encoding):
        return value
    if isinstance(value, str):
        raise ValueError(f"{value!r} is the text of an encoding, not one: posjax.parse({value!r})")
    raise ValueError(f"an encoding is asked for, got {_shown(value)}")


def _shown(value: object) -> str:
    """A wrong value, and the mend where it is a class that wants to be called."""
    if isinstance(value, type) and issubclass(value, Encoding):
        return f"the class {value.__name__}: call it, as in {value.__name__}(...)"
    return repr(value)


def names() -> list[str]:
    """Registered encodings and position maps, sorted."""
    return sorted(name for name, cls in REGISTRY.items() if issubclass(cls, Encoding))


def registered_names() -> list[str]:
    """Everything registered, values that encodings take as arguments too, sorted."""
    return sorted(REGISTRY)


def registered(name: str) -> type:
    """The class that a name stands for: an encoding, a position map, or a value that encodings take.

    Raises:
      ValueError: for an unknown name; the message names the nearest known one.
    """
    if name not in REGISTRY:
        raise _unknown(name, [*REGISTRY])
    return REGISTRY[name]


def _unknown(name: str, known: list[str]) -> ValueError:
    own = "; import the module of an encoding of your own first (--import FILE)"
    return ValueError(f"no encoding is named {name!r}; {nearest(name.lower(), sorted(known))}{own}")


def parse(text: str | Encoding) -> Encoding:
    """Reads a spec; `parse(str(encoding)) == encoding`. An Encoding is returned as it is.

    Raises:
      ValueError: for a text that is no spec, an unknown name or argument (the message names the nearest known one),
        or an argument of the wrong type.

    >>> encoding = parse("rope(base=500000) + alibi()")
    >>> print(encoding)
    rope(base=500000) + alibi()
    >>> parse("rpoe")
    Traceback (most recent call last):
    ValueError: no encoding is named 'rpoe'; did you mean 'rope'? known: ...
    """
    if isinstance(text, Encoding):
        return text
    if not isinstance(text, str):
        raise ValueError(f"an encoding spec is text, got {_shown(text)}")
    return _read(text, _whole)


def parse_layers(pattern: str | Encoding | Sequence[str | Encoding]) -> tuple[Encoding, ...]:
    """Reads what the layers of a model host: one encoding for all, or a pattern that is repeated over them.

    "rope, rope, rope, none" gives every fourth layer no encoding (iRoPE); a list or tuple of specs says the same, and so
    does the name of a pattern, alone or with arguments: "swan", "rnope(window=512)".

    Raises:
      ValueError: as `parse`; also for an empty pattern.

    >>> print(*parse_layers("rope(base=100), none"))
    rope(base=100) none()
    """
    if isinstance(pattern, str):
        return _read(pattern, _layers)
    listed = pattern if isinstance(pattern, (list, tuple)) else (pattern,)
    encodings = tuple(parse(spec) for spec in listed)
    if not encodings:
        raise ValueError("a pattern over layers needs at least one encoding, as in 'rope, rope, none'")
    return encodings


def parse_value(text: str, kind: type) -> Any:
    """Reads a value that models take, kind.spec_name(argument=value), as `spec_text` writes it.

    Raises:
      ValueError: for another text, an unknown argument or one of the wrong type.
    """

    def build(node: ast.expr) -> Any:
        name, args, keywords = _called(node) or ("", [], {})
        if name != kind.spec_name:
            raise ValueError(f"{kind.spec_name}(argument=value) is asked for, got {text!r}")
        return _make(name, kind, args, keywords)

    return _read(text, build)


def parse_sum(text: str, known: Mapping[str, type], noun: str) -> tuple[Any, ...]:
    """Reads a spec of another language: "name(argument=value) + name", each part made by the dataclass of that name.

    Args:
      text: the spec.
      known: the dataclasses by the names that a spec spells.
      noun: what a part is, in messages.

    Raises:
      ValueError: as `parse`.
    """

    def build(node: ast.expr) -> tuple[Any, ...]:
        match node:
            case ast.BinOp(left, ast.Add(), right):
                return (*build(left), *build(right))
        name, args, keywords = _called(node) or ("", [], {})
        if not name:
            raise ValueError(f"an {noun} spec is made of name(argument=value) and +; got {ast.unparse(node)!r}")
        if name not in known:
            raise ValueError(f"no {noun} is named {name!r}; {nearest(name.lower(), sorted(known))}")
        return (_make(name, known[name], args, keywords),)

    if not isinstance(text, str):
        raise ValueError(f"an {noun} spec is text, got {_shown(text)}")
    return _read(text, build, noun)


def layers_text(encodings: Sequence[Encoding]) -> str:
    """The text that `parse_layers` reads back."""
    return ", ".join(map(str, encodings))


def _layers(node: ast.expr) -> tuple[Encoding, ...]:
    if named := _called(node):
        name, args, keywords = named
        if name in PATTERNS:
            return parse_layers(_make(name, PATTERNS[name], args, keywords).layers())
        if name not in REGISTRY:
            raise _unknown(name, [*REGISTRY, *PATTERNS])
    return tuple(map(_whole, node.elts if _is_list(node) else [node]))


def _is_list(node: ast.expr) -> bool:
    return isinstance(node, (ast.Tuple, ast.List)) and len(node.elts) > 0


def _read(text: str, build: Callable[[ast.expr], Any], noun: str = "encoding") -> Any:
    try:
        return build(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, RecursionError, MemoryError) as error:
        raise ValueError(f"cannot read the {noun} spec {text!r}: {error}") from None


def _whole(node: ast.expr) -> Encoding:
    if _is_list(node):
        raise ValueError("a pattern over layers stands where a model is made, not where one encoding is asked for")
    encoding = _encoding(node)
    if not isinstance(encoding, Encoding):
        raise ValueError(f"{encoding.spec_name} is no encoding but an argument of one, as in rope(scaling=linear())")
    return encoding


def nearest(word: str, known: Sequence[str]) -> str:
    """The end of an error message: which known word was probably meant, and all of them."""
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.4)
    meant = f"did you mean {close[0]!r}? " if close else ""
    return f"{meant}known: {', '.join(known) or 'none'}"


def _encoding(node: ast.expr) -> object:
    match node:
        case ast.BinOp(left, ast.Add() | ast.RShift() as operator, right):
            left, right = _encoding(left), _encoding(right)
            try:
                return left + right if isinstance(operator, ast.Add) else left >> right
            except TypeError as error:
                raise ValueError(str(error)) from None
    if named := _called(node):
        name, args, keywords = named
        if name in PATTERNS:
            raise ValueError(f"{name} is a pattern over layers: it stands alone, where a model is made")
        return _make(name, registered(name), args, keywords)
    raise ValueError(f"an encoding spec is made of name(argument=value), + and >>; got {ast.unparse(node)!r}")


def _called(node: ast.expr) -> tuple[str, list, dict] | None:
    """The name, arguments and keywords of `name` or `name(...)`; None for anything else."""
    match node:
        case ast.Name(name):
            return name, [], {}
        case ast.Call(ast.Name(name), args, keywords) if all(keyword.arg for keyword in keywords):
            return name, [_value(arg) for arg in args], {k.arg: _value(k.value) for k in keywords}
    return None


def _value(node: ast.expr) -> object:
    match node:
        case ast.Constant(value) if value is None or isinstance(value, (*_NUMBERS, str)):
            return value
        case ast.UnaryOp(ast.USub(), ast.Constant(value)) if type(value) in _NUMBERS:
            return -value
        case ast.Tuple(items) | ast.List(items):
            return tuple(_value(item) for item in items)
        case ast.Name(name) if name not in REGISTRY:
            meant = name.capitalize() if name in ("true", "false") else repr(name)
            raise ValueError(f"an argument is a number, text in quotes, True, None or a spec: write {meant} for {name}")
        case ast.Call() | ast.Name() | ast.BinOp():
            return _encoding(node)
    raise ValueError(f"an argument is a number, string, tuple or another spec; got {ast.unparse(node)!r}")


def _make(name: str, cls: type, args: list, keywords: dict) -> Any:
    fields = {field.name: field for field in dataclasses.fields(cls)}
    if len(args) > len(fields):
        raise ValueError(f"{name} takes at most {len(fields)} arguments ({', '.join(fields)}), got {len(args)}")
    given = dict(zip(fields, args, strict=False))
    if twice := sorted(given.keys() & keywords.keys()):
        raise ValueError(f"{name} got {twice[0]!r} twice")
    given |= keywords
    for argument, value in given.items():
        if argument not in fields:
            raise ValueError(f"{name} has no argument {argument!r}; {nearest(argument, list(fields))}")
        kind = fields[argument].type
        if not _fits(value, kind):
            raise ValueError(f"{name}({argument}=...) takes {_kind_text(kind)}, got {repr(value)[:80]}")
        given[argument] = _as_float(value, kind)
    if missing := [argument for argument in missing_arguments(cls) if argument not in given]:
        raise ValueError(f"{name} needs {', '.join(missing)}, as in {name}({missing[0]}=...)")
    return cls(**given)


def missing_arguments(cls: type) -> list[str]:
    """The arguments of a dataclass that have no default."""
    absent = dataclasses.MISSING
    return [f.name for f in dataclasses.fields(cls) if f.default is absent and f.default_factory is absent]


def _fits(value: object, kind: Any) -> bool:
    """Whether a value of a spec is of an annotated type; numbers also whether int32 or float32 holds them."""
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return any(_fits(value, each) for each in args)
    if origin is tuple:
        kinds = args[:1] * len(value) if isinstance(value, tuple) and args[-1:] == (...,) else args
        return isinstance(value, tuple) and len(value) == len(kinds) and all(map(_fits, value, kinds))
    if kind is float:
        return type(value) in _NUMBERS and abs(value) <= _LARGEST_FLOAT
    if kind is int:
        return type(value) is int and abs(value) <= _LARGEST_INT
    if kind in (bool, str, types.NoneType, jax.Array):
        return isinstance(value, kind)
    return True  # the class itself checks values of other types


def _as_float(value: Any, kind: Any) -> Any:
    """The value, with whole numbers where the annotated type wants floats as such: jax derives by floats alone."""
    args = typing.get_args(kind)
    if typing.get_origin(kind) is tuple and isinstance(value, tuple):
        kinds = args[:1] * len(value) if args[-1:] == (...,) else args
        return tuple(map(_as_float, value, kinds))
    return float(value) if type(value) is int and float in (kind, *args) and int not in args else value


def _kind_text(kind: Any) -> str:
    args = typing.get_args(kind)
    if typing.get_origin(kind) is tuple:
        return f"a tuple of {', '.join(_kind_text(each) for each in args if each is not ...)}"
    if args:
        return " or ".join(_kind_text(each) for each in args if each is not jax.Array)
    words = {int: "a whole number below 2^31", float: "a number below 3e38", bool: "True or False", str: "text"}
    return "None" if kind is types.NoneType else words.get(kind, str(kind))
