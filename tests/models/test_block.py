"""A block beside a float64 oracle; the way of running blocks changes no number."""

import math

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from drawn import drawn
from goldens.check import load

import posjax as pj
from posjax.attention import ContextParallel
from posjax.attention.devices import Device
from posjax.hosting import Hosted
from posjax.models import BlockConfig, Decoder, Encoder, Latent, ViT, block, layers
from posjax.models.block import Attention, Block
from posjax.models.encoder_decoder import EncoderDecoder
from posjax.models.layers import Linear

BATCH, LENGTH, WIDTH, HEADS = 2, 5, 12, 4
SITE, MEMORY_SITE = pj.sites(LENGTH), pj.grid(1, 3)
RNG = np.random.default_rng(0)
X = jnp.asarray(RNG.normal(size=(BATCH, LENGTH, WIDTH)), jnp.float32)
MEMORY = jnp.asarray(RNG.normal(size=(BATCH, 3, 7)), jnp.float32)
NONE = Hosted(pj.parse("none"), (), SITE)
LATENT = Latent(kv_lora_rank=6, qk_nope_head_dim=4, qk_rope_head_dim=8, v_head_dim=5)
CONTEXT = ContextParallel(jax.sharding.Mesh(np.array(jax.devices()[:1]), ("context",)))


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
        gate = 1.0
        if self.c.attention_gate:
            own = p["output_gate"]
            gate = np.einsum("btm,mhd->bhtd", x, own["kernel"]) + np.expand_dims(own.get("bias", [[0.0]]), 1)
            gate = 1 / (1 + np.exp(-gate))
        return self.mixed(q.reshape(len(x), -1, *q.shape[3:]), k, v, p, self.causal, gate)

    def qk_norm(self, x, p):
        """The norm of heads [B, H, T, D]."""
        if self.c.qk_norm == "unit":
            return self.norm(x, {"scale": 1 - self.c.norm_offset}, "rms")
        if self.c.qk_norm == "all_heads":
            tokens = x.swapaxes(1, 2).reshape(len(x), x.shape[2], -1)
            return self.norm(tokens, p, "rms").reshape(len(x), x.shape[2], -1, x.shape[3]).swapaxes(1, 2)
        return self.norm(x, p, "rms")

    def mixed(self, q, k, v, p, causal, gate=1.0):
        if self.c.qk_norm:
            q, k = self.qk_norm(q, p.get("query_norm")), self.qk_norm(k, p.get("key_norm"))
        k, v = (np.repeat(each, q.shape[1] // k.shape[1], axis=1) for each in (k, v))
        out = np.einsum("bhtd,hdm->btm", gate * self.read(q, k, v, causal), p["out"]["kernel"])
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


# Each placement and each MLP once.
BLOCKS = [
    dict(mlp="gelu", norm="rms", norm_epsilon=1e-2, num_kv_heads=1, attention_bias=("query", "value", "out")),
    dict(mlp="geglu", norm="rms", norm_offset=1.0, placement="sandwich", qk_norm=True),  # as Gemma
    dict(mlp="gelu_exact", norm_offset=0.5, layer_scale=0.3, placement="parallel", attention_gate="head"),
    dict(mlp="quick_gelu", head_dim=5, num_kv_heads=2, attention_bias=("key", "value"), placement="parallel_shared"),
    dict(mlp="relu", attention_bias=(), mlp_bias=False, logit_scale=0.9, placement="post"),
    dict(
        mlp="swiglu", mlp_bias=True, mlp_norm=True, norm="rms", placement="after", qk_norm="all_heads", num_kv_heads=2
    ),
    dict(
        mlp="geglu_exact",
        norm_bias=False,
        qkv_clip=0.5,
        norm="rms",
        norm_offset=0.5,
        qk_norm="unit",
        attention_gate="channel",
    ),
    dict(mlp="quick_geglu", branch_scale=0.3, softcap=0.7, implementation="blockwise", num_kv_heads=2),
    dict(mlp="quick_geglu", mlp_clip=0.4, mlp_bias=True, num_experts=4, experts_per_token=2),  # as gpt-oss
]


@pytest.mark.parametrize("fields", BLOCKS, ids=str)
def test_parts_of_published_blocks(fields):
    check(causal=True, **fields)


@pytest.mark.parametrize("implementation", ["dense", "blockwise"])
def test_a_gate_by_channel_is_that_of_qwen3_next(implementation):
    """Its query projection holds each head's query and then its gate."""
    file = {name: x.astype(np.float32) for name, x in load("gate").items() if name != "versions"}
    heads = dict(num_heads=4, num_kv_heads=2, head_dim=8, attention_gate="channel", implementation=implementation)
    config = BlockConfig(width=24, norm="rms", norm_offset=1.0, qk_norm=True, **heads)

    def projected(kind):
        """[H, D, M] or [H, D] of queries, gates, keys and values."""
        both, k, v = (file[f"{name}_proj.{kind}"] for name in "qkv")
        q, gate = np.split(both.reshape(4, 16, *both.shape[1:]), 2, axis=1)
        k, v = (each.reshape(2, 1, 8, *each.shape[1:]) for each in (k, v))
        return np.concatenate([q.reshape(2, 2, *q.shape[1:]), k, v], axis=1), gate

    (qkv, gate), (qkv_bias, gate_bias) = projected("weight"), projected("bias")
    params = {
        "qkv": {"kernel": np.moveaxis(qkv, -1, 0), "bias": qkv_bias},
        "output_gate": {"kernel": np.moveaxis(gate, -1, 0), "bias": gate_bias},
        "out": {"kernel": file["o_proj.weight"].T.reshape(4, 8, 24), "bias": file["o_proj.bias"]},
        **{name: {"scale": file[f"{name[0]}_norm.weight"]} for name in ("query_norm", "key_norm")},
    }
    hosted = Hosted(pj.parse("rope(fraction=0.5)"), (), pj.sites(file["x"].shape[1]))
    out, _ = jax.jit(Attention(config, causal=True).apply)({"params": params}, file["x"], hosted)
    np.testing.assert_allclose(out, file["out"], atol=1e-5)


def test_cross_attention_reads_the_memory():
    check(causal=True, memory=MEMORY, placement="post")


@pytest.mark.slow
def test_a_scan_and_what_is_computed_again_change_nothing():
    """Training with dropout and stochastic depth, where layers 0 and 2 norm their queries and keys, and 1 and 3 do not."""
    fields = dict(width=8, num_heads=2, depth=4, dropout=0.2, drop_path=0.3, qk_norm=(True, False), length=5)
    model = Decoder.from_config(fields, vocab_size=7, encoding="t5, none")
    params = drawn(lambda key: model.init(key, *model.example())["params"], jax.random.key(0))
    normed = ["query_norm" in params["trunk"][f"block_{layer}"]["attention"] for layer in range(4)]
    assert normed == [True, False] * 2
    tokens = jnp.asarray(np.arange(10).reshape(2, 5) % 7, jnp.int32)

    @jax.jit
    def run(params):
        rngs = {"dropout": jax.random.key(1), "place": jax.random.key(2)}
        both = (model, model.clone(scan=True, remat="full"))
        return [each.apply({"params": params}, tokens, SITE, train=True, rngs=rngs) for each in both]

    np.testing.assert_allclose(*run(params), rtol=1e-4, atol=1e-5)


def test_the_scan_compiles_one_block():
    calls = []

    def note(call, args, kwargs, context):
        if isinstance(context.module, Block) and context.method_name == "__call__":
            calls.append(context.module)
        return call(*args, **kwargs)

    model = Decoder(7, "rope, none", length=5, block=BlockConfig(width=8, num_heads=2), depth=6)
    params = jax.eval_shape(lambda: model.init(jax.random.key(0), *model.example())["params"])
    with nn.intercept_methods(note):
        for scan, blocks in ((False, 6), (True, 2)):
            calls.clear()
            apply = model.clone(scan=scan).apply
            jax.eval_shape(lambda params, apply=apply: apply({"params": params}, *model.example()), params)
            assert len(calls) == blocks


def test_rematerialisation_keeps_what_it_says():
    """The arrays that the backward pass of a model of 64 channels and 256 tokens is given."""

    def held(remat):
        model = Decoder(
            7, "rope", block=BlockConfig(width=64, num_heads=2, implementation="blockwise"), depth=1, remat=remat
        )
        tokens, site = jnp.zeros((1, 256), jnp.int32), pj.sites(256)
        params = jax.eval_shape(lambda: model.init(jax.random.key(0), tokens[:, :2], pj.sites(2)))
        _, pull = jax.eval_shape(lambda params: jax.vjp(lambda p: model.apply(p, tokens, site).sum(), params), params)
        return sum(leaf.size for leaf in jax.tree.leaves(pull))

    sizes = {remat: held(remat) for remat in ("none", "dots", "attention", "full")}
    assert sizes["full"] < sizes["attention"] < sizes["dots"] < sizes["none"]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (dict(norm="rmss"), "no norm is named 'rmss'; did you mean 'rms'"),
        (dict(placement="prenorm"), "no placement"),
        (dict(attention_bias=("q",)), "no projection"),
        (dict(mlp="glu"), "no MLP"),
        (dict(attention_gate="heads"), "no attention_gate is named 'heads'; did you mean 'head'"),
        (dict(qk_norm=(False, "rms")), "no qk_norm is named 'rms'; .*known: False, True, all_heads, unit"),
        (dict(dropout=1.0), "dropout=1.0"),
        (dict(num_heads=3), "num_heads 3"),
        (dict(num_kv_heads=3), r"num_kv_heads 3 does not divide num_heads 4: it may be one of \[1, 2, 4\]"),
        (dict(num_experts=2, experts_per_token=3), "experts_per_token=3"),
        (dict(num_experts=2, mlp_norm=True), "mlp_norm=True"),
        (dict(latent=LATENT, num_kv_heads=1), "num_kv_heads=1"),
        (dict(latent=LATENT, attention_bias=("key",)), "attention_bias"),
        (dict(softcap=2.0, context=CONTEXT), r"softcap=2\.0"),
    ],
)
def test_a_block_that_cannot_be_is_refused_with_the_mend(fields, message):
    with pytest.raises(ValueError, match=message):
        BlockConfig(**fields)


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


