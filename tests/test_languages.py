"""The pages in English and in Chinese say the same: their headings, tables, numbers, code and pictures agree."""

import collections
import pathlib
import re

import pytest
from markdown_it import MarkdownIt

REPO = pathlib.Path(__file__).parents[1]
PAIRS = [("README.md", "README.zh.md"), *((f"docs/{n}.md", f"docs/zh/{n}.md") for n in ("from_zero", "vit_and_llm"))]
FENCED = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
TERMS = [line.strip("| ").split(" | ") for line in (REPO / "docs/glossary.md").read_text().splitlines()[8:]]


def sections(text):
    """The texts between headings, by level of heading."""
    text = FENCED.sub("", text)
    return re.split(r"^(?=#+ )", text, flags=re.MULTILINE)


def numbers(text):
    text = re.sub(r"\]\([^)]*\)", "]", text)  # addresses
    return collections.Counter(re.findall(r"\d+(?:,\d{3})*(?:\.\d+)?", text))


def tables(text):
    """Rows and columns of each table."""
    found = re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE)
    return [[len(re.split(r"(?<!\\)\|", row)) for row in table.splitlines()] for table in found]


@pytest.mark.parametrize(("english", "chinese"), PAIRS)
def test_both_languages_agree(english, chinese):
    pages = [(REPO / name).read_text() for name in (english, chinese)]
    one, other = map(sections, pages)
    assert [part.split(" ")[0] for part in one] == [part.split(" ")[0] for part in other]
    for a, b in zip(one, other, strict=True):
        assert tables(a) == tables(b), a.splitlines()[0]
        assert numbers(a) == numbers(b), a.splitlines()[0]
        assert len(re.findall(r"^- ", a, re.MULTILINE)) == len(re.findall(r"^- ", b, re.MULTILINE)), a
        assert [pathlib.Path(x).name for x in re.findall(r"!\[.*?\]\((.*?)\)", a)] == [
            pathlib.Path(x).name for x in re.findall(r"!\[.*?\]\((.*?)\)", b)
        ]
    assert FENCED.findall(pages[0]) == FENCED.findall(pages[1])


@pytest.mark.parametrize("page", [page for pair in PAIRS for page in pair])
def test_no_mark_of_markdown_is_left_as_text(page):
    """`**words（more）**` followed by a letter is not bold: marks close behind punctuation only before a space."""
    tokens = MarkdownIt("commonmark").enable("table").parse((REPO / page).read_text())
    texts = [child.content for token in tokens for child in token.children or () if child.type == "text"]
    assert [text for text in texts if re.search(r"\*|\]\(", text)] == []


@pytest.mark.parametrize("pair", PAIRS)
def test_each_page_has_a_switch_to_the_other(pair):
    for page, other in (pair, pair[::-1]):
        switch = (REPO / page).read_text().splitlines()[2]
        assert {"English", "中文"} == set(re.sub(r"\]\(.*?\)|\[", "", switch).split(" | "))
        assert (REPO / page).parent.joinpath(re.search(r"\((.*?)\)", switch)[1]).resolve() == REPO / other


def test_the_glossary_has_60_terms_and_chinese_pages_use_them():
    english, chinese, *_ = zip(*TERMS, strict=True)
    assert len({*english}) == len({*chinese}) == 60
    known = dict(zip(english, chinese, strict=True))
    for _, page in PAIRS:
        for chinese_name, name in re.findall(r"(\w+)（([a-z][a-z ]+)）", (REPO / page).read_text()):
            if name in known:
                assert chinese_name.endswith(known[name]), (page, name)
