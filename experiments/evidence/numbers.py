"""Numbers in a text: those that were computed from records, or are data with a source, and those that somebody typed.

A generated text marks every number as it is formatted (`ink`). `loose` finds the others, so that a test can refuse them;
`plain` removes the marks.
"""

import re
from collections.abc import Mapping

from experiments.report.statistics import Interval

_OPEN, _CLOSE = "\ue000", "\ue001"  # of Unicode's private use: no text holds them
_INKED = re.compile(f"{_OPEN}[^{_CLOSE}]*{_CLOSE}")
# What holds digits and measures nothing: code and commands, the targets of links, sources, versions, dates and names.
_EXEMPT = re.compile(
    r"```.*?```"
    r"|`[^`\n]*`"
    r"|\]\([^)]*\)"
    r"|<[a-z!/][^>\n]*>"
    r"|arXiv[: ]\d{4}\.\d{4,5}"
    r"|\b(?:19|20)\d\d\b"
    r"|\b(?:table|figure|section|appendix) [A-Z]?\d+(?:\.\d+)*(?:[,-]\d+| and \d+)*"
    r"|\bPython \d+\.\d+\+?|\bApache-2\.0|\bLlama[ -]\d(?:\.\d+)?|\bGPT-\d"
    r"|\b[123]-?D\b|\bCIFAR-10+\b|\bCaltech-101\b|\bImageNet-1k\b|\bWikiText-\d+|\bViT-\w+/\d+|\bPG-?19\b"
    r"|(?m:^\s*\d+\. )",
    re.DOTALL,
)
_NUMBER = re.compile(r"(?<![\w.])[-+±]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?(?![\w])")


def ink(text: object) -> str:
    """Text whose numbers come from records or cited data."""
    return f"{_OPEN}{text}{_CLOSE}"


def of_interval(interval: Interval, digits: int = 3, signed: bool = False) -> str:
    """``+8.92 ± 0.71``, marked."""
    return ink(interval.text(digits, signed))


def plain(text: str) -> str:
    """The text without marks."""
    return text.replace(_OPEN, "").replace(_CLOSE, "")


def loose(text: str) -> list[str]:
    """Numbers of a text that are neither marked nor exempt: code, links, sources, years, dates, versions and names."""
    bare = _EXEMPT.sub(" ", _INKED.sub(" ", text))
    return _NUMBER.findall(bare)


def unexplained(text: str, facts: Mapping[str, tuple[object, ...]]) -> list[str]:
    """What is wrong with the numbers of a text that was written by hand.

    Args:
      facts: a regular expression with groups -> what the groups must say, as text. Each must be found once.

    Returns:
      A sentence for each fact that is not found or says something else, and for each number that no fact covers.
    """
    wrong = []
    for pattern, values in facts.items():
        found = re.findall(pattern, text)
        said = [each if isinstance(each, tuple) else (each,) for each in found]
        expected = tuple(map(str, values))
        if said != [expected]:
            wrong.append(f"{pattern!r} should be found once and say {expected}; found {said}")
        text = re.sub(pattern, lambda match: ink(match[0]), text)
    return wrong + [f"{number!r} comes from no record" for number in loose(text)]
