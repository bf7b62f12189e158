"""Bytes, seconds and lengths as tables show them."""

import argparse
import re

_UNITS = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}


def gib(size: float) -> str:
    """Three digits of a size, as "1.5 GiB"."""
    unit = next((name for name in ("TiB", "GiB", "MiB") if size >= _UNITS[name]), "KiB")
    return f"{size / _UNITS[unit]:.3g} {unit}"


def mib(size: float | None) -> str:
    """A size in MiB, without the unit; "" for None."""
    if size is None:
        return ""
    return f"{size / 2**20:.1f}" if size < 100 * 2**20 else f"{size / 2**20:.0f}"


def duration(seconds: float) -> str:
    """Three digits of a time, as "1.5 s"."""
    if seconds >= 120:
        return f"{seconds / 60:.3g} min" if seconds < 7200 else f"{seconds / 3600:.3g} h"
    return f"{seconds:.3g} s" if seconds >= 1 else f"{1e3 * seconds:.3g} ms"


def bytes_of(text: str) -> float:
    """Bytes of a size, as "24GiB", "1.5GiB" or "512MiB"; the type of an argument.

    Raises:
      ArgumentTypeError: for any other text.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]iB)", text.strip())
    if not match or float(match[1]) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no size: write it as 24GiB or 512MiB")
    return float(match[1]) * _UNITS[match[2]]
