"""A block beside a float64 oracle; the way of running blocks changes no number."""

import functools
import math

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from drawn import drawn

import posjax as pj
from posjax.attention import ContextParallel
from posjax.hosting import Hosted
from posjax.models import BlockConfig, Decoder, Encoder, Transformer, ViT
from posjax.models.block import GATED, MLPS, PLACEMENTS, Block
from posjax.models.encoder_decoder import EncoderDecoder
from posjax.models.layers import normalised

BATCH, LENGTH, WIDTH, HEADS = 2, 5, 12, 4
SITE, MEMORY_SITE = pj.sites(LENGTH), pj.grid(1, 3)
RNG = np.random.default_rng(0)
X = jnp.asarray(RNG.normal(size=(BATCH, LENGTH, WIDTH)), jnp.float32)
MEMORY = jnp.asarray(RNG.normal(size=(BATCH, 3, 7)), jnp.float32)
NONE = Hosted(pj.parse("none"), (), SITE)


def float64(tree):
    return jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), tree)


class Oracle:
    """A block in numpy, one number after the other where that is what a formula says."""

    def __init__(self, config, params, causal):
        self.c, self.p, self.causal = config, float64(params), causal

    def norm(self, x, p, kind=None):
        if (kind or self.c.norm) == "layer":
            x = x - x.mean(axis=-1, keepdims=True)
        x = x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + self.c.norm_epsilon)
        return x * (p["scale"] + self.c.norm_offset) + p.get("bias", 0)

    def read(self, q, k, v, causal):
        """[B, H, T, D] of heads [B, H, T, D]."""
        scale = self.c.logit_scale or q.shape[-1] ** -0.5
        logits = scale * q @ k.swapaxes(-1, -2)
        if self.c.softcap:
            logits = self.c.softcap * np.tanh(logits / self.c.softcap)
        if causal:
            logits = np.where(np.tri(*logits.shape[-2:]), logits, -np.inf)
        weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
        return weights / weights.sum(axis=-1, keepdims=True) @ v

    def attention(self, x, p):
        groups, rows = p["qkv"]["kernel"].shape[1:3]
        bias = np.zeros(p["qkv"]["kernel"].shape[1:])
        has = [name in self.c.attention_bias for name in ["query"] * (rows - 2) + ["key", "value"]]
        if any(has):
            bias[:, np.array(has)] = p["qkv"]["bias"]
        heads = np.einsum("btm,mkrd->bkrtd", x, p["qkv"]["kernel"]) + bias[:, :, None]
        if self.c.qkv_clip:
            heads = np.clip(heads, -self.c.qkv_clip, self.c.qkv_clip)
        q, k, v = heads[:, :, :-2], heads[:, :, -2], heads[:, :, -1]
        return self.mixed(q.reshape(len(x), -1, *q.shape[3:]), k, v, p, self.causal)

    def qk_norm(self, x, p):
        """The norm of heads [B, H, T, D]."""
        if self.c.qk_norm == "unit":
            return self.norm(x, {"scale": 1 - self.c.norm_offset}, "rms")
        if self.c.qk_norm == "all_heads":
            tokens = x.swapaxes(1, 2).reshape(len(x), x.shape[2], -1)
            return self.norm(tokens, p, "rms").reshape(len(x), x.shape[2], -1, x.shape[3]).swapaxes(1, 2)
        return self.norm(x, p, "rms")

    def mixed(self, q, k, v, p, causal):
        if self.c.qk_norm:
            q, k = self.qk_norm(q, p.get("query_norm")), self.qk_norm(k, p.get("key_norm"))
        k, v = (np.repeat(each, q.shape[1] // k.shape[1], axis=1) for each in (k, v))
        out = np.einsum("bhtd,hdm->btm", self.read(q, k, v, causal), p["out"]["kernel"])
        return out + p["out"].get("bias", 0)

    def cross(self, x, memory, p):
        q, k, v = (
            np.einsum("btm,mhd->bhtd", of, p[name]["kernel"]) + p[name]["bias"][:, None]
            for of, name in ((x, "query"), (memory, "key"), (memory, "value"))
        )
        return self.mixed(q, k, v, p, False)

    def mlp(self, x, p):
        def dense(x, p):
            return x @ p["kernel"] + p.get("bias", 0)

        def gelu(x):
            return x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))

        def sigmoid(x):
            return 1 / (1 + np.exp(-x))

        hidden = dense(x, p["up"])

        def quick(x):
            return x * sigmoid(1.702 * x)

        def exact(x):
            return x / 2 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))

        gated = {"swiglu": lambda x: x * sigmoid(x), "geglu": gelu, "geglu_exact": exact}
        if self.c.mlp == "quick_geglu":
            clip = self.c.mlp_clip or np.inf
            hidden = (np.clip(hidden, -clip, clip) + 1) * quick(np.minimum(dense(x, p["gate"]), clip))
        elif self.c.mlp in gated:
            hidden = hidden * gated[self.c.mlp](dense(x, p["gate"]))
        else:
            plain = {"gelu": gelu, "gelu_exact": exact, "quick_gelu": quick, "relu": lambda x: np.maximum(x, 0)}
            hidden = plain[self.c.mlp](hidden)
        return dense(self.norm(hidden, p["norm"]) if self.c.mlp_norm else hidden, p["down"])

    def experts(self, x, p):
        def of(expert, name):
            return {kind: p[f"{name}_{kind}"][expert] for kind in ("kernel", "bias") if f"{name}_{kind}" in p}

        scores = x @ p["router"]["kernel"] + p["router"]["bias"]
        kept = np.sort(scores, axis=-1)[..., -self.c.experts_per_token, None]
        weights = np.where(scores >= kept, np.exp(scores), 0)
        weights = weights / weights.sum(axis=-1, keepdims=True)
        each = [self.mlp(x, {name: of(e, name) for name in ("up", "gate", "down")}) for e in range(self.c.num_experts)]
        return sum(weights[..., e, None] * out for e, out in enumerate(each))

    def __call__(self, x, memory=None):
        c, p, x = self.c, self.p, np.asarray(x, np.float64)
        scales = [c.branch_scale * p.get(f"{name}_scale", 1) for name in ("attention", "mlp")]
        branches = [
            lambda x: self.attention(x, p["attention"]) * scales[0],
            lambda x: (self.experts(x, p["experts"]) if c.num_experts else self.mlp(x, p["mlp"])) * scales[1],
        ]
        names = ["attention", "mlp"]
        if memory is not None:
            branches.insert(1, lambda x: self.cross(x, np.asarray(memory, np.float64), p["cross"]))
            names.insert(1, "cross")
        if c.placement.startswith("parallel"):
            attention, mlp = branches
            other = p["attention_norm" if c.placement == "parallel_shared" else "mlp_norm"]
            return x + attention(self.norm(x, p["attention_norm"])) + mlp(self.norm(x, other))
        for name, branch in zip(names, branches, strict=True):
            norm = p[f"{name}_norm"]
            if c.placement == "post":
                x = self.norm(x + branch(x), norm)
            elif c.placement == "after":
                x = x + self.norm(branch(x), norm)
            elif c.placement == "sandwich":
                x = x + self.norm(branch(self.norm(x, norm)), p[f"{name}_out_norm"])
            else:
                x = x + branch(self.norm(x, norm))
        return x


