"""Fitted models of tables with text: trained behind their encoders, from data frames, arrays of objects and documents.

Central differences of such models are in contracts/test_fitted_models.py, beside those of all others.
"""

from __future__ import annotations

import pickle
import warnings

import numpy as np
import onnxruntime
import pandas as pd
import pytest
import skl2onnx
from numpy.testing import assert_allclose, assert_array_equal
from skl2onnx.common.data_types import FloatTensorType, StringTensorType
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.ensemble import StackingClassifier, VotingClassifier, VotingRegressor
from sklearn.feature_extraction.text import CountVectorizer, TfidfVectorizer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.multiclass import OneVsRestClassifier
from sklearn.naive_bayes import MultinomialNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import (
    OneHotEncoder,
    StandardScaler,
    TargetEncoder,
)

from onnxtrain_sklearn import SGD, OrtGradientClassifier, OrtGradientRegressor
from onnxtrain_sklearn.exceptions import ModelError
from tests.helpers.environment import available_engines
from tests.helpers.mixed_columns import (
    BINARY,
    FRAME,
    NEW,
    NUMBER,
    OLD,
    OPSETS,
    THREE,
    TRANSFORMERS,
    N,
    columns,
    encoded,
    fitted_to_table,
    rng,
    session_results,
    table_classifier,
    table_regressor,
    with_value,
)
from tests.helpers.observed import predict_in_chunks, record_chunks
from tests.helpers.tuning import keep_encodings_sparse

pytestmark = [
    pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning"),
    pytest.mark.filterwarnings("ignore:.*TargetEncoder.random_state:FutureWarning"),
]


class TestTransformersOfColumns:
    @pytest.mark.parametrize("name", TRANSFORMERS)
    def test_starts_trains_and_goes_back(self, name):
        model = fitted_to_table(clone(TRANSFORMERS[name]))
        start = table_regressor(model, learning_rate_init=0.0, max_iter=1).fit(FRAME, NUMBER)
        assert_allclose(start.predict(FRAME), model.predict(FRAME), rtol=1e-4, atol=1e-4)
        tuned = table_regressor(model).fit(FRAME[NEW], NUMBER[NEW])
        assert tuned.loss_curve_[-1] < tuned.loss_curve_[0]
        assert np.abs(tuned.predict(FRAME) - model.predict(FRAME)).max() > 1e-3
        assert_allclose(tuned.to_sklearn().predict(FRAME), tuned.predict(FRAME), rtol=1e-4, atol=1e-5)
        assert_array_equal(session_results(tuned.to_onnx())[0].ravel(), tuned.predict(FRAME))

    @pytest.mark.parametrize("name", TRANSFORMERS)
    def test_loss_and_gradient_are_those_of_scikit_learn(self, name):
        model = fitted_to_table(clone(TRANSFORMERS[name]))
        once = {"optimizer": SGD(momentum=0.0), "learning_rate_init": 1.0, "max_iter": 1, "batch_size": N}
        tuned = table_regressor(model, trainable=["ridge.*"], **once).fit(FRAME, NUMBER)
        Z, error = model[:-1].transform(FRAME), model.predict(FRAME) - NUMBER
        Z = (Z.toarray() if hasattr(Z, "toarray") else Z).astype(np.float64)
        assert tuned.loss_ == pytest.approx((error**2).mean(), rel=1e-5)
        gradient = model[-1].coef_.ravel() - tuned.weights_["ridge.coef"].ravel().astype(np.float64)
        assert_allclose(gradient, 2 / N * Z.T @ error, rtol=1e-4, atol=1e-5)

    @pytest.mark.parametrize("engine", available_engines())
    @pytest.mark.parametrize("y", [BINARY, THREE], ids=["binary", "three"])
    def test_classifiers(self, engine, y):
        model = fitted_to_table(encoded(), y=y, last=LogisticRegression())
        tuned = table_classifier(model, engine=engine).fit(FRAME[NEW], y[NEW])
        assert tuned.engine_ == engine
        assert tuned.loss_curve_[-1] < tuned.loss_curve_[0]
        labels, probabilities = session_results(tuned.to_onnx())
        assert_array_equal(labels, tuned.predict(FRAME))
        assert_allclose(probabilities, tuned.predict_proba(FRAME), rtol=0, atol=5e-7)
        assert_allclose(tuned.to_sklearn().predict_proba(FRAME), probabilities, rtol=1e-4, atol=1e-5)

    def test_ensembles(self):
        parts = [(name, make_pipeline(encoded(), Ridge(alpha))) for name, alpha in (("p", 1.0), ("q", 9.0))]
        model = VotingRegressor(parts).fit(FRAME[OLD], NUMBER[OLD])
        tuned = table_regressor(model).fit(FRAME[NEW], NUMBER[NEW])
        assert_allclose(tuned.to_sklearn().predict(FRAME), tuned.predict(FRAME), rtol=1e-4, atol=1e-5)

    @pytest.mark.parametrize("encoder", [encoded(), TfidfVectorizer()], ids=["table", "documents"])
    @pytest.mark.parametrize("ensemble", [
        lambda p: CalibratedClassifierCV(p, cv=2), OneVsRestClassifier,
        lambda p: StackingClassifier([("p", p), ("q", p)], cv=2),
        lambda p: VotingClassifier([("p", p), ("q", p)], voting="soft", weights=[1, 2]),
    ], ids=["calibrated", "one-vs-rest", "stacking", "voting"])  # fmt: skip
    def test_text_within_ensembles_is_refused(self, ensemble, encoder):
        X = FRAME if hasattr(encoder, "transformers") else FRAME["note"]
        model = ensemble(make_pipeline(clone(encoder), LogisticRegression())).fit(X, BINARY)
        name = type(model).__name__
        with pytest.raises(ModelError, match=f"Put the encoder before the {name}, in"):
            table_classifier(model).fit(X, BINARY)
        model = make_pipeline(clone(encoder), ensemble(LogisticRegression())).fit(X, BINARY)
        tuned = table_classifier(model, max_iter=1, learning_rate_init=0.0).fit(X, BINARY)
        assert_allclose(tuned.predict_proba(X), model.predict_proba(X), atol=1e-5)

    def test_engines_agree(self):
        tuned = [
            table_regressor(fitted_to_table(clone(TRANSFORMERS["words"])), engine=engine).fit(FRAME[NEW], NUMBER[NEW])
            for engine in available_engines()
        ]
        for other in tuned[1:]:
            assert_allclose(other.predict(FRAME), tuned[0].predict(FRAME), rtol=1e-4, atol=1e-5)


