"""Import the one installed onnxruntime, the only import of it in the package.

All onnxruntime distributions install the same import package and overwrite each other's files: importing this module
checks that only one is installed, or that all are of one version. Where the check or the import fails, this package can
still be imported, so that ``onnxtrain-sklearn doctor`` can list what is installed: ``onnxruntime`` and ``pybind`` are
then stand-ins that raise the error when they are used.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from importlib import metadata
from typing import TYPE_CHECKING, Any, NoReturn

from ..exceptions import OnnxTrainWarning, RuntimeNotFoundError

__all__ = [
    "DISTRIBUTIONS",
    "check_distributions",
    "installed_distributions",
    "onnxruntime",
    "pybind",
    "require_runtime",
    "version",
]


DISTRIBUTIONS = (
    "onnxruntime",
    "onnxruntime-gpu",
    "onnxruntime-training",
    "onnxruntime-training-cpu",
    "onnxruntime-openvino",
    "onnxruntime-directml",
    "onnxruntime-rocm",
    "onnxruntime-qnn",
)
_EXTRAS = (
    "pip install onnxruntime (any current Python; the extra onnxtrain-sklearn[portable]) or "
    "pip install onnxruntime-training-cpu==1.19.2 (Linux, Python 3.10-3.12; the extra onnxtrain-sklearn[ort-training])"
)


def installed_distributions(names: Iterable[str] = DISTRIBUTIONS) -> dict[str, str]:
    """Return the versions of the onnxruntime distributions that are installed in this environment, by name."""
    found = {}
    for name in names:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def check_distributions(installed: Mapping[str, str], imported: Sequence[str]) -> None:
    """Warn if several distributions of onnxruntime share one environment; raise if their versions differ.

    ``imported`` are the versions that the imported package reports: of its Python files and of its library.
    """
    if len(installed) < 2:
        return
    listed = ", ".join(f"{name} {version}" for name, version in installed.items())
    found = f"Several distributions of onnxruntime are installed: {listed}. They overwrite each other's files"
    remedy = f"  pip uninstall -y {' '.join(installed)}\n  {_EXTRAS}"
    released = {version.partition("+")[0] for version in (*installed.values(), *imported)}
    if len(released) > 1 or not imported:
        raise RuntimeNotFoundError(
            f"{found}, and what is imported is a mixture of versions ({', '.join(imported) or 'the import fails'}). "
            f"Remove all of them and install the one that you want:\n{remedy}"
        )
    warnings.warn(
        f"{found}. All have the same version and the import works, but which of them is imported is unknown. To be "
        f"sure, remove all of them and install the one that you want:\n{remedy}",
        OnnxTrainWarning,
        stacklevel=2,
    )


def _imported_runtime() -> tuple[Any, Any]:
    """Return onnxruntime and the module of its C++ classes; raise RuntimeNotFoundError if they cannot be used."""
    installed = installed_distributions()
    try:
        import onnxruntime
        from onnxruntime.capi import _pybind_state as pybind

        imported = str(onnxruntime.__version__), str(pybind.get_version_string())
        onnxruntime.SessionOptions()  # a mixture of distributions may lack it
    except (ImportError, AttributeError) as error:
        check_distributions(installed, [])
        raise RuntimeNotFoundError(
            f"onnxtrain_sklearn needs onnxruntime and could not import it ({error}). Install one of its "
            f"distributions:\n  {_EXTRAS}"
        ) from error
    check_distributions(installed, imported)
    return onnxruntime, pybind


class _Missing:
    """Stands in for a module that cannot be used: its attributes raise the error that says why."""

    def __init__(self, error: RuntimeNotFoundError) -> None:
        self._error = error

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):  # inspection, not use
            raise AttributeError(name)
        raise RuntimeNotFoundError(str(self._error)) from self._error.__cause__


if TYPE_CHECKING:
    import onnxruntime
    from onnxruntime.capi import _pybind_state as pybind
else:
    try:
        onnxruntime, pybind = _imported_runtime()
    except RuntimeNotFoundError as error:
        onnxruntime = pybind = _Missing(error)


def require_runtime() -> None:
    """Raise RuntimeNotFoundError unless onnxruntime can be used."""
    onnxruntime.SessionOptions  # noqa: B018  # of a stand-in, any attribute raises


def version() -> str:
    """Return the version of the installed onnxruntime."""
    require_runtime()
    return str(onnxruntime.__version__)
