"""ONNX files with operators of ai.onnx.ml: they train as the fitted estimators do that they were made from."""

from __future__ import annotations

import copy
import re

import numpy as np
import onnx
import onnxruntime
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from onnx import TensorProto, helper
from skl2onnx import to_onnx
from skl2onnx.common.data_types import FloatTensorType
from skl2onnx.helpers.onnx_helper import select_model_inputs_outputs
from sklearn.calibration import CalibratedClassifierCV
from sklearn.discriminant_analysis import QuadraticDiscriminantAnalysis
from sklearn.ensemble import RandomForestClassifier
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression, SGDClassifier
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from onnxtrain_sklearn import OrtGradientClassifier, OrtGradientRegressor
from onnxtrain_sklearn.exceptions import ModelError
from onnxtrain_sklearn.losses import SquaredError
from tests.helpers.environment import available_engines
from tests.helpers.ml_files import CASES, DATA, file_of, made, run

pytestmark = [
    pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),  # skl2onnx reads what scikit-learn means to drop
]

ENGINES = pytest.mark.parametrize("engine", available_engines())


EACH = pytest.mark.parametrize("case", CASES, ids=str)


AS_ESTIMATORS = (
    "Ridge",
    "LogisticRegression",
    "LogisticRegression of names",
    "SVC of three",
    "SVC of names with probabilities",
    "SVR",
    "DecisionTreeClassifier",
    "RandomForestClassifier",
    "RandomForestClassifier of ten",
    "RandomForestRegressor",
    "GradientBoostingClassifier",
    "GradientBoostingClassifier of three",
    "GradientBoostingRegressor",
)


def estimator_of(case, model, **parameters):
    kind = OrtGradientRegressor if case.data == "diabetes" else OrtGradientClassifier
    return kind(model, **{"max_iter": 2, "random_state": 0, **parameters})


def untrained(case, model, **parameters):
    X, y = DATA[case.data]
    return estimator_of(case, model, max_iter=1, optimizer="sgd", learning_rate_init=1e-30, **parameters).fit(X, y)


@EACH
def test_training_starts_from_the_file(case):
    (X, y), (_, proto) = DATA[case.data], made(case)
    labels, numbers = run(proto, X)
    start = untrained(case, proto)
    if labels is None:
        assert_allclose(start.predict(X), numbers.ravel(), rtol=1e-4, atol=1e-4)
        return
    assert_array_equal(start.classes_, np.unique(y))
    if not case.of_margins:
        assert_allclose(start.predict_proba(X), numbers, atol=1e-4)
    elif numbers.shape[1] == 2:
        assert_allclose(np.abs(start.decision_function(X)), np.abs(numbers[:, 1]), rtol=1e-3, atol=1e-4)
    else:
        assert_allclose(start.decision_function(X).reshape(numbers.shape), numbers, rtol=1e-3, atol=1e-4)
    sure = np.ptp(np.sort(numbers, axis=1)[:, -2:], axis=1) > 1e-3 if numbers.shape[1] > 1 else numbers[:, 0] != 0
    assert_array_equal(start.predict(X)[sure], labels[sure])


@pytest.mark.parametrize("case", CASES[::3], ids=str)
def test_trained_file_keeps_input_and_predicts_same(case):
    (X, y), (_, proto) = DATA[case.data], made(case)
    trained = estimator_of(case, proto, learning_rate_init=0.01).fit(X, y)
    exported = trained.to_onnx()
    onnx.checker.check_model(exported, full_check=True)
    assert [(v.name, len(v.type.tensor_type.shape.dim)) for v in exported.graph.input] == [("X", 2)]
    labels, numbers = run(exported, X)
    if labels is None:
        assert_allclose(trained.predict(X), numbers.ravel(), rtol=1e-5)
    else:
        assert_array_equal(trained.predict(X), labels)
    assert set(trained.weights_) <= {tensor.name for tensor in exported.graph.initializer}