class TestGraph:
    def test_inputs_are_the_columns_that_are_read(self):
        tuned = table_regressor(fitted_to_table(encoded(OneHotEncoder(), ["size", "kind"]))).fit(FRAME, NUMBER)
        inputs = tuned.to_onnx().graph.input
        assert [value.name for value in inputs] == ["a", "kind", "b", "size"]
        assert [value.type.tensor_type.elem_type for value in inputs] == [1, 8, 1, 8]

    def test_numbers_alone_stay_one_matrix(self):
        numbers = FRAME[["a", "b", "count"]]
        model = make_pipeline(columns((StandardScaler(), ["a", "b"])), Ridge()).fit(numbers, NUMBER)
        assert [value.name for value in table_regressor(model).fit(numbers, NUMBER).to_onnx().graph.input] == ["X"]

    def test_column_under_the_name_of_an_output(self):
        frame = FRAME.rename(columns={"a": "variable", "kind": "X", "b": "label"})
        model = make_pipeline(columns((OneHotEncoder(), ["X"]), ("passthrough", ["variable", "label"])), Ridge())
        tuned = table_regressor(model.fit(frame, NUMBER)).fit(frame, NUMBER)
        assert_array_equal(session_results(tuned.to_onnx(), frame)[0].ravel(), tuned.predict(frame))

    def test_parameters_behind_encoders_are_trained(self):
        tuned = table_regressor(fitted_to_table(clone(TRANSFORMERS["words"]))).fit(FRAME, NUMBER)
        names = ("tfidfvectorizer.tfidf.idf", "standardscaler.mean", "standardscaler.scale")
        assert set(tuned.weights_) == {f"columntransformer.{n}" for n in names} | {"ridge.coef", "ridge.intercept"}
        given = table_regressor(fitted_to_table(clone(TRANSFORMERS["words"])), learning_rate_init=0.0, max_iter=1).fit(
            FRAME, NUMBER
        )
        assert all((array != given.weights_[name]).any() for name, array in tuned.weights_.items())

    def test_targets_by_category_are_trained(self):
        model = fitted_to_table(encoded(TargetEncoder(random_state=0), ["kind"]))
        tuned = table_regressor(model, trainable=["*.encodings.*"], alpha=0).fit(FRAME[NEW], NUMBER[NEW])
        back = tuned.to_sklearn()[0].named_transformers_["targetencoder"]
        assert (back.encodings_[0] != model[0].named_transformers_["targetencoder"].encodings_[0]).all()

    def test_large_encodings_are_kept_sparse(self, monkeypatch):
        model = fitted_to_table(encoded())
        dense = table_regressor(model).fit(FRAME, NUMBER)
        seen = keep_encodings_sparse(monkeypatch, rows=50)
        sparse = table_regressor(model).fit(FRAME, NUMBER)
        assert [type(made).__name__ for made in seen] == ["csr_matrix"]
        assert_array_equal(sparse.predict(FRAME), dense.predict(FRAME))


