"""Pictures and comparisons of the atlas are what posjax's attention computes."""

import base64

import jax.numpy as jnp
import numpy as np
import pytest

import posjax as pj
from experiments.atlas import images, landscapes, site


@pytest.mark.slow
@pytest.mark.parametrize("spec", ["learned_sink()", "stick_breaking()"])
def test_attention_is_that_of_attend(spec):
    """The same text through the public call, whose queries and keys are projected here."""
    subject = landscapes.landscape(pj.parse(spec))
    rng, dims, count = np.random.default_rng(0), landscapes.DIMS, landscapes.LENGTH
    rng.normal(size=(landscapes.WORDS, 1, dims.width))
    weights = np.float32(rng.normal(size=(2, dims.width, dims.num_heads, dims.head_dim)) * dims.width**-0.5)
    q, k = jnp.einsum("tm,nmhd->nthd", np.float32(rng.normal(size=(count, dims.width))), weights)
    site = pj.sites(count)
    params = landscapes.initial(subject.encoding, dims)
    _, expected = pj.attend(subject.encoding, params, q, k, k, site, site, causal=True, return_weights=True)
    np.testing.assert_allclose(subject.weights, expected, atol=1e-5)
    assert not (subject.weights.sum(-1) > 0.999).all()


def test_attention_that_no_key_gets_counts_as_a_key():
    whole, half = np.full((1, 2, 2), 0.5), np.full((1, 2, 2), 0.25)
    assert [landscapes.moved_attention(whole, other) for other in (whole, half, 0 * half)] == [0, 500, 1000]


def test_attention_that_differs_little_does_not_count_as_the_same():
    whole = np.full((1, 2, 2), 0.5)
    moved = [landscapes.moved_attention(whole, whole + np.array([x, -x])) for x in (1e-7, 1e-4)]
    assert moved == [0, 1]


def test_logits_by_distance_are_those_of_the_last_token_or_along_the_first_row():
    values, seen = np.arange(36.0).reshape(6, 6), np.tri(6, dtype=bool)
    seen[5, 2] = False
    assert landscapes.by_distance(values, seen, None) == [35, 34, 33, None, 31, 30]
    assert landscapes.by_distance(values, seen | True, (2, 3)) == [0, 1, 2]


@pytest.mark.slow
def test_comparisons_of_patterns_and_compositions(monkeypatch):
    monkeypatch.setattr(pj.encodings, "__all__", ["none", "rope", "mhrope"])
    monkeypatch.setattr(landscapes, "DIMS", landscapes.DIMS._replace(width=128, num_heads=4))
    parts = []
    specs = ["rope() + window(size=9)", "rope() + window(size=9), none"]
    found = landscapes.landscapes({}, specs, parts.append)
    assert parts == [*specs, "none", "rope", "mhrope"]
    assert site.number_of_parts(specs) == len(site.DATA) + len(specs) + 3
    none, rope, both, pattern = found["pictures"]
    apart = np.array(found["apart"])
    assert "8 heads" in found["refused"]["mhrope"]
    assert (
        found["own"]
        == ["rope() + window(size=9)", "rope() + window(size=9), none()"]
        == [both["name"], pattern["name"]]
    )
    assert (apart == apart.T).all()
    assert not apart.diagonal().any()
    assert 0 < apart[2, 3] < apart[2, 0]
    assert none["shift"] == 0
    assert rope["shift"] < 1e-4 < 1 < rope["bf16"]
    assert both["bf16"] == "other keys are seen"
    assert (none["same"], rope["same"], pattern["same"]) == (100, 0, 100)
    assert rope["operations"] > none["operations"]
    assert pattern["layers"] == 2
    assert pattern["high"] == pytest.approx((rope["high"] + none["high"]) / 2)
    hidden = [255 in base64.b64decode(each["cells"]) for each in (both, pattern)]
    assert hidden == [True, False]  # a pattern shows the keys that any of its layers sees
    for wrong, why in {
        "axis(index=2) >> rope()": "neither a line nor a grid",
        "rope, lookhere": "different tokens",
    }.items():
        with pytest.raises(ValueError, match=why):
            landscapes.landscapes({}, [wrong])


def test_a_packed_picture_is_read_back():
    values, seen = np.array([[0.5, -1e9], [3.0, np.nan]]), np.array([[True, True], [True, True]])
    packed = landscapes.as_bytes(values, seen)
    cells = np.frombuffer(base64.b64decode(packed["cells"]), np.uint8)
    assert (packed["size"], packed["low"], packed["high"], cells.tolist()) == (2, 0.5, 3.0, [0, 255, 254, 255])


def test_images_are_resized_rescaled_or_refused(monkeypatch):
    monkeypatch.setattr(images, "SPECS", ("learned_factorized()",))
    (learned,) = images.images()["encodings"]
    assert learned["trained"]["size"] == 49
    assert learned["resized"]["size"] == 60
    assert "whole positions" in learned["rescaled"]["refused"]
    assert "rows" in learned["extrapolated"]["refused"]
