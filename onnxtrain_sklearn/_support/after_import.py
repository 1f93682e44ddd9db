"""Calls to make once another package has been imported, by whomever: nobody pays for it who does not need it."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


def after_import(package: str, call: Callable[[], object]) -> None:
    """Call ``call`` when ``package`` has been imported; at once if it has been already."""
    if package in sys.modules:
        call()
    else:
        sys.meta_path.insert(0, _CallingFinder(package, call))


class _CallingFinder(MetaPathFinder):
    """Finds the package as the other finders do, and appends the call to what its loader executes."""

    def __init__(self, package: str, call: Callable[[], object]) -> None:
        self._package, self._call, self._searching = package, call, False

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of the package that the other finders find; None for other modules."""
        if fullname != self._package or self._searching:
            return None
        self._searching = True
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._searching = False
        if spec is not None and spec.loader is not None:
            self._append(spec.loader)
        return spec

    def _append(self, loader: object) -> None:
        load: Callable[[ModuleType], object] = loader.exec_module  # type: ignore[attr-defined]

        def load_and_call(module: ModuleType) -> None:
            load(module)
            if module.__name__ == self._package and self in sys.meta_path:  # a loader of an archive is shared
                sys.meta_path.remove(self)
                self._call()

        loader.exec_module = load_and_call  # type: ignore[attr-defined]