class TestData:
    @pytest.mark.parametrize("kind", [object, "str", "string", "category"])
    def test_types_of_text(self, kind):
        model = fitted_to_table(encoded())
        expected = table_regressor(model).fit(FRAME, NUMBER).predict(FRAME)
        frame = FRAME.astype({"kind": kind})
        assert_array_equal(table_regressor(model).fit(frame, NUMBER).predict(frame), expected)

    def test_array_of_objects(self):
        X = FRAME[["a", "kind", "b", "note"]].to_numpy(object)
        model = make_pipeline(columns((OneHotEncoder(), [1]), (StandardScaler(), [0, 2])), Ridge()).fit(X, NUMBER)
        tuned = table_regressor(model).fit(X, NUMBER)
        assert [value.name for value in tuned.to_onnx().graph.input] == ["x0", "x1", "x2"]
        assert_allclose(tuned.to_sklearn().predict(X), tuned.predict(X), rtol=1e-4, atol=1e-5)
        assert tuned.n_features_in_ == 4
        with pytest.raises(ValueError, match="3 features, but OrtGradientRegressor is expecting 4"):
            tuned.predict(X[:, :3])

    def test_names(self):
        tuned = table_regressor(fitted_to_table(encoded())).fit(FRAME, NUMBER)
        assert_array_equal(tuned.feature_names_in_, FRAME.columns)
        with pytest.raises(ValueError, match="same order"):
            tuned.predict(FRAME[["kind", "a", *FRAME.columns[2:]]])
        with pytest.raises(ValueError, match="missing:\n- kind"):
            tuned.predict(FRAME.drop(columns="kind"))

    @pytest.mark.parametrize(("X", "error", "match"), [
        ({"a": FRAME["a"]}, TypeError, "takes a data frame or an array, got a dict"),
        (FRAME.assign(a="x"), ValueError, "could not convert string"),
        (FRAME.assign(a=np.inf), ValueError, "infinity"),
        (FRAME.assign(a=np.nan), ValueError, "NaN"),
        (with_value("kind", 3), ValueError, "takes text in column 'kind' of X, got int"),
        (with_value("kind", pd.NA), ValueError, "got NAType"),
    ])  # fmt: skip
    def test_wrong_data(self, X, error, match):
        tuned = table_regressor(fitted_to_table(encoded())).fit(FRAME, NUMBER)
        with pytest.raises(error, match=match):
            tuned.predict(X)

    def test_dropped_columns_may_hold_anything(self):
        model = fitted_to_table(encoded())
        odd = FRAME.assign(note=[{"x": i} for i in range(N)], day=None)
        expected = table_regressor(model).fit(FRAME, NUMBER).predict(FRAME)
        assert_array_equal(table_regressor(model).fit(odd, NUMBER).predict(odd), expected)

    def test_many_rows_come_in_chunks(self, monkeypatch):
        tuned = table_regressor(fitted_to_table(encoded())).fit(FRAME, NUMBER)
        expected, sizes = tuned.predict(FRAME), record_chunks(monkeypatch)
        assert_array_equal(tuned.predict(pd.concat([FRAME] * 100))[-N:], expected)
        assert len(sizes) == 2
        sizes.clear()
        predict_in_chunks(monkeypatch, numbers=50)
        assert_array_equal(tuned.predict(FRAME), expected)
        assert sizes == [10] * 12  # two numbers and three columns of a kind

    def test_no_rows(self):
        for model in (fitted_to_table(encoded()), fitted_to_table(columns((OneHotEncoder(), ["kind"])))):
            with pytest.raises(ValueError, match="is required"):
                table_regressor(model).fit(FRAME, NUMBER).predict(FRAME[:0])

    def test_row_weights_count_as_rows(self):
        model, counts = fitted_to_table(encoded()), rng.integers(0, 3, N)
        tuned = table_regressor(model, shuffle=False, batch_size=N).fit(FRAME, NUMBER, sample_weight=counts)
        rows = np.repeat(np.arange(N), counts)
        repeated = table_regressor(model, shuffle=False, batch_size=len(rows)).fit(FRAME.iloc[rows], NUMBER[rows])
        assert_allclose(tuned.predict(FRAME), repeated.predict(FRAME), rtol=1e-4, atol=1e-5)


