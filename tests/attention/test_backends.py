"""jax's own kernels beside the dense oracle, their refusals, and the choices of "auto"."""

import functools
import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import inner_jaxprs
from jax.sharding import AbstractDevice, AbstractMesh, NamedSharding, PartitionSpec
from test_blockwise import close

import posjax as pj
from posjax.attention import Asked, Backend, ContextParallel, backends, register
from posjax.attention.attend import transform
from posjax.attention.choose import choose
from posjax.attention.dense import Operands, dense, visible
from posjax.attention.devices import device_of
from posjax.attention.library import cudnn, cudnn_refusal, splash, tokamax, tokamax_refusal

LENGTH, HEADS, KEY_HEADS, WIDTH = 20, 4, 2, 8
RNG = np.random.default_rng(0)


def documents() -> pj.Site:
    site = pj.sites(LENGTH)
    return site._replace(segment=np.repeat([1, 2, 0], [9, 8, 3]).astype(np.int32))


def normal(length: int, heads: int, width: int = WIDTH):
    return jnp.asarray(RNG.normal(size=(length, heads, width)), jnp.float32)


def check(backend, spec: str, causal: bool, site: pj.Site, **options):
    """Output and gradients, those of parameters too, under vmap."""
    encoding, length = pj.parse(spec), len(site.segment)
    order = np.arange(length, dtype=np.int32) if causal else None
    params = encoding.init(jax.random.key(1), pj.Dims(HEADS * WIDTH, HEADS, WIDTH))
    qkv = [normal(length, heads) for heads in (HEADS, KEY_HEADS, KEY_HEADS)]

    def loss(read):
        def of(params, q, k, v):
            out = read(encoding, transform(encoding, params, q, k, v, site, site, order, order), scale=0.3)
            return jnp.sum(jnp.sin(out)), out

        return jax.value_and_grad(of, argnums=(0, 1, 2, 3), has_aux=True)

    @jax.jit
    def run(params, *qkv):
        batch = [jnp.stack([jnp.flip(x, 0), x]) for x in qkv]
        by_backend = jax.vmap(loss(functools.partial(backend, **options)), in_axes=(None, 0, 0, 0))(params, *batch)
        return jax.tree.map(lambda x: x[1], by_backend), loss(lambda *args, **rest: dense(*args, **rest)[0])(
            params, *qkv
        )

    ((_, out), grads), ((_, expected), expected_grads) = run(params, *qkv)
    close(out, expected)
    close(grads, expected_grads, atol=2e-5)


def test_splash_is_dense():
    """Grouped queries, documents and padding; interpreted."""
    check(
        splash,
        "rope() + window(4) + learned_sink(stddev=2) + learned_sink(stddev=2)",
        True,
        documents(),
        interpret=True,
    )


def test_splash_takes_biases_that_are_differences():
    """As channels of the keys, in documents too; a gate's sums get their gradient from them."""
    site = pj.sites(LENGTH)._replace(segment=documents().segment)
    check(splash, "rope() + alibi() + window(4)", True, site, interpret=True)
    encoding, order = pj.parse("fox"), np.arange(LENGTH, dtype=np.int32)
    q, k, v, weight = (normal(LENGTH, HEADS) for _ in range(4))
    sums = jnp.cumsum(-100 * jnp.abs(normal(LENGTH, HEADS, 1)[..., 0]), axis=0)

    def read(backend):
        def of(sums):
            at = site._replace(state=sums)
            operands = transform(encoding, None, q, k, v, at, at, order, order)
            return jnp.sum(weight * backend(encoding, operands, scale=0.3))

        return jax.jit(jax.value_and_grad(of))(sums)

    close(
        read(functools.partial(splash, interpret=True)),
        read(lambda *args, **options: dense(*args, **options)[0]),
        atol=2e-4,
    )