def check(causal=False, memory=None, **fields):
    config = BlockConfig(**dict(width=WIDTH, num_heads=HEADS) | fields)
    block = Block(config, causal)
    memory_told = None if memory is None else (memory, MEMORY_SITE)
    params = drawn(lambda key: block.init(key, X, NONE, memory=memory_told)["params"], jax.random.key(0), spread=0.4)
    out, _ = jax.jit(lambda params: block.apply({"params": params}, X, NONE, memory=memory_told))(params)
    np.testing.assert_allclose(out, Oracle(config, params, causal)(X, memory), rtol=2e-5, atol=2e-5)
    return params


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_norms_stand_where_they_are_placed(placement):
    params = check(placement=placement)
    more = {"sandwich": {"attention_out_norm", "mlp_out_norm"}}.get(placement, set())
    fewer = {"mlp_norm"} if placement == "parallel_shared" else set()
    norms = {name for name in params if name.endswith("norm")}
    assert norms == {"attention_norm", "mlp_norm"} - fewer | more


@pytest.mark.parametrize("mlp", MLPS)
def test_mlps(mlp):
    params = check(mlp=mlp, mlp_dim=7)
    assert ("bias" in params["mlp"]["up"]) == (mlp not in GATED)


@pytest.mark.parametrize(
    "fields",
    [
        dict(norm="rms", norm_epsilon=1e-2),
        dict(norm="rms", norm_offset=1.0, placement="sandwich", qk_norm=True),  # as Gemma
        dict(norm_offset=0.5, layer_scale=0.3),
        dict(head_dim=5, num_kv_heads=2, attention_bias=("query", "key", "value")),  # as Qwen2
        dict(num_kv_heads=1, attention_bias=("query", "value", "out")),  # as Whisper
        dict(attention_bias=(), mlp_bias=False, logit_scale=0.9),
        dict(mlp="swiglu", mlp_bias=True, mlp_norm=True, qk_norm=True),  # the MLP as in EVA-02
        dict(norm_bias=False, qkv_clip=0.5, mlp_bias=False),  # as MPT
        dict(norm="rms", placement="after", qk_norm="all_heads", num_kv_heads=2),  # as OLMo 2
        dict(norm="rms", norm_offset=0.5, qk_norm="unit"),  # as Llama 4
        dict(norm="rms", branch_scale=0.3, attention_bias=()),  # as Granite
        dict(mlp="quick_geglu", mlp_clip=0.4, mlp_bias=True, num_experts=4, experts_per_token=2),  # as gpt-oss
        dict(softcap=1.5, implementation="dense"),  # as Gemma 2
        dict(softcap=0.7, implementation="blockwise", num_kv_heads=2),
    ],
    ids=str,
)
def test_parts_of_published_blocks(fields):
    check(causal=True, **fields)


