"""Draws follow their laws: seeds, shares, sides and distances, counted for known laws."""

import io

import jax
import numpy as np
from PIL import Image

from posjax import data


def test_each_seed_cuts_text_at_phases_of_its_own():
    """Twelve windows of 8 in 96 tokens: where they begin, modulo 8, is the phase."""
    text = data.Text("toy", np.arange(96, dtype=np.uint8), np.array([0]), "digest")
    phases = set()
    for seed in range(12):
        batch = data.text_batches(text, length=8, batch_size=12, seed=seed)[0]
        (phase,) = set((batch["tokens"][:, 0] % 8).tolist())
        phases.add(phase)
    assert len(phases) > 3


def test_mixup_mixes_by_a_symmetric_law():
    """Beta(a, a) is near 1/2 for large a, and near 0 or 1 for small ones."""
    labels = np.eye(400, dtype=np.float32)
    images = labels.reshape(400, 20, 20, 1)
    for alpha, low, high in ((200.0, 0.5, 0.6), (0.02, 0.97, 1.0)):
        (mixup,) = data.parse_augment(f"mixup({alpha})").mix
        mixed, soft = jax.jit(mixup)(jax.random.key(0), images, labels)
        own = np.diag(soft)
        assert low <= own.mean() <= high
        assert own.min() >= 0.5
        np.testing.assert_array_equal(np.reshape(mixed, soft.shape), soft)  # images are mixed as their labels are
        np.testing.assert_allclose(soft[np.arange(400), np.arange(400) - 1], 1 - own, atol=1e-6)


def test_a_share_is_a_sample_and_not_what_stands_first():
    label = np.repeat(np.arange(2, dtype=np.int32), 100)
    images = data.Images("toy", np.arange(200, dtype=np.uint8)[:, None, None, None], label, 2, "digest")
    chosen = data.subset(images, 0.2).image[:, 0, 0, 0]
    for members in (chosen[:20], chosen[20:] - 100):
        assert members.max() > 60
        assert 30 < members.mean() < 70


def test_resolutions_are_uniform_in_their_side():
    """Square images of 4 to 400 patches have sides that are uniform from 2 to 20, 11 in the mean; in area it were 13.5."""
    count = 3000
    size, label = np.ones((count, 2), np.int32), np.zeros(count, np.int32)
    images = data.NativeImages("toy", np.zeros(count, np.uint8), size, label, ("a",), 1, "digest")
    sides = data.NativePatches(images, patch_size=1, max_patches=(4, 400)).grids(0, 0)[:, 0]
    assert 10.2 < sides.mean() < 11.2  # rounded down


def test_recall_asks_mostly_soon_after_the_pairs():
    """Of a power law of -0.99, nine of ten queries lie in the first half of the places that are possible."""
    batch = data.retrieval_batch("recall", length=1023, count=64, seed=0, depth=0.0)
    at = np.flatnonzero(batch["weight"]) % 1023
    assert 0.82 < (at < 16 + 504).mean() < 0.97


def test_16_bits_are_rounded_to_8():
    """65535 levels on 255: 257 apart."""
    levels = np.array([[0, 128, 129, 300, 400, 65_406, 65_407, 65_535]], np.uint16)
    buffer = io.BytesIO()
    Image.fromarray(levels).save(buffer, "png")
    assert data.read_image(buffer.getvalue(), channels=1)[0, :, 0].tolist() == [0, 0, 1, 1, 2, 254, 255, 255]


def test_a_row_takes_an_image_that_fills_it():
    """Four images of four patches, in rows of eight tokens: two rows."""
    size, label = np.full((4, 2), 2, np.int32), np.arange(4, dtype=np.int32)
    images = data.NativeImages("toy", np.zeros(16, np.uint8), size, label, tuple("abcd"), 1, "digest")
    source = data.NativePatches(images, patch_size=1, max_patches=4)
    (batch,) = data.native_epoch(source, batch_size=2, tokens=8)
    assert batch["segment"].tolist() == [[1] * 4 + [2] * 4] * 2
