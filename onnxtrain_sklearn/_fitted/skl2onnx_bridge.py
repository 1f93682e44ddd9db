"""Bridge to skl2onnx: the only module that imports it, and that knows its private names.

skl2onnx is slow to import, so each function here imports it when called. skl2onnx keeps its converters in tables by
class and by name. Its public interface adds entries; reading the tables, removing an entry and parsing a nested
estimator need private names.

skl2onnx's converters of ensembles look up the class of a nested estimator in these tables, and skl2onnx has no plugin
mechanism. So the converters of this package must be registered before a conversion begins.
:func:`register_when_imported` delays a registration until skl2onnx has been imported; :func:`register_waiting`, which
fits and unpickling call, runs the delayed registrations.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
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
"""The private names of skl2onnx that are used here, as module and attribute."""


TESTED = "1.20.0"
"""A version of skl2onnx with all of these names, for the error that names a missing one."""


_waiting: list[Callable[[], None]] = []
"""Registrations that wait for skl2onnx to be imported."""


_added: set[type] = set()
"""Classes of scikit-learn that skl2onnx can convert since :func:`replace` was called."""


def register_when_imported(register: Callable[[], None]) -> None:
    """Call ``register`` now if skl2onnx is imported, else at the first :func:`register_waiting` after its import."""
    _waiting.append(register)
    register_waiting()


def register_waiting() -> None:
    """Run the registrations that wait, if skl2onnx has been imported since.

    Networks also train where skl2onnx lacks a name that these need; a conversion of this package then reports it.
    """
    with suppress(ModelError):
        _register()


def _register() -> None:
    if _waiting and sys.modules.get("skl2onnx") is not None:
        ready = list(_waiting)
        _waiting.clear()  # clear first, because registering imports skl2onnx, which calls this function
        try:
            for register in ready:
                register()
        except ModelError:
            _waiting.extend(ready)
            raise


def package() -> Any:
    """Return skl2onnx itself."""
    return _imported_module("skl2onnx")


def types() -> Any:
    """Return skl2onnx's module of types."""
    return _imported_module("skl2onnx.common.data_types")


def shapes() -> Any:
    """Return skl2onnx's module of functions that declare shapes."""
    return _imported_module("skl2onnx.common.shape_calculator")


def _imported_module(module: str) -> Any:
    try:
        import skl2onnx

        found = skl2onnx if module == skl2onnx.__name__ else importlib.import_module(module)
    except ImportError as error:
        raise ModelError(
            f"Fitted scikit-learn models and pipelines are converted to ONNX by skl2onnx, which cannot be imported "
            f'({error}). Install it: pip install "onnxtrain-sklearn[fitted]".'
        ) from error
    _register()
    return found


def register(
    kind: type,
    name: str,
    declare: Callable[..., None],
    convert: Callable[..., None],
    options: Mapping[str, Any] | None = None,
) -> None:
    """Register a converter for a class, unless the class already has one, for example the user's.

    Parameters
    ----------
    kind : type
        The class; its subclasses do not get the converter, because they may predict in another way.
    name : str
        The name of the operator in skl2onnx's tables.
    declare : callable
        ``declare(operator)`` sets the types and shapes of the outputs.
    convert : callable
        ``convert(scope, operator, container)`` adds nodes to the container.
    options : mapping of str to list, default=None
        Allowed options and their values. With "zipmap" skl2onnx expects labels and probabilities.
    """
    if not has_converter(kind):
        package().update_registered_converter(kind, name, declare, convert, options=options)


def read_before_parsing(kind: type, read: Callable[[Any], Any]) -> None:
    """Let skl2onnx parse ``read(model)`` in place of a model of a class; options of the model go with it."""
    parsers = _private("parsers")
    parse = parsers[kind]

    def parse_read(scope: Any, model: Any, inputs: Any, custom_parsers: Any = None) -> Any:
        found = read(model)
        if found is not model and scope.options is not None and id(model) in scope.options:
            scope.add_options(id(found), scope.options[id(model)])
            # Options are found by identity, which a later object would get if this one were let go of.
            vars(scope).setdefault("models_read", []).append(found)
        return parse(scope, found, inputs, custom_parsers=custom_parsers)

    parsers[kind] = parse_read


@dataclass(frozen=True)
class Registered:
    """What skl2onnx calls for a class: the functions that declare and convert; None where it has no converter."""

    declare: Callable[..., None] | None = None
    convert: Callable[..., None] | None = None


def replaceable(kind: type) -> Registered | None:
    """Return skl2onnx's own converter of a class of scikit-learn; None if another one is registered."""
    name = _private("names").get(kind)
    if name is None:
        return Registered()
    if name != f"Sklearn{kind.__name__}":
        return None
    return Registered(_private("shape_calculators")[name], _private("converters")[name])


def replace(
    kind: type,
    name: str,
    declare: Callable[..., None],
    convert: Callable[..., None],
    options: Mapping[str, Any] | str | None = None,
    parser: Callable[..., Any] | None = None,
) -> None:
    """Register a converter for a class, also where skl2onnx has its own.

    The parameters are those of :func:`register`, and ``parser(scope, estimator, inputs, custom_parsers)``, which
    declares the outputs. With the options "passthrough", any option is allowed.
    """
    if not has_converter(kind):
        _added.add(kind)
    package().update_registered_converter(kind, name, declare, convert, options=options, parser=parser)


def _private(key: str) -> Any:
    module, name = PRIVATE[key]
    try:
        return getattr(_imported_module(module), name)
    except AttributeError as error:
        raise ModelError(
            f"skl2onnx {package().__version__} has no {module}.{name}, which fitted models are converted with. Install "
            f"a version that has it: pip install skl2onnx=={TESTED}."
        ) from error


def converted_classes() -> set[type]:
    """Return the classes that have a converter in skl2onnx."""
    return set(_private("names"))


def has_converter(kind: type) -> bool:
    """Return True if skl2onnx has a converter for a class, its own or a registered one."""
    return kind in _private("names")


def knows(kind: type) -> bool:
    """Return True if skl2onnx has a converter for a class without those that this package adds to it."""
    return has_converter(kind) and kind not in _added


def converter(name: str) -> Callable[..., None]:
    """Return skl2onnx's converter with the operator name ``name``."""
    found: Callable[..., None] = _private("converter")(name)
    return found


def allowed_options(kind: type) -> dict[str, Any]:
    """Return the options that the converter of a class has, with their values."""
    names = _private("names")
    return (converter(names[kind]).get_allowed_options() or {}) if kind in names else {}  # type: ignore[attr-defined]


def parse(
    scope: Scope, estimator: Estimator, inputs: list[Variable], custom_parsers: Parsers, alias: str | None = None
) -> Any:
    """Declare an estimator and its outputs, by its parser; with the name of an operator, without a parser."""
    return _private("parse")(scope, estimator, inputs, custom_parsers, alias=alias)


def parse_column_transformer(
    scope: Scope, transformer: Estimator, inputs: list[Variable], custom_parsers: Parsers
) -> Any:
    """Declare the parts of a ColumnTransformer and their outputs."""
    return _private("parse_column_transformer")(scope, transformer, inputs, custom_parsers=custom_parsers)


def forget(kind: type, name: str) -> None:
    """Remove the converter that was registered for a class under ``name``."""
    for table, key in (("parsers", kind), ("names", kind), ("converters", name), ("shape_calculators", name)):
        _private(table).pop(key, None)