def test_a_pattern_of_norms_is_run_as_it_is_looped_over():
    """Layers 0, 2, 4 norm their queries and keys, the others do not; a loop over them traces two."""
    config = BlockConfig(width=WIDTH, num_heads=HEADS, head_dim=4, qk_norm=(True, False))
    model = Transformer((pj.parse("rope"), pj.parse("none"), pj.parse("alibi")), config, 6, causal=True)
    params = drawn(lambda key: model.init(key, X, SITE)["params"], jax.random.key(0))
    normed = ["query_norm" in params[f"block_{layer}"]["attention"] for layer in range(6)]
    assert normed == [True, False] * 3
    plain, looped = (
        jax.jit(lambda params, m=m: m.apply({"params": params}, X, SITE)[0])(params)
        for m in (model, model.clone(scan=True, remat="full"))
    )
    np.testing.assert_allclose(plain, looped, rtol=1e-5, atol=1e-5)
    with pytest.raises(ValueError, match=r"no qk_norm is named 'rms'; .*known: False, True, all_heads, unit"):
        BlockConfig(qk_norm=(False, "rms"))
    with pytest.raises(ValueError, match="experts_per_token=3 must lie between 1 and num_experts=2"):
        BlockConfig(num_experts=2, experts_per_token=3)
    with pytest.raises(ValueError, match="mlp_norm=True: experts have no norm"):
        BlockConfig(num_experts=2, mlp_norm=True)


def test_a_bias_of_some_projections_has_no_parameters_for_the_others():
    params = check(attention_bias=("query", "value"), num_kv_heads=2)
    assert params["attention"]["qkv"]["bias"].shape == (2, 3, 3)  # of two queries, a key and a value
    assert "bias" not in params["attention"]["out"]


@pytest.mark.parametrize("placement", ["post", "pre"])
def test_cross_attention_reads_the_memory(placement):
    check(causal=True, memory=MEMORY, placement=placement)


@pytest.mark.slow
def test_cross_attention_sees_the_memory_of_its_own_document():
    config = BlockConfig(width=WIDTH, num_heads=HEADS)
    model = Transformer((pj.parse("alibi"),), config, 2, causal=True)
    site = SITE._replace(segment=np.array([1, 1, 2, 2, 0], np.int32))
    memory_site = MEMORY_SITE._replace(segment=np.array([1, 2, 2], np.int32))

    def run(params, memory):
        return model.apply({"params": params}, X, site, memory=(memory, memory_site))[0]

    memory = (MEMORY, memory_site)
    params = drawn(lambda key: model.init(key, X, site, memory=memory)["params"], jax.random.key(0))
    change = np.abs(run(params, MEMORY) - run(params, MEMORY.at[:, 0].add(1))).max(axis=(0, 2))
    assert (change > 1e-4).tolist() == [True, True, False, False, False]


