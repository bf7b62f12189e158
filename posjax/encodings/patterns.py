"""Patterns over the layers of a model that papers have named: `parse_layers` reads them, and repeats them over the layers.

Their text is the text of the layers: str of the parsed value lists each layer.
"""

from dataclasses import dataclass

from posjax.spec import register_pattern


class _Pattern:
    """Layers of which `local` see a window and the others all tokens."""

    window: int | None
    local: int
    base: float

    def __post_init__(self):
        if self.local < 1:
            raise ValueError(f"a pattern needs one local layer or more, got local={self.local}")

    def local_layers(self) -> list[str]:
        """Returns a rope in a window, for each of the local layers."""
        within = "" if self.window is None else f" + window({self.window!r})"
        return [f"rope(base={self.base!r}){within}"] * self.local


@register_pattern("rnope")
@dataclass(frozen=True)
class RNope(_Pattern):
    """RNoPE-SWA: `local` layers with a rope within a window, then one that sees all tokens and has no encoding.

    Yang et al. (2025), "Rope to Nope and Back Again", arXiv 2501.18795, and Cohere2 in transformers, every fourth of whose
    layers is the global one. The paper normalises neither queries nor keys. window=None, local=1 is RNoPE, in which layers
    alternate.

    Args:
      window: tokens that a query sees, its own among them; None for all.
      base: of the rope; 10000 in the paper, 50000 in Command R7B.

    Raises:
      ValueError: for fewer than one local layer.
    """

    window: int | None = 4096
    local: int = 3
    base: float = 10_000.0

    def layers(self) -> str:
        return ", ".join([*self.local_layers(), "none"])


@register_pattern("swan")
@dataclass(frozen=True)
class Swan(_Pattern):
    """SWAN: a layer that sees all tokens and has no encoding, then `local` ones with a rope within a window.

    Puvvada et al. (2025), SWAN-GPT, arXiv 2504.08719, sections 2 and 2.2 and table 6. Beyond the trained length the logits of
    the global layers are multiplied by log_a(a + n) at position n, which is fitted to a trained model and used at inference
    only: read it under swan(scale=a).

    Args:
      scale: a; None for none, as in training.

    Raises:
      ValueError: for fewer than one local layer.

    >>> import posjax as pj
    >>> print(*pj.parse_layers("swan(window=64, local=1)"), sep="\\n")
    none()
    rope(base=1000000) + window(size=64)
    """

    window: int | None = 512
    local: int = 3
    base: float = 1_000_000.0
    scale: int | None = None

    def layers(self) -> str:
        first = "none" if self.scale is None else f"log_n(original_length={self.scale!r}, shifted=True)"
        return ", ".join([first, *self.local_layers()])


@register_pattern("gpt_oss")
@dataclass(frozen=True)
class GptOss(_Pattern):
    """gpt-oss: `local` layers within a window, then one that sees all tokens; a learned sink in each, one rope in all.

    Agarwal et al. (2025), gpt-oss, arXiv 2508.10925, and transformers' gpt_oss, whose YaRN reads 32 times the 4096 tokens of
    its first training. factor=1 is a model that is trained at its full length, with no scaling.

    Args:
      window: tokens that a query of a local layer sees, its own among them; None for all.
      factor, original_length: of YaRN.

    Raises:
      ValueError: for fewer than one local layer, or what `yarn` refuses.
    """

    window: int | None = 128
    local: int = 1
    base: float = 150_000.0
    factor: float = 32.0
    original_length: int = 4096

    def layers(self) -> str:
        of_length = f"factor={self.factor!r}, original_length={self.original_length!r}, truncate=False"
        scaled = "" if self.factor == 1 else f", scaling=yarn({of_length})"
        rope = f"rope(base={self.base!r}{scaled})"
        within = "" if self.window is None else f" + window({self.window!r})"
        return ", ".join([*[f"{rope}{within} + learned_sink"] * self.local, f"{rope} + learned_sink"])


@register_pattern("gemma4")
@dataclass(frozen=True)
class Gemma4(_Pattern):
    """Gemma 4: `local` layers with a rope within a window, then a global one that rotates a quarter of its pairs, slower.

    transformers' gemma4_text. Its global layers have heads of twice the size and its last layer is global at any depth:
    both are the model's, not of this pattern.

    Args:
      window: tokens that a query of a local layer sees, its own among them; None for all.
      base: of the local layers' rope.
      global_base, proportion: of the global layers' `p_rope`.

    Raises:
      ValueError: for fewer than one local layer, or what `p_rope` refuses.
    """

    window: int | None = 512
    local: int = 5
    base: float = 10_000.0
    global_base: float = 1_000_000.0
    proportion: float = 0.25

    def layers(self) -> str:
        return ", ".join([*self.local_layers(), f"p_rope(base={self.global_base!r}, proportion={self.proportion!r})"])


