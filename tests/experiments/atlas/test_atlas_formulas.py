"""Formulas of the cards."""

from xml.etree import ElementTree

from experiments.atlas.formulas import LETTERS, apart, mathml
from posjax.spec import REGISTRY


def test_every_encoding_and_scaling_has_a_formula():
    assert [name for name, cls in REGISTRY.items() if not cls.formula] == []


def well_formed(latex):
    drawn = ElementTree.fromstring(mathml(latex))
    left = latex.count(r"\left") - latex.count(r"\leftarrow")
    balanced = latex.count("{") == latex.count("}") and left == latex.count(r"\right")
    whole = "\\" not in "".join(drawn.itertext()) and not any(each.tag.endswith("merror") for each in drawn.iter())
    return balanced and whole and drawn.get("alttext") == latex


def test_they_become_mathml_without_a_command_left_over():
    lines = [(name, line) for name, cls in REGISTRY.items() for line in cls.formula]
    wrong = [name for name, line in lines if not all(map(well_formed, apart(line)))]
    assert wrong == []
    assert all(well_formed(letter) for letter, _ in LETTERS)
    assert not well_formed(r"\unknown x")


def test_a_line_is_divided_between_formulas_only():
    assert apart(r"a = b,\quad c = \left(1,\quad 2\right)") == ["a = b,", r"c = \left(1,\quad 2\right)"]
    assert apart(r"x \leftarrow \begin{cases} a,\quad b \end{cases},\quad y") == [
        r"x \leftarrow \begin{cases} a,\quad b \end{cases},",
        "y",
    ]
