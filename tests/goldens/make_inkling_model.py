"""A whole model of Inkling's kind with random weights: its folder's tensors and configuration, and its logits.

Run as tests/goldens/maker.py says, with transformers 5.24 and this file's name; the result is inkling_model.npz. A layer sees
all tokens before, the next one a window; both have perceptrons without experts.
"""

import json

import numpy as np
import torch
from make_inkling import SIZES, small
from maker import noise, save
from transformers import InklingForCausalLM, InklingTextConfig

VOCABULARY, LENGTH = 24, 13

if __name__ == "__main__":
    torch.manual_seed(1)
    config = InklingTextConfig(
        **SIZES, vocab_size=VOCABULARY, intermediate_size=24, mlp_layer_types=["dense", "dense"], pad_token_id=None
    )
    model = InklingForCausalLM(config).eval()
    for name, weight in model.named_parameters():
        weight.data = (1.0 if "norm" in name or "scale" in name else 0.25) * noise(*weight.shape)
    tokens = torch.randint(VOCABULARY, (LENGTH,))
    arrays = {name: small(x) for name, x in model.state_dict().items()}
    arrays |= {"tokens": tokens.numpy(), "logits": model(tokens[None]).logits[0].detach().numpy()}
    arrays["config"] = np.array(json.dumps(json.loads(config.to_json_string(use_diff=False))))
    save("inkling_model", arrays, packages=["torch", "transformers"])