@pytest.mark.parametrize(
    ("spec", "site", "causal"),
    [
        ("alibi()", pj.sites(8), False),
        ("alibi() + learned_sink()", pj.sites(8), True),
        ("alibi(direction='split')", pj.sites(8), True),
        ("alibi()", pj.sites(8)._replace(prefix=np.eye(8, dtype=np.int32)[0]), True),
        ("fox() + t5()", pj.sites(8), True),
        ("self_extend(2, 3) >> alibi()", pj.sites(8), True),
    ],
)
def test_splash_refuses_other_biases(spec, site, causal):
    with pytest.raises(ValueError, match=r"adds to logits; the kernel takes a bias where"):
        choose(pj.parse(spec), *tokens(8), site, site, causal=causal, implementation="splash", platform="tpu")


def test_splash_refuses_a_bias_of_queries_that_stand_before_their_keys():
    where = dict(causal=True, implementation="splash", platform="tpu")
    with pytest.raises(ValueError, match="adds to logits"):
        choose(pj.parse("alibi"), *tokens(8), pj.sites(8), pj.sites(8, start=4), **where)


def test_gradients_of_sinks_in_splash_are_single_precision():
    """Of queries in half precision too."""
    encoding, order = pj.parse("learned_sink + learned_sink"), np.arange(LENGTH, dtype=np.int32)
    params = jax.eval_shape(lambda key: encoding.init(key, pj.Dims(HEADS * WIDTH, HEADS, WIDTH)), jax.random.key(0))
    x, site = jnp.zeros((LENGTH, HEADS, WIDTH), jnp.bfloat16), pj.sites(LENGTH)

    def loss(params):
        out = splash(
            encoding, transform(encoding, params, x, x, x, site, site, order, order), scale=0.3, interpret=True
        )
        return jnp.sum(out.astype(jnp.float32))

    assert {leaf.dtype.name for leaf in jax.tree.leaves(jax.eval_shape(jax.grad(loss), params))} == {"float32"}


