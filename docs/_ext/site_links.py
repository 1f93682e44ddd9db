"""Links of the site: to the built examples, and to other packages, without asking the web for theirs."""

from __future__ import annotations

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment

SCIKIT_LEARN = "https://scikit-learn.org/stable/modules/generated/"


def resolve(app: Sphinx, env: BuildEnvironment, node: pending_xref, content: nodes.Element) -> nodes.reference | None:
    """Return a link to the page of a public name of scikit-learn, None for every other name."""
    name = str(node.get("reftarget", ""))
    if node.get("refdomain") != "py" or not name.startswith("sklearn."):
        return None
    owner = name.rpartition(".")[0] if node["reftype"] in ("meth", "attr") else name
    return nodes.reference("", "", content, internal=False, refuri=f"{SCIKIT_LEARN}{owner}.html#{name}")


def to_built_examples(app: Sphinx, page: str, source: list[str]) -> None:
    """Lead links to the scripts of the examples, as the repository shows them, to their pages."""
    for up in ("", "../"):
        source[0] = source[0].replace(f"](../{up}examples/gallery/)", f"]({up}gallery/index.rst)")


def setup(app: Sphinx) -> dict[str, bool]:
    """Lead links to where their targets are on the site or on the web."""
    app.connect("source-read", to_built_examples)
    app.connect("missing-reference", resolve)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
