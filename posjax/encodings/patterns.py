"""Patterns over the layers of a model that papers have named: `parse_layers` reads them, and repeats them over the layers.

Their text is that of the layers: str of what is read tells each of them.
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


def local_layers(pattern) -> list[str]:
    """A rope in a window, for each of the local layers."""
    within = "" if pattern.window is None else f" + window({pattern.window!r})"
    return [f"rope(base={pattern.base!r}){within}"] * pattern.local


def check_local(pattern) -> None:
    if pattern.local < 1:
        raise ValueError(f"a pattern needs one local layer or more, got local={pattern.local}")