@pytest.mark.parametrize(("width", "largest"), [(256, 1024), (896, 256)])
def test_blocks_of_wide_heads_are_small_in_splash(width, largest):
    """A TPU's vector memory does not hold 768 tokens of 896 channels, which `rayrope` makes for 13 views."""
    x, site = jax.ShapeDtypeStruct((2048, 1, width), jnp.float32), pj.sites(2048)
    program = jax.make_jaxpr(
        lambda x: splash(pj.parse("none"), Operands((), x, x, x, x, x, site, site, None, None), scale=1.0)
    )(x)
    eqns = [eqn for jaxpr, _ in inner_jaxprs(program) for eqn in jaxpr.eqns]
    (kernel,) = (eqn for eqn in eqns if eqn.primitive.name == "pallas_call")
    assert kernel.params["grid_mapping"].grid == (1, 2048 // largest, 2048 // largest)


def test_splash_hides_later_keys_of_other_tokens():
    """Queries of a document whose keys come later, or not at all, read zeros."""
    q_site, order, encoding = documents(), np.arange(LENGTH, dtype=np.int32), pj.parse("none")
    k_site = q_site._replace(segment=np.roll(q_site.segment, 4))

    @jax.jit
    def run(x):
        operands = Operands((), x, x, x, x, x, q_site, k_site, order, order)
        out = splash(encoding, operands, scale=0.3, interpret=True)
        return out, dense(encoding, operands, scale=0.3)[0], visible(encoding, q_site, k_site, order, order)

    out, expected, seen = run(normal(LENGTH, HEADS))
    assert not seen[:4].any()
    close(out, expected)


@pytest.mark.parametrize(
    ("spec", "causal", "length"), [("rope() + window(4)", True, LENGTH - 1), ("rope()", False, LENGTH)]
)
def test_cudnn_is_dense(spec, causal, length):
    """The call's arguments, as jax's XLA implementation of the same function takes them."""
    check(cudnn, spec, causal, pj.sites(length), implementation="xla")


@pytest.mark.parametrize("site", [pj.sites(LENGTH), documents()], ids=["a document", "documents"])
@pytest.mark.parametrize(
    ("spec", "causal"), [("rope() + window(4)", True), ("window(4, ahead=1)", False), ("none", True)]
)
def test_tokamax_is_dense(spec, causal, site):
    """Grouped queries, documents and padding, as it computes them on a CPU."""
    pytest.importorskip("tokamax", reason="tokamax is not installed: the extra tokamax brings it, from Python 3.12 on")
    check(tokamax, spec, causal, site)


def test_tokamax_caps_logits_and_reads_zeros_where_nothing_is_seen():
    pytest.importorskip("tokamax", reason="tokamax is not installed: the extra tokamax brings it, from Python 3.12 on")
    q_site = pj.sites(LENGTH)
    k_site = q_site._replace(segment=np.repeat([2, 1], [15, 5]).astype(np.int32))
    q, k, v = (normal(LENGTH, HEADS, width) for width in (8, 8, 12))

    def loss(q, k, v, implementation):
        told = dict(causal=True, softcap=0.5, implementation=implementation)
        out = pj.attend(pj.parse("none"), (), 5 * q, k, v, q_site, k_site, **told)
        return jnp.sum(jnp.sin(out)), out

    found, expected = (
        jax.value_and_grad(functools.partial(loss, implementation=name), (0, 1, 2), has_aux=True)(q, k, v)
        for name in ("tokamax", "dense")
    )
    assert not found[0][1][:15].any()
    close(found, expected, atol=2e-5)


def test_cudnn_refuses_queries_and_keys_of_unlike_documents():
    other = pj.sites(LENGTH)._replace(segment=np.full(LENGTH, 2, np.int32))
    given = operands(pj.sites(LENGTH))._replace(k_site=other)
    assert "documents" in cudnn_refusal(pj.parse("none"), given, "9.0")


def test_tokamax_is_missed_by_name(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert "pip install" in tokamax_refusal()
    assert "adds to logits" in backends.backend("tokamax").refusal(
        Asked(pj.parse("alibi"), operands(pj.sites(LENGTH)), "gpu", "9.0")
    )


def tokens(length: int, dtype=jnp.bfloat16, width: int = 64):
    return [jax.ShapeDtypeStruct((length, h, width), dtype) for h in (HEADS, KEY_HEADS, KEY_HEADS)]


def operands(site, order=None, **sizes):
    """The request of an attention."""
    q, k, v = tokens(len(site.segment), **sizes)
    return Operands(None, q, k, None, None, v, site, site, order, order)


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
        ("t5()", REGULAR, COUNTED, "adds to logits", "adds to logits"),
        ("window(3) + window(5)", REGULAR, COUNTED, "one window", "one window"),
        ("cope()", REGULAR, COUNTED, "cope", "cope"),
        ("rope() + stick_breaking()", REGULAR, COUNTED, "stick_breaking", "stick_breaking"),
        ("rope() + value_rotary()", REGULAR, COUNTED, None, None),
        ("rope() + learned_sink()", REGULAR, COUNTED, "learned_sink", None),
        ("rope() + token_sink()", REGULAR, COUNTED, "token_sink", r"token_sink\(\) has a sink for each query"),
        ("interpolate(factor=2) >> (learned_sink + token_sink)", REGULAR, COUNTED, "sink", "a sink for each query"),
        ("window(4)", REGULAR, None, "causal attention only", None),
        ("window(4)", GAPS, COUNTED, "one by one", "one by one"),
        ("window(4)", REGISTER, COUNTED, "one by one", "one by one"),
        ("window(4)", TRACED, COUNTED, "documents", "one by one"),
    ],
)
def test_refusals_of_library_kernels(spec, site, order, cudnn_reason, splash_reason):
    for name, platform, reason in (("cudnn", "gpu", cudnn_reason), ("splash", "tpu", splash_reason)):
        asked = Asked(pj.parse(spec), operands(site, order=order), platform, "9.0")
        got = backends.backend(name).refusal(asked)
        assert got is None if reason is None else re.search(reason, got), got


def test_refusals_of_shapes():
    site, capability = pj.sites(LENGTH), "9.0"
    assert "half precision" in cudnn_refusal(pj.parse("rope()"), operands(site, dtype=jnp.float32), capability)
    mixed = operands(site)._replace(k=tokens(LENGTH, jnp.float16)[1])
    assert "bfloat16, float16, bfloat16" in cudnn_refusal(pj.parse("rope()"), mixed, capability)
    assert "changes that of queries and keys" in cudnn_refusal(pj.parse("pope()"), operands(site), capability)