def test_a_norm_has_the_gradient_of_its_formula():
    def formula(x, centred):
        x = x - x.mean(axis=-1, keepdims=True) if centred else x
        return x / jnp.sqrt((x**2).mean(axis=-1, keepdims=True) + 1e-3)

    for centred in (True, False):
        _, pull = jax.vjp(lambda x, centred=centred: normalised(x, centred, 1e-3), X)
        _, expected = jax.vjp(lambda x, centred=centred: formula(x, centred), X)
        np.testing.assert_allclose(pull(X[::-1])[0], expected(X[::-1])[0], atol=1e-6)


def losses(model, params, train=False):
    """Logits and gradients."""
    tokens = jnp.asarray(np.arange(10).reshape(2, 5) % 7, jnp.int32)
    rngs = {"dropout": jax.random.key(1), "place": jax.random.key(2)}

    def loss(params):
        logits = model.apply({"params": params}, tokens, SITE, train=train, rngs=rngs)
        return jnp.square(logits).sum(), logits

    return jax.jit(jax.grad(loss, has_aux=True))(params)


@functools.cache
def computed_once(model):
    return losses(model, initial(model))


@functools.cache
def initial(model):
    tokens = jnp.zeros((1, 5), jnp.int32)
    return drawn(lambda key: model.init(key, tokens, SITE)["params"], jax.random.key(0))


@pytest.mark.parametrize(
    ("encoding", "options"),
    [
        ("t5", dict(depth=2, dropout=0.2, drop_path=0.3)),
        pytest.param(
            "rope, none",
            dict(depth=5, injection="every_layer_shared", dtype="bfloat16", placement="post"),
            marks=pytest.mark.slow,
        ),
        pytest.param("learned, t5, learned", dict(depth=6, injection="lape"), marks=pytest.mark.thorough),
        pytest.param("t5", dict(depth=2, injection="every_layer"), marks=pytest.mark.thorough),
    ],
)
def test_a_scan_over_layers_changes_nothing(encoding, options):
    """Nor does training with dropout and stochastic depth."""
    model = Decoder.from_config(dict(width=8, num_heads=2) | options, vocab_size=7, encoding=encoding, length=5)
    params = initial(model)
    train = "dropout" in options
    one, other = (losses(each, params, train) for each in (model, model.clone(scan=True)))
    tolerance = dict(rtol=0.1, atol=0.1) if "dtype" in options else dict(rtol=1e-4, atol=1e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, **tolerance), one, other)


def test_the_scan_compiles_one_block():
    calls = []

    def note(call, args, kwargs, context):
        if isinstance(context.module, Block) and context.method_name == "__call__":
            calls.append(context.module)
        return call(*args, **kwargs)

    model = Decoder(7, "rope, none", length=5, block=BlockConfig(width=8, num_heads=2), depth=6)
    params = initial(model)
    with nn.intercept_methods(note):
        for scan, blocks in ((False, 6), (True, 2)):
            calls.clear()
            jax.eval_shape(
                lambda scan=scan: model.clone(scan=scan).apply({"params": params}, jnp.ones((1, 5), int), SITE)
            )
            assert len(calls) == blocks


@pytest.mark.parametrize(
    ("remat", "scan", "implementation"),
    [
        ("full", True, "dense"),
        *(
            pytest.param(remat, scan, "blockwise", marks=pytest.mark.slow if scan else pytest.mark.thorough)
            for remat in ("full", "dots", "attention")
            for scan in (False, True)
        ),
    ],
)
def test_what_is_computed_again_is_the_same(remat, scan, implementation):
    model = Decoder(
        7, "rope + t5", length=5, block=BlockConfig(width=8, num_heads=2, implementation=implementation), depth=2
    )
    one, other = computed_once(model), losses(model.clone(remat=remat, scan=scan), initial(model))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), one, other)


