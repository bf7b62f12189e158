"""Published weights as transformers reads them: the numbers that check_published.py compares with.

    python tests/goldens/make_published.py DIR published.npz

DIR holds gemma-3-270m.gguf, all-MiniLM-L6-v2 and dinov2-small-saliency. Needs torch, transformers and gguf. Gemma: logits of
every 50th of 1,500 tokens, all likeliest tokens, 64 greedy tokens, seconds of a prompt and of decoding. MiniLM and DINOv2:
features of the last layer.
"""

import sys
import time
from pathlib import Path

import numpy as np
import torch
import transformers
from published_inputs import EVERY, GREEDY, LONG, pixels_of, tokens_of


@torch.no_grad()
def gemma(folder: Path) -> dict[str, np.ndarray]:
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, gguf_file="gemma-3-270m.gguf", dtype=torch.float32
    )
    tokens = torch.from_numpy(tokens_of(model.config.vocab_size, LONG))[None]
    logits = model(tokens).logits[0]
    began = time.perf_counter()
    model(tokens[:, :1024])
    prompt = time.perf_counter() - began
    began = time.perf_counter()
    options = dict(max_new_tokens=GREEDY, min_new_tokens=GREEDY, do_sample=False, top_k=None, top_p=None)
    greedy = model.generate(tokens[:, :100], **options)[0, 100:]
    return {
        "gemma_logits": logits[::EVERY].numpy(),
        "gemma_likeliest": logits.argmax(-1).numpy(),
        "gemma_greedy": greedy.numpy(),
        "gemma_seconds": np.array([prompt, time.perf_counter() - began]),
    }


@torch.no_grad()
def minilm(folder: Path) -> dict[str, np.ndarray]:
    model = transformers.AutoModel.from_pretrained(folder / "all-MiniLM-L6-v2").eval()
    tokens = torch.from_numpy(tokens_of(model.config.vocab_size, 512)).reshape(2, 256)
    return {"minilm": model(tokens).last_hidden_state.numpy()}


@torch.no_grad()
def dinov2(folder: Path) -> dict[str, np.ndarray]:
    model = transformers.AutoModel.from_pretrained(folder / "dinov2-small-saliency").eval()
    return {"dinov2": model(torch.from_numpy(pixels_of(518))).last_hidden_state.numpy()}


if __name__ == "__main__":
    torch.set_num_threads(2)
    where = Path(sys.argv[1])
    found = gemma(where) | minilm(where) | dinov2(where)
    np.savez(sys.argv[2], versions=f"transformers {transformers.__version__}, torch {torch.__version__}", **found)
    print({name: array.shape for name, array in found.items()})