@pytest.fixture
def simulated_gpu(monkeypatch):
    """Lets jax believe that it has a GPU of a compute capability, with a recent cuDNN."""
    library = pytest.importorskip("jax._src.cudnn.fused_attention_stablehlo")
    of = lambda text: tuple(map(int, text.split(".")))  # noqa: E731

    def simulate(capability):
        monkeypatch.setattr(library, "check_compute_capability", lambda least: of(capability or "8.0") >= of(least))
        monkeypatch.setattr(library, "is_cuda_compute_capability_equal", lambda other: capability == other)
        monkeypatch.setattr(library, "check_cudnn_version", lambda: 91200)

    return simulate


@pytest.mark.parametrize("capability", [None, "8.0", "9.0", "10.3"])
def test_cudnn_refuses_the_shapes_that_jax_refuses(capability, simulated_gpu):
    """Against jax's own checks of a traced gradient; an unknown GPU has the bounds of an old one."""
    simulated_gpu(capability)
    encoding, widths = pj.parse("rope()"), (8, 20, 64, 100, 128, 136, 192, 200, 256, 264, 512)
    shapes = [(LENGTH, True, width) for width in widths] + [(21, True, 64), (21, False, 64)]
    for length, causal, width in shapes:
        given = operands(pj.sites(length), np.arange(length, dtype=np.int32) if causal else None, width=width)

        def loss(q, k, v, given=given):
            read = cudnn(encoding, given._replace(rotated_q=q, rotated_k=k, v=v), scale=0.3)
            return read.astype(jnp.float32).sum()

        refused = cudnn_refusal(encoding, given, capability)
        try:
            jax.eval_shape(jax.grad(loss), given.q, given.k, given.v)
        except NotImplementedError:
            assert refused, (length, width)
        else:
            assert not refused, (length, width)


@pytest.mark.parametrize(
    ("spec", "length", "dtype", "platform", "capability", "traced", "implementation"),
    [
        ("rope()", 64, jnp.float32, "cpu", None, True, "dense"),
        ("rope()", 65, jnp.float32, "cpu", None, True, "blockwise"),
        ("rope()", 2048, jnp.float32, "gpu", "9.0", True, "dense"),
        ("rope()", 2049, jnp.float32, "gpu", "9.0", True, "blockwise"),
        ("rope()", 2048, jnp.bfloat16, "gpu", "9.0", False, "cudnn"),
        ("rope()", 4096, jnp.bfloat16, "gpu", "7.5", False, "blockwise"),
        ("pope()", 4096, jnp.bfloat16, "gpu", "9.0", False, "blockwise"),
        ("rope()", 2048, jnp.bfloat16, "gpu", "9.0", True, "pallas"),
        ("rope() + alibi()", 2048, jnp.bfloat16, "gpu", "9.0", True, "pallas"),
        ("t5()", 4096, jnp.bfloat16, "gpu", "9.0", True, "blockwise"),
        ("t5()", 16384, jnp.bfloat16, "gpu", "9.0", True, "pallas"),
        ("alibi(direction='split')", 4096, jnp.bfloat16, "gpu", "9.0", True, "blockwise"),
        ("alibi()", 1024, jnp.bfloat16, "gpu", "9.0", False, "dense"),
        ("rope() + alibi() + window(100)", 4096, jnp.bfloat16, "gpu", "9.0", True, "blockwise"),
        ("kerple()", 4096, jnp.bfloat16, "gpu", "9.0", False, "blockwise"),
        ("rope() + t5()", 4096, jnp.bfloat16, "gpu", "8.0", True, "blockwise"),
        ("rope() + t5()", 4096, jnp.float32, "gpu", "9.0", True, "blockwise"),
        ("cope()", 4096, jnp.bfloat16, "gpu", "9.0", False, "blockwise"),
        ("stick_breaking()", 4096, jnp.bfloat16, "gpu", "9.0", False, "blockwise"),
        ("rope()", 2048, jnp.float32, "tpu", None, True, "splash"),
        ("rope() + learned_sink()", 2048, jnp.float32, "tpu", None, True, "splash"),
        ("alibi()", 2048, jnp.float32, "tpu", None, True, "pallas_tpu"),
        ("rope() + t5()", 1024, jnp.bfloat16, "tpu", None, False, "pallas_tpu"),
        ("transformer_xl() + bigbird()", 1024, jnp.bfloat16, "tpu", None, False, "pallas_tpu"),
        ("t5()", 256, jnp.bfloat16, "tpu", None, False, "dense"),
        ("fire()", 2048, jnp.bfloat16, "tpu", None, False, "blockwise"),
        ("rope() + alibi()", 2048, jnp.float32, "tpu", None, False, "splash"),
    ],
)
def test_auto(spec, length, dtype, platform, capability, traced, implementation):
    site = pj.sites(length)
    site = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), site) if traced else site
    where = dict(platform=platform, capability=capability)
    choice = choose(pj.parse(spec), *tokens(length, dtype), site, site, causal=True, **where)
    assert choice.implementation == implementation
    assert "; ".join(choice).count("not cudnn") == (platform == "gpu" and implementation != "cudnn")


