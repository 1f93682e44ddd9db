"""Pages of classes show what this package defines; what scikit-learn and Python add is in their documentation."""

from __future__ import annotations

from types import ModuleType

from sphinx.application import Sphinx

from onnxtrain_sklearn import schedules

PACKAGE = "onnxtrain_sklearn"


def skip_foreign(app: Sphinx, what: str, name: str, member: object, skip: bool, options: object) -> bool | None:
    """Leave out what another package defines; None: as autodoc decides."""
    function = getattr(member, "fget", None) or getattr(member, "__func__", None) or member
    module = getattr(function, "__module__", None) or ""
    foreign = what in ("class", "exception") and callable(function) and not module.startswith(PACKAGE)
    return True if foreign else None


def forget_line_numbers(module: ModuleType) -> None:
    """Let no class name a line of another file: some say that they are of the module that pickles know them by.

    Python 3.13 would read the text of such a class in the wrong file.
    """
    for value in vars(module).values():
        if isinstance(value, type) and "__firstlineno__" in vars(value) and value.__module__ == module.__name__:
            del value.__firstlineno__


def setup(app: Sphinx) -> dict[str, bool]:
    """Ask before a member is documented."""
    forget_line_numbers(schedules)
    app.connect("autodoc-skip-member", skip_foreign)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