class TestTools:
    def test_partial_fit_and_warm_start(self):
        model = fitted_to_table(encoded())
        twice = table_regressor(model, shuffle=False, warm_start=True, max_iter=1)
        passes = table_regressor(model, shuffle=False)
        for _ in range(2):
            twice.fit(FRAME, NUMBER)
            passes.partial_fit(FRAME, NUMBER)
        assert_array_equal(twice.predict(FRAME), passes.predict(FRAME))
        assert twice.n_iter_ == 2

    def test_pickle_goes_on(self):
        tuned = table_regressor(fitted_to_table(encoded())).fit(FRAME, NUMBER)
        copy = pickle.loads(pickle.dumps(tuned))
        assert_array_equal(copy.predict(FRAME), tuned.predict(FRAME))
        assert copy.to_onnx() == tuned.to_onnx()
        expected = tuned.partial_fit(FRAME, NUMBER).predict(FRAME)
        assert_array_equal(copy.partial_fit(FRAME, NUMBER).predict(FRAME), expected)

    def test_validation(self):
        model = fitted_to_table(encoded())
        tuned = table_regressor(model, max_iter=3).fit(FRAME[OLD], NUMBER[OLD], X_val=FRAME[NEW], y_val=NUMBER[NEW])
        assert tuned.validation_scores_[-1] == pytest.approx(tuned.score(FRAME[NEW], NUMBER[NEW]), rel=1e-5)
        stopped = table_regressor(model, early_stopping=True, max_iter=3).fit(FRAME, NUMBER)
        assert len(stopped.validation_scores_) == 3

    @pytest.mark.slow
    def test_search_and_scores(self):
        model = fitted_to_table(encoded())
        search = GridSearchCV(table_regressor(model, max_iter=1), {"learning_rate_init": [1.0, 1e-4]}, cv=3)
        assert search.fit(FRAME, NUMBER).best_params_ == {"learning_rate_init": 1e-4}
        scores = cross_val_score(table_regressor(model, max_iter=1, learning_rate_init=1e-4), FRAME, NUMBER, cv=3)
        assert scores.mean() == pytest.approx(search.best_score_)

    def test_given_model_is_unchanged(self):
        model = fitted_to_table(clone(TRANSFORMERS["imputed"]))
        before = pickle.dumps(model)
        table_regressor(model).fit(FRAME, NUMBER).to_sklearn()
        assert pickle.dumps(model) == before

    def test_encoder_behind_other_steps(self):
        first = columns(("passthrough", ["kind", "size"]))
        model = make_pipeline(first, OneHotEncoder(handle_unknown="ignore"), Ridge()).fit(FRAME[OLD], NUMBER[OLD])
        with pytest.raises(ModelError, match="OneHotEncoder encodes text, but is not the first"):
            table_regressor(model).fit(FRAME, NUMBER)