def test_the_sequences_of_a_batch_count(monkeypatch):
    """Those that one device computes: their logits are in its memory together."""
    site, seen = pj.sites(1024), []
    where = dict(causal=True, platform="gpu", capability="9.0")
    for batch, implementation in ((64, "dense"), (65, "pallas")):
        given = pj.parse("kerple"), *tokens(1024, jnp.bfloat16), site, site
        assert choose(*given, **where, batch=batch).implementation == implementation

    def spy(*given, batch, **options):
        seen.append(batch)
        return choose(*given, batch=batch, **options)

    for module in ("attend", "parallel"):
        monkeypatch.setattr(sys.modules[f"posjax.attention.{module}"], "choose", spy)
    mesh = AbstractMesh((3, 2), ("data", "context"))
    hosted, q = pj.Hosted(pj.parse("rope"), (), pj.sites(6)), jnp.ones((6, 6, 2, 8))
    for context in (None, ContextParallel(mesh, batch_axis="data")):
        jax.eval_shape(lambda q, context=context: hosted.attend(q, q, q, context=context), q)
    assert seen == [6, 2]


@pytest.mark.parametrize("devices", [1, 2])
def test_cudnn_is_causal_where_a_device_has_all_queries(devices):
    site, where = pj.sites(2048), dict(causal=True, platform="gpu", capability="9.0", devices=devices)
    choice = choose(pj.parse("rope()"), *tokens(2048, jnp.bfloat16), site, site, **where)
    assert choice.implementation == ("cudnn" if devices == 1 else "pallas")
    assert ("the queries of each device have an order of their own" in choice.reason) == (devices > 1)


def test_the_choice_is_for_the_devices_of_the_mesh():
    """Tracers, shapes and meshes say on which devices they will be."""
    tpu = AbstractMesh((4,), ("data",), abstract_device=AbstractDevice("TPU v5 lite", 1, "tpu"))
    gpu = AbstractMesh((4,), ("data",), abstract_device=AbstractDevice("NVIDIA H100 80GB HBM3", None, "gpu"))
    assert device_of(gpu) == ("gpu", "9.0", "NVIDIA H100 80GB HBM3")
    assert device_of(jnp.ones(3)) == ("cpu", None, "cpu")
    q = jax.ShapeDtypeStruct((512, 4, 64), jnp.float32, sharding=NamedSharding(tpu, PartitionSpec("data")))
    site, seen = pj.sites(512), []

    def traced(q):
        seen.append(device_of(q + q))
        for devices in (None, 1):
            seen.append(choose(pj.parse("rope"), q, q, q, site, site, devices=devices).implementation)

    jax.jit(traced).trace(q)
    # Without a ContextParallel the compiler would have to split the kernel.
    assert [device_of(q), *seen] == [("tpu", None, "TPU v5 lite")] * 2 + ["dense", "splash"]


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


