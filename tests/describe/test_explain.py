"""`posjax explain`: every encoding, in 100 columns, with numbers that are the library's own."""

import re

import numpy as np
import pytest
from members import GRID, LINE, MEMBERS, one_of_each

import posjax as pj
import posjax.spec
from posjax import cli
from posjax.describe.plots import self_logits

FAST = {"none", "sinusoidal", "learned", "rope", "alibi", "raster"}
OF_A_KIND = one_of_each(LINE).keys() | one_of_each(GRID).keys()


def marks(name):
    return [] if name in FAST else pytest.mark.slow if name in OF_A_KIND else pytest.mark.thorough


@pytest.fixture
def explained(capsys):
    def function(*arguments):
        code = cli.main(["explain", *arguments])
        shown = capsys.readouterr()
        return code, shown.out, shown.err

    return function


def numbers(line):
    return [float(word) for word in re.findall(r"(?<![\w.])-?\d+(?:\.\d+)?(?:e[+-]?\d+)?(?!\w)", line)]


@pytest.mark.parametrize("name", [pytest.param(name, marks=marks(name)) for name in MEMBERS])
def test_every_encoding_is_explained(explained, name):
    case = MEMBERS[name].variants[0]
    sizes = ["--grid=3x7"] if case.kind == "grid" else []
    code, out, err = explained(case.spec, "--head-dim=8", "--num-heads=3", *sizes)
    assert (code, err) == (0, "")
    assert max(map(len, out.splitlines())) <= 100
    assert not re.search(r"\bnan\b|\[\]", out)
    assert str(pj.parse(case.spec)).split("(")[0] in out
    assert "WHAT ATTENTION SEES" in out.upper()


def section(out, title):
    """From a heading to the next one."""
    return re.split(r"\n\n[^\n]+\n[-=]+\n", out.split(f"{title.upper()}\n")[1])[0]


def test_rotation_shows_the_frequencies_and_angles_that_the_formula_says(explained):
    _, out, _ = explained("rope(base=100)", "--head-dim=8")
    rows = [numbers(line) for line in out.split("turns in this example\n")[1].splitlines()[:4]]
    for c, (pair, first, second, rate, degrees, wavelength, _) in enumerate(rows):
        assert (pair, first, second) == (c, c, c + 4)
        np.testing.assert_allclose(rate, 100 ** (-c / 4), rtol=1e-5)
        np.testing.assert_allclose([degrees, wavelength], [np.degrees(rate), 2 * np.pi / rate], rtol=1e-3)
    by_hand = out.split("By hand")[1].splitlines()
    x, cos, y, sin, result = numbers(next(line for line in by_hand if "channel 0:" in line).split(":")[1])
    np.testing.assert_allclose(x * cos - y * sin, result, atol=3e-4)


def relativity(out):
    """{difference: logits} of the table."""
    table = out.split("logit before  logit after\n")[1].split("\n\n")[0]
    found = {}
    for line in table.splitlines():
        m, n, difference, before, after = numbers(line)
        assert m - n == difference
        found.setdefault(difference, []).append(after)
    return found


def test_equal_differences_give_equal_logits_or_not(explained):
    _, relative, _ = explained("rope")
    assert all(np.ptp(logits) < 1e-3 for logits in relativity(relative).values())
    assert "Equal differences give equal logits" in relative
    _, absolute, _ = explained("sinusoidal")
    assert all(np.ptp(logits) > 1e-2 for logits in relativity(absolute).values())
    assert "Equal differences do NOT give equal logits" in absolute
    _, nothing, _ = explained("none")
    assert "All logits are equal" in nothing
    _, masked, _ = explained("window(3)")
    assert "the mask alone" in " ".join(masked.split())
    assert "   0  # # # . ." in masked


def test_weights_that_are_no_softmax_tell_places_apart(explained):
    """With one logit z everywhere, of z = 0 say, the key at distance d gets beta (1 - beta)^(d - 1)."""
    _, out, _ = explained("stick_breaking")
    flat = " ".join(out.split())
    assert "All logits are equal" not in flat
    assert "Equal differences give equal weights" in flat
    rows = [numbers(line) for line in out.split("logit before  log weight\n")[1].split("\n\n")[0].splitlines()]
    for _, _, distance, z, log_weight in rows:
        beta = 1 / (1 + np.exp(-z))
        np.testing.assert_allclose(log_weight, np.log(beta) + (distance - 1) * np.log(1 - beta), atol=2e-3)
    _, out, _ = explained("sinusoidal() + stick_breaking()")
    assert "Equal differences do NOT give equal weights" in out
    assert "No query sees a key" in explained("stick_breaking", "--length=1")[1]


