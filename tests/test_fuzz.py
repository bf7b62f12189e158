"""Specs, arguments of `attend` and command lines as nobody would write them: an answer, or one line with the mistake."""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import HEAD_DIM, HEADS, WIDTH
from fuzzing import counts, damaged_json, damaged_text, fuzz
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from members import MEMBERS

import posjax as pj
from experiments import cli
from posjax.attention import BEFORE_ATTENTION
from posjax.hf import from_hf_layers
from posjax.spec import parse_layers

SPECS = sorted({case.spec for member in MEMBERS.values() for case in member.variants})
CONFIGURATION = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_hidden_layers": 4,
    "max_position_embeddings": 64,
    "rope_parameters": {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e4, "original_max_position_embeddings": 16},
    "layer_types": ["full_attention", "sliding_attention"] * 2,
    "sliding_window": 8,
}


@counts(100, 400)
def test_specs(count, unchecked_shapes):
    def once(text):
        for encoding in parse_layers(text):
            assert pj.parse(str(encoding)) == encoding

    fuzz(count, damaged_text(SPECS), once)


@counts(30, 100)
def test_configurations_of_transformers(count):
    def once(config):
        for encoding in from_hf_layers(config):
            assert pj.parse(str(encoding)) == encoding

    fuzz(count, damaged_json(CONFIGURATION), once)


@pytest.mark.parametrize(
    "text", ["rope(" * 20_000, "rope() + " * 900 + "rope()", "rope(base=" + "9" * 5000 + ")", "\0", "-" * 999]
)
def test_specs_that_are_too_much(text):
    with pytest.raises(ValueError, match=r"encoding|parentheses|null bytes|digits") as told:
        pj.parse(text)
    assert len(str(told.value)) < 40_000


class Arguments:
    """Arguments of one call of `attend`: shapes, types and sites, most of them right."""

    @staticmethod
    @st.composite
    def drawn(draw):
        size = st.sampled_from([0, 1, 2, 3, 4, 5, 8])
        tokens, keys = draw(size), draw(size)
        heads, key_heads, dim = draw(st.sampled_from([1, 2, 3, 4])), draw(st.sampled_from([1, 2, 3, 4])), draw(size)
        shapes = [(tokens, heads, dim), (keys, key_heads, dim), (keys, key_heads, draw(st.sampled_from([dim, dim, 3])))]
        if draw(st.integers(0, 3)) == 0:
            index = draw(st.integers(0, 2))
            shapes[index] = draw(st.sampled_from([shapes[index][:2], (1, *shapes[index]), shapes[index][::-1], ()]))
        dtype = draw(st.sampled_from([jnp.float32, jnp.bfloat16, jnp.float16, jnp.int32, jnp.bool_]))
        axes = draw(st.sampled_from([0, 0, 0, 1, 2]))
        lengths = [draw(st.sampled_from([n, n, n, n, n + 1])) for n in (tokens, keys)]
        options = {
            "causal": draw(st.booleans()),
            "implementation": draw(st.sampled_from(["auto", "dense", "blockwise", "ring", ""])),
            "scale": draw(st.sampled_from([None, None, 1.0, 0, -1.0, float("nan")])),
            "softcap": draw(st.sampled_from([None, None, 30.0, 0.0, -1.0])),
            "return_weights": draw(st.booleans()),
        }
        spec = draw(
            st.sampled_from(
                ["none", "rope", "alibi", "t5", "learned", "fox", "shaw", "window(3)", "axial_rope", "cope"]
            )
        )
        return spec, shapes, dtype, axes, lengths, options


@counts(30, 150)
def test_arguments_of_attend(count, unchecked_shapes):
    """Traced only: shapes, types and options decide."""
    params = {}

    def once(drawn):
        spec, shapes, dtype, axes, lengths, options = drawn
        encoding = pj.parse(spec)
        if spec not in params:
            dims = pj.Dims(WIDTH, HEADS, HEAD_DIM, length=16, grid=(4, 4) if spec == "axial_rope" else None)
            params[spec] = encoding.init(jax.random.key(0), dims)
        sites = [
            pj.Site(np.zeros((n, axes) if axes else n, np.int32), np.ones(n, np.int32), np.zeros(n, np.int32))
            for n in lengths
        ]
        arrays = [jax.ShapeDtypeStruct(shape, dtype) for shape in shapes]

        def run(q, k, v):
            return pj.attend(encoding, params[spec], q, k, v, *sites, consumed=BEFORE_ATTENTION, **options)

        out = jax.tree.leaves(jax.eval_shape(run, *arrays))[0]
        assert out.shape == (*shapes[0][:2], shapes[2][2])

    fuzz(count, Arguments.drawn(), once, (ValueError, TypeError))


CONFIG = """
from ml_collections import ConfigDict, config_dict
def get_config(size="small"):
    model = {"width": 4, "flag": True, "shape": (1, 2), "name": "a", "rate": 0.1}
    rows = ConfigDict({"rope(base=0.5)": "rope(base=0.5)"}, allow_dotted_keys=True)
    return ConfigDict({"model": model, "steps": 3, "seed": config_dict.placeholder(int), "rows": rows})
"""
ARGUMENTS = [
    "--config=x.py",
    "--config=x.py:large",
    "--config.model.width=8",
    "--config.model.flag=False",
    "--config.model.shape=(3, 4)",
    "--config.model.rate=1e-3",
    '--config.rows["rope(base=0.5)"]=t5',
    "--config.seed=3",
    "--workdir=run",
    "--import=x.py",
    "--traceback=false",
]


@counts(12, 40)
def test_command_lines(count, tmp_path, monkeypatch, capfd):
    """Exit 0, or 2 and one line on stderr."""
    (tmp_path / "x.py").write_text(CONFIG)
    lines: list[list[str]] = []
    line = st.lists(st.sampled_from(ARGUMENTS[1:]) | damaged_text(ARGUMENTS, 2), max_size=3)

    @settings(
        max_examples=count,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(line, st.booleans())
    def collect(drawn, whole):
        drawn = [each.replace("\0", "") for each in drawn]
        # Not out of this folder; nor help, which is no mistake.
        if not any("/" in each or "help" in each or each in ("-h", "-?") for each in drawn):
            lines.append([*(ARGUMENTS[:1] if whole else []), *drawn])

    collect()
    monkeypatch.chdir(tmp_path)
    codes = set()
    for arguments in lines:
        monkeypatch.setattr(sys, "argv", ["throwaway", *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.run(lambda config, workdir: None, "A throwaway.")
        code, err = ended.value.code, capfd.readouterr().err
        mistaken = code == 2 and err.startswith("error: ") and err.count("\n") == 1
        assert mistaken or (code == 0 and not err), (arguments, code, err)
        codes.add(code)
    assert codes == {0, 2}
