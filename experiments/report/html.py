"""Turns a page's Markdown into HTML with one stylesheet, which shows the figures beside it."""

import html
import pathlib
import re

from markdown_it import MarkdownIt

from posjax.files import replace_file

_STYLE = pathlib.Path(__file__).with_name("style.css")
_TAGS = re.compile(r'(</?(?:details|summary)>|<a id="[\w.-]+">|</a>)')  # that pages write themselves


def to_html(markdown: str, language: str = "en") -> str:
    """Returns a whole page; its title is the first heading."""
    title = next((line.lstrip("# ") for line in markdown.splitlines() if line.startswith("# ")), "posjax")
    parser = MarkdownIt("commonmark", {"html": True}).enable("table")
    for kind in ("html_block", "html_inline"):
        parser.add_render_rule(kind, lambda self, tokens, index, *_: _own_tags(tokens[index].content))
    body = parser.render(markdown)
    head = f'<meta charset="utf-8">\n<meta name="viewport" content="width=device-width">\n<title>{html.escape(title)}</title>'
    style = f"<style>\n{_STYLE.read_text()}</style>"
    return (
        f'<!DOCTYPE html>\n<html lang="{language}">\n<head>\n{head}\n{style}\n</head>\n<body>\n{body}</body>\n</html>\n'
    )


def _own_tags(text: str) -> str:
    """Returns HTML with all other tags as text: the names in somebody's records can hold a script."""
    return "".join(part if _TAGS.fullmatch(part) else part.replace("<", "&lt;") for part in _TAGS.split(text))


def write_html(page: pathlib.Path) -> pathlib.Path:
    """Writes README.html beside a README.md; returns its path."""
    path = page.with_suffix(".html")
    replace_file(path, to_html(page.read_text()).encode())
    return path
