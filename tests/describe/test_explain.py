"""`posjax explain`: every encoding, in 100 columns, with numbers that are the library's own."""

import contextlib
import functools
import io
import re

import numpy as np
import pytest

import posjax as pj
import posjax.spec
from posjax import cli
from posjax.describe.explain.parts import HEADINGS
from posjax.describe.plots import self_logits


@functools.cache
def explained(*arguments):
    """Exit code, output and errors of the command."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = cli.main(["explain", *arguments])
    return code, out.getvalue(), err.getvalue()


def numbers(line):
    return [float(word) for word in re.findall(r"(?<![\w.])-?\d+(?:\.\d+)?(?:e[+-]?\d+)?(?!\w)", line)]


# Together they have every hook, on lines and on grids.
EVERY_HOOK = {
    "raster(width=7) >> alibi()": ["--grid=3x7"],
    "learned() + axial_rope() + alibi()": ["--grid=3x7"],
    "randomized(length=64) >> (circulant_string() + shaw() + learned_sink())": [],
    "value_rotary() + fox()": [],
    "carope() + stick_breaking()": [],
    "window(3)": [],
}


@pytest.mark.slow
def test_every_hook_is_explained_in_a_hundred_columns():
    shown = set()
    for spec, sizes in EVERY_HOOK.items():
        code, out, err = explained(spec, *sizes)
        assert (code, err) == (0, ""), spec
        assert max(map(len, out.splitlines())) <= 100
        assert not re.search(r"\bnan\b|\[\]", out)
        assert "WHAT ATTENTION SEES" in out.upper()
        shown |= {hook for hook, heading in HEADINGS.items() if f"\n{heading.upper()}\n" in out}
    assert shown == set(HEADINGS)


def section(out, title):
    """From a heading to the next one."""
    return re.split(r"\n\n[^\n]+\n[-=]+\n", out.split(f"{title.upper()}\n")[1])[0]


def test_rotation_shows_the_frequencies_and_angles_that_the_formula_says():
    _, out, _ = explained("rope(base=100)", "--head-dim=8")
    rows = [numbers(line) for line in out.split("turns in this example\n")[1].splitlines()[:4]]
    for c, (pair, first, second, rate, degrees, wavelength, _) in enumerate(rows):
        assert (pair, first, second) == (c, c, c + 4)
        np.testing.assert_allclose(rate, 100 ** (-c / 4), rtol=1e-5)
        np.testing.assert_allclose([degrees, wavelength], [np.degrees(rate), 2 * np.pi / rate], rtol=1e-3)
    by_hand = out.split("By hand")[1].splitlines()
    x, cos, y, sin, result = numbers(next(line for line in by_hand if "channel 0:" in line).split(":")[1])
    np.testing.assert_allclose(x * cos - y * sin, result, atol=3e-4)


def logits(out):
    """The table of the first tokens; NaN for hidden keys."""
    lines = out.split("column: key at):\n\n")[-1].split("\n\n")[0].splitlines()[1:]
    return np.array([[float(word.replace("hidden", "nan")) for word in line.split()[1:]] for line in lines])


def test_equal_differences_give_equal_logits_or_not():
    _, relative, _ = explained("rope")
    assert np.ptp(np.diagonal(logits(relative), -1)) < 1e-3
    assert "Equal differences give equal logits" in relative
    _, absolute, _ = explained("sinusoidal", "--length=40")
    assert np.ptp(np.diagonal(logits(absolute), -1)) > 1e-2
    assert "Equal differences do NOT give equal logits" in absolute
    assert "same linear map everywhere" in " ".join(absolute.split())
    assert "no single linear map" in " ".join(explained("learned", "--length=40")[1].split())
    assert "All logits are equal" in explained("none")[1]
    _, masked, _ = explained("window(3)")
    assert "the mask alone" in " ".join(masked.split())
    assert "   0  # # # . ." in masked


def test_weights_that_are_no_softmax_tell_places_apart():
    """With one logit z everywhere, of z = 0 say, the key at distance d gets beta (1 - beta)^(d - 1)."""
    _, out, _ = explained("stick_breaking")
    flat = " ".join(out.split())
    assert "All logits are equal" not in flat
    assert "Equal differences give equal weights" in flat
    beta = 1 / (1 + np.exp(-float(re.search(r"the same logit, (\S+) in head 0", flat)[1])))
    expected = np.log(beta) + np.arange(8) * np.log(1 - beta)
    np.testing.assert_allclose(logits(out)[8, 7::-1], expected, atol=2e-3)
    assert "No query sees a key" in explained("stick_breaking", "--length=1")[1]


def test_a_picture_of_weights_shows_their_logs():
    encoding, dims = pj.parse("stick_breaking"), pj.Dims(16, 2, 8)
    values, seen = self_logits(encoding, (), dims, pj.sites(6))
    np.testing.assert_array_equal(seen, np.tri(6, k=-1, dtype=bool))
    falls = values[:, 5, :5]
    assert (np.diff(falls) > 0).all()  # the nearer a key, the more it gets


def test_slopes_of_a_bias():
    _, out, _ = explained("alibi", "--num-heads=4")
    row = next(line for line in out.split("slope 3\n")[1].splitlines()[1:])
    distance, *biases = numbers(row)
    assert distance == 1
    np.testing.assert_allclose(biases, [-(2.0 ** -(2 * h)) for h in (1, 2, 3, 4)] * 2, atol=6e-5)


def test_a_composition_explains_its_parts_where_they_stand():
    code, out, _ = explained("interpolate(factor=2) >> (rope() + alibi())")
    assert code == 0
    titles = [line for line, under in zip(out.splitlines(), out.splitlines()[1:], strict=False) if set(under) == {"="}]
    assert titles == ["interpolate(factor=2)", "rope()", "alibi()", "What attention sees"]
    assert "0.5" in section(out, "where tokens stand")
    assert "-0.0312" in section(out, "what is added to the logits")  # half of the slope 2^-4 of head 0


def test_a_map_that_shows_every_pair_its_own_positions():
    code, out, _ = explained("self_extend(group=2, window=4) >> alibi")
    assert code == 0
    row = section(out, "how far tokens seem to be apart").split("\n\n")[1].splitlines()[-1]
    assert numbers(row)[:3] == [15, 9, 9]  # 15 // 2 + 4 - 4 // 2 - 0 // 2, and the same for key 1
    assert numbers(row)[-1] == 0


def test_parameters_that_start_at_zero_are_shown_awake(tmp_path, monkeypatch):
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
def test_plots_are_written_and_named(tmp_path):
    spec = "randomized(length=64) >> (sinusoidal + rope + alibi + window(3))"
    code, out, _ = explained(spec, f"--plot={tmp_path}", "--length=24", "--head-dim=8")
    assert code == 0
    written = [line.removeprefix("wrote ") for line in out.splitlines() if line.startswith("wrote ")]
    assert len(written) == 6
    assert sorted(map(str, tmp_path.glob("*.png"))) == sorted(written)
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in tmp_path.glob("*.png"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["rop"], "did you mean 'rope'"),
        (["raster(width=3) >> rope", "--grid=2x5"], "use raster(width=5)"),
        (["laplacian"], "cannot be explained"),
        (["mine", "--import=nowhere.py"], "nowhere.py"),
        (["rope", "--grid=0x3"], "expected"),
        (["rope", "--num-heads=two"], "expected"),
    ],
)
def test_mistakes_are_one_line(arguments, message):
    code, out, err = explained(*arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert message in err
