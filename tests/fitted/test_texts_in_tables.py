"""Texts in tables: unknown and missing values, documents."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.compose import make_column_transformer
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.feature_extraction.text import CountVectorizer, TfidfVectorizer
from sklearn.impute import KNNImputer, SimpleImputer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import (
    MinMaxScaler,
    OneHotEncoder,
    OrdinalEncoder,
    PolynomialFeatures,
    PowerTransformer,
    StandardScaler,
    TargetEncoder,
)

from onnxtrain_sklearn.exceptions import ModelError
from tests.helpers.mixed_columns import (
    BINARY,
    FRAME,
    NEW,
    NUMBER,
    OLD,
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

pytestmark = [
    pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning"),
    pytest.mark.filterwarnings("ignore:.*TargetEncoder.random_state:FutureWarning"),
]


class TestUnknownAndMissing:
    def test_unknown_gives_zeros(self):
        tuned = table_regressor(fitted_to_table(encoded())).fit(with_value("kind", "violet"), NUMBER)
        odd = with_value("kind", "violet", row=0)
        assert_allclose(tuned.predict(odd), tuned.to_sklearn().predict(odd), rtol=1e-5, atol=1e-5)
        assert_array_equal(session_results(tuned.to_onnx(), odd)[0].ravel(), tuned.predict(odd))
        assert tuned.predict(odd)[0] != tuned.predict(FRAME)[0]

    @pytest.mark.parametrize("encoder", [
        OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1), TargetEncoder(random_state=0),
        OneHotEncoder(handle_unknown="infrequent_if_exist"),
    ], ids=["ordinal", "target", "one-hot"])  # fmt: skip
    def test_unknown_has_a_number(self, encoder):
        tuned = table_regressor(fitted_to_table(encoded(encoder, ["kind"]))).fit(FRAME, NUMBER)
        odd = with_value("kind", "violet", row=0)
        assert_allclose(tuned.predict(odd), tuned.to_sklearn().predict(odd), rtol=1e-5, atol=1e-5)
        assert tuned.predict(odd)[0] != tuned.predict(FRAME)[0]

    @pytest.mark.parametrize(("name", "value", "shown"), [
        ("kind", "violet", r"\['violet'\] in column 'kind'"), ("kind", np.nan, r"\['nan'\] in column 'kind'"),
        ("kind", None, r"\['None'\] in column 'kind'"), ("count", 9, r"\[9.0\] in column 'count'"),
    ])  # fmt: skip
    @pytest.mark.parametrize("encoder", [OneHotEncoder(), OrdinalEncoder()], ids=["one-hot", "ordinal"])
    def test_unknown_is_an_error_as_in_scikit_learn(self, encoder, name, value, shown):
        model = fitted_to_table(encoded(encoder, ["kind", "count"]))
        odd = with_value(name, value)
        with pytest.raises(ValueError, match="Found unknown categories"):
            model.predict(odd)
        tuned = table_regressor(model)
        with pytest.raises(ValueError, match=f"Found unknown categories {shown}"):
            tuned.fit(odd, NUMBER)
        assert not hasattr(tuned, "_state")
        tuned.fit(FRAME, NUMBER)
        before, weights = dict(vars(tuned)), tuned.weights_
        for method in (tuned.fit, tuned.partial_fit):
            with pytest.raises(ValueError, match="Found unknown"):
                method(odd, NUMBER)
            assert vars(tuned) == before
        with pytest.raises(ValueError, match="Found unknown"):
            tuned.predict(odd)
        assert all((array == weights[name]).all() for name, array in tuned.weights_.items())

    def test_exported_encoder_refuses_unknown_categories(self):
        proto = table_regressor(fitted_to_table(encoded(OneHotEncoder()))).fit(FRAME, NUMBER).to_onnx()
        with pytest.raises(Exception, match="Unknown Category"):
            session_results(proto, with_value("kind", "violet"))

    def test_missing_text_is_a_category(self):
        model = fitted_to_table(encoded(OneHotEncoder(), ["size"]))
        assert FRAME["size"].isna().any()
        tuned = table_regressor(model).fit(FRAME, NUMBER)
        assert_allclose(tuned.predict(FRAME), tuned.to_sklearn().predict(FRAME), rtol=1e-5, atol=1e-5)

    @pytest.mark.parametrize("encoder", [OneHotEncoder(handle_unknown="ignore"), OneHotEncoder()])
    def test_unknown_text_that_looks_like_missing_text(self, encoder):
        tuned = table_regressor(fitted_to_table(encoded(encoder, ["size"]))).fit(FRAME, NUMBER)
        odd = with_value("size", "nan")
        if encoder.handle_unknown == "error":
            with pytest.raises(ValueError, match=r"unknown categories \['nan'\] in column 'size'"):
                tuned.predict(odd)
        else:
            assert_allclose(tuned.predict(odd), tuned.to_sklearn().predict(odd), rtol=1e-5, atol=1e-5)

    def test_missing_text_where_nan_is_text(self):
        frame, gaps = with_value("kind", "nan", row=0), with_value("kind", np.nan)
        tuned = table_regressor(make_pipeline(encoded(), Ridge()).fit(frame, NUMBER)).fit(gaps, NUMBER)
        assert_allclose(tuned.predict(gaps), tuned.to_sklearn(gaps).predict(gaps), rtol=1e-5, atol=1e-5)

    @pytest.mark.parametrize("imputes", [False, True])
    @pytest.mark.parametrize("other", ["nan", "<nan>"])
    def test_text_and_missing_text_among_the_categories(self, imputes, other):
        frame = FRAME.assign(size=FRAME["size"].where(np.arange(N) % 5 > 0, "nan"))
        frame.loc[1::5, "size"] = other
        assert frame["size"].isna().any()
        encoder = OneHotEncoder(handle_unknown="ignore", min_frequency=2)
        steps = make_pipeline(SimpleImputer(strategy="most_frequent"), encoder) if imputes else encoder
        model = make_pipeline(columns((steps, ["size"]), (StandardScaler(), ["a"])), Ridge()).fit(frame, NUMBER)
        tuned = table_regressor(model).fit(frame, NUMBER)
        found = tuned.predict(frame)
        assert_allclose(found, tuned.to_sklearn().predict(frame), rtol=1e-5, atol=1e-5)
        gaps = frame["size"].isna().to_numpy()
        marked = frame.assign(size=frame["size"].where(~gaps, "<<nan>>" if other == "<nan>" else "<nan>"))
        assert_allclose(session_results(tuned.to_onnx(), marked)[0].ravel(), found, rtol=1e-5, atol=1e-5)

    @pytest.mark.parametrize("missing", [-1, np.nan])
    @pytest.mark.parametrize("unknown", [-2, None])
    def test_text_and_missing_text_that_are_numbered(self, missing, unknown):
        frame = FRAME.assign(size=FRAME["size"].where(np.arange(N) % 5 > 0, "nan"))
        gaps = frame["size"].isna().to_numpy()
        assert gaps.any()
        y = NUMBER + 3 * gaps - 2 * (frame["size"] == "nan").to_numpy()
        settings = {} if unknown is None else {"handle_unknown": "use_encoded_value", "unknown_value": unknown}
        encoder = OrdinalEncoder(encoded_missing_value=missing, **settings)
        last = Ridge() if missing == -1 else HistGradientBoostingRegressor(max_iter=9, min_samples_leaf=2)
        model = make_pipeline(encoded(encoder, ["size"]), last).fit(frame, y)
        tuned = table_regressor(model, learning_rate_init=0.0, max_iter=1).fit(frame, y)
        rows = frame if unknown is None else pd.concat([frame, with_value("size", "new", row=0)])
        expected = model.predict(rows)
        assert np.abs(expected[: len(gaps)][gaps].mean() - expected[: len(gaps)][frame["size"] == "nan"].mean()) > 1
        assert_allclose(tuned.predict(rows), expected, rtol=1e-5, atol=1e-5)
        marked = rows.assign(size=rows["size"].where(rows["size"].notna(), "<nan>"))
        assert_allclose(session_results(tuned.to_onnx(), marked)[0].ravel(), expected, rtol=1e-5, atol=1e-5)

    def test_text_and_missing_text_that_are_encoded_by_targets(self):
        frame = with_value("size", "nan", row=0)
        model = make_pipeline(encoded(TargetEncoder(random_state=0), ["size"]), Ridge()).fit(frame, NUMBER)
        with pytest.raises(ModelError, match="two categories of column 'size', and the same in ONNX"):
            table_regressor(model).fit(frame, NUMBER)

    def test_missing_numbers(self):
        frame = FRAME.assign(a=FRAME["a"].where(rng.random(N) > 0.2))
        tuned = table_regressor(fitted_to_table(clone(TRANSFORMERS["imputed"]), X=frame)).fit(frame, NUMBER)
        assert_allclose(tuned.predict(frame), tuned.to_sklearn().predict(frame), rtol=1e-5, atol=1e-5)

    @pytest.mark.parametrize(("steps", "behind"), [
        ([StandardScaler(), SimpleImputer()], []), ([MinMaxScaler(), KNNImputer()], []),
        ([PowerTransformer(), SimpleImputer(add_indicator=True)], []), ([StandardScaler()], [SimpleImputer()]),
    ])  # fmt: skip
    def test_missing_numbers_are_scaled_before_they_are_imputed(self, steps, behind):
        frame = FRAME.assign(a=FRAME["a"].where(rng.random(N) > 0.2))
        mixed = columns((OneHotEncoder(sparse_output=False), ["kind"]), (make_pipeline(*steps), ["a", "b"]))
        model = fitted_to_table(mixed, *behind, X=frame)
        start = table_regressor(model, learning_rate_init=0.0, max_iter=1).fit(frame, NUMBER)
        assert_allclose(start.predict(frame), model.predict(frame), rtol=1e-4, atol=1e-4)
        tuned = table_regressor(model).fit(frame[NEW], NUMBER[NEW])
        assert all((array != start.weights_[name]).any() for name, array in tuned.weights_.items())
        assert_allclose(tuned.predict(frame), tuned.to_sklearn().predict(frame), rtol=1e-4, atol=1e-5)

    @pytest.mark.parametrize(("step", "last"), [
        (StandardScaler(), Ridge()), (PolynomialFeatures(), HistGradientBoostingRegressor(max_iter=2)),
        (make_pipeline(StandardScaler(), PolynomialFeatures(), SimpleImputer()), Ridge()),
    ])  # fmt: skip
    def test_missing_numbers_are_refused_where_a_step_does(self, step, last):
        model = fitted_to_table(columns((OneHotEncoder(sparse_output=False), ["kind"]), (step, ["a", "b"])), last=last)
        frame = FRAME.assign(a=FRAME["a"].where(rng.random(N) > 0.2))
        for estimator in (model, table_regressor(model).fit(FRAME, NUMBER)):
            with pytest.raises(ValueError, match="contains NaN"):
                estimator.predict(frame)


class TestDocuments:
    def model(self, vectorizer=None, y=BINARY):
        vectorizer = TfidfVectorizer() if vectorizer is None else vectorizer
        return make_pipeline(vectorizer, LogisticRegression()).fit(FRAME["note"][OLD], y[OLD])

    @pytest.mark.parametrize("kind", [list, np.array, pd.Series])
    def test_train(self, kind):
        notes = kind(FRAME["note"].tolist())
        tuned = table_classifier(self.model()).fit(notes, BINARY)
        assert tuned.loss_curve_[-1] < tuned.loss_curve_[0]
        assert "tfidfvectorizer.tfidf.idf" in tuned.weights_
        assert_allclose(tuned.to_sklearn().predict_proba(notes), tuned.predict_proba(notes), rtol=1e-4, atol=1e-5)
        (given,) = tuned.to_onnx().graph.input
        session = onnxruntime.InferenceSession(tuned.to_onnx().SerializeToString())
        results = session.run(None, {given.name: FRAME[["note"]].to_numpy(object)})
        assert_allclose(results[1], tuned.predict_proba(notes), rtol=0, atol=5e-7)

    @pytest.mark.parametrize("vectorizer", [
        CountVectorizer(), CountVectorizer(ngram_range=(1, 2)), TfidfVectorizer(ngram_range=(2, 2)),
        TfidfVectorizer(lowercase=False), CountVectorizer(stop_words="english"), CountVectorizer(analyzer="char"),
    ])  # fmt: skip
    def test_words_are_those_of_scikit_learn(self, vectorizer):
        documents = ["The naïve ÉTÉ 日本語 a b c", "x² Ωmega_3 don't I am", "the RED box, the red box", "", "red 42"]
        documents *= 4
        y = np.arange(20) % 5 > 1
        model = make_pipeline(clone(vectorizer), LogisticRegression()).fit(documents, y)
        tuned = table_classifier(model, max_iter=2).fit(documents, y)
        others = ["", "The a RED box", "ÉTÉ naïve x² red", "unheard of"]
        back = tuned.to_sklearn()
        for rows in (documents, others, others[:1]):
            assert_allclose(back.predict_proba(rows), tuned.predict_proba(rows), rtol=1e-5, atol=1e-6)

    @pytest.mark.long
    def test_every_document_is_compared(self):
        plain = ["red box", "blue bag"] * 300
        vectorizer = TfidfVectorizer(stop_words=["the"], ngram_range=(1, 2))  # skl2onnx keeps such words between others
        model = make_pipeline(vectorizer, LogisticRegression()).fit([*plain, "red bag"], [0, 1] * 300 + [1])
        documents = [*plain, "red the bag", *plain]
        y = np.arange(len(documents)) % 2
        with pytest.raises(ModelError, match="differ"):
            table_classifier(model).fit(documents, y)
        table_classifier(model).fit(plain, y[:600])

    @pytest.mark.parametrize(("vectorizer", "match"), [
        (TfidfVectorizer(token_pattern=r"(?u)\b\w+\b"), "cannot run the encoder of the model's text"),
        (CountVectorizer(strip_accents="unicode"), "skl2onnx cannot convert"),
    ])  # fmt: skip
    def test_refused(self, vectorizer, match):
        with pytest.raises(ModelError, match=match):
            table_classifier(self.model(vectorizer)).fit(FRAME["note"], BINARY)

    @pytest.mark.parametrize(("X", "match"), [
        (FRAME[["note", "note"]], r"a sequence of texts, got DataFrame of shape \(120, 2\)"),
        (["a box", None], "Text is missing"), (["a box", 3], "takes text in column 'text' of X, got int"),
    ])  # fmt: skip
    def test_wrong_data(self, X, match):
        tuned = table_classifier(self.model()).fit(FRAME["note"], BINARY)
        with pytest.raises(ValueError, match=match):
            tuned.predict(X)

    def test_one_text_is_the_path_of_a_table(self):
        tuned = table_classifier(self.model()).fit(FRAME["note"], BINARY)
        with pytest.raises(FileNotFoundError, match="No file 'a box'"):
            tuned.predict("a box")

    def test_a_frame_of_one_column_holds_the_texts_of_that_column(self):
        tuned = table_classifier(self.model()).fit(FRAME["note"], BINARY)
        assert_array_equal(tuned.predict_proba(FRAME[["note"]]), tuned.predict_proba(FRAME["note"]))


def test_imputer_of_several_text_columns_is_refused():
    rows = np.array([["a", "x"], ["b", "y"], ["a", "y"], ["b", "x"]] * 5, object)
    steps = SimpleImputer(strategy="most_frequent"), OneHotEncoder()
    model = make_pipeline(*steps, LogisticRegression()).fit(rows, np.arange(20) % 2)
    with pytest.raises(ModelError, match=r"SimpleImputer takes several columns of text.*make_column_transformer"):
        table_classifier(model).fit(rows, np.arange(20) % 2)
    within = make_pipeline(make_column_transformer((clone(make_pipeline(*steps)), [0, 1])), LogisticRegression())
    within.fit(rows, np.arange(20) % 2)
    assert_allclose(table_classifier(within).fit(rows, np.arange(20) % 2).predict_proba(rows).sum(axis=1), 1, rtol=1e-5)