@register_pattern("lfm3")
@dataclass(frozen=True)
class Lfm3(_Pattern):
    """LFM3's layers of attention: a global one that rotates half of its pairs, then a local one within a window.

    transformers' lfm3, in which a short convolution, which needs no position, follows each layer of attention.

    Args:
      window: tokens that a query of a local layer sees, its own among them; None for all.
      base: of the local layers' rope.
      global_base, proportion: of the global layers' `p_rope`.

    Raises:
      ValueError: for fewer than one local layer, or what `p_rope` refuses.
    """

    window: int | None = 256
    local: int = 1
    base: float = 10_000.0
    global_base: float = 1_000_000.0
    proportion: float = 0.5

    def layers(self) -> str:
        return ", ".join([f"p_rope(base={self.global_base!r}, proportion={self.proportion!r})", *self.local_layers()])


@register_pattern("laguna")
@dataclass(frozen=True)
class Laguna(_Pattern):
    """Laguna: a global layer that rotates the first half of its channels, then `local` ones with a rope within a window.

    Ropes and window as in transformers' laguna. It leaves the order of layers to each checkpoint, and has global layers
    alone where layer_types are absent: three local layers to a global one, and the global one first, are chosen here.

    Args:
      window: tokens that a query of a local layer sees, its own among them; None for all.
      base: of the local layers' rope.
      global_base, fraction: of the global layers' rope.

    Raises:
      ValueError: for fewer than one local layer, or what `rope` refuses.
    """

    window: int | None = 512
    local: int = 3
    base: float = 10_000.0
    global_base: float = 500_000.0
    fraction: float = 0.5

    def layers(self) -> str:
        return ", ".join([f"rope(base={self.global_base!r}, fraction={self.fraction!r})", *self.local_layers()])


@register_pattern("muse")
@dataclass(frozen=True)
class Muse(_Pattern):
    """Muse Glimmer: `local` layers with a rope within a window, then a global one without encoding, which may stand earlier.

    transformers' muse_glimmer_text, 52 layers. muse_spark_text counts its 62 layers from the last one, which is global:
    muse(base=500000, first=1). Both normalise queries and keys, and multiply the queries by a constant.

    Args:
      window: tokens that a query of a local layer sees, its own among them; None for all.
      base: of the rope.
      first: how many of the local layers stand before the global one; None for all.

    Raises:
      ValueError: for fewer than one local layer, or a `first` below 0 or above `local`.
    """

    window: int | None = 2048
    local: int = 3
    base: float = 10_000.0
    first: int | None = None

    def __post_init__(self):
        super().__post_init__()
        if self.first is not None and not 0 <= self.first <= self.local:
            raise ValueError(f"muse(first=...) is between 0 and local={self.local}, got {self.first}")

    def layers(self) -> str:
        layers = self.local_layers()
        layers.insert(self.local if self.first is None else self.first, "none")
        return ", ".join(layers)


@register_pattern("beam")
@dataclass(frozen=True)
class Beam(_Pattern):
    """Beam 1.0: `local` layers with a rope within a window, then a global one whose queries grow as (1 + (p + 1) / N)^a.

    transformers' beam, 52 layers, the last one global too. The temperature is a constant of its code.

    Args:
      window: tokens that a query of a local layer sees, its own among them; None for all.
      base: of the rope.
      original_length, exponent: N and a, of `power_temperature`.

    Raises:
      ValueError: for fewer than one local layer, or what `power_temperature` refuses.
    """

    window: int | None = 512
    local: int = 5
    base: float = 10_000.0
    original_length: int = 2048
    exponent: float = 0.1

    def layers(self) -> str:
        grown = f"power_temperature(original_length={self.original_length!r}, exponent={self.exponent!r})"
        return ", ".join([*self.local_layers(), grown])


@register_pattern("mistral_large4")
@dataclass(frozen=True)
class MistralLarge4(_Pattern):
    """Mistral Large 4: `local` layers with a rope under YaRN, then one without; a learned temperature in each.

    transformers' mistral_large4_text, whose YaRN reads 2048 times the 512 tokens of its first training, without its
    attention factor. Left out are factors that are learned beside: of the frequencies (`lerope`), 1 at first, and a bias
    of each head's temperature (`ssmax`). All layers see the keys that an indexer picks by their content.

    Args:
      local: layers with a rope before the one without; all see alike.
      base, factor, original_length: of the rope and of its YaRN.

    Raises:
      ValueError: for fewer than one layer with a rope, or what `yarn` refuses.
    """

    local: int = 3
    base: float = 10_000.0
    factor: float = 2048.0
    original_length: int = 512

    def layers(self) -> str:
        yarn = f"yarn(factor={self.factor!r}, original_length={self.original_length!r}, attention_factor=1.0)"
        rope = f"rope(base={self.base!r}, layout='interleaved', scaling={yarn}) + ssmax"
        return ", ".join([*[rope] * self.local, "ssmax"])
