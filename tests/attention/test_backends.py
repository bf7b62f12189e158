"""Kernels that come with jax beside the dense oracle, what they refuse, and what "auto" chooses."""

import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_blockwise import close

import posjax as pj
from posjax.attention.choose import IMPLEMENTATIONS, choose
from posjax.attention.dense import dense, visible
from posjax.attention.library import cudnn, cudnn_refusal, splash, splash_refusal

LENGTH, HEADS, KEY_HEADS, WIDTH = 20, 4, 2, 8
slow = pytest.mark.slow


def documents() -> pj.Site:
    site = pj.sites(LENGTH)
    return site._replace(segment=np.repeat([1, 2, 0], [9, 8, 3]).astype(np.int32))


def check(backend, spec: str, causal: bool, site: pj.Site, **options):
    """Output and gradients, under vmap."""
    encoding, order = pj.parse(spec), np.arange(LENGTH, dtype=np.int32) if causal else None
    params = encoding.init(jax.random.key(1), pj.Dims(HEADS * WIDTH, HEADS, WIDTH))
    keys = jax.random.split(jax.random.key(2), 3)
    qkv = [jax.random.normal(k, (LENGTH, h, WIDTH)) for k, h in zip(keys, (HEADS, KEY_HEADS, KEY_HEADS), strict=True)]

    def loss(read):
        def of(q, k, v):
            out = read(encoding, params, q, k, *encoding.rotate(params, q, site, k, site), v, site, site, scale=0.3)
            return jnp.sum(jnp.sin(out)), out

        return jax.value_and_grad(of, argnums=(0, 1, 2), has_aux=True)

    def by_backend(*args, **rest):
        return backend(*args, **rest, q_order=order, k_order=order, **options)

    def by_dense(*args, **rest):
        return dense(*args, **rest, seen=visible(encoding, site, site, order, order))[0]

    batch = [jnp.stack([x[::-1], x]) for x in qkv]
    (_, out), grads = jax.tree.map(lambda x: x[1], jax.jit(jax.vmap(loss(by_backend)))(*batch))
    (_, expected), expected_grads = jax.jit(loss(by_dense))(*qkv)
    close(out, expected)
    close(grads, expected_grads, atol=2e-5)


@pytest.mark.parametrize(
    ("spec", "causal"),
    [
        ("rope() + window(4)", True),
        pytest.param("rope()", True, marks=slow),
        pytest.param("none", False, marks=slow),
        pytest.param("window(3)", False, marks=slow),
    ],
)
def test_splash_is_dense(spec, causal):
    """Grouped queries, documents and padding; interpreted."""
    check(splash, spec, causal, documents(), interpret=True)


@pytest.mark.parametrize(("spec", "causal"), [("rope() + window(4)", True), ("rope()", False)])
def test_cudnn_is_dense(spec, causal):
    """The call's arguments, as jax's XLA implementation of the same function takes them."""
    check(cudnn, spec, causal, pj.sites(LENGTH), implementation="xla")


def tokens(length: int, dtype=jnp.bfloat16, width: int = 64):
    return [jax.ShapeDtypeStruct((length, h, width), dtype) for h in (HEADS, KEY_HEADS, KEY_HEADS)]


REGULAR = pj.sites(LENGTH)
GAPS = REGULAR._replace(position=2 * REGULAR.position)
REGISTER = REGULAR._replace(prefix=np.eye(LENGTH, dtype=np.int32)[0])
TRACED = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), REGULAR)
COUNTED = np.arange(LENGTH, dtype=np.int32)


@pytest.mark.parametrize(
    ("spec", "site", "order", "cudnn_reason", "splash_reason"),
    [
        ("rope()", REGULAR, COUNTED, None, None),
        ("sinusoidal() + rope() + window(4)", REGULAR, COUNTED, None, None),
        ("rope()", documents(), COUNTED, "documents", None),
        ("rope()", TRACED, COUNTED, "documents", None),
        ("rope()", REGULAR, COUNTED[::-1], "causal in the order", "causal in the order"),
        ("alibi()", REGULAR, COUNTED, "acts on logits", "acts on logits"),
        ("window(3) + window(5)", REGULAR, COUNTED, "acts on logits", "acts on logits"),
        ("cope()", REGULAR, COUNTED, "cope", "cope"),
        ("window(4)", REGULAR, None, "causal attention only", None),
        ("window(4)", GAPS, COUNTED, "one by one", "one by one"),
        ("window(4)", REGISTER, COUNTED, "one by one", "one by one"),
        ("window(4)", TRACED, COUNTED, "documents", "one by one"),
    ],
)
def test_refusals_of_library_kernels(spec, site, order, cudnn_reason, splash_reason):
    for refusal, reason in ((cudnn_refusal, cudnn_reason), (splash_refusal, splash_reason)):
        got = refusal(pj.parse(spec), *tokens(LENGTH), site, site, order, order)
        assert got is None if reason is None else re.search(reason, got), got


