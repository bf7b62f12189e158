"""The registry is open: an encoding in a user's own file works wherever one of the library does."""

import sys
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import pytest
from ml_collections import ConfigDict

import experiments.cli
import posjax as pj
import posjax.spec
from experiments import catalogue
from experiments.studies.weights import row_hash
from posjax import cli
from posjax.describe import properties
from posjax.describe.runs import Runs
from posjax.describe.worlds import default_dims, make_world
from posjax.encoding import HOOKS
from posjax.mask import Mask, Span
from posjax.training.identity import counting_fields, digest_as_imported
from posjax.user_code import import_user_code

SOURCE = '''
"""An encoding of one's own."""

from dataclasses import dataclass

import jax.numpy as jnp

import posjax as pj


@pj.register("steep")
@dataclass(frozen=True)
class Steep(pj.Encoding):
    """A bias of -slope times the square root of the distance.

    Nobody (2026), arXiv 2601.00001.
    """

    dimensions = (1,)

    slope: float = 0.5

    def bias(self, params, q, q_site, k, k_site):
        distance = jnp.abs(self.coordinates(q_site)[:, None, 0] - self.coordinates(k_site)[None, :, 0])
        return -self.slope * jnp.sqrt(distance + 1.0)[None] * jnp.ones((q.shape[1], 1, 1))
'''


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    path = tmp_path_factory.mktemp("mine") / "my_encoding.py"
    path.write_text(SOURCE)
    return path


@pytest.fixture
def own_registry(monkeypatch):
    """Forgets names that a test registers."""
    monkeypatch.setattr(posjax.spec, "REGISTRY", dict(posjax.spec.REGISTRY))


@pytest.mark.usefixtures("own_registry")
@pytest.mark.slow
def test_it_is_explained_listed_and_checked(source, capsys):
    flag = f"--import={source}"
    assert cli.main(["explain", "steep(slope=2) + rope", flag]) == 0
    shown = capsys.readouterr().out
    assert "A bias of -slope times the square root" in shown
    assert "-4.0000" in shown  # three away
    assert catalogue.main([flag]) == 0
    row = next(line for line in capsys.readouterr().out.splitlines() if "steep" in line)
    assert "2601.00001" in row
    assert "steep" not in catalogue.page()
    assert cli.main(["check", "steep", flag]) == 0
    out = capsys.readouterr().out
    assert "all hold" in out
    assert "FAILS" not in out


@dataclass(frozen=True)
class Misspelt(pj.Encoding):
    """A bias that is never added."""

    def biass(self, params, q, q_site, k, k_site):
        return 0.0


def test_a_method_that_is_nearly_a_hook_fails():
    row = properties.check_one(
        "hooks return their shapes", Runs(make_world(Misspelt(), default_dims(Misspelt(), 1), 1))
    )
    assert not row.ok
    assert "biass is no hook, and is never called: did you mean bias?" in str(row)


@dataclass(frozen=True)
class Forgetful(pj.Encoding):
    """A mask that shows more than its spans promise."""

    dimensions = (1,)

    def mask(self):
        return TooNear()


@dataclass(frozen=True)
class TooNear(Mask):
    spans = (Span(within=3),)

    def shows(self, q, k):
        return abs(q[0] - k[0]) < 6


def test_a_memory_that_forgets_what_is_seen_fails():
    """Caches hold the number of tokens that `spans` give."""
    world = make_world(Forgetful(), default_dims(Forgetful(), 1), 1)
    row = properties.check_one("decoding token by token is the full pass", Runs(world))
    assert not row.ok
    assert row.error > 0.01


@pytest.mark.usefixtures("own_registry")
def test_other_code_makes_another_run(tmp_path):
    """A run has the digest of the file that defines its encoding, or a part of it, but of none of posjax's files."""
    path = tmp_path / "kept.py"
    path.write_text(SOURCE.replace("steep", "kept"))
    import_user_code([str(path)])
    for spec in ("kept(slope=2)", "rope, interpolate(factor=2) >> (rope + kept)"):
        config = ConfigDict({"steps": 4, "model": {"encoding": spec}})
        before = row_hash(config)
        path.write_text(path.read_text() + "# changed\n")
        assert row_hash(config) == before, "this process runs what it imported"
        digest_as_imported.cache_clear()
        assert row_hash(config) != before
    assert "code" not in counting_fields(ConfigDict({"model": {"encoding": "rope"}}))


def test_a_file_is_imported_once(source, monkeypatch):
    path = source.with_name("counted.py")
    path.write_text("import sys\nsys.posjax_counted = getattr(sys, 'posjax_counted', 0) + 1\n")
    monkeypatch.setattr(sys, "posjax_counted", 0, raising=False)
    import_user_code([str(path)])
    import_user_code([str(path), "json"])
    assert sys.posjax_counted == 1


