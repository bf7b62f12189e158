"""The text form: reading, writing, and refusals with their messages."""

import dataclasses
import itertools

import jax.numpy as jnp
import numpy as np
import pytest
from cases import CASES
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from members import MEMBERS, VALUES

import posjax as pj
from posjax.encoding import Needs, PositionMap, reads_rows
from posjax.encodings import rope, t5
from posjax.spec import REGISTRY, missing_arguments, nearest, registered

WHOLE = [name for name in pj.names() if not issubclass(REGISTRY[name], PositionMap)]
MAPS = [name for name in pj.names() if issubclass(REGISTRY[name], PositionMap)]


def one_of(names):
    return st.one_of([arguments(name).map(lambda kw, cls=REGISTRY[name]: cls(**kw)) for name in names])


def arguments(name):
    """Keyword arguments for an encoding, those with a default sometimes left out."""
    known = MEMBERS[name].arguments
    defaults = {f.name for f in dataclasses.fields(REGISTRY[name]) if f.default is not dataclasses.MISSING}
    optional = {key: known[key] for key in known if key in defaults}
    return st.fixed_dictionaries({key: known[key] for key in known if key not in defaults}, optional=optional)


def summed(a, b):
    assume(not a.needs & b.needs & Needs.HEAD_DIM)  # a sum refuses two of these
    assume(not ("weigh" in a.hooks & b.hooks or {"weigh", "sink"} <= a.hooks | b.hooks))  # and of these
    return a + b


def placed(position_map, encoding):
    if position_map.spec_name == "position_coupling":  # refuses what sums along the document
        assume(not encoding.observes and not reads_rows(encoding))
    return position_map >> encoding


compositions = st.recursive(
    one_of(WHOLE),
    lambda inner: st.builds(summed, inner, inner) | st.builds(placed, one_of(MAPS), inner),
    max_leaves=6,
)


@pytest.mark.filterwarnings("ignore:Do not use the `random` module")  # beartype does, to sample items for its checks
@settings(max_examples=40, deadline=None)
@given(compositions)
def test_round_trip_of_compositions(encoding):
    assert pj.parse(str(encoding)) == encoding
    assert str(pj.parse(str(encoding))) == str(encoding)


def as_numpy(value):
    if isinstance(value, tuple):
        return tuple(map(as_numpy, value))
    return np.array(value)[()] if isinstance(value, (bool, int, float)) else value


def test_round_trip_of_cases(unchecked_shapes):
    """Scalars of NumPy are spelt as numbers, too."""
    for case in CASES:
        encoding = pj.parse(case.spec)
        assert pj.parse(str(encoding)) == encoding
        for value in (encoding, getattr(encoding, "scaling", None)):
            if value is not None and hasattr(value, "spec_name") and type(value) in REGISTRY.values():
                values = {field.name: as_numpy(getattr(value, field.name)) for field in dataclasses.fields(value)}
                assert str(type(value)(**values)) == str(value)


def test_every_argument_is_generated():
    for name in pj.names():
        fields = {field.name for field in dataclasses.fields(REGISTRY[name])}
        assert fields == {*MEMBERS[name].arguments}, f"give the arguments of {name} to its entry in tests/members"
    assert {*VALUES} == {*REGISTRY} - {*pj.names()}


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("rope", "rope()"),
        (" rope( ) ", "rope()"),
        ("rope(10000)", "rope()"),
        ("rope(base=10000.0)", "rope()"),
        ("rope(5e5)", "rope(base=500000)"),
        ("rope(500000, 'interleaved')", "rope(base=500000, layout='interleaved')"),
        ("rope(base=.5)", "rope(base=0.5)"),
        ("t5(bidirectional=False)", "t5(bidirectional=False)"),
        ("t5(max_distance=64, num_buckets=16)", "t5(num_buckets=16, max_distance=64)"),
        ("(rope + alibi) + none", "rope() + alibi() + none()"),
        ("rope + (alibi + none)", "rope() + alibi() + none()"),
        ("interpolate(2) >> rope + alibi", "interpolate(factor=2) >> (rope() + alibi())"),
        ("(interpolate(2) >> rope) + alibi", "(interpolate(factor=2) >> rope()) + alibi()"),
        ("interpolate(2) >> raster(3) >> rope", "interpolate(factor=2) >> raster(width=3) >> rope()"),
    ],
)
def test_spelling(text, written):
    assert str(pj.parse(text)) == written


@pytest.mark.parametrize(
    ("text", "argument"),
    [("rope(base=3)", "base"), ("interpolate(2)", "factor"), ("dinov3(shift_coords=1)", "shift_coords")],
)
def test_a_whole_number_where_a_float_is_asked_for_is_one(text, argument):
    encoding = pj.parse(text)
    assert type(getattr(encoding, argument)) is float
    assert pj.parse(str(encoding)) == encoding


def test_parse_passes_encodings_through():
    encoding = rope(base=3)
    assert pj.parse(encoding) is encoding


REQUIRED = {int: "8", int | tuple[int, ...]: "1", float: "2", tuple[float, ...]: "(1, 2)"}
WRONG = [
    "'x'",
    "5",
    "-5",
    "2.5",
    "None",
    "True",
    "()",
    "(1, 'x')",
    "((1,), 2)",
    "1e999",
    "9" * 400,
    "rope()",
    "linear(factor=2)",
]