@pytest.mark.slow
def test_rematerialisation_keeps_what_it_says():
    """The arrays that the backward pass of a model of 64 channels and 256 tokens is given."""

    def held(remat):
        model = Decoder(
            7, "rope", block=BlockConfig(width=64, num_heads=2, implementation="blockwise"), depth=2, remat=remat
        )
        tokens, site = jnp.zeros((1, 256), jnp.int32), pj.sites(256)
        params = jax.eval_shape(lambda: model.init(jax.random.key(0), tokens[:, :2], pj.sites(2)))
        _, pull = jax.eval_shape(lambda params: jax.vjp(lambda p: model.apply(p, tokens, site).sum(), params), params)
        return sum(leaf.size for leaf in jax.tree.leaves(pull))

    sizes = {remat: held(remat) for remat in ("none", "dots", "attention", "full")}
    assert sizes["full"] < sizes["attention"] < sizes["dots"] < sizes["none"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "spec",
    [
        "rope",
        *(
            pytest.param(spec, marks=pytest.mark.thorough)
            for spec in ("rope + t5", "self_extend(window=2, group=2) >> rope")
        ),
    ],
)
def test_capped_logits_are_the_same_in_tiles_and_in_a_cache(spec):
    """With their gradients; the second encoding has a product of its own."""
    options = dict(length=5, width=8, num_heads=2, depth=1, softcap=0.3, num_kv_heads=1)
    dense, tiles = (
        Decoder.from_config(options, vocab_size=7, encoding=spec, implementation=name)
        for name in ("dense", "blockwise")
    )
    params = initial(dense)
    one, other = losses(dense, params), losses(tiles, params)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), one, other)
    free = losses(dense.with_fields(softcap=None), params)
    assert np.abs(one[1] - free[1]).max() > 1e-3
    tokens = jnp.asarray(np.arange(10).reshape(2, 5) % 7, jnp.int32)
    prefill = jax.jit(functools.partial(dense.apply, cache_size=5, method=dense.prefill))
    extend = jax.jit(functools.partial(dense.apply, method=dense.extend))
    out, caches = prefill({"params": params}, tokens[:, :4], pj.sites(4))
    np.testing.assert_allclose(out, one[1][:, :4], atol=1e-5)
    out, _ = extend({"params": params}, tokens[:, 4:], pj.sites(1, start=4), caches)
    np.testing.assert_allclose(out[:, 0], one[1][:, 4], atol=1e-5)


def test_what_knows_no_soft_cap_refuses_it():
    q, site = jnp.ones((4, 2, 8)), pj.sites(4)
    with pytest.raises(ValueError, match="it knows no softcap; dense, blockwise and tokamax do"):
        pj.attend(pj.parse("rope"), (), q, q, q, site, site, softcap=2.0, implementation="pallas_interpret")
    context = ContextParallel(jax.sharding.Mesh(np.array(jax.devices()[:1]), ("context",)))
    with pytest.raises(ValueError, match=r"softcap=2\.0: devices that share sequences know none"):
        BlockConfig(softcap=2.0, context=context)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (dict(norm="rmss"), r"no norm is named 'rmss'; did you mean 'rms'"),
        (dict(placement="prenorm"), r"no placement is named 'prenorm'; did you mean 'pre'|no placement is named"),
        (dict(attention_bias=("q",)), r"no projection is named 'q'"),
        (dict(dropout=1.0), r"dropout=1.0 must lie in \[0, 1\)"),
        (dict(remat="all"), r"no remat is named 'all'; .*known: none, full, dots, attention|no remat is named 'all'"),
    ],
)
def test_a_block_that_cannot_be_is_refused_with_the_mend(fields, message):
    with pytest.raises(ValueError, match=message):
        Decoder.from_config(fields, vocab_size=7).init(jax.random.key(0), jnp.zeros((1, 5), jnp.int32), SITE)


def test_a_list_is_a_tuple_in_every_model(unchecked_shapes):
    """jax.jit hashes what is static, as the model in `generate`."""
    fields, specs = dict(width=8, num_heads=2, depth=2, attention_bias=["out"], qk_norm=[True, "unit"]), ["t5", "none"]
    models = [kind.from_config(fields, vocab_size=7, encoding=specs) for kind in (Decoder, Encoder, EncoderDecoder)]
    for model in (*models, ViT.from_config(fields, num_classes=3, encoding=specs, image_size=[8, 8])):
        assert isinstance(hash(model), int)
        assert model == model.clone(encoding=tuple(specs))


def test_every_model_has_the_fields_of_a_block():
    fields = dict(width=8, num_heads=2, head_dim=6, norm="rms", mlp="geglu", attention_bias=(), placement="sandwich")
    for model in (Decoder.from_config(fields, vocab_size=7), ViT.from_config(fields, num_classes=3)):
        assert model.block == BlockConfig(**fields)
        assert model.with_fields(qk_norm=True).block == BlockConfig(**fields, qk_norm=True)