class TestSkl2onnx:
    @pytest.mark.long
    def test_columns_become_inputs(self):
        X = FRAME[["a", "kind", "b", "size", "count"]]
        model = fitted_to_table(encoded(OneHotEncoder(), ["kind", "count"]), X=X, y=BINARY, last=LogisticRegression())
        tuned = table_classifier(model).fit(X, BINARY)
        for estimator in (tuned, make_pipeline(tuned)):
            proto = skl2onnx.to_onnx(estimator, X[:1], target_opset=OPSETS, options={id(tuned): {"zipmap": False}})
            assert [value.name for value in proto.graph.input] == list(X)
            session = onnxruntime.InferenceSession(proto.SerializeToString())
            kinds = {"a": float, "b": float, "count": int}
            feeds = {name: X[[name]].to_numpy().astype(kinds.get(name, str)) for name in X}
            feeds = {n: v.astype(object) if v.dtype.kind == "U" else v for n, v in feeds.items()}
            labels, probabilities = session.run(None, feeds)
            assert_array_equal(labels, tuned.predict(X))
            assert_allclose(probabilities, tuned.predict_proba(X), rtol=0, atol=5e-7)

    def test_documents(self):
        notes = FRAME["note"]
        tuned = table_regressor(make_pipeline(TfidfVectorizer(), Ridge()).fit(notes, NUMBER)).fit(notes, NUMBER)
        types = [("note", StringTensorType([None, 1]))]
        proto = skl2onnx.convert_sklearn(tuned, initial_types=types, target_opset=OPSETS)
        assert_array_equal(session_results(proto)[0].ravel(), tuned.predict(notes))

    @pytest.mark.parametrize(("types", "match"), [
        ([("X", FloatTensorType([None, 3]))], "on a table of 3 columns, some of them text: declare"),
        ([("a", FloatTensorType([None, 1])), ("kind", FloatTensorType([None, 1])), ("b", FloatTensorType([None, 1]))],
         "takes text in column 'kind', which is declared a FloatTensorType"),
        ([("a", StringTensorType([None, 1])), ("kind", StringTensorType([None, 1])), ("b", FloatTensorType([None, 1]))],
         "takes number in column 'a', which is declared a StringTensorType"),
    ])  # fmt: skip
    def test_other_types(self, types, match):
        X = FRAME[["a", "kind", "b"]]
        tuned = table_regressor(fitted_to_table(encoded(), X=X)).fit(X, NUMBER)
        with pytest.raises(ModelError, match=match):
            skl2onnx.convert_sklearn(tuned, initial_types=types, target_opset=OPSETS)


def test_no_warnings_about_text():
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)  # of which ConvergenceWarning is one
        table_regressor(fitted_to_table(encoded()), learning_rate_init=0.001, max_iter=200).fit(FRAME, NUMBER)


def test_naive_bayes_of_words():
    texts = [f"{'cat ' * (i % 3)}dog fish {'bird ' * (i % 2)}" for i in range(60)]
    y = np.arange(60) % 3
    for vectorizer in (CountVectorizer(), TfidfVectorizer()):
        model = make_pipeline(vectorizer, MultinomialNB()).fit(texts, y)
        tuned = OrtGradientClassifier(model, max_iter=3, learning_rate_init=0.01, random_state=0).fit(texts, y)
        assert tuned.loss_curve_[-1] < tuned.loss_curve_[0]
        assert_allclose(tuned.to_sklearn().predict_proba(texts), tuned.predict_proba(texts), atol=1e-5)


def test_sublinear_counts():
    """Texts without a repeated word do not tell that they are not taken."""
    texts = ["cat dog", "dog fish", "fish cat", "cat bird"]
    model = make_pipeline(TfidfVectorizer(sublinear_tf=True), Ridge()).fit(texts, range(4))
    with pytest.raises(ModelError, match="sublinear_tf=True"):
        OrtGradientRegressor(model).fit(texts, range(4))