@pytest.mark.usefixtures("own_registry")
def test_a_file_that_registers_nothing_says_so(tmp_path, capsys):
    path = tmp_path / "plain.py"
    path.write_text(SOURCE.replace('@pj.register("steep")', ""))
    assert cli.main(["check", "steep", f"--import={path}"]) == 2
    note, error = capsys.readouterr().err.splitlines()
    assert note == f'--import={path} registers nothing: put @pj.register("name") above an encoding'
    assert error.startswith("error: no encoding is named 'steep'")
    other = tmp_path / "registers.py"
    other.write_text(SOURCE.replace("steep", "steeper"))
    import_user_code([str(path), str(other), "posjax.spec"])
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def f(:\n", "SyntaxError: invalid syntax"),
        ("import sys\nsys.exit(0)\n", "SystemExit: 0"),
        ("import posjax as pj\npj.register('rope')(int)\n", "an encoding named 'rope' is registered already"),
        (
            "import dataclasses\n@dataclasses.dataclass\nclass A:\n    x: list = []\n",
            "broken.py: mutable default <class 'list'> for field x is not allowed: write a tuple",
        ),
    ],
)
def test_a_broken_file_is_one_line(text, message, tmp_path, capsys):
    path = tmp_path / "broken.py"
    path.write_text(text)
    for main, arguments in ((cli.main, ["explain", "rope"]), (catalogue.main, [])):
        assert main([*arguments, f"--import={path}"]) == 2
        err = capsys.readouterr().err
        assert err.startswith("error: ")
        assert message in err
        assert err.count("\n") == 1


FAULTY = """
import sys
from dataclasses import dataclass

import jax.numpy as jnp

import posjax as pj


@pj.register("branching")
@dataclass(frozen=True)
class Branching(pj.Encoding):
    def embed(self, params, x, site):
        return x if site.position.ravel()[0] > 0 else -x


def ends(x, position):
    sys.exit(0)


def divides(x, position):
    return 1 / 0


def not_finite(x, position):
    return jnp.nan * x


def words(q, k, position):
    return q, {"a": "text"}
"""


@pytest.fixture(scope="module")
def faulty(tmp_path_factory):
    path = tmp_path_factory.mktemp("faulty") / "faulty.py"
    path.write_text(FAULTY)
    yield path
    posjax.spec.REGISTRY.pop("branching", None)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("ends", "faulty.py, line 18, in ends: SystemExit: 0"),
        ("divides", "faulty.py, line 22, in divides: ZeroDivisionError: division by zero"),
        ("not_finite", "rotate returned numbers that are not finite"),
        ("words", "rotate returned {'a': 'text'}, expected an array of numbers"),
    ],
)
def test_a_rotation_that_fails_is_no_sound_one(name, says, faulty, capsys):
    assert cli.main(["audit", f"{faulty}:{name}", "--head-dim=8"]) == 2
    assert says in capsys.readouterr().err


def test_a_branch_on_an_array_is_one_line_in_training(faulty, capsys):
    def trace():
        jax.jit(lambda x: pj.parse("branching").embed((), x, pj.sites(8)._replace(position=x[:, 0])))(jnp.ones((8, 4)))

    assert experiments.cli.answer(trace, [str(faulty)]) == 2
    says = "line 14, in embed: TracerBoolConversionError: a branch on an array is not possible under jax.jit; use jnp.where"
    assert says in capsys.readouterr().err


WRONG = """
from dataclasses import dataclass

import posjax as pj


@pj.register("wrong")
@dataclass(frozen=True)
class Wrong(pj.Encoding):
    def {hook}(self, *arguments, **named):
        return {value}
"""


def through_a_layer():
    """Traces a layer that hosts the encoding `wrong`, as a model does."""
    encoding = pj.parse("wrong")

    def layer(x):
        params = encoding.init(jax.random.key(0), pj.Dims(width=16, num_heads=2, head_dim=8, length=8))
        x, hosted = pj.host(encoding, params, x, pj.sites(6), key=None)
        q = x.reshape(6, 2, 8)
        return hosted.attend(q, q, q, x=x, causal=True)

    jax.eval_shape(layer, jnp.ones((6, 16)))


@pytest.mark.usefixtures("own_registry", "unchecked_shapes")
@pytest.mark.parametrize("value", ["None", "(1, 2, 3)", "1 / 0"])
@pytest.mark.parametrize("hook", ["init", *HOOKS])
def test_a_hook_that_returns_a_wrong_value_is_one_line(hook, value, tmp_path, capsys):
    path = tmp_path / f"wrong_{hook}.py"
    path.write_text(WRONG.format(hook=hook, value=value))
    if value == "None" and hook in ("init", "sink"):
        pytest.skip("this value is right")
    assert cli.main(["check", "--axes=1", str(path)]) in (1, 2)
    shown = capsys.readouterr()
    (line,) = [line for line in (shown.out + shown.err).splitlines() if "error:" in line or "FAILS " in line]
    assert hook in line
    if hook == "init" and "/" not in value:
        return  # a layer without parameters does not read them
    assert experiments.cli.answer(through_a_layer, [str(path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    if hook != "observe":  # its errors of shapes name no file
        assert str(path) in line
