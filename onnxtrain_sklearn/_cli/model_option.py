"""Resolve ``--model``: a builder, a recipe for raw tables, a fitted model, a stored estimator, or an ONNX file.

``model_named`` returns a ``ModelOption``, whose ``kind`` decides how each command goes on. Pickles can run code, so
only files that the user names are loaded; skops files are checked against the types of this package.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
from sklearn.base import is_classifier
from sklearn.pipeline import Pipeline

from .._estimators.base import GraphEstimator
from .._recipes.base import BaseRecipe
from .._recipes.realmlp import RealMLPClassifier, RealMLPRegressor
from .._recipes.tabm import TabMClassifier, TabMRegressor
from ..exceptions import nearest
from ..models import MODELS
from ..skops_types import TRUSTED_TYPES
from .console import UsageError, parsed_settings
from .tables import require_columns

if TYPE_CHECKING:
    import pandas


Kind: TypeAlias = Literal["builder", "recipe", "fitted", "own", "graph"]

RECIPES: dict[str, dict[str, type[BaseRecipe]]] = {
    "realmlp": {"classification": RealMLPClassifier, "regression": RealMLPRegressor},
    "tabm": {"classification": TabMClassifier, "regression": TabMRegressor},
}
"""Recipes by name and task: estimators that preprocess the table themselves."""

BUILDERS = {name: builder for name, builder in MODELS.items() if name not in RECIPES and name != "convnet"}
"""The builders that take tables, by name; convolutional networks take images."""

PICKLES = (".joblib", ".pkl", ".pickle")

SECURITY = (
    "security:\n"
    "  A joblib or pickle file can run any code when it is loaded: name only files that you trust. skops files are\n"
    "  data; a type that skops does not know is refused unless --trust names it. ONNX files hold no code."
)


@dataclass(frozen=True)
class ModelOption:
    """The value of ``--model``.

    Attributes
    ----------
    kind : str
        "builder", "recipe", "graph" (an ONNX file), "own" (a stored estimator of this package, alone or at the end of a
        pipeline) or "fitted" (any other fitted estimator).
    model : object
        The builder, the recipe's name, the path of the graph, or the estimator.
    text : str
        The model in messages and reports.
    """

    kind: Kind
    model: Any
    text: str


def model_named(name: str, trust: Sequence[str] = ()) -> ModelOption:
    """Return the model that ``--model`` names, loaded where it is a file.

    Raises
    ------
    UsageError
        ``name`` is neither a name nor a file, or the file holds no estimator.
    """
    if name in RECIPES:
        return ModelOption("recipe", name, name)
    if name in BUILDERS:
        return ModelOption("builder", BUILDERS[name](), name)
    path = Path(name)
    if not path.is_file():
        names = [*BUILDERS, *RECIPES]
        looks_like_path = path.suffix or os.sep in name
        what = "There is no file" if looks_like_path else "Unknown model"
        raise UsageError(f"{what} {name!r}.{'' if looks_like_path else nearest(name, names)}")
    if path.suffix in (*PICKLES, ".skops"):
        loaded = _load_estimator(path, trust)
        if not hasattr(loaded, "predict"):
            raise UsageError(f"{name!r} holds a {type(loaded).__name__}, which is no fitted estimator.")
        text = f"{path.name} ({type(loaded).__name__})"
        best = getattr(loaded, "best_estimator_", loaded)  # of a search
        return ModelOption("fitted", loaded, text) if own_estimator(best) is None else ModelOption("own", best, text)
    return ModelOption("graph", str(path), path.name)


def _load_estimator(path: Path, trust: Sequence[str]) -> Any:
    """Return the object in a joblib, pickle or skops file."""
    # joblib and skops are imported late: most commands load no estimator.
    if path.suffix in PICKLES:
        import joblib

        try:
            return joblib.load(path)
        except Exception as error:  # a pickle runs code, which may raise anything
            raise ValueError(f"{str(path)!r} cannot be loaded by joblib: {type(error).__name__}: {error}") from error
    try:
        import skops.io
    except ImportError as error:
        raise ImportError("skops files are read by skops: pip install skops.") from error
    try:
        unknown = skops.io.get_untrusted_types(file=path)
    except Exception as error:  # no zip file, or no schema in it
        raise ValueError(f"{str(path)!r} cannot be read by skops: {type(error).__name__}: {error}") from error
    refused = [name for name in unknown if name not in (*trust, *TRUSTED_TYPES)]
    if refused:
        raise UsageError(
            f"{str(path)!r} holds types that skops does not know: {', '.join(refused)}. If you know what they do, "
            f"add: --trust {' '.join(refused)}"
        )
    return skops.io.load(path, trusted=unknown)


CONSTANT_HELP = "inputs of an ONNX graph that are the same in every call: numbers, or .npy files of arrays"


def constant_inputs(option: ModelOption, given: Sequence[str]) -> dict[str, Any] | None:
    """Return the values of ``--constant NAME=VALUE``, for a :class:`GraphModel`; None if there are none.

    Raises
    ------
    UsageError
        The model is no ONNX file, or a value is neither a number, a list, True or False nor the name of a .npy file.
    """
    if not given:
        return None
    if option.kind != "graph":
        raise UsageError(f"--constant is for the inputs of an ONNX file, and the model is {option.text}.")
    constants = parsed_settings(given, "--constant", "sr=16000 or adjacency=matrix.npy")
    for name, value in constants.items():
        if isinstance(value, str) and value.endswith(".npy"):
            try:
                constants[name] = np.load(value, allow_pickle=False)
            except (OSError, ValueError) as error:
                raise UsageError(f"--constant {name}: {value!r} is no file of an array: {error}") from error
        elif isinstance(value, str | None):
            raise UsageError(f"--constant {name} takes a number, a list or a .npy file of an array, got {value!r}.")
    return constants


def is_classifier_option(option: ModelOption) -> bool:
    """Return True if the option is a fitted classifier."""
    return option.kind in ("fitted", "own") and is_classifier(option.model)


def own_estimator(model: object) -> Any:
    """Return the estimator of this package that a stored model is, or ends in; None for others."""
    last = model.steps[-1][1] if isinstance(model, Pipeline) else model
    return last if isinstance(last, GraphEstimator | BaseRecipe) else None


def fitted_columns(source: ModelOption, frame: pandas.DataFrame) -> tuple[Callable[[Any], Any], list[str]]:
    """Return a function that takes a fitted model's data from a table, and the columns that it reads.

    They are the columns that the model was fitted to, by name, or all of them if it knows no names.
    """
    named = getattr(source.model, "feature_names_in_", None)
    if named is not None:
        names = [str(name) for name in named]
        require_columns(frame, names, "The fitted model's column")
        return lambda table: table[names], names
    names = list(frame.columns)
    expected = getattr(source.model, "n_features_in_", len(names))
    if expected != len(names):
        raise UsageError(f"The fitted model takes {expected} columns, the table has {len(names)} besides the target.")
    return lambda table: table[names].to_numpy(), names
