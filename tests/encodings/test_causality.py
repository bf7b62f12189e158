"""No causal query sees a later token, wherever maps and views show it, and decoding is the full pass.

tests/encodings/test_properties.py says so of each encoding alone; here are compositions.
"""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import HEAD_DIM, HEADS, WIDTH, World, forward
from members import MEMBERS

import posjax as pj
from posjax.describe.runs import Sequence, decoded
from posjax.encoding import Needs

COUNT = 8
VIEWS = (
    "self_extend(group=2, window=1)",
    "rerope(window=3, step=0.25)",
    "dual_chunk(chunk=3, local=2)",
    "shifted(offset=3, local=1)",
    "streaming(num_sinks=1, window=4)",
    "self_extend(group=2, window=3) >> dual_chunk(chunk=2, local=1)",
)
# Encodings that sum over the tokens of a document and know nothing else of positions, and those that know more.
BY_ORDER = (
    "fox() + cope(npos=3, stddev=1)",
    "cable() + per_row_alibi() + data_dependent_alibi() + carope(stddev=1)",
    "selective_rope() + grape_m(stddev=1) + stick_breaking()",
    "path(stddev=0.5)",
)
READERS = *BY_ORDER, "grape_ap(p_head_dim=4) + dape(kernel_size=3) + alibi() + stick_breaking(attend_current=True)"
# Their logits, or the places of their tokens, depend on a whole document, or they are no causal model's.
ELSEWHERE = Needs.BOTH_DIRECTIONS | Needs.WHOLE_DOCUMENT | Needs.DOCUMENT_LENGTH | Needs.RELATION


def small(encoding: pj.Encoding) -> World:
    params = encoding.init(jax.random.key(1), pj.Dims(WIDTH, HEADS, HEAD_DIM, length=24))
    x, weights = (np.float32(np.random.default_rng(0).normal(size=s)) for s in ((COUNT, WIDTH), (3, WIDTH, HEADS, 8)))
    return World(encoding, params, jnp.asarray(x), pj.sites(COUNT), 0.3 * jnp.asarray(weights))


def outputs(w: World, **options) -> np.ndarray:
    """The outputs of one causal layer: [0] as it is, and [t] with another token t."""
    others = w.x + np.eye(COUNT)[..., None] * np.where(np.arange(COUNT) > 0, 3, 0)[:, None, None]
    run = jax.vmap(lambda x: forward(**w._replace(x=x)._asdict() | options, causal=True))
    return np.asarray(jax.jit(run)(jnp.float32(others)))


def check(encoding: pj.Encoding) -> np.ndarray:
    """The outputs of the causal layer."""
    w = small(encoding)
    found = outputs(w)
    for t in range(1, COUNT):
        np.testing.assert_allclose(found[t, :t], found[0, :t], atol=1e-5, err_msg=f"{encoding}: token {t}")
    steps, _ = jax.jit(lambda x: decoded(w, Sequence(x, w.site)))(w.x)
    np.testing.assert_allclose(steps, found[0], atol=2e-5, err_msg=str(encoding))
    return found[0]


@functools.cache
def unviewed(reader: str):
    """A function of the parameters: the outputs of a causal layer without a view."""
    w = small(pj.parse(reader))
    return jax.jit(lambda params: forward(*w._replace(params=params), causal=True))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("view", "reader"),
    [*((view, BY_ORDER[0]) for view in VIEWS[:-1]), *((VIEWS[2], reader) for reader in READERS[1:])],
)
def test_views_over_readers_hide_later_tokens(view, reader):
    encoding = pj.parse(f"{view} >> ({reader})")
    out = check(encoding)
    if reader != READERS[-1] and not view.startswith("streaming"):  # which hides keys
        params = small(encoding).params
        for _ in view.split(" >> "):
            params = params[1]
        np.testing.assert_allclose(out, unviewed(reader)(params), atol=2e-5)


def test_every_reader_is_here():
    """Encodings that observe content, or need whole rows, and no length of a document."""
    found = set()
    for name, member in MEMBERS.items():
        for case in member.variants:
            alone = pj.parse(case.spec)
            reads = alone.observes or Needs.WHOLE_ROWS in alone.needs or "weigh" in alone.hooks
            if reads and re.match(rf"{name}\(", case.spec) and not alone.needs & ELSEWHERE:
                found.add(name)
    assert found == set(re.findall(r"\w+(?=\()", " ".join(READERS))) - {"alibi"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "spec",
    [
        f"{VIEWS[0]} >> (shaw(max_relative_position=None, values=False) + alibi(direction='split', heads=2) + pape_ri())",
        f"{VIEWS[-1]} >> (alibi(direction='split', heads=2) + tree(depth=1, degree=20))",
        f"{VIEWS[1]} >> (pape(parabolas=3) + shaw(max_relative_position=4) + (shape(max_offset=10) >> learned(stddev=1)))",
        "interpolate(factor=3) >> (cope(npos=5, stddev=1) + carope(base=20, stddev=0.5) + chunked(size=3))",
    ],
)
def test_compositions_hide_later_tokens(spec):
    check(pj.parse(spec))


@pytest.mark.parametrize("reader", ["fox()", "rope() + cope()", "dual_chunk(chunk=4, local=2) >> path()"])
def test_ids_that_tokens_share_tell_no_order(reader):
    with pytest.raises(
        ValueError, match=r"position_coupling\(max_position=9\) does not tell which token comes first.*axes"
    ):
        pj.parse(f"position_coupling(max_position=9) >> ({reader})")


def test_jitter_moves_no_token_past_another_in_a_sum():
    """`cape` may show a later token before an earlier one in training."""
    w = small(pj.parse("cape(max_local_shift=3) >> (fox() + cope(npos=3, stddev=1))"))
    site = w.encoding.place(w.params, w.site, jax.random.key(0))
    assert np.any(np.diff(site.position) < 0)

    found = outputs(w, site=site, placed=True)
    for t in range(1, COUNT):
        np.testing.assert_allclose(found[t, :t], found[0, :t], atol=1e-5, err_msg=f"token {t}")
