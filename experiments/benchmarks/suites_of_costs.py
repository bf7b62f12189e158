"""Suites of costs: encodings over the same program without one, whole models beside torch's, memory of programs."""

from collections.abc import Mapping, Sequence
from typing import Any

from experiments.benchmarks.findings import Bound, Goal, growth, largest, temporaries
from experiments.benchmarks.pool import Contender
from experiments.benchmarks.suites import Cell, Suite
from posjax import parse

_HEAD = {"heads": 4, "head_dim": 64}
_LENGTHS = (512, 1024, 2048, 4096, 8192, 16384, 32768, 65536)


def tile(quick: bool, lengths: Sequence[int] | None, threads: int) -> Suite:
    """Blockwise attention, forward and with gradients."""
    cheap, table = {"f": (1.05, None), "fb": (1.08, None)}, {"f": (1.25, None), "fb": (1.15, None)}
    cells = [{**_HEAD, "mode": mode, "length": n} for mode in ("f", "fb") for n in lengths or (4096,)]
    return _over_none({"kind": "attend"}, {"rope": cheap, "alibi": cheap, "t5": table, "kerple": table}, cells)


def step(quick: bool, lengths: Sequence[int] | None, threads: int) -> Suite:
    """A whole training step: of a decoder and a ViT beside torch.compile, and of a smaller one with each encoding.

    Those beside torch: a decoder of 4 layers on 32 sequences of 256 bytes, a ViT of 6 layers on 128 images of 65 tokens, both
    of 128 channels with learned tables; posjax also takes the batch in parts one after the other.
    """
    cheap = ("sinusoidal", "learned", "rope", "alibi", "t5", "kerple")
    most = dict.fromkeys(cheap, 1.05) | {"shaw": 1.6, "deberta": 1.6, "cope": 2.5}
    limits = {spec: {"step": (limit, None)} for spec, limit in most.items()}
    shared = {"width": 128, "heads": 4}
    cells = [{"batch": 16, **shared, "mode": "step", "length": n} for n in lengths or (256,)]
    costs = _over_none({"kind": "train_decoder"}, limits, cells, {"mode": ["step"]})
    peers, goals = [], []
    for model, sizes in {
        "decoder": dict(batch=32, depth=4, length=256),
        "ViT": dict(batch=128, depth=6, length=65),
    }.items():
        kind, mode = {"kind": f"train_{model.lower()}", "spec": "learned"}, f"{model} step"
        cells.append({**shared, "mode": mode, **sizes})
        only, own, theirs = {"mode": [mode]}, f"posjax {model}", f"torch.compile, {model}"
        peers += [Contender(own, "jax", kind, only), Contender(theirs, "torch", kind, only)]
        goals.append(Goal(f"torch.compile / posjax, {model}", theirs, own, {mode: (1.0, 1.1)}))
        for parts in (4, 8):
            name = f"{own} in {parts} parts"
            peers.append(Contender(name, "jax", {**kind, "parts": parts}, only))
            goals.append(Goal(f"torch.compile / posjax, {model} in {parts} parts", theirs, name, {mode: (1.0, 1.1)}))
    return costs._replace(contenders=[*costs.contenders, *peers], goals=[*costs.goals, *goals])


def decode(quick: bool, lengths: Sequence[int] | None, threads: int) -> Suite:
    """Cached decoding: 16 steps that fill a cache of so many tokens."""
    specs = ("sinusoidal", "learned", "rope", "alibi", "t5", "kerple", "window(size=512) + rope")
    sizes, batches = lengths or (512 if quick else 2048,), (1,) if quick else (1, 8)
    shared = {"width": 256, "heads": 4, "mode": "16 steps"}
    cells = [{"batch": batch, **shared, "length": n} for batch in batches for n in sizes]
    limits = {spec: {"16 steps": (1.1, None)} for spec in specs}
    return _over_none({"kind": "decode", "steps": 16}, limits, cells)


# Encodings published from 2024 on that act on a line, by the most that it may cost over none.
_NEWEST = {
    # Turns, offsets and sinks: a few operations on each channel or logit.
    1.3: "p_rope rope_mixed lerope value_rotary harope circulant_string rope_pp bam learned_sink token_sink ssmax",
    # Twice the channels, or a state of each token.
    1.6: "pope fox cable carope repo selective_rope grape_a grape_m inkling pape",
    # A matrix for each token, or logits that need all keys of a query.
    10.0: "comrope cayley_string liere tapa cope dape dape(kernel_size=3) grape_ap per_row_alibi path stick_breaking",
}