@pytest.mark.thinned(by=lambda case, engine: {re.sub("Classifier|Regressor| of.*", "", case.name), engine})
@pytest.mark.parametrize("case", [case for case in CASES if case.name in AS_ESTIMATORS], ids=str)
@ENGINES
def test_files_train_as_their_estimators(case, engine):
    (X, y), (estimator, proto) = DATA[case.data], made(case)
    parameters = {"engine": engine, "learning_rate_init": 0.01, "max_iter": 4}
    if case.data == "diabetes":  # a file does not hold the loss
        parameters["loss"] = SquaredError()
    by_estimator, by_file = (estimator_of(case, model, **parameters).fit(X, y) for model in (estimator, proto))
    method = "predict" if case.data == "diabetes" else "predict_proba" if not case.of_margins else "decision_function"
    assert_allclose(getattr(by_file, method)(X), getattr(by_estimator, method)(X), rtol=2e-3, atol=2e-3)
    assert_allclose(by_file.loss_curve_, by_estimator.loss_curve_, rtol=1e-3)
    assert by_file.engine_ == engine


def test_paths_bytes_and_messages_are_one_model(tmp_path):
    case = CASES[2]
    (X, y), (_, proto) = DATA[case.data], made(case)
    path = tmp_path / "model.onnx"
    path.write_bytes(proto.SerializeToString())
    found = [
        estimator_of(case, model).fit(X, y).predict_proba(X) for model in (proto, path, str(path), path.read_bytes())
    ]
    for one in found[1:]:
        assert_array_equal(one, found[0])


@pytest.mark.parametrize("data", ["cancer", "digits"])
def test_training_on_shifted_data_improves_held_out_score(data):
    (X, y), rng = DATA[data], np.random.RandomState(0)
    half, model = len(X) // 2, make_pipeline(StandardScaler(), LogisticRegression()).fit(X, y)
    shifted = (X + 2 * rng.standard_normal(X.shape[1])).astype(np.float32)
    before = model.score(shifted[half:], y[half:])
    tuned = OrtGradientClassifier(to_onnx(model, X[:1]), learning_rate_init=0.01, max_iter=60, random_state=0)
    assert before + 0.15 < tuned.fit(shifted[:half], y[:half]).score(shifted[half:], y[half:])


def test_missing_values_follow_the_file_branches():
    X, y = DATA["iris"]
    gaps = np.where(np.random.RandomState(0).uniform(size=X.shape) < 0.1, np.nan, X).astype(np.float32)
    filled = make_pipeline(SimpleImputer(), LogisticRegression()).fit(gaps, y)
    trained = OrtGradientClassifier(to_onnx(filled, gaps[:1]), max_iter=1, optimizer="sgd", learning_rate_init=1e-30)
    assert_allclose(trained.fit(gaps, y).predict_proba(gaps), filled.predict_proba(gaps), atol=1e-4)
    assert not any("imputed" in name for name in trained.weights_)
    with pytest.raises(ValueError, match="contains NaN"):
        OrtGradientClassifier(file_of("GaussianNB")).fit(gaps, y)


def test_the_number_of_columns_need_not_be_declared():
    X, y = DATA["iris"]
    model = make_pipeline(StandardScaler(), LogisticRegression()).fit(X, y)
    proto = to_onnx(model, initial_types=[("X", FloatTensorType([None, None]))])
    trained = OrtGradientClassifier(proto, max_iter=1, optimizer="sgd", learning_rate_init=1e-30).fit(X, y)
    assert_allclose(trained.predict_proba(X), model.predict_proba(X), atol=1e-5)


def test_constants_and_neutral_scalers_are_not_trained():
    assert set(untrained(CASES[9], made(CASES[9])[1]).weights_) == {
        "linear_classifier.coef",
        "linear_classifier.intercept",
        "scaler.scale",
    }
    forest = next(case for case in CASES if case.name == "GradientBoostingRegressor")
    assert set(untrained(forest, made(forest)[1]).weights_) == {"trees.base_values", "trees.leaf_values"}


def test_a_classifier_is_not_trained_as_a_regressor():
    X, y = DATA["cancer"]
    with pytest.raises(ModelError, match="is a classifier: train it with OrtGradientClassifier"):
        OrtGradientRegressor(file_of("LogisticRegression")).fit(X, y)


def test_a_file_without_labels_is_not_trained_as_a_classifier():
    X, y = DATA["cancer"]
    proto = onnx.ModelProto.FromString(file_of("LogisticRegression").SerializeToString())
    del proto.graph.output[0]
    with pytest.raises(ModelError, match="returns 'output_probability' without labels, so it is a regressor"):
        OrtGradientClassifier(proto).fit(X, y)


