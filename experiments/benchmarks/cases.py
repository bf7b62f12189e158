"""The cases of a CPU: encodings and whole models beside other libraries or beside none, with goals.

A suite is made by a function of (quick, lengths, threads): few sizes and rounds, lengths in place of its own or None, and
the number of cores. Its docstring and its note stand above its table.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from experiments.benchmarks.findings import Cell, Goal
from posjax import parse


class Contender(NamedTuple):
    """A row of a table: in which interpreter, and what of it."""

    name: str
    side: str  # "jax" or "torch"
    case: Mapping[str, Any]  # the request to the side's module; its fields replace the cell's
    only: Mapping[str, Sequence[Any]] = {}  # values of the cell for which it is measured; all of them by default
    fresh: bool = False  # whether each cell has a new process, whose peak of memory is that of the cell
    environment: Mapping[str, str] = {}  # variables of its process

    @property
    def module(self) -> str:
        return f"experiments.benchmarks.{self.side}_side"


Turn = tuple[Cell, list[Contender]]  # contenders that are measured together


class Suite(NamedTuple):
    """Cells to measure, in order, each with the contenders that take part in it, and the goals.

    A contender "X again" is a second process with the code of X: a control.
    """

    contenders: Sequence[Contender]
    cells: Sequence[Cell]
    goals: Sequence[Goal] = ()
    note: str = ""
    compiles: bool = False  # whether a call that would take too long is compiled for its memory
    one_by_one: bool = False  # whether one process at a time measures all contenders, as a device has room for one
    base: str = ""  # the contender whose time is 1 in the table; where it was not measured, the first of a cell

    def turns(self) -> list[Turn]:
        """Returns all turns, in order."""
        turns: list[Turn] = []
        for cell in self.cells:
            part = [c for c in self.contenders if all(cell.get(name) in values for name, values in c.only.items())]
            turns += [(cell, [c]) for c in part] if self.one_by_one else [(cell, part)]
        return turns


_FULL = (512, 1024, 2048, 4096, 8192, 16384, 32768, 65536)
_HEAD = {"heads": 4, "head_dim": 64}
_MASKS = (
    "torch's mask is made beforehand and gets no gradient; posjax computes T5's bias within the call, and in fb its "
    '"torch sdpa, T5 learned" does the same.'
)
_ROTARY = (
    "The peers are given cosines and sines that were made beforehand; posjax makes them from the sites in every call."
)
_BFLOAT16 = (
    "XLA multiplies bfloat16 on CPUs as float32, which it converts both sides to; torch uses the CPU's own instructions "
    "where it has them (AMX, AVX-512 BF16)."
)


def attention(quick: bool, lengths: Sequence[int] | None, threads: int) -> Suite:
    """Causal attention with an encoding, against torch's and jax's; float32, head dim 64."""
    alibi, mask, plain = "posjax alibi", "torch sdpa, ALiBi as a mask", "torch sdpa, causal"
    library, flex = "jax.nn, ALiBi as bias", "torch flex, ALiBi"
    few, some = ({"length": [*(n for n in _FULL if n <= most), *(lengths or ())]} for most in (8192, 16384))
    compiling = {"mode": ["f"], "heads": [4], "length": (2048, 4096, 8192)}  # half a minute each
    contenders = (
        Contender(alibi, "jax", _attend("alibi")),
        Contender(mask, "torch", {"kind": "masked"}),
        Contender(plain, "torch", {"kind": "causal"}),
        Contender("posjax none", "jax", _attend("none"), few),
        Contender("posjax t5", "jax", _attend("t5"), few),
        Contender(flex, "torch", {"kind": "flex"}, compiling),
        Contender(library, "jax", {"kind": "library"}),
        Contender("torch sdpa, T5 learned", "torch", {"kind": "table"}, {"heads": [4]}),
        Contender(f"{alibi} again", "jax", _attend("alibi"), some),
    )
    own = (512, 2048) if quick else _FULL if threads == 1 else (2048, 4096, 8192)
    cells = [
        {"heads": heads, "head_dim": 64, "mode": mode, "length": n}
        for heads in ((4,) if quick or threads > 1 else (4, 8))
        for mode in ("f", "fb")
        for n in lengths or own
        if heads == 4 or n <= 8192 or lengths
    ]
    long, at_4096 = (lambda cell: cell["length"] >= 2048), (lambda cell: cell["length"] == 4096)
    masked, causal = {"f": (1.6, 2.0), "fb": (1.3, 1.6)}, {"f": (0.9, 1.0), "fb": (0.7, 0.85)}
    held = {"f": (50, None), "fb": (50, None)}
    goals = (
        Goal("torch sdpa with ALiBi's mask / posjax alibi", mask, alibi, masked, long),
        Goal("torch sdpa with a mask / posjax t5", mask, "posjax t5", masked, long),
        Goal("torch sdpa causal without a bias / posjax alibi", plain, alibi, causal),
        Goal("torch sdpa causal / posjax none", plain, "posjax none", causal),
        Goal("torch flex with ALiBi / posjax alibi", flex, alibi, {"f": (1.25, 1.5)}, long),
        Goal("jax.nn with ALiBi / posjax alibi", library, alibi, {"f": (3, 3.5), "fb": (2.2, 3)}, at_4096),
        Goal("temporaries of jax.nn with ALiBi / posjax alibi", library, alibi, held, at_4096, quantity="temporaries"),
    )
    return Suite(contenders, cells, goals, _MASKS)


def _attend(spec: str) -> Mapping[str, Any]:
    return {"kind": "attend", "spec": spec}


def window(quick: bool, lengths: Sequence[int] | None, threads: int) -> Suite:
    """A causal window of 512 against all keys, both blockwise."""
    full, own = "posjax none", "posjax window(512)"
    contenders = (
        Contender(own, "jax", _attend("window(size=512)")),
        Contender(full, "jax", _attend("none")),
        Contender(f"{own} again", "jax", _attend("window(size=512)")),
    )
    faster, bounds = dict.fromkeys(("f", "fb"), (10, 12)), dict.fromkeys(("f", "fb"), (1.1, None))
    goals = (
        Goal("all keys / window of 512", full, own, faster, lambda cell: cell["length"] == 16384),
        Goal("growth of the window's time over that of n", own, None, bounds, at_most=True, grows=True),
    )
    own_lengths = (2048, 8192) if quick else (4096, 16384, 65536)
    cells = [{**_HEAD, "mode": mode, "length": n} for mode in ("f", "fb") for n in lengths or own_lengths]
    return Suite(contenders, cells, goals)


def rotary(quick: bool, lengths: Sequence[int] | None, threads: int) -> Suite:
    """Rotation of q and k of shape (8, 1024, 8, 64), as in training: the sites are data."""
    single, half = {"dtype": "float32"}, {"dtype": "bfloat16"}
    own, bf16 = {"kind": "rotate", "spec": "rope"}, "posjax rope bf16"
    contenders = (
        Contender("posjax rope", "jax", own | single),
        Contender("transformers", "torch", {"kind": "transformers"} | single),
        Contender("torch complex", "torch", {"kind": "complex"} | single),
        Contender("copy", "jax", {"kind": "copy"} | single),
        Contender("posjax rope backward", "jax", own | single | {"mode": "b"}),
        Contender(bf16, "jax", own | half),
        Contender(f"{bf16} backward", "jax", own | half | {"mode": "b"}),
        Contender("transformers bf16", "torch", {"kind": "transformers"} | half),
        Contender("copy bf16", "jax", {"kind": "copy"} | half),
        Contender("posjax rope again", "jax", own | single),
    )
    goals = (
        Goal("transformers / posjax rope", "transformers", "posjax rope", {"f": (6, None)}),
        Goal("torch complex / posjax rope", "torch complex", "posjax rope", {"f": (1, None)}),
        Goal("copy / posjax rope", "copy", "posjax rope", {"f": (0.5, 0.8)}),
        Goal("bf16 backward / bf16 forward", f"{bf16} backward", bf16, {"f": (1.5, None)}, at_most=True),
    )
    cells = [{"batch": 8, "heads": 8, "head_dim": 64, "mode": "f", "length": n} for n in lengths or (1024,)]
    return Suite(contenders, cells, goals, _ROTARY)


def tile(quick: bool, lengths: Sequence[int] | None, threads: int) -> Suite:
    """Blockwise attention, forward and with gradients."""
    cheap, table = {"f": (1.05, None), "fb": (1.08, None)}, {"f": (1.25, None), "fb": (1.15, None)}
    cells = [{**_HEAD, "mode": mode, "length": n} for mode in ("f", "fb") for n in lengths or (4096,)]
    return _over_none({"kind": "attend"}, {"rope": cheap, "alibi": cheap, "t5": table, "kerple": table}, cells)


def step(quick: bool, lengths: Sequence[int] | None, threads: int) -> Suite:
    """A whole training step: of a decoder and a ViT beside torch.compile, and of a smaller one with each encoding.

    Those beside torch: a decoder of 4 layers on 32 sequences of 256 bytes, a ViT of 6 layers on 128 images of 65 tokens, both
    of 128 channels with learned tables. posjax takes the batch whole and in 4 parts one after the other, by a step like
    theirs and, trained, by that of `experiments.train` on a device for each core (JAX_NUM_CPU_DEVICES).
    """
    cheap = ("sinusoidal", "learned", "rope", "alibi", "t5", "kerple")
    most = dict.fromkeys(cheap, 1.05) | {"shaw": 1.6, "deberta": 1.6, "cope": 2.5}
    shared = {"width": 128, "heads": 4}
    cells = [{"batch": 16, **shared, "mode": "step", "length": n} for n in lengths or (256,)]
    limits = {spec: {"step": (limit, None)} for spec, limit in most.items()}
    costs = _over_none({"kind": "train_decoder"}, limits, cells, {"mode": ["step"]})
    peers, goals, devices = [], [], {"JAX_NUM_CPU_DEVICES": str(threads)}
    models = {
        "decoder": (dict(batch=32, depth=4, length=256), {"vocabulary": 256}),
        "ViT": (dict(batch=128, depth=6, length=65), {"image": 32, "patch": 4, "classes": 10}),
    }
    for model, (sizes, inputs) in models.items():
        kind, mode = {"kind": f"train_{model.lower()}", "spec": "learned"}, f"{model} step"
        trained = {"kind": "config_call", "spec": "learned", "dtype": "float32", **inputs}
        cells.append({**shared, "mode": mode, **sizes})
        own, theirs = f"posjax {model}", f"torch.compile, {model}"
        for name, side, case, environment in (
            (own, "jax", kind, {}),
            (theirs, "torch", kind, {}),
            (f"{own} in 4 parts", "jax", {**kind, "parts": 4}, {}),
            (f"{own}, trained", "jax", trained, devices),
            (f"{own}, trained, in 4 parts", "jax", {**trained, "fields": {"accumulate": 4}}, devices),
        ):
            peers.append(Contender(name, side, case, {"mode": [mode]}, environment=environment))
            if side == "jax":
                title = f"torch.compile / {name.replace('posjax', 'posjax,')}"
                goals.append(Goal(title, theirs, name, {mode: (1.0, 1.1)}))
    return costs._replace(contenders=[*costs.contenders, *peers], goals=[*costs.goals, *goals])


def decode(quick: bool, lengths: Sequence[int] | None, threads: int) -> Suite:
    """Cached decoding: 16 steps that fill a cache of so many tokens."""
    specs = ("sinusoidal", "learned", "rope", "alibi", "t5", "kerple", "window(size=512) + rope")
    shared = {"width": 256, "heads": 4, "mode": "16 steps"}
    batches, own = ((1,), (512,)) if quick else ((1, 8), (2048,))
    cells = [{"batch": batch, **shared, "length": n} for batch in batches for n in lengths or own]
    return _over_none({"kind": "decode", "steps": 16}, {spec: {"16 steps": (1.1, None)} for spec in specs}, cells)


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
    suite, memory = _over_none({}, times, cells), dict(at_most=True, quantity="temporaries")
    held = [
        Goal(f"temporaries of {goal.title}", goal.over, goal.under, {"step": goal.wanted["step"]}, **memory)
        for goal in suite.goals
    ]
    return suite._replace(goals=[*suite.goals, *held])


def _over_none(
    case: Cell, limits: Mapping[str, Mapping[str, Any]], cells: Sequence[Cell], only: Mapping[str, Any] | None = None
) -> Suite:
    """Encodings with the most that each may cost, against none, in the cells that have the values of `only`."""
    none, rows = "posjax none", [(f"posjax {spec}", spec) for spec in ("none", *limits)]
    rows.append((f"{none} again", "none"))
    contenders = [Contender(name, "jax", {**case, "spec": spec}, only or {}) for name, spec in rows]
    goals = [Goal(f"{spec} / none", f"posjax {spec}", none, limit, at_most=True) for spec, limit in limits.items()]
    return Suite(contenders, cells, goals)


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
    return Suite(contenders, cells, goals, _BFLOAT16)


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
    return Suite(contenders, cells, goals)


def memory(quick: bool, lengths: Sequence[int] | None, threads: int) -> Suite:
    """Temporaries of compiled programs; nothing is run."""
    document, held = "loss of a document", dict(at_most=True, quantity="temporaries")
    contenders = [Contender(document, "jax", {"kind": "score", "spec": "rope"}, {"mode": ["loss"]})]
    goals = [Goal(f"temporaries of the {document}", document, None, {"loss": (150, None)}, **held)]
    for spec in ("alibi", "t5"):
        name, growth = f"posjax {spec}", "growth of its temporaries over that of n"
        contenders.append(Contender(name, "jax", {"kind": "temporaries", "spec": spec}, {"mode": ["fb"]}))
        at_8192 = dict(where=lambda cell: cell["length"] == 8192, **held)
        goals.append(Goal(f"temporaries of {name}", name, None, {"fb": (64, None)}, **at_8192))
        goals.append(Goal(f"{growth}, {name}", name, None, {"fb": (1.0, None)}, **held, grows=True))
    cells = [{**_HEAD, "mode": "fb", "length": n} for n in lengths or ((2048, 8192) if quick else _FULL)]
    cells.append({"batch": 1, "width": 128, "heads": 4, "mode": "loss", "length": 32768})
    return Suite(contenders, cells, goals)


def pipelines(quick: bool, lengths: Sequence[int] | None, threads: int, folder: str = "") -> Suite:
    """Batches from disk: of pictures, decoded and cropped to 224 pixels, and of windows of tokens.

    A time is that of a batch and of all processes that make it. Pictures are about 375 x 500 pixels; crops are inception
    crops, bicubic. torch's DataLoader reads a folder with timm's transforms. Windows have positions, documents and weights in
    posjax, and no more than tokens and targets in torch.
    """
    cores = f"{threads} core{'s' * (threads > 1)}"
    pictures, count = (128, 4) if quick else (512, 12)
    images = {"mode": "images", "image": 224, "batch": 32, "pictures": pictures, "count": count}
    randaug = {"augment": "inception_crop + flip + timm_randaug(std=0)", "policy": "rand-m9-inc1"}
    cells = [
        {"title": f"crop, {cores}", **images, "augment": "inception_crop", "policy": None},
        {"title": f"crop, flip, randaug, {cores}", **images, **randaug},
    ]
    windows = {"mode": "tokens", "batch": 64, "tokens": 10**7, "count": 20 if quick else 60}
    cells += [{"title": f"windows of {n:,} tokens, {cores}", "length": n, **windows} for n in lengths or (1024,)]
    own, theirs, alone = "posjax", "torch", {"folder": folder, "workers": 0}
    behind = f", {threads} worker{'s' * (threads > 1)}"
    read, tars, only = alone | {"kind": "read_images"}, {"packing": "tars"}, {"mode": ["images"]}
    contenders = [
        Contender(own, "jax", read | tars, only),
        Contender(f"{own} again", "jax", read | tars, only),
        Contender(f"{own}, from a folder", "jax", read | {"packing": "folder"}, only),
        Contender(f"{own}{behind}", "jax", read | tars | {"workers": threads}, only),
        Contender(f"{theirs} and timm", "torch", read, only),
        Contender(f"{theirs} and timm{behind}", "torch", read | {"workers": threads}, only),
        Contender("tf.data", "torch", alone | {"kind": "read_images_tf"}, {"title": [cells[0]["title"]]}),
        Contender(f"{own} tokens", "jax", alone | {"kind": "read_tokens"}, {"mode": ["tokens"]}),
        Contender(f"{theirs} on np.memmap", "torch", alone | {"kind": "read_tokens"}, {"mode": ["tokens"]}),
    ]
    wanted = {"images": (1.0, 1.2)}
    pairs = [(f"{theirs} and timm{workers}", f"{own}{workers}") for workers in ("", behind)]
    goals = [Goal(f"{over} / {under}", over, under, wanted) for over, under in pairs]
    return Suite(contenders, cells, goals)
