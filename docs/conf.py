"""Settings of Sphinx for the site: the documents, the notebooks and the docstrings as they stand. `make docs` builds it."""

import pathlib
import re

from docutils import nodes

import posjax
from experiments.atlas.formulas import mathml

project, html_title = "posjax", f"posjax {posjax.__version__}"
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.autosummary", "sphinx.ext.napoleon"]
root_doc = "README"
include_patterns = ["*.md", "docs/**", "results/**.md"]
exclude_patterns = [".*", "build", "docs/_templates", "experiments", "posjax", "runs", "tests"]
templates_path = [str(pathlib.Path(__file__).parent / "_templates")]
highlight_language = "none"  # of blocks that name no language: commands and specs
default_role = "code"
smartquotes_action = "D"  # dashes; quotes stay, formulas have them
myst_heading_anchors = 4
nb_execution_mode = "off"
autodoc_default_options = {"member-order": "bysource"}
autodoc_inherit_docstrings = False  # the contract says once what each hook does
autodoc_preserve_defaults = True
autodoc_typehints_format = "short"
maximum_signature_line_length = 88
napoleon_use_ivar = True
napoleon_attr_annotations = False
toc_object_entries_show_parents = "hide"
html_theme = "furo"
html_copy_source = False
html_show_sphinx = html_show_copyright = False
html_sidebars = {
    "**": [
        *("sidebar/brand.html", "sidebar/search.html", "sidebar/scroll-start.html"),
        *("sidebar/navigation.html", "sidebar/atlas.html", "sidebar/scroll-end.html"),
    ]
}


def navigation(app, name, source):
    """Adds the tree of pages to README, in the order of its last table, and to the page over all studies."""
    if name == "README":
        in_order = source[0].partition("## Where to go on")[2] + source[0]
        guides = dict.fromkeys(re.findall(r"\((docs/\w+)\.md\)", in_order))
        source[0] += (
            tree("Guides", *guides) + tree("Answers", "docs/answers/*") + tree("中文", "README.zh", "docs/zh/*")
        )
        source[0] += tree("Notebooks", "docs/notebooks/*")
        source[0] += tree("Reference", "docs/reference", "results/README", "CHANGELOG", "CONTRIBUTING", "AGENTS")
    elif name == "results/README":
        source[0] += tree("Studies", "*/**")


def tree(caption, *pages):
    """A hidden table of contents."""
    return "\n".join(["", "```{toctree}", ":hidden:", ":glob:", f":caption: {caption}", "", *pages, "```", ""])


def html_anchors(app, doctree):
    """Lets links find `<a id="name"></a>`, which hosts of Markdown understand and MyST does not."""
    slugs = app.env.metadata[app.env.docname].setdefault("myst_slugs", {})
    for node in doctree.findall(nodes.raw):
        slugs |= {name: (node.line, name, "") for name in re.findall(r'<a id="([\w-]+)">', node.astext())}


def plain_text(app, what, name, obj, options, lines):
    """Makes reStructuredText of a docstring: plain text, code in backticks or indented by four, and examples behind >>>."""
    paragraphs = "\n".join(lines).split("\n\n")
    text = "\n\n".join(
        each if each.startswith(("    ", ">>> ")) else re.sub(_SPECIAL, _escaped, each) for each in paragraphs
    )
    text = re.sub(r"(?<=\n\n)(?= {4}\S)", "::\n\n", text)
    spec_name = vars(obj).get("spec_name") if isinstance(obj, type) else None
    if spec_name:
        text += f"\n\nIn specs: ``{spec_name}``."
    formulas = vars(obj).get("formula", ()) if isinstance(obj, type) else ()
    if isinstance(formulas, tuple):
        text += "".join(f"\n\n.. raw:: html\n\n   {mathml(formula)}" for formula in formulas)
    lines[:] = [*text.splitlines(), ""]


_SPECIAL = (
    r"(`[^`]+`)(\w?)|([*|\\]|(?<=\w)_(?!\w))"  # code in backticks with a letter behind it, or a character of markup
)


def _escaped(found):
    """Code with what follows it, apart by an escaped space where that is a letter; or an escaped character."""
    code, letter, character = found.groups()
    return f"{code}\\ {letter}" if letter else code or f"\\{character}"


def skip_fields_of_tuples(app, what, name, obj, skip, options):
    """Leaves out the fields of named tuples, which the signature and the docstring have."""
    return True if type(obj).__name__ == "_tuplegetter" else None


def setup(app):
    """Connects the functions above."""
    app.connect("source-read", navigation)
    app.connect("doctree-read", html_anchors)
    app.connect("autodoc-process-docstring", plain_text, priority=400)  # before napoleon
    app.connect("autodoc-skip-member", skip_fields_of_tuples)