def test_counts_have_no_gradient():
    X, y = DATA["iris"]
    proto = to_onnx(KNeighborsClassifier().fit(X, y), X[:1], options={"zipmap": False})
    with pytest.raises(ModelError, match="changes in steps, as counts of neighbors"):
        OrtGradientClassifier(proto).fit(X, y)


def test_text_is_encoded_and_its_numbers_are_trained():
    codes = {"keys_strings": ["a", "b"], "values_floats": [1.0, 2.5]}
    node = helper.make_node("LabelEncoder", ["X"], ["Y"], domain="ai.onnx.ml", **codes)
    graph = helper.make_graph([node], "g", [helper.make_tensor_value_info("X", TensorProto.STRING, ["N", 1])],
                              [helper.make_tensor_value_info("Y", TensorProto.FLOAT, ["N", 1])])  # fmt: skip
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18), helper.make_opsetid("ai.onnx.ml", 3)])
    X = pd.DataFrame({"X": ["a", "b", "b"]})
    trained = OrtGradientRegressor(proto, optimizer="sgd", learning_rate_init=0.2, max_iter=60).fit(X, [3.0, 1.0, 2.0])
    assert_allclose(trained.predict(X), [3.0, 1.5, 1.5], atol=1e-2)  # the means


@pytest.mark.parametrize("engine", available_engines())
@pytest.mark.parametrize("data", ["iris", "names", "digits"])
def test_scores_beyond_the_range_of_exponentials_are_trained(data, engine):
    """Scores of rows in their own units reach hundreds, and skl2onnx writes sigmoids by exponentials."""
    (X, y), others = (4 * DATA[data][0], DATA[data][1]), np.roll(DATA[data][1], 7)
    model = SGDClassifier(loss="log_loss", random_state=0).fit(X, y)
    proto = to_onnx(model, X[:1], options={"zipmap": False}, target_opset=18)
    assert np.abs(model.decision_function(X)).max() > 89
    start = OrtGradientClassifier(proto, max_iter=1, optimizer="sgd", learning_rate_init=1e-30, engine=engine).fit(X, y)
    labels, numbers = run(proto, X)
    assert_allclose(start.predict_proba(X), numbers, atol=1e-5)
    sure = np.ptp(np.sort(numbers, axis=1)[:, -2:], axis=1) > 1e-3
    assert_array_equal(start.predict(X)[sure], labels[sure])
    tuned = OrtGradientClassifier(proto, learning_rate_init=1e-3, max_iter=5, random_state=0, engine=engine)
    tuned.fit(X, others)
    assert tuned.loss_curve_[-1] < tuned.loss_curve_[0]


def test_labels_in_a_row_are_one_for_each_row():
    X, y = DATA["names"]
    model = QuadraticDiscriminantAnalysis(reg_param=0.1).fit(X, y)
    proto = to_onnx(model, X[:1], options={"zipmap": False}, target_opset=18)
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    assert session.run(["label"], {"X": X})[0].shape == (1, len(X))
    start = OrtGradientClassifier(proto, max_iter=1, optimizer="sgd", learning_rate_init=1e-30).fit(X, y)
    assert_array_equal(start.predict(X), model.predict(X))
    assert_allclose(start.predict_proba(X), model.predict_proba(X), atol=1e-4)


@pytest.mark.parametrize("targets", [1, 2])
def test_means_of_neighbors_are_trained(targets):
    """skl2onnx keeps the targets in float64, and casts those of the neighbors."""
    X, y = DATA["diabetes"]
    y = y if targets == 1 else np.stack([y, np.sqrt(y)], axis=1)
    model = KNeighborsRegressor(3).fit(X, y)
    proto = to_onnx(model, X[:1], target_opset=18)
    start = OrtGradientRegressor(proto, max_iter=1, optimizer="sgd", learning_rate_init=1e-30).fit(X, y)
    assert_allclose(start.predict(X), model.predict(X), rtol=1e-5)
    tuned = OrtGradientRegressor(proto, max_iter=20, learning_rate_init=0.5, random_state=0).fit(X, y)
    assert tuned.loss_curve_[-1] < tuned.loss_curve_[0]
    session = onnxruntime.InferenceSession(tuned.to_onnx().SerializeToString(), providers=["CPUExecutionProvider"])
    assert_allclose(session.run(None, {"X": X})[0].reshape(y.shape), tuned.predict(X), rtol=1e-5)


