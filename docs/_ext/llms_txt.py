"""Writes ``llms.txt``: the pages of the site in the order of its navigation, each with its first sentence.

The format is that of llmstxt.org, which language models read in place of a site map.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment

LONGEST = 200


def first_sentence(document: nodes.document) -> str:
    """Return the first sentence of the first paragraph outside tables and directives; empty where there is none."""
    texts = (p.astext() for p in document.findall(nodes.paragraph) if isinstance(p.parent, nodes.section))
    text = " ".join(next(texts, "").split())
    sentence = re.split(r"(?<=[.?!])\s", text, maxsplit=1)[0].rstrip(":")
    return sentence if len(sentence) <= LONGEST else sentence[:LONGEST].rsplit(" ", 1)[0] + " ..."


def description(env: BuildEnvironment, page: str) -> str:
    """Return a line about a page: for a name of the reference the summary of its docstring."""
    document = env.get_doctree(page)
    contents = next(document.findall(lambda node: node.tagname == "desc_content"), None)
    if contents is None:
        return first_sentence(document)
    return " ".join(next((p.astext() for p in contents.findall(nodes.paragraph)), "").split())


def pages_below(env: BuildEnvironment, page: str, seen: set[str]) -> Iterator[str]:
    """Yield ``page`` and the pages that its tables of contents name, depth first."""
    if page not in seen:
        seen.add(page)
        yield page
        for child in env.toctree_includes.get(page, []):
            yield from pages_below(env, child, seen)


def lines(env: BuildEnvironment, project: str) -> Iterator[str]:
    """Yield the lines of the file: a title, the first sentence of the site, a section for each part of it."""
    root = env.config.root_doc
    yield from (f"# {project}", "", f"> {first_sentence(env.get_doctree(root))}")
    seen = {root}
    for part in env.toctree_includes.get(root, []):
        yield from ("", f"## {env.titles[part].astext()}", "")
        for page in pages_below(env, part, seen):
            about = description(env, page)
            yield f"- [{env.titles[page].astext()}]({page}.html)" + (f": {about}" if about else "")


def write(app: Sphinx, exception: Exception | None) -> None:
    """Write the file beside the pages."""
    if exception is None and app.builder.name == "html":
        text = "\n".join(lines(app.env, app.config.project))
        Path(app.outdir, "llms.txt").write_text(text + "\n", encoding="utf-8")


def setup(app: Sphinx) -> dict[str, bool]:
    """Write the file when the pages are written."""
    app.connect("build-finished", write)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
