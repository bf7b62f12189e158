"""Turns a page's Markdown into HTML with one stylesheet, which shows the figures beside it."""

import html
import pathlib

from markdown_it import MarkdownIt

from posjax.files import replace_file

_STYLE = pathlib.Path(__file__).with_name("style.css")


def to_html(markdown: str) -> str:
    """Returns a whole page; its title is the first heading."""
    title = next((line.lstrip("# ") for line in markdown.splitlines() if line.startswith("# ")), "posjax")
    body = MarkdownIt("commonmark", {"html": True}).enable("table").render(markdown)
    head = f'<meta charset="utf-8">\n<meta name="viewport" content="width=device-width">\n<title>{html.escape(title)}</title>'
    style = f"<style>\n{_STYLE.read_text()}</style>"
    return f'<!DOCTYPE html>\n<html lang="en">\n<head>\n{head}\n{style}\n</head>\n<body>\n{body}</body>\n</html>\n'


def write_html(page: pathlib.Path) -> pathlib.Path:
    """Writes README.html beside a README.md; returns its path."""
    path = page.with_suffix(".html")
    replace_file(path, to_html(page.read_text()).encode())
    return path
