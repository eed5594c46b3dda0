"""How Sphinx makes a site of the Markdown in this folder: `sphinx-build -W docs docs/_build`.

The pages are plain Markdown that also reads well without Sphinx. What a site needs on top is added here while it reads
them: tables of contents, made of the links on the pages that list others, and links from source files to their listing.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import inspect
import pkgutil
import re
import sys
from typing import Any

from sphinx.application import Sphinx
from sphinx.pycode import ModuleAnalyzer

import asyncrl

project = "asyncrl"
author = "asyncrl developers"
version = release = asyncrl.__version__

extensions = [
    "myst_parser", "sphinx.ext.autodoc", "sphinx.ext.autosummary", "sphinx.ext.viewcode", "sphinx_copybutton",
]  # fmt: skip
exclude_patterns = ["_build"]
templates_path = ["_templates"]
myst_heading_anchors = 4
default_role = "code"
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
toc_object_entries = False  # every page copies the whole table: with each function in it, that took most of a build
autodoc_mock_imports = ["ray"]  # which need not be installed

html_theme = "furo"
html_title = f"asyncrl {version}"
html_show_sphinx = False
html_copy_source = False

LISTS = ("results/README", "results/speedup/README")
"""The pages, besides the front page, that list others."""
SOURCE = re.compile(r"\[([^]]+)\]\((?:\.\./)+(asyncrl/[\w/]+)\.py\)")


def complete(app: Sphinx, docname: str, source: list[str]) -> None:
    """Link source files to their listing, and give a page that lists others its tables of contents."""
    up = "../" * docname.count("/")
    text = SOURCE.sub(rf'<a href="{up}_modules/\2.html">\1</a>', source[0])
    if docname == "index":
        first, *parts = re.split(r"^(?=## )", text, flags=re.MULTILINE)
        text = first + "".join(part + contents(part, part.partition("\n")[0].strip("# ")) for part in parts)
    elif docname in LISTS:
        text += contents(text)
    source[0] = text


def contents(text: str, caption: str = "") -> str:
    """A hidden table of contents: the pages that the text links to, in their order."""
    pages = dict.fromkeys(re.findall(r"\]\((?!https?://|\.\.)([^)#]+)\.md", text))
    options = ":hidden:\n" + (f":caption: {caption}\n" if caption else "")
    return f"\n```{{toctree}}\n{options}\n" + "\n".join(pages) + "\n```\n\n"


def plain_text(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Docstrings are plain text: what stands between backticks is code, an indented block is printed as it is."""
    text = "\n".join(lines)
    blocks = re.sub(r"(?m)^(\S.*)\n\n(?=[ \t])", r"\1\n\n::\n\n", text)
    pieces = re.split(r"(`[^`]+`)", blocks)
    pieces[::2] = [re.sub(r"([*|]|_(?=\W|$))", r"\\\1", piece) for piece in pieces[::2]]
    lines[:] = "".join(pieces).split("\n")


def where_listed(app: Sphinx, module: str, name: str) -> str | None:
    """The module in whose listing a name is: a constant, or another's class, is of the module that has it."""
    value: Any = sys.modules.get(module)
    for part in name.split("."):
        value = getattr(value, part, None)
    ours = (inspect.isclass(value) or inspect.isroutine(value)) and str(value.__module__).startswith("asyncrl")
    return None if ours else module


def with_constants(app: Sphinx, module: str) -> tuple[str, dict[str, tuple[str, int, int]]] | None:
    """The code of a module and what its listing has links to: constants too, since some modules have nothing else."""
    if not module.startswith("asyncrl"):
        return None
    analyzer = ModuleAnalyzer.for_module(module)
    constants = {
        target.id: ("other", node.lineno, node.end_lineno or node.lineno)
        for node in ast.parse(analyzer.code).body
        for target in ([node.target] if isinstance(node, ast.AnnAssign) else getattr(node, "targets", ()))
        if isinstance(target, ast.Name)
    }
    return analyzer.code, analyzer.find_tags() | constants


def without_dead_links(app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: Any) -> None:
    """Drop the links from a listing to anchors that no page has.

    viewcode takes all names in a listing for documented under the module of the first.
    """
    documented = app.env.domains.python_domain.objects

    def kept(link: re.Match[str]) -> str:
        goal = documented.get(link[2])
        there = goal is not None and link[1].endswith(f"/{goal.docname}.html") and goal.node_id == link[2]
        return link[0] if there else ""

    if page.startswith("_modules/"):
        context["body"] = re.sub(r'<a class="viewcode-back" href="([^"#]*)#([^"]*)">.*?</a>', kept, context["body"])


def import_types() -> None:
    """Import what modules import for annotations alone, so that a signature names one class where two have its name."""
    for found in pkgutil.walk_packages(asyncrl.__path__, "asyncrl."):
        with contextlib.suppress(ImportError):  # it needs an extra, such as Ray, or is known to type checkers alone
            module = importlib.import_module(found.name)
            for node in ast.parse(inspect.getsource(module)).body:
                if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
                    exec(compile(ast.Module(node.body, []), found.name, "exec"), vars(module))


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    import_types()
    app.connect("viewcode-find-source", with_constants)
    app.connect("viewcode-follow-imported", where_listed)
    app.connect("html-page-context", without_dead_links)
    app.connect("source-read", complete)
    app.connect("autodoc-process-docstring", plain_text)