def test_a_picture_of_weights_shows_their_logs():
    encoding, dims = pj.parse("stick_breaking"), pj.Dims(16, 2, 8)
    values, seen = self_logits(encoding, (), dims, pj.sites(6))
    np.testing.assert_array_equal(seen, np.tri(6, k=-1, dtype=bool))
    falls = values[:, 5, :5]
    assert (np.diff(falls) > 0).all()  # the nearer a key, the more it gets


def test_codes_of_neighbours_are_a_linear_map_apart_only_for_sinusoids(explained):
    _, out, _ = explained("sinusoidal", "--length=40")
    assert "same linear map everywhere" in " ".join(out.split())
    assert "no single linear map" in " ".join(explained("learned", "--length=40")[1].split())


def test_slopes_of_a_bias(explained):
    _, out, _ = explained("alibi", "--num-heads=4")
    row = next(line for line in out.split("slope 3\n")[1].splitlines()[1:])
    distance, *biases = numbers(row)
    assert distance == 1
    np.testing.assert_allclose(biases, [-(2.0 ** -(2 * h)) for h in (1, 2, 3, 4)] * 2, atol=6e-5)


def test_a_composition_explains_its_parts_where_they_stand(explained):
    code, out, _ = explained("interpolate(factor=2) >> (rope() + alibi())")
    assert code == 0
    titles = [line for line, under in zip(out.splitlines(), out.splitlines()[1:], strict=False) if set(under) == {"="}]
    assert titles == ["interpolate(factor=2)", "rope()", "alibi()", "What attention sees"]
    assert "0.5" in section(out, "where tokens stand")
    assert "-0.0312" in section(out, "what is added to the logits")  # half of the slope 2^-4 of head 0


def test_a_map_that_shows_every_pair_its_own_positions(explained):
    code, out, _ = explained("self_extend(group=2, window=4) >> alibi")
    assert code == 0
    row = section(out, "how far tokens seem to be apart").split("\n\n")[1].splitlines()[-1]
    assert numbers(row)[:3] == [15, 9, 9]  # 15 // 2 + 4 - 4 // 2 - 0 // 2, and the same for key 1
    assert numbers(row)[-1] == 0


def test_parameters_that_start_at_zero_are_shown_awake(explained, tmp_path, monkeypatch):
    monkeypatch.setattr(posjax.spec, "REGISTRY", dict(posjax.spec.REGISTRY))
    source = tmp_path / "asleep.py"
    source.write_text(USER.format(name="asleep", value="jnp.zeros"))
    code, out, _ = explained("asleep", f"--import={source}")
    assert code == 0
    assert "start at zero (shift)" in " ".join(out.split())


USER = '''
from dataclasses import dataclass

import jax.numpy as jnp

import posjax as pj


@pj.register("{name}")
@dataclass(frozen=True)
class Mine(pj.Encoding):
    """A learned number on the logits of every head, times the distance.

    Nobody (2026), arXiv 2601.00001.
    """

    slope: float = 1.0

    def init(self, key, dims):
        return {{"shift": {value}(dims.num_heads)}}

    def bias(self, params, q, q_site, k, k_site):
        distance = jnp.abs(q_site.position[:, None] - k_site.position[None])
        return -self.slope * params["shift"][:, None, None] * distance
'''


@pytest.mark.slow
def test_plots_are_written_and_named(explained, tmp_path):
    code, out, _ = explained("rope + alibi", f"--plot={tmp_path}", "--length=24", "--head-dim=8")
    assert code == 0
    written = [line.removeprefix("wrote ") for line in out.splitlines() if line.startswith("wrote ")]
    assert len(written) == 3
    assert sorted(map(str, tmp_path.glob("*.png"))) == sorted(written)
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in tmp_path.glob("*.png"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["rop"], "no encoding is named 'rop'; did you mean 'rope'"),
        (["rope", "--head-dim=7"], "head_dim must be even, got 7"),
        (["raster(width=3) >> rope", "--grid=2x5"], "use raster(width=5)"),
        (["mine", "--import=nowhere.py"], "there is no file 'nowhere.py'"),
        (["mine", "--import=no_such_module"], "no_such_module: ModuleNotFoundError"),
    ],
)
def test_mistakes_are_one_line(explained, arguments, message):
    code, out, err = explained(*arguments)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert message in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("spec", ["laplacian", "tree(depth=4, degree=2)"])
def test_more_axes_than_examples_have_are_told_without_a_mend_that_does_not_help(explained, spec):
    code, _, err = explained(spec)
    assert code == 2
    assert "cannot be explained" in err
    assert "--grid" not in err


@pytest.mark.parametrize("flag", ["--grid=4", "--grid=0x3", "--length=0", "--num-heads=two"])
def test_sizes_that_are_none(flag, capsys):
    assert cli.main(["explain", "rope", flag]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "expected" in line
