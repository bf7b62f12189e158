"""Formulas of the cards."""

import xml.dom.minidom

from experiments.atlas.formulas import LETTERS, apart, mathml
from posjax.spec import REGISTRY


def texts(node):
    """All text of an element and of those within it."""
    if node.nodeType == node.TEXT_NODE:
        return node.data
    return "".join(map(texts, node.childNodes))


def test_every_encoding_and_scaling_has_a_formula():
    assert [name for name, cls in REGISTRY.items() if not cls.formula] == []


def well_formed(latex):
    drawn = xml.dom.minidom.parseString(mathml(latex)).documentElement
    balanced = latex.count("{") == latex.count("}") and latex.count(r"\left") == latex.count(r"\right") + latex.count(
        r"\leftarrow"
    )
    whole = "\\" not in texts(drawn) and not drawn.getElementsByTagName("merror")
    return balanced and whole and drawn.getAttribute("alttext") == latex


def test_they_become_mathml_without_a_command_left_over():
    wrong = [
        name
        for name, cls in REGISTRY.items()
        if not all(well_formed(part) for line in cls.formula for part in apart(line))
    ]
    assert wrong == []
    assert all(well_formed(letter) for letter, _ in LETTERS)
    assert not well_formed(r"\unknown x")


def test_a_line_is_divided_between_formulas_only():
    assert apart(r"a = b,\quad c = \left(1,\quad 2\right)") == ["a = b,", r"c = \left(1,\quad 2\right)"]
    assert apart(r"x \leftarrow \begin{cases} a,\quad b \end{cases},\quad y") == [
        r"x \leftarrow \begin{cases} a,\quad b \end{cases},",
        "y",
    ]
