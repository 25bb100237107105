"""How `make docs` builds the site.

Pages are Markdown, also readable where the repository is shown; those of `reference/` are made from docstrings.
Warnings are errors: a name in a signature that leads nowhere must be listed here, with the reason.
"""

from __future__ import annotations

import re

from sphinx.application import Sphinx

import lockfast

project = "lockfast"
author = "the lockfast maintainers"
project_copyright = author
version = release = lockfast.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx_copybutton", "sphinx_llms_txt"]
exclude_patterns = ["_build"]
myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]

html_theme = "furo"
html_title = "lockfast"
copybutton_prompt_text = "$ "
copybutton_only_copy_prompt_lines = True

autodoc_member_order = "bysource"
autodoc_default_options = {"members": True, "imported-members": True, "inherited-members": "Exception,object,tuple"}
autodoc_typehints = "signature"
python_use_unqualified_type_names = True

nitpicky = True
nitpick_ignore_regex = [
    # The standard library has pages of its own, whose index is on another host.
    ("py:.*", r"(asyncio|collections|contextlib|contextvars|datetime|types|typing|urllib|logging|threading)\..*"),
    # Type variables, and classes of lockfast that are no part of its public names.
    ("py:class", r"(.*\.)?(Async)?[DFTRW]"),
    (
        "py:class",
        r"Seconds|LockName|Observers|CoroutineType|UrlOrClient|Kind|Mode|Request|Engine|(Async)?(UserConnection|Singleton\w*|Locked\w*)",
    ),
    ("py:.*", r"lockfast\.(_|engine|primitives|backends|observe|testing)[\w.]*"),
]
default_role = "code"  # docstrings mark code with single backticks


def prepare_docstring(app: Sphinx, what: str, name: str, thing: object, options: object, lines: list[str]) -> None:
    """The pages introduce the modules themselves; a plural behind a backtick is no markup to Sphinx."""
    if what == "module" or (lines[:1] and lines[0].startswith("Alias for field number")):
        lines.clear()
    lines[:] = [re.sub(r"(`[^`]+`)(?=\w)", r"\1\\ ", line) for line in lines]


def leave_out_what_python_brings(app: Sphinx, what: str, name: str, thing: object, *_: object) -> bool | None:
    """The members of every exception, tuple and dict are in Python's own documentation."""
    return True if any(getattr(base, name, None) is thing for base in (OSError, tuple, dict)) else None


def list_decisions_in_their_index_only(app: Sphinx, doctree: object) -> None:
    name = app.env.current_document.docname
    if name.startswith("decisions/0"):
        app.env.metadata[name]["orphan"] = True


def setup(app: Sphinx) -> None:
    app.connect("doctree-read", list_decisions_in_their_index_only)
    app.connect("autodoc-skip-member", leave_out_what_python_brings)
    app.connect("autodoc-process-docstring", prepare_docstring)
