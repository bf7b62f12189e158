"""Patterns over the layers of a model that papers have named: `parse_layers` reads them, and repeats them over the layers.

The text of a parsed pattern is the text of its layers, each in turn.
"""

from dataclasses import dataclass

from posjax.spec import register_pattern


@register_pattern("rnope")
@dataclass(frozen=True)
class RNope:
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

    def __post_init__(self):
        check_local(self)

    def layers(self) -> str:
        return ", ".join([*local_layers(self), "none"])


@register_pattern("swan")
@dataclass(frozen=True)
class Swan:
    """SWAN: a layer that sees all tokens and has no encoding, then `local` ones with a rope within a window.

    Puvvada et al. (2025), SWAN-GPT, arXiv 2504.08719, sections 2 and 2.2 and table 6. Beyond the trained length the logits of
    the global layers are multiplied by log_a(a + n) at position n, which is fitted to a trained model and used at inference
    only: read it under swan(scale=a).

    Args:
      scale: a; None for none, as in training.

    Raises:
      ValueError: for fewer than one local layer.
    """

    window: int | None = 512
    local: int = 3
    base: float = 1_000_000.0
    scale: int | None = None

    def __post_init__(self):
        check_local(self)

    def layers(self) -> str:
        first = "none" if self.scale is None else f"log_n(original_length={self.scale!r}, shifted=True)"
        return ", ".join([first, *local_layers(self)])


@register_pattern("gpt_oss")
@dataclass(frozen=True)
class GptOss:
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

    def __post_init__(self):
        check_local(self)

    def layers(self) -> str:
        of_length = f"factor={self.factor!r}, original_length={self.original_length!r}, truncate=False"
        scaled = "" if self.factor == 1 else f", scaling=yarn({of_length})"
        rope = f"rope(base={self.base!r}{scaled})"
        within = "" if self.window is None else f" + window({self.window!r})"
        return ", ".join([*[f"{rope}{within} + learned_sink"] * self.local, f"{rope} + learned_sink"])


def local_layers(pattern) -> list[str]:
    """A rope in a window, for each of the local layers."""
    within = "" if pattern.window is None else f" + window({pattern.window!r})"
    return [f"rope(base={pattern.base!r}){within}"] * pattern.local


def check_local(pattern) -> None:
    if pattern.local < 1:
        raise ValueError(f"a pattern needs one local layer or more, got local={pattern.local}")
