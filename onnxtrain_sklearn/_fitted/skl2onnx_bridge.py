"""Border to skl2onnx: the only module that knows its private names, each imported where it is first needed.

skl2onnx keeps its converters in tables by class and by name. Its public interface adds entries. To read the tables, to
remove an entry, or to parse a nested estimator, the private names are needed.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from .._utils.typing import Estimator, Parsers, Scope, Variable
from ..exceptions import ModelError

PRIVATE = {
    "parse": ("skl2onnx._parse", "_parse_sklearn"),
    "parse_column_transformer": ("skl2onnx._parse", "_parse_sklearn_column_transformer"),
    "parsers": ("skl2onnx._parse", "sklearn_parsers_map"),
    "names": ("skl2onnx._supported_operators", "sklearn_operator_name_map"),
    "converter": ("skl2onnx.common._registration", "get_converter"),
    "converters": ("skl2onnx.common._registration", "_converter_pool"),
    "shape_calculators": ("skl2onnx.common._registration", "_shape_calculator_pool"),
}
"""The private names, as module and attribute."""


def package() -> Any:
    """Return skl2onnx itself."""
    return _imported_module("skl2onnx")


def types() -> Any:
    """Return its module of types."""
    return _imported_module("skl2onnx.common.data_types")


def shapes() -> Any:
    """Return its module of functions that declare shapes."""
    return _imported_module("skl2onnx.common.shape_calculator")


def _imported_module(module: str) -> Any:
    try:
        import skl2onnx

        return skl2onnx if module == skl2onnx.__name__ else importlib.import_module(module)
    except ImportError as error:
        raise ModelError(
            f"Fitted scikit-learn models are converted by skl2onnx, which cannot be imported ({error}). Install it: "
            f"pip install skl2onnx."
        ) from error


def _private(key: str) -> Any:
    module, name = PRIVATE[key]
    try:
        return getattr(_imported_module(module), name)
    except AttributeError as error:
        raise ModelError(
            f"skl2onnx {package().__version__} has no {module}.{name}, which fitted models are converted with. Install "
            f"a version that this package is tested with: pip install 'skl2onnx>=1.20,<2'."
        ) from error


def converted_classes() -> set[type]:
    """Return the classes that have a converter in skl2onnx."""
    return set(_private("names"))


def has_converter(kind: type) -> bool:
    """Return True if skl2onnx has a converter for a class, its own or a registered one."""
    return kind in _private("names")


def converter(name: str) -> Callable[..., None]:
    """Return the converter of a name."""
    found: Callable[..., None] = _private("converter")(name)
    return found


def allowed_options(kind: type) -> dict[str, Any]:
    """Return the options that the converter of a class has, with their values."""
    names = _private("names")
    return (converter(names[kind]).get_allowed_options() or {}) if kind in names else {}  # type: ignore[attr-defined]


def parse(scope: Scope, estimator: Estimator, inputs: list[Variable], custom_parsers: Parsers) -> Any:
    """Declare an estimator and its outputs."""
    return _private("parse")(scope, estimator, inputs, custom_parsers)


def parse_column_transformer(
    scope: Scope, transformer: Estimator, inputs: list[Variable], custom_parsers: Parsers
) -> Any:
    """Declare the parts of a ColumnTransformer and their outputs."""
    return _private("parse_column_transformer")(scope, transformer, inputs, custom_parsers=custom_parsers)


def forget(kind: type, name: str) -> None:
    """Remove what was registered for a class under a name."""
    for table, key in (("parsers", kind), ("names", kind), ("converters", name), ("shape_calculators", name)):
        _private(table).pop(key, None)