@pytest.mark.parametrize("use_bias", [True, (True, False, True, False)])
def test_projections_on_tpus_are_those_on_cpus(use_bias, monkeypatch):
    """With their gradients: products by axes, and biases whose gradient is a product with ones."""
    x = jax.device_put(np.random.default_rng(0).standard_normal((2, 5, 6)).astype(np.float32))
    linear = Linear((3, 4, 8), use_bias=use_bias, parts=(2, 1, 1))
    params = drawn(linear.init, jax.random.key(1), x)

    def found():
        loss = lambda params, x: sum((y**3).sum() for y in linear.apply(params, x))  # noqa: E731
        return jax.jit(jax.value_and_grad(loss, (0, 1)))(params, x)

    on_cpu = found()
    assert [y.shape for y in jax.eval_shape(linear.apply, params, x)] == [(2, 5, 3, n, 8) for n in (2, 1, 1)]
    monkeypatch.setattr(layers, "device_of", lambda x: Device("tpu"))
    assert "posjax_linear" in str(jax.make_jaxpr(lambda: linear.apply(params, x))())
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4), found(), on_cpu)


@pytest.mark.parametrize("platform", ["gpu", "tpu"])
def test_activations_are_computed_again_on_gpus(monkeypatch, platform):
    """Merged with the forward pass they are no part of cuBLAS's products, and their derivatives are stored."""
    monkeypatch.setattr(block, "device_of", lambda x: Device(platform))
    step = jax.jit(jax.grad(lambda x: block.activated(BlockConfig(), x, None).sum()))
    assert ("optimization_barrier" in step.lower(jnp.ones(4)).as_text()) == (platform == "gpu")
