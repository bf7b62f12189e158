"""The parameters that a model expects are those that its `init` makes."""

import json

import jax
import numpy as np
import pytest

from posjax.models import BlockConfig, Decoder, EncoderDecoder, ViT
from posjax.pretrained.fields import json_fields
from posjax.pretrained.parameters import expected_params, paths_of

SMALL = dict(width=8, num_heads=2)
NORMED = BlockConfig(qk_norm=("all_heads", False, True), **SMALL)
MODELS = {
    "patterns": Decoder(5, encoding=("t5", "rope", "cope"), block=NORMED, depth=4, injection="every_layer"),
    "two stacks": EncoderDecoder(5, block=BlockConfig(**SMALL), depth=2, decoder_depth=3),
    "a ViT": ViT(3, block=BlockConfig(layer_scale=1.0, **SMALL), depth=3, patch_size=4, image_size=(8, 8)),
}


@pytest.mark.parametrize("name", MODELS)
def test_one_block_of_each_kind_stands_for_all(name):
    model = MODELS[name]
    channels = (3,) if name == "a ViT" else ()
    made = jax.eval_shape(lambda: model.init(jax.random.key(0), *model.example(*channels)))
    expected = paths_of(expected_params(model, *channels))
    assert {path: (x.shape, x.dtype) for path, x in paths_of(made).items()} == {
        path: (x.shape, x.dtype) for path, x in expected.items()
    }


@pytest.mark.parametrize("name", MODELS)
def test_fields_of_numpy_are_written_as_numbers(name, unchecked_shapes):
    model = MODELS[name]
    numbers = {key: value for key, value in model.fields.items() if type(value) in (bool, int, float)}
    made = model.with_fields(**{key: np.array(value)[()] for key, value in numbers.items()})
    assert made == model
    assert json.dumps(json_fields(made)) == json.dumps(json_fields(model))