def test_outputs_without_a_type_are_those_of_the_runtime():
    X, y = DATA["iris"]
    model = make_pipeline(StandardScaler(), LogisticRegression()).fit(X, y)
    whole = to_onnx(model, X[:1], options={"zipmap": False}, target_opset=18)
    proto = select_model_inputs_outputs(whole, ["label", "probabilities"])
    assert not any(output.type.WhichOneof("value") for output in proto.graph.output)
    start = OrtGradientClassifier(proto, max_iter=1, optimizer="sgd", learning_rate_init=1e-30).fit(X, y)
    assert_allclose(start.predict_proba(X), model.predict_proba(X), atol=1e-5)


def test_outputs_without_a_shape_are_accepted():
    X, y = DATA["diabetes"]
    model = GaussianProcessRegressor(alpha=0.1).fit(X[:60], y[:60])
    proto = to_onnx(model, X[:1], options={GaussianProcessRegressor: {"return_std": True}}, target_opset=18)
    assert any(not output.type.tensor_type.HasField("shape") for output in proto.graph.output)
    settings = {"max_iter": 1, "optimizer": "sgd", "learning_rate_init": 1e-30}
    start = OrtGradientRegressor(proto, trainable="*", **settings).fit(X, y)  # the factor of the kernel's exponent too
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    assert_allclose(start.predict(X), session.run(None, {"X": X})[0].ravel(), rtol=1e-4, atol=1e-3)


@ENGINES
@pytest.mark.long
def test_untrained_trees_equal_the_file(engine):
    """The file takes the threshold nearest to sums of votes, which in another order decide otherwise."""
    X, y = DATA["iris"]
    forest = RandomForestClassifier(5, random_state=0)
    model = CalibratedClassifierCV(forest, method="isotonic", cv=2).fit(X, y)
    proto = to_onnx(model, X[:1], options={"zipmap": False}, target_opset=18)
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    expected = session.run(None, {"X": X})[1]
    start = OrtGradientClassifier(proto, max_iter=1, optimizer="sgd", learning_rate_init=1e-30, engine=engine).fit(X, y)
    assert_allclose(start.predict_proba(X), expected, atol=1e-5)
    tuned = OrtGradientClassifier(proto, max_iter=5, learning_rate_init=0.01, random_state=0, engine=engine).fit(X, y)
    assert tuned.loss_curve_[-1] < tuned.loss_curve_[0]


def test_nearest_points_of_a_file_are_those_of_its_rows():
    """Each row is a point: the root of its distance has the gradient zero there."""
    X, y = DATA["iris"]
    model = KNeighborsRegressor(weights="distance").fit(X, y)
    proto = to_onnx(model, X[:1], target_opset=18)
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    tuned = OrtGradientRegressor(proto, max_iter=1, optimizer="sgd", learning_rate_init=1e-30).fit(X, y.astype(float))
    assert_allclose(tuned.predict(X), session.run(None, {"X": X})[0].ravel(), atol=1e-5)
    assert np.isfinite(tuned.loss_)


def test_a_file_has_no_estimator_to_write_back_to():
    trained = untrained(CASES[0], made(CASES[0])[1])
    with pytest.raises(ModelError, match="given as ONNX"):
        trained.to_sklearn()


@pytest.mark.parametrize("size", [1, 0])
@pytest.mark.parametrize("name", ["Pipeline", "SVR", "RandomForestClassifier of ten"])
def test_files_that_declare_one_row_are_trained_on_many(name, size):
    """Converters write the number of rows of ``initial_types``, and onnxmltools zero where it knows none."""
    case = next(case for case in CASES if str(case) == name)
    X, y = DATA[case.data]
    proto = copy.deepcopy(file_of(name))  # other tests read the same file
    free = estimator_of(case, proto.SerializeToString()).fit(X, y)
    for value in proto.graph.input:
        value.type.tensor_type.shape.dim[0].dim_value = size
    net = estimator_of(case, proto).fit(X, y)
    assert_array_equal(net.predict(X), free.predict(X))
    labels, numbers = run(net.to_onnx(), X)
    assert_allclose(numbers.ravel() if labels is None else labels, net.predict(X), rtol=1e-5)
