"""The audit of position ids, and of layers that know positions or do not."""

import jax
import numpy as np
import pytest

import posjax as pj
from posjax import cli

SIZES = (9, 7, 13)


def document(size):
    """Positions on three axes of 3 words, a picture of 2 by 2, and words."""
    row, column = np.divmod(np.arange(4), 2)
    picture, words = np.stack([3 + 0 * row, 3 + row, 3 + column]), np.r_[0:3, 5 : size - 2]
    return np.concatenate([np.tile(words[:3], (3, 1)), picture, np.tile(words[3:], (3, 1))], axis=1)


def batch():
    """Ids [4, 2, 29]: a packed row, and one document with padding on its left."""
    packed = np.concatenate([document(n) for n in SIZES], axis=1)
    text = np.concatenate([np.arange(n) for n in SIZES])
    padded = np.pad(np.concatenate([np.arange(20)[None], document(20)]), ((0, 0), (9, 0)), constant_values=1)
    return np.stack([np.concatenate([text[None], packed]), padded], axis=1)


IDS = batch()
PADDING = np.ones((2, 29))
PADDING[1, :9] = 0
DOCUMENTS = np.stack([np.repeat([1, 2, 3], SIZES), PADDING[1]])
CAUSAL = np.tri(29)[None, None] * PADDING[:, None, :, None] * PADDING[:, None, None]


def cut_at(token):
    ids = IDS.copy()
    ids[0, 0, token:9] += 1
    return ids


@pytest.mark.parametrize(
    ("ids", "mask", "findings"),
    [
        (IDS, PADDING, []),
        (IDS[1:], DOCUMENTS, []),
        (IDS[0], PADDING, []),
        (IDS[1:], PADDING, ["document 2 sees document 1", "document 3 sees documents 1, 2", "no text positions"]),
        (IDS, CAUSAL, ["document 2 sees document 1", "document 3 sees documents 1, 2"]),
        (IDS, CAUSAL * (DOCUMENTS[:, None, :, None] == DOCUMENTS[:, None, None]), []),
        (cut_at(5), PADDING, ["document 1 is cut at token 5, where"]),
        (np.concatenate([IDS[1:2], IDS[1:]]), PADDING, [f"document {n + 1} is cut at token" for n in (0, 1, 2, 0)]),
        (IDS + 2 * PADDING.astype(int), PADDING, [f"document {n} begins at position 2" for n in (1, 2, 3, 1)]),
    ],
)
def test_position_ids(ids, mask, findings):
    found = pj.audit(position_ids=ids, attention_mask=mask)
    assert found.facts == ("row 0: documents of 9, 7, 13 tokens", "row 1: documents of 20 tokens and 9 of padding")
    assert len(found.findings) == len(findings)
    assert all(words in each for words, each in zip(findings, found.findings, strict=True)), found.findings


def test_the_command_for_position_ids(tmp_path, capsys):
    np.save(tmp_path / "ids.npy", IDS[1:])
    np.save(tmp_path / "mask.npy", DOCUMENTS)
    assert cli.main(["audit", f"--position-ids={tmp_path}/ids.npy"]) == 1
    assert cli.main(["audit", f"--position-ids={tmp_path}/ids.npy", f"--attention-mask={tmp_path}/mask.npy"]) == 0
    assert "row 0: documents of 9, 7, 13 tokens" in capsys.readouterr().out


def layer(spec, causal=True):
    encoding, rng = pj.parse(spec), np.random.default_rng(1)
    params = encoding.init(jax.random.key(0), pj.Dims(16, 2, 8))
    weights = 0.3 * rng.normal(size=(4, 16, 16)).astype(np.float32)

    @jax.jit
    def apply(x):
        q, k, v = ((x[0] @ each).reshape(-1, 2, 8) for each in weights[:3])
        site = pj.sites(len(q))
        out = pj.attend(encoding, params, q, k, v, site, site, causal=causal)
        return (x[0] + out.reshape(-1, 16) @ weights[3])[None]

    return apply


def test_layers():
    layers = [layer(spec) for spec in ("rope", "alibi", "none", "rope + window(8)", "window(8)")]
    config = {"model_type": "smollm3", "num_hidden_layers": 6, "no_rope_layers": [1, 1, 1, 0, 0, 0]}
    config |= {"hidden_size": 16, "num_attention_heads": 2}
    found = pj.audit(layers=[*layers, layer("none", causal=False)], width=16, length=32, config=config)
    assert found.facts == (
        "layers 0 to 1: positions, sees all 32 tokens, causal",
        "layer 2: no positions, sees all 32 tokens, causal",
        "layer 3: positions, sees 7 tokens back, causal",
        "layer 4: no positions, sees 7 tokens back, causal",
        "layer 5: no positions, sees all 32 tokens, both directions",
    )
    assert found.findings == (
        "layer 2 has no positions, config.json means rope(base=2000000)",
        "layer 3 has positions, config.json means none()",
    )


@pytest.mark.parametrize(("arguments", "words"), [
    ({}, "takes one of rotate, .* got none"),
    ({"position_ids": np.zeros((2, 3, 4))}, r"\[4, B, T\]; got \(2, 3, 4\)"),
    ({"position_ids": np.zeros((2, 3)), "attention_mask": np.zeros((3, 2))}, r"shape \[2, 3\].*got \(3, 2\)"),
    ({"layers": [layer("none")]}, "number of channels"),
    ({"layers": [lambda x: x[0]], "width": 4}, r"same shape, and returned \[128, 4\]"),
])  # fmt: skip
def test_bad_input_is_named(arguments, words):
    with pytest.raises(ValueError, match=words):
        pj.audit(**arguments)