@pytest.mark.parametrize("name", REGISTRY)
def test_any_value_of_any_argument_is_taken_or_refused(name, unchecked_shapes):
    """Refusals are a ValueError of one line; accepted values are read back."""
    fields = dataclasses.fields(REGISTRY[name])
    required = {f.name: REQUIRED[f.type] for f in fields if f.default is dataclasses.MISSING}
    for field, value in itertools.product([f.name for f in fields], WRONG):
        given = ", ".join(f"{key}={text}" for key, text in (required | {field: value}).items())
        whole = f"{name}({given})" if issubclass(REGISTRY[name], pj.Encoding) else f"rope(scaling={name}({given}))"
        try:
            found = pj.parse(whole)
        except ValueError as error:
            message = str(error)
            assert "\n" not in message, message
        else:
            assert pj.parse(str(found)) == found


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rope(scaling=dype(factor=2, original_length=8, time=(1,)))", r"dype\(time="),
        (f"t5(max_distance={'9' * 400})", "max_distance"),
        ("rop()", "'rop'.*'rope'"),
        ("qqqq()", "'qqqq'.*--import FILE"),
        ("rope(bse=3)", "'bse'.*'base'"),
        ("none(1)", "none takes at most 0"),
        ("rope(3, base=3)", "'base' twice"),
        ("rope(base=True)", r"rope\(base="),
        ("rope(layout='hlf')", "layout 'hlf'.*'half'"),
        ("rope(layout=half)", "write 'half' for half"),
        ("t5(bidirectional=false)", "write False for false"),
        ("raster()", "raster needs width"),
        ("rope() >> alibi()", r"left of >>; rope\(\)"),
        ("rope() * alibi()", "made of name"),
        ("rope(base=[i for i in x])", "an argument is a number"),
        ("__import__('os')", "__import__"),
        ("rope(\0)", "cannot read the encoding spec"),
        ("(" * 1500 + "rope", "cannot read the encoding spec"),
        ("rope(" + "-" * 1900 + "1)", "cannot read the encoding spec"),
    ],
)
def test_refusals(text, message):
    with pytest.raises(ValueError, match=message):
        pj.parse(text)


@settings(max_examples=100, deadline=None)
@given(st.text(alphabet="rope+>()=,.'[]1e-\n \0*:t5λ", max_size=40))
def test_anything_parses_or_is_a_value_error(text):
    try:
        encoding = pj.parse(text)
    except ValueError:
        return
    assert pj.parse(str(encoding)) == encoding


def test_register_refuses_a_taken_name():
    with pytest.raises(ValueError, match="an encoding named 'rope' is registered already: Rope"):
        pj.register("rope")(t5)
    assert pj.parse("rope()") == rope()
    assert t5.spec_name == "t5"


def undecorated(base=pj.Encoding):
    class Inverse(base):
        strength: float = 1.0

        def bias(self, params, q, q_site, k, k_site):
            return 0.0

    return Inverse


@pytest.mark.parametrize(
    ("name", "make", "message"),
    [
        (
            "inverse",
            undecorated,
            r"Inverse is no dataclass: write @dataclass\(frozen=True\) between @posjax.register and",
        ),
        ("inverse", lambda: dataclasses.dataclass(undecorated(object)), r"can be changed.*@dataclass\(frozen=True\)"),
        (
            "inverse",
            lambda: dataclasses.dataclass(frozen=True)(undecorated(object)),
            r"Inverse has bias but is no encoding: class Inverse\(posjax.Encoding\)",
        ),
        ("My-Inverse", lambda: dataclasses.dataclass(frozen=True)(undecorated()), "snake case, as in 'my_inverse'"),
    ],
)
@pytest.mark.usefixtures("unchecked_shapes")
def test_register_refuses_what_is_not_ready(name, make, message):
    with pytest.raises(ValueError, match=message):
        pj.register(name)(make())
    assert name not in REGISTRY


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize("name", ["rope", "shaw", "yarn"])
def test_arrays_are_no_arguments(name):
    """A number of NumPy becomes one of Python and a list a tuple; an array or a dict has no hash, which programs need."""
    cls = registered(name)
    for field in dataclasses.fields(cls):
        others = dict.fromkeys(missing_arguments(cls), 1)
        for value in (np.ones(4), jnp.arange(3), {"a": 1}):
            with pytest.raises(
                ValueError, match=rf"{name}\({field.name}=...\) is of the type \w+, which has no hash: give"
            ):
                cls(**others | {field.name: value})


@pytest.mark.usefixtures("unchecked_shapes")
def test_a_text_where_an_encoding_is_asked_for():
    q, site = np.zeros((3, 2, 8), np.float32), pj.sites(3)
    mend = r"'rope' is the text of an encoding, not one: posjax.parse\('rope'\)"
    with pytest.raises(ValueError, match=mend):
        pj.attend("rope", (), q, q, q, site, site)
    for read in (pj.parse, pj.parse_layers):
        with pytest.raises(ValueError, match="got 3"):
            read(3)


def test_names_are_sorted_and_lower_snake_case():
    assert pj.names() == sorted(pj.names())
    assert all(name.isidentifier() and name == name.lower() for name in pj.names())
    assert all(getattr(pj.encodings, name) is REGISTRY[name] for name in pj.names())


def test_nearest():
    assert nearest("xyz", []) == "known: none"
    assert nearest("dnse", ["auto", "dense"]) == "did you mean 'dense'? known: auto, dense"
