"""Formulas as MathML, which browsers draw themselves: the site loads no script from elsewhere."""

from __future__ import annotations

from docutils import nodes
from docutils.utils.math import MathError
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.writers.html5 import HTML5Translator

COMMANDS = str.maketrans(
    {"←": r"\leftarrow ", "·": r"\cdot ", "∇": r"\nabla ", "‖": r"\|", "⌊": r"\lfloor ", "⌋": r"\rfloor "}
)

logger = logging.getLogger(__name__)


def mathml(node: nodes.math | nodes.math_block, as_block: bool) -> str:
    """Return a formula as MathML; its source, with a warning, where it cannot be read."""
    try:
        return str(tex2mathml(node.astext().translate(COMMANDS), as_block=as_block))
    except MathError as error:
        logger.warning("formula %r: %s", node.astext(), error, location=node, type="mathml")
        return f"<code>{node.astext()}</code>"


def visit_inline(self: HTML5Translator, node: nodes.math) -> None:
    """Write a formula within a line."""
    self.body.append(mathml(node, as_block=False))
    raise nodes.SkipNode


def visit_block(self: HTML5Translator, node: nodes.math_block) -> None:
    """Write a formula on lines of its own."""
    self.body.append(f'<div class="formula">{mathml(node, as_block=True)}</div>\n')
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the renderer ``mathml``."""
    app.add_html_math_renderer("mathml", (visit_inline, None), (visit_block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
