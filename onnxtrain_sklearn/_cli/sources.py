"""Resolve `--model`: a builder, a recipe for raw tables, a fitted model, an ONNX file, a stored estimator."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from sklearn.base import is_classifier
from sklearn.pipeline import Pipeline

from .._estimators.base import GraphEstimator
from .._recipes.base import BaseRecipe
from .._recipes.realmlp import RealMLPClassifier, RealMLPRegressor
from .._recipes.tabm import TabMClassifier, TabMRegressor
from ..exceptions import nearest
from ..models import MODELS
from ..persistence import TRUSTED_TYPES
from .console import UsageError
from .tables import Trained, require_columns

if TYPE_CHECKING:
    import pandas


Kind: TypeAlias = Literal["builder", "recipe", "fitted", "own", "graph"]

RECIPES: dict[str, dict[str, type[BaseRecipe]]] = {
    "realmlp": {"classification": RealMLPClassifier, "regression": RealMLPRegressor},
    "tabm": {"classification": TabMClassifier, "regression": TabMRegressor},
}
"""Names that stand for estimators with a preprocessing of their own, by task."""

BUILDERS = {name: builder for name, builder in MODELS.items() if name not in RECIPES and name != "convnet"}
"""The builders for tables, by name."""

PICKLES = (".joblib", ".pkl", ".pickle")
SECURITY = (
    "security:\n"
    "  A joblib or pickle file can run any code when it is loaded: name only files that you trust. skops files are\n"
    "  data; a type that skops does not know is refused unless --trust names it. ONNX files hold no code."
)


@dataclass(frozen=True)
class ModelOption:
    """Model to train: ``model`` is the name of a recipe, a builder, a fitted estimator, or the path of a graph.

    A fitted estimator of this package, alone or at the end of a pipeline, is of the kind "own".
    """

    kind: Kind
    model: Any
    text: str


def source_named(name: str, trust: Sequence[str] = ()) -> ModelOption:
    """Return what ``--model`` names.

    Raises
    ------
    UsageError
        It is neither a name nor a file, or a file of another kind.
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
        loaded = _unpickled(path) if path.suffix in PICKLES else _from_skops(path, trust)
        if not hasattr(loaded, "predict"):
            raise UsageError(f"{name!r} holds a {type(loaded).__name__}, which is no fitted estimator.")
        return _stored(loaded, path)
    return ModelOption("graph", str(path), path.name)


def is_classifier_option(option: ModelOption) -> bool:
    """Return True if the option is a fitted classifier."""
    return option.kind in ("fitted", "own") and is_classifier(option.model)


def own_estimator(model: object) -> Any:
    """Return the estimator of this package that a stored model is, or ends in; None for others."""
    last = model.steps[-1][1] if isinstance(model, Pipeline) else model
    return last if isinstance(last, GraphEstimator | BaseRecipe) else None


def _stored(loaded: object, path: Path) -> ModelOption:
    text = f"{path.name} ({type(loaded).__name__})"
    best = getattr(loaded, "best_estimator_", loaded)  # of a search
    if own_estimator(best) is not None:
        return ModelOption("own", best, text)
    return ModelOption("fitted", loaded, text)


def fitted_columns(source: ModelOption, frame: pandas.DataFrame) -> tuple[Callable[[Any], Any], list[str]]:
    """Return how the data of a fitted model are taken from the table: its own columns, or all of them."""
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


def _unpickled(path: Path) -> Any:
    import joblib

    try:
        return joblib.load(path)
    except Exception as error:  # whatever the code in it raises
        raise ValueError(f"{str(path)!r} cannot be loaded by joblib: {type(error).__name__}: {error}") from error


def _from_skops(path: Path, trust: Sequence[str]) -> Any:
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


# ``train --save``: the trained estimator as a joblib file, for Python, ``export-training`` and a later ``train``.


def require_joblib_name(path: Path | None) -> None:
    """Raise UsageError where the name of the file has not the ending by which it is read again."""
    if path is not None and path.suffix not in PICKLES:
        raise UsageError(f"--save writes {', '.join(PICKLES[:-1])} or {PICKLES[-1]}, got {path.name!r}.")


def save_estimator(trained: Trained, path: Path) -> int:
    """Write the whole estimator, its preprocessing included, and return the size of the file."""
    import joblib

    path.parent.mkdir(parents=True, exist_ok=True)
    joblib.dump(trained.predictor, path)
    return path.stat().st_size