@pytest.fixture
def own_backends(monkeypatch):
    """Forgets the backends that a test registers."""
    monkeypatch.setattr(backends, "BACKENDS", dict(backends.BACKENDS))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: register("mine", softmax_of_all), "takes a Backend"),
        (lambda: register("dense", Backend(softmax_of_all)), "'dense' is registered already"),
        (lambda: Backend(softmax_of_all, platform="cuda"), "no platform is named 'cuda'"),
    ],
)
@pytest.mark.usefixtures("own_backends")
def test_what_is_no_backend_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def softmax_of_all(encoding, operands, *, scale):
    """A user's own: the definition, in a few lines."""
    params, q, k, rotated_q, rotated_k, v, q_site, k_site, q_order, k_order = operands
    heads = q.shape[1]
    k, rotated_k, v = (jnp.repeat(x, heads // x.shape[1], axis=1) for x in (k, rotated_k, v))
    logits = scale * encoding.product(rotated_q, q_site, rotated_k, k_site)
    logits = logits + encoding.bias(params, q, q_site, k, k_site)
    seen = visible(encoding, q_site, k_site, q_order, k_order)
    weights = jax.nn.softmax(logits, where=seen, axis=-1)
    return jnp.where(seen.any(-1)[:, None, None], jnp.einsum("hts,she->the", weights, v), 0).astype(q.dtype)


def no_more_than_twenty(asked):
    queries = asked.operands.q.shape[0]
    return None if queries <= 20 else f"{queries} queries are more than 20"


@pytest.mark.usefixtures("own_backends")
def test_a_backend_of_ones_own_is_used_by_name():
    called = []

    def run(encoding, operands, *, scale):
        called.append(scale)
        return softmax_of_all(encoding, operands, scale=scale)

    register("mine", Backend(run, no_more_than_twenty))
    encoding, site = pj.parse("rope() + t5() + window(4)"), documents()
    params = encoding.init(jax.random.key(1), pj.Dims(HEADS * WIDTH, HEADS, WIDTH))
    qkv = [normal(LENGTH, heads) for heads in (HEADS, KEY_HEADS, KEY_HEADS)]

    def read(implementation):
        return pj.attend(encoding, params, *qkv, site, site, causal=True, implementation=implementation)

    close(*jax.jit(lambda: (read("mine"), read("dense")))())
    assert len(called) == 1
    with pytest.raises(ValueError, match=r"'mien'; did you mean 'mine'\? known: auto, dense, .*tokamax, mine"):
        read("mien")
    with pytest.raises(ValueError, match="never holds the attention weights"):
        pj.attend(encoding, params, *qkv, site, site, implementation="mine", return_weights=True)


@pytest.mark.usefixtures("own_backends")
def test_choose_gives_the_reasons_of_ones_own():
    def ask(length, implementation="auto", platform="gpu", dtype=jnp.bfloat16):
        site, where = pj.sites(length), dict(platform=platform, capability="9.0")
        options = dict(causal=True, implementation=implementation, **where)
        return choose(pj.parse("rope()"), *tokens(length, dtype), site, site, **options)

    register("mine", Backend(softmax_of_all, no_more_than_twenty, "gpu", preferred=True))
    assert ask(20) == ("mine", "the fastest on gpu that can")
    assert ask(21) == ("cudnn", "the fastest on gpu that can; not mine: 21 queries are more than 20")
    assert ask(21, dtype=jnp.float32).reason.startswith(
        "441 logits a head are few; not mine: 21 queries are more than 20; not cudnn: cuDNN multiplies half precision"
    )
    assert ask(20, platform="cpu").implementation == "dense"
    assert ask(20, "mine") == ("mine", "asked for")
    with pytest.raises(ValueError, match="'mine' cannot compute this: 21 queries are more than 20"):
        ask(21, "mine")
    with pytest.raises(ValueError, match="'mine' cannot compute this: it runs on a GPU, this is for a CPU"):
        ask(20, "mine", "cpu")
    register("asked", Backend(softmax_of_all))
    assert ask(20).implementation == "mine", "what is not preferred is for those who ask for it"
    assert ask(20, "asked", "tpu") == ("asked", "asked for")


def test_importing_touches_no_kernel_language():
    """Installations for CPU only need not have what GPUs and TPUs need."""
    program = (
        "import sys, posjax.attention.choose; print(*[name for name in sys.modules if 'experimental.pallas' in name])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