def test_refusals_of_shapes():
    site = pj.sites(LENGTH)
    assert "half precision" in cudnn_refusal(pj.parse("rope()"), *tokens(LENGTH, jnp.float32), site, site)
    assert "multiple of 8" in cudnn_refusal(pj.parse("rope()"), *tokens(LENGTH, width=20), site, site)
    other = site._replace(segment=site.segment.copy())
    assert "same tokens" in splash_refusal(pj.parse("rope()"), *tokens(LENGTH), site, other, COUNTED, COUNTED)


@pytest.mark.parametrize(
    ("spec", "length", "dtype", "platform", "capability", "traced", "implementation"),
    [
        ("rope()", 256, jnp.float32, "cpu", None, True, "dense"),
        ("rope()", 257, jnp.float32, "cpu", None, True, "blockwise"),
        ("rope()", 1024, jnp.float32, "gpu", "9.0", True, "dense"),
        ("rope()", 1025, jnp.float32, "gpu", "9.0", True, "blockwise"),
        ("rope()", 2048, jnp.bfloat16, "gpu", "9.0", False, "cudnn"),
        ("rope()", 2048, jnp.bfloat16, "gpu", "7.5", False, "blockwise"),
        ("rope()", 2048, jnp.bfloat16, "gpu", "9.0", True, "blockwise"),
        ("rope() + t5()", 2048, jnp.bfloat16, "gpu", "9.0", True, "blockwise"),
        ("rope() + t5()", 2048, jnp.bfloat16, "gpu", "8.0", True, "blockwise"),
        ("rope() + t5()", 2048, jnp.float32, "gpu", "9.0", True, "blockwise"),
        ("cope()", 2048, jnp.bfloat16, "gpu", "9.0", False, "blockwise"),
        ("rope()", 2048, jnp.float32, "tpu", None, True, "splash"),
        ("alibi()", 2048, jnp.float32, "tpu", None, True, "blockwise"),
    ],
)
def test_auto(spec, length, dtype, platform, capability, traced, implementation):
    site = pj.sites(length)
    site = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), site) if traced else site
    where = dict(platform=platform, capability=capability)
    choice = choose(pj.parse(spec), *tokens(length, dtype), site, site, causal=True, **where)
    assert choice.implementation == implementation
    assert "; ".join(choice).count("not cudnn") == (platform == "gpu" and implementation != "cudnn")


def test_what_is_asked_for():
    site = pj.sites(LENGTH)

    def ask(implementation, spec="alibi()"):
        return choose(
            pj.parse(spec), *tokens(LENGTH), site, site, causal=True, implementation=implementation, platform="cpu"
        )

    for name in ("dense", "blockwise", "pallas_interpret"):
        assert ask(name) == (name, "asked for")
    with pytest.raises(ValueError, match=r"'palas'.*did you mean 'pallas'"):
        ask("palas")
    with pytest.raises(ValueError, match="runs on a TPU, this is for a CPU"):
        ask("splash")
    with pytest.raises(ValueError, match='"pallas_interpret" runs it anywhere'):
        ask("pallas")
    with pytest.raises(ValueError, match=r"cope.*not written for a kernel"):
        ask("pallas_interpret", "cope()")
    assert len(set(IMPLEMENTATIONS)) == len(IMPLEMENTATIONS)


def test_importing_touches_no_kernel_language():
    """Installations for CPU only need not have what GPUs and TPUs need."""
    program = (
        "import sys, posjax.attention.choose; print(*[name for name in sys.modules if 'experimental.pallas' in name])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
