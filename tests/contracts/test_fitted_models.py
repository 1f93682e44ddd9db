"""The page of fitted models says what becomes of each of them; a model that is trained wrongly fails in any case."""

from __future__ import annotations

import ast
import re

import pytest
import sklearn
from sklearn.base import BaseEstimator

from tests.contracts import fitted, fitted_settings
from tests.contracts.fitted_expressions import NOT_IN_MODELS
from tests.contracts.fitted_settings import SETTINGS

WRITTEN = fitted.read()

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")  # of classes and attributes that will be dropped


def classes(key):
    """Return the classes that a setting is made of, and what its rows and targets are."""
    setting = SETTINGS[key]
    return {*re.findall(r"[A-Z]\w+(?=\()", setting.expression()), setting.group, setting.targets, setting.data}


def require_parameters(code):
    """Skip the test where a class that the code makes does not have a parameter yet that it names."""
    for call in (node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Call)):
        kind = fitted_settings.namespace().get(getattr(call.func, "id", None))
        if isinstance(kind, type) and issubclass(kind, BaseEstimator):
            for name in {keyword.arg for keyword in call.keywords} - set(kind._get_param_names()):
                pytest.skip(f"{kind.__name__} of scikit-learn {sklearn.__version__} has no {name}")


@pytest.mark.proof
@pytest.mark.thinned(by=classes)
@pytest.mark.parametrize("key", SETTINGS)
def test_outcome_equals_the_documented_one(key):
    require_parameters(SETTINGS[key].expression())
    found, written = fitted.outcome(SETTINGS[key]), WRITTEN[key]
    ranks = [fitted.ORDER.index(one.kind) for one in (found, written)]
    assert ranks[0] >= ranks[1], f"it was {written.kind} when the page was made; now: {found.reason}"
    assert ranks[0] == ranks[1], f"it is {found.kind} now, which the page does not say: {fitted.COMMAND}"
    assert sorted(found.parameters) == sorted(written.parameters), f"other names than on the page: {fitted.COMMAND}"


def test_page_shows_the_file():
    assert WRITTEN.keys() == SETTINGS.keys(), f"the settings have changed: {fitted.COMMAND}"
    assert fitted.PAGE.read_text(encoding="utf-8") == fitted.page(WRITTEN)


def test_every_converter_is_named():
    pytest.importorskip("skl2onnx")
    from skl2onnx._supported_operators import sklearn_operator_name_map

    classes = {kind.__name__ for kind in sklearn_operator_name_map if isinstance(kind, type)}
    own = {"OrtGradientClassifier", "OrtGradientRegressor", "RealMLPClassifier", "RealMLPRegressor"}
    own |= {"OrtGradientMultiOutput", "TabMClassifier", "TabMRegressor", "FeatureStep", "RandomizedSearchCV"}
    own |= {"RegressorChain"}
    classes -= own  # where other tests have registered them
    implied = {"ColumnTransformer", "FeatureUnion", "Pipeline"}  # by the functions that make them
    missing = classes - fitted.named_classes() - implied - NOT_IN_MODELS.keys()
    assert not missing, f"skl2onnx converts {sorted(missing)}: give each a setting"
    assert not NOT_IN_MODELS.keys() & fitted.named_classes()


def test_most_models_are_trained():
    for group, least in (("Regressors", 60), ("Classifiers", 75), ("Pipelines", 40)):
        trained = [k for k, one in WRITTEN.items() if SETTINGS[k].group == group and one.kind != fitted.REFUSED]
        assert len(trained) >= least