def newest(quick: bool, lengths: Sequence[int] | None, threads: int) -> Suite:
    """Encodings of 2024 to 2026 over none: a training step of a decoder and its temporaries, and 16 steps of decoding."""
    most = {str(parse(name)): limit for limit, names in _NEWEST.items() for name in names.split()}
    shared = {"width": 128, "heads": 4}
    train, decoding = {"kind": "train_decoder", "batch": 4}, {"kind": "decode", "batch": 1, "steps": 16}
    cells = [{**shared, **train, "mode": "step", "length": n} for n in lengths or ((64,) if quick else (256,))]
    cells += [{**shared, **decoding, "mode": "16 steps", "length": n} for n in lengths or ((64,) if quick else (512,))]
    times = {spec: dict.fromkeys(("step", "16 steps"), (limit, None)) for spec, limit in most.items()}
    suite = _over_none({}, times, cells)
    memory = [
        goal._replace(
            title=f"temporaries of {goal.title}", wanted={"step": goal.wanted["step"]}, quantity="temporaries"
        )
        for goal in suite.goals
        if isinstance(goal, Goal)
    ]
    return suite._replace(goals=[*suite.goals, *memory])


def models(quick: bool, lengths: Sequence[int] | None, threads: int) -> Suite:
    """A model in Llama's form, of 512 channels in 8 layers, beside transformers': a prompt, and 16 steps behind it."""
    case = {"kind": "llama", "mlp": 1408, "vocabulary": 8192, "steps": 16}
    own, called, static = "posjax", "transformers, as called", "transformers, torch.compile"
    contenders = [
        Contender(own, "jax", case),
        Contender(called, "torch", {**case, "static": False}),
        Contender(static, "torch", {**case, "static": True}),
        Contender(f"{own} again", "jax", case),
    ]
    shared = {"batch": 1, "width": 512, "heads": 8, "depth": 2 if quick else 8}
    cells = [
        {**shared, "dtype": dtype, "mode": mode, "length": n}
        for dtype in ("float32", "bfloat16")
        for mode in ("prefill", "16 steps")
        for n in lengths or ((256,) if quick else (1024,))
    ]
    wanted = dict.fromkeys(("prefill", "16 steps"), (1.0, None))
    goals = [Goal(f"{theirs} / {own}", theirs, own, wanted) for theirs in (called, static)]
    return Suite(contenders, cells, goals, {own: f"{own} again"}, _BFLOAT16)


def published(quick: bool, lengths: Sequence[int] | None, threads: int, folder: str = "") -> Suite:
    """A decoder's published weights in float32, beside transformers as called: a prompt, and 64 tokens behind it.

    The prompt is read into a cache and its next token is chosen, without the logits of the others.
    """
    own, theirs, case = "posjax", "transformers, as called", {"kind": "published", "folder": folder, "steps": 64}
    contenders = [Contender(own, "jax", case), Contender(theirs, "torch", case)]
    more = {"prompt": 0, "64 tokens": case["steps"]}
    prompts = lengths or ((128,) if quick else (1024,))
    cells = [{"batch": 1, "mode": mode, "length": n + more[mode]} for mode in more for n in prompts]
    goals = [Goal(f"{theirs} / {own}", theirs, own, {"prompt": (1.3, None), "64 tokens": (1.0, None)})]
    return Suite(contenders, cells, goals, {})


_BFLOAT16 = (
    "XLA multiplies bfloat16 on CPUs as float32, which it converts both sides to; torch uses the CPU's own instructions "
    "where it has them (AMX, AVX-512 BF16)."
)


def _over_none(
    case: Cell, limits: Mapping[str, Mapping[str, Any]], cells: Sequence[Cell], only: Mapping[str, Any] | None = None
) -> Suite:
    """Encodings with the most that each may cost, against none, in the cells that have what `only` says."""
    contenders = [Contender(f"posjax {spec}", "jax", {**case, "spec": spec}, only or {}) for spec in ("none", *limits)]
    contenders.append(Contender("posjax none again", "jax", {**case, "spec": "none"}, only or {}))
    goals = [
        Goal(f"{spec} / none", f"posjax {spec}", "posjax none", limit, at_most=True) for spec, limit in limits.items()
    ]
    return Suite(contenders, cells, goals, {"posjax none": "posjax none again"})


def memory(quick: bool, lengths: Sequence[int] | None, threads: int) -> Suite:
    """Temporaries of compiled programs; nothing is run."""
    own, document = ("alibi", "t5"), "loss of a document"
    contenders = [
        Contender(f"posjax {spec}", "jax", {"kind": "temporaries", "spec": spec}, {"mode": ["fb"]}) for spec in own
    ]
    contenders.append(Contender(document, "jax", {"kind": "score", "spec": "rope"}, {"mode": ["loss"]}))
    cells = [{**_HEAD, "mode": "fb", "length": n} for n in lengths or ((2048, 8192) if quick else _LENGTHS)]
    cells.append({"batch": 1, "width": 128, "heads": 4, "mode": "loss", "length": 32768})
    goals = [Bound(f"temporaries of the {document}", document, largest, 150, "MiB", ["loss"])]
    for name in (f"posjax {spec}" for spec in own):
        at_8192 = dict(modes=["fb"], where=lambda cell: cell["length"] == 8192)
        goals.append(Bound(f"temporaries of {name}", name, largest, 64, "MiB", **at_8192))
        goals.append(
            Bound(f"growth of its temporaries over that of n, {name}", name, growth(temporaries), 1.0, "", ["fb"])
        )
    return Suite(contenders, cells, goals, {})
