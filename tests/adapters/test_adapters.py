"""Estimators with adapters: what is trained, what is predicted and exported, and the settings beside them."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import onnx
import onnx.numpy_helper
import onnxruntime
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import GridSearchCV

from onnxtrain_sklearn import LBFGS, MLP, SGD, AdamW, FineTuner, LoRA, OrtGradientClassifier, OrtGradientRegressor
from onnxtrain_sklearn.exceptions import InvalidParameterError, ModelError, RuntimeNotFoundError
from tests.helpers.data import DATA
from tests.helpers.environment import each_engine
from tests.helpers.network import NAMES, loss_and_gradients
from tests.helpers.optimizers import RULES
from tests.helpers.step_options import configured
from tests.helpers.steps import mlp
from tests.helpers.training import NEVER

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

rng = np.random.default_rng(0)
X = rng.normal(size=(40, 4)).astype(np.float32)
y = (np.tanh(X[:, 0]) + X[:, 1] * X[:, 2]).astype(np.float32)
FIRST = "layers.0.weight"
FACTORS = [f"{name}.lora_{end}" for name in (FIRST, "layers.1.weight") for end in "AB"]
HAS_FILES = hasattr(onnxruntime, "LoraAdapter")


def arrays_of(proto):
    return {t.name: onnx.numpy_helper.to_array(t) for t in proto.graph.initializer}


def adapted(model=None, **settings):
    defaults = {"learning_rate_init": 0.01, "max_iter": 1, "batch_size": 8, "shuffle": False, "tol": NEVER}
    defaults |= {"adapters": LoRA(2), "random_state": 0}
    return configured(OrtGradientRegressor(mlp() if model is None else model), **defaults | settings)


def drawn(**settings):
    """Return the factors as they begin."""
    return adapted(learning_rate_init=0.0, **settings).fit(X, y).adapters_


def numpy_reference(factors, scale, *, optimizer="adamw", decay=0.0, momentum=0.0, rates=None, biases=False, steps=5):
    """Return factors, weights and losses after steps of 8 rows in float64, by the gradient of the dense matrices."""
    dense = {name: array.astype(np.float64) for name, array in arrays_of(mlp()).items()}
    factors = {name: array.astype(np.float64) for name, array in factors.items()}
    trained = [*factors, *(name for name in NAMES if biases and name.endswith("bias"))]
    settings = {"momentum": momentum} if momentum else {}
    rules, losses, pairs = {name: RULES[optimizer](**settings) for name in trained}, [], {}
    for name in NAMES:
        if f"{name}.lora_A" in factors:
            pairs[name] = f"{name}.lora_A", f"{name}.lora_B"
    for step in range(steps):
        rows, gradients = slice(8 * step, 8 * step + 8), {}
        whole = dense | {n: dense[n] + scale * factors[a] @ factors[b] for n, (a, b) in pairs.items()}
        loss, slopes = loss_and_gradients(whole, X[rows].astype(np.float64), y[rows], np.ones(8))
        for name, (a, b) in pairs.items():
            gradients[a] = scale * slopes[name] @ factors[b].T
            gradients[b] = scale * factors[a].T @ slopes[name]
        for name in trained:
            held = factors if name in factors else dense
            slope = gradients[name] if name in factors else slopes[name]
            held[name] = rules[name](held[name], slope, 0.01 * (rates or {}).get(name, 1.0), decay)
        losses.append(loss)
    whole = dense | {n: dense[n] + scale * factors[a] @ factors[b] for n, (a, b) in pairs.items()}
    return factors, whole, losses


def assert_equal_to(fitted, reference):
    factors, weights, losses = reference
    for found, expected in ((fitted.adapters_, factors), (fitted.weights_, weights)):
        assert found.keys() == expected.keys()
        for name, array in expected.items():
            assert_allclose(found[name], array, rtol=1e-4, atol=2e-6, err_msg=name)
    assert_allclose(fitted.loss_, np.mean(losses), rtol=1e-5)


@each_engine
def test_five_steps_of_adamw_as_in_numpy(engine):
    settings = {"adapters": LoRA(2, alpha=3.0), "optimizer": AdamW(weight_decay=0.1)}
    fitted = adapted(engine=engine, **settings).fit(X, y)
    start = drawn(**settings)
    assert_equal_to(fitted, numpy_reference(start, 1.5, decay=0.1))
    assert all(np.abs(fitted.adapters_[name] - start[name]).max() > 1e-3 for name in FACTORS)


@each_engine
def test_other_settings_apply_to_the_factors(engine):
    rates = {"*.lora_B": 4.0, "layers.1.bias": 0.5}
    settings = {"adapters": LoRA(3, FIRST), "trainable": ["*.bias"], "optimizer": SGD(momentum=0.5)}
    fitted = adapted(engine=engine, optimizer__learning_rate_factors=rates, **settings).fit(X, y)
    start = drawn(**settings)
    assert list(start) == FACTORS[:2]
    factors = {f"{FIRST}.lora_B": 4.0, "layers.1.bias": 0.5}
    reference = numpy_reference(start, 8 / 3, optimizer="sgd", momentum=0.5, rates=factors, biases=True)
    assert_equal_to(fitted, reference)
    assert_array_equal(fitted.weights_["layers.1.weight"], arrays_of(mlp())["layers.1.weight"])


def test_the_start_is_the_given_model():
    X_pairs, labels = np.repeat(X, 2, axis=0), np.arange(80) % 3
    given = MLP((5,)).build(n_features=4, n_outputs=3, random_state=1)
    settings = {"learning_rate_init": 0.0, "max_iter": 1, "random_state": 0}
    plain = OrtGradientClassifier(given, **settings).fit(X_pairs, labels)
    begun = OrtGradientClassifier(given, adapters=LoRA(2), **settings).fit(X_pairs, labels)
    assert_array_equal(begun.predict_proba(X), plain.predict_proba(X))
    assert begun.loss_ == plain.loss_
    assert begun.to_onnx() == plain.to_onnx()


def test_the_exported_graph_is_the_given_one_with_other_matrices():
    fitted, plain = adapted(max_iter=5).fit(X, y), adapted(adapters=None).fit(X, y)
    exported, usual = fitted.to_onnx(), plain.to_onnx()
    assert [n.op_type for n in exported.graph.node] == [n.op_type for n in usual.graph.node]
    assert list(arrays_of(exported)) == list(arrays_of(usual))
    session = onnxruntime.InferenceSession(exported.SerializeToString())
    assert_array_equal(session.run(None, {"X": X})[0].ravel(), fitted.predict(X))
    validated = adapted(max_iter=5, callbacks=[lambda epoch: scores.append(epoch.validation_score)])
    scores = []
    validated.fit(X, y, X_val=X, y_val=y)
    assert_allclose(scores[-1], fitted.score(X, y), rtol=1e-5)  # factors and merged matrices predict alike


def test_random_state_draws_the_factors():
    assert_array_equal(drawn()[FACTORS[0]], drawn()[FACTORS[0]])
    assert (drawn()[FACTORS[0]] != drawn(random_state=1)[FACTORS[0]]).all()
    assert not drawn()[FACTORS[1]].any()


def test_description():
    described = adapted(adapters=LoRA(3, [FIRST]), trainable="*.bias").describe()
    assert [e.name for e in described.of("trained")] == ["layers.0.bias", "layers.1.bias", *FACTORS[:2]]
    reasons = {e.name: e.reason for e in described.entries}
    assert reasons[FACTORS[0]] == f"low-rank factor of {FIRST!r}"
    assert reasons[FIRST].endswith("changed by its low-rank factors")
    assert reasons["layers.1.weight"].endswith("not selected by trainable")
    fitted = adapted(adapters=LoRA(3, [FIRST]), trainable="*.bias").fit(X, y)
    assert [e.name for e in fitted.describe().of("trained")] == [e.name for e in described.of("trained")]


def test_a_predicate_and_patterns_select_beside_the_factors():
    names = [e.name for e in adapted(trainable=lambda name, array: "1" in name).describe().of("trained")]
    assert names == ["layers.1.bias", *FACTORS]
    assert [e.name for e in adapted(trainable="*").describe().of("trained")] == [NAMES[1], NAMES[3], *FACTORS]
    with pytest.raises(
        ValueError, match=r"trainable names 'layers.0.weight', which stays as it is beside its low-rank"
    ):
        adapted(trainable=["*.bias", FIRST]).fit(X, y)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"adapters": LoRA(targets=["*query*"])}, r"'\*query\*' matches no parameter that a Gemm, .*'layers.0.weight'"),
        ({"adapters": LoRA(targets="*.bias")}, "matches 'layers.[01].bias', and no matrix that a Gemm, MatMul or Conv"),
        ({"adapters": LoRA(rank=0)}, "The 'rank' parameter of LoRA must be an int in the range"),
        ({"adapters": LoRA(alpha=0)}, "The 'alpha' parameter of LoRA must be a float in the range"),
        ({"adapters": LoRA(targets=[])}, "The 'targets' parameter of LoRA must be 'all', a name or glob pattern"),
        ({"adapters": LoRA(targets=[1])}, "The 'targets' parameter of LoRA must be 'all', a name or glob pattern"),
        ({"adapters": LoRA(targets=3)}, "The 'targets' parameter of LoRA must be 'all', a name or glob pattern"),
        ({"adapters": 4}, "The 'adapters' parameter of OrtGradientRegressor must be a LoRA"),
        ({"adapters": LoRA}, "The 'adapters' parameter of OrtGradientRegressor must be a LoRA"),
        ({"model": MLP()}, "adapters are for a trained model"),
        ({"model": "linear"}, "adapters are for a trained model"),
    ],
)
def test_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        adapted(**settings).fit(X, y)


def test_fine_tuning_has_no_adapters():
    plain = {"adapters": LoRA(2), "finetune": FineTuner()}
    with pytest.raises(ValueError, match=r"adapters=LoRA.* has no effect on fine-tuning"):
        configured(OrtGradientRegressor(mlp()), **plain).fit(X, y)


def test_a_call_goes_on():
    whole, parts = adapted(max_iter=4).fit(X, y), adapted(max_iter=2, warm_start=True).fit(X, y)
    parts = pickle.loads(pickle.dumps(parts)).fit(X, y)
    assert_array_equal(whole.predict(X), parts.predict(X))
    passes = adapted()
    for _ in range(4):
        passes = copy.deepcopy(passes.partial_fit(X, y))
    assert_allclose(passes.predict(X), whole.predict(X), rtol=1e-5)
    assert list(parts.adapters_) == FACTORS
    with pytest.raises(ModelError, match=r"adapters was changed from LoRA\(rank=2\) to LoRA\(rank=3\)"):
        parts.set_params(adapters__rank=3).fit(X, y)
    with pytest.raises(ModelError, match="adapters was changed"):
        parts.set_params(adapters=None).partial_fit(X, y)


@pytest.mark.long
def test_copies_and_search():
    twin = clone(adapted(adapters=LoRA(3, [FIRST], alpha=2)))
    assert repr(twin.adapters) == "LoRA(alpha=2, rank=3, targets=['layers.0.weight'])"
    with pytest.raises(NotFittedError):
        twin.save_adapter("never.onnx_adapter")
    search = GridSearchCV(adapted(max_iter=3), {"adapters__rank": [1, 2], "adapters__alpha": [1.0, 16.0]}, cv=2)
    scores = search.fit(X, y).cv_results_["mean_test_score"]
    assert len(set(scores)) == 4
    best = search.best_estimator_
    assert best.adapters_[FACTORS[0]].shape == (4, best.adapters.rank)


def test_average_of_the_weights():
    live, averaged = adapted(max_iter=3).fit(X, y), adapted(max_iter=3, optimizer__ema_decay=0.9).fit(X, y)
    assert np.abs(live.adapters_[FACTORS[1]] - averaged.adapters_[FACTORS[1]]).max() > 1e-3
    a, b = (averaged.adapters_[name].astype(np.float64) for name in FACTORS[:2])
    given = arrays_of(mlp())[FIRST]
    assert_allclose(averaged.weights_[FIRST], given + 4 * a @ b, rtol=1e-6)


def test_full_batches():
    full = adapted(optimizer=LBFGS(), batch_size="auto", max_iter=20).fit(X, y)
    assert full.loss_ < 0.5 * adapted(learning_rate_init=0.0).fit(X, y).loss_


def test_float64_graph():
    double = MLP((3,)).build(n_features=4, n_outputs=1, random_state=0)
    for tensor in double.graph.initializer:
        tensor.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(tensor).astype(float), tensor.name))
    for value in (*double.graph.input, *double.graph.output, *double.graph.value_info):
        value.type.tensor_type.elem_type = onnx.TensorProto.DOUBLE
    fitted = adapted(double, max_iter=3).fit(X.astype(np.float64), y)
    assert {array.dtype for array in (fitted.weights_ | fitted.adapters_).values()} == {np.dtype(np.float64)}
    assert np.abs(fitted.weights_[FIRST] - arrays_of(double)[FIRST]).max() > 1e-3


def test_fitted_models():
    ridge = Ridge().fit(X, y)
    tuned = OrtGradientRegressor(ridge, adapters=LoRA(1), learning_rate_init=0.1, max_iter=5, random_state=0).fit(
        X, 2 * y
    )
    back = tuned.to_sklearn()
    assert_allclose(back.predict(X), tuned.predict(X), rtol=1e-4, atol=1e-5)
    assert_allclose(tuned.coef_, back.coef_, rtol=1e-4)
    assert np.abs(back.coef_ - ridge.coef_).max() > 1e-2
    assert back.intercept_ == ridge.intercept_
    labels = (y > 0).astype(int) + (y > 1)
    logistic = LogisticRegression().fit(X, labels)
    classifier = OrtGradientClassifier(logistic, adapters=LoRA(1), max_iter=5, random_state=0).fit(X, labels)
    assert_allclose(classifier.to_sklearn().predict_proba(X), classifier.predict_proba(X), rtol=1e-3)


def rows_of_bert():
    with np.load(DATA / "bert.npz") as archive:
        return {"X": archive["X"], "mask": archive["mask"]}, archive["y"]


@pytest.mark.slow
@each_engine
def test_transformer(engine):
    rows, labels = rows_of_bert()
    lora = LoRA(2, ["*query*", "*value*"])
    settings = {"learning_rate_init": 0.1, "max_iter": 15, "tol": NEVER, "random_state": 0, "engine": engine}
    fitted = OrtGradientClassifier(DATA / "bert.onnx", adapters=lora, **settings).fit(rows, labels)
    parts = {name.split(".self.")[1].split(".")[0] for name in fitted.adapters_}
    assert parts == {"query", "value"}
    assert len(fitted.adapters_) == 8
    assert fitted.loss_curve_[-1] < 0.95 * fitted.loss_curve_[0]
    given = OrtGradientClassifier(DATA / "bert.onnx", **(settings | {"max_iter": 1, "learning_rate_init": 0.0}))
    given.fit(rows, labels)
    changed = [n for n, array in fitted.weights_.items() if (array != given.weights_[n]).any()]
    assert changed == [n for n in fitted.weights_ if ".query.weight" in n or ".value.weight" in n]
    assert len(fitted.to_onnx().graph.node) == len(given.to_onnx().graph.node)


def session_of(estimator):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # it warns of initializers that are inputs
    return onnxruntime.InferenceSession(estimator.to_onnx(adapter=True).SerializeToString(), options)


def test_graph_for_adapters_predicts_as_the_given_model():
    fitted = adapted(max_iter=5, trainable="layers.1.bias").fit(X, y)
    untrained = adapted(adapters=None, learning_rate_init=0.0).fit(X, y)
    assert_array_equal(session_of(fitted).run(None, {"X": X})[0].ravel(), untrained.predict(X))
    exported = fitted.to_onnx(adapter=True)
    onnx.checker.check_model(exported, full_check=True)
    assert [v.name for v in exported.graph.input] == ["X", *FACTORS, "layers.1.bias"]
    with pytest.raises(ValueError, match="adapter must be True or False, got 'file'"):
        fitted.to_onnx(adapter="file")
    with pytest.raises(AttributeError, match="no attribute 'adapters_'"):
        untrained.adapters_  # noqa: B018


@pytest.mark.skipif(not HAS_FILES, reason="onnxruntime 1.20 and newer have adapter files")
@pytest.mark.parametrize("form", ["mlp", "lenet", "torch_shared_classic"])
def test_onnxruntime_swaps_adapters(form, tmp_path):
    model, rows, labels = cases()[form]
    session, predictions = None, []
    for rank in (2, 3):
        fitted = OrtGradientClassifier(
            model, adapters=LoRA(rank), learning_rate_init=0.05, max_iter=3, random_state=rank, tol=NEVER
        ).fit(rows, labels)
        session = session or session_of(fitted)  # the graph of the first serves both
        fitted.save_adapter(tmp_path / f"{rank}.onnx_adapter")
        adapter, options = onnxruntime.LoraAdapter(), onnxruntime.RunOptions()
        adapter.Load(str(tmp_path / f"{rank}.onnx_adapter"))
        options.add_active_adapter(adapter)
        found = session.run(None, {session.get_inputs()[0].name: rows}, options)[1]
        assert_allclose(found, fitted.predict_proba(rows), rtol=1e-4, atol=1e-5)
        predictions.append(found)
    plain = session.run(None, {session.get_inputs()[0].name: rows})[1]
    assert min(np.abs(a - b).max() for a, b in [predictions, (plain, predictions[0])]) > 1e-3


@pytest.mark.skipif(not HAS_FILES, reason="onnxruntime 1.20 and newer have adapter files")
@pytest.mark.parametrize("adapters", [None, LoRA(2, alpha=6.0)], ids=["all weights", "low rank"])
def test_adapter_files_come_back(adapters, tmp_path):
    fitted = adapted(adapters=adapters, max_iter=5).fit(X, y)
    session, before = session_of(fitted), adapted(adapters=adapters, learning_rate_init=0.0).fit(X, y)
    fitted.save_adapter(tmp_path / "one.onnx_adapter")
    adapter, options = onnxruntime.LoraAdapter(), onnxruntime.RunOptions()
    adapter.Load(str(tmp_path / "one.onnx_adapter"))
    options.add_active_adapter(adapter)
    assert_allclose(session.run(None, {"X": X})[0].ravel(), before.predict(X), rtol=1e-5)
    assert_allclose(session.run(None, {"X": X}, options)[0].ravel(), fitted.predict(X), rtol=1e-4, atol=1e-5)
    assert_allclose(before.load_state(tmp_path / "one.onnx_adapter").predict(X), fitted.predict(X), rtol=1e-5)
    (tmp_path / "notes.onnx_adapter").write_text("no adapter")
    with pytest.raises(ModelError, match="is not an adapter file of onnxruntime"):
        before.load_state(tmp_path / "notes.onnx_adapter")


@pytest.mark.skipif(not HAS_FILES, reason="needs adapter files")
def test_arrays_of_an_adapter_file_that_share_their_bytes(tmp_path):
    path, fitted = tmp_path / "x.onnx_adapter", adapted().fit(X, y)
    fitted.save_adapter(path)
    content, predictions = bytearray(path.read_bytes()), fitted.predict(X)
    adapter = onnxruntime.AdapterFormat.read_adapter(str(path))  # its values lie in its memory
    arrays = [value.numpy() for value in adapter.get_parameters().values() if np.prod(value.shape()) == 12]
    one, other = sorted(content.index(array.astype("<f4").tobytes()) - 4 for array in arrays)
    for place in range(0, one, 4):  # a FlatBuffer names a place by how far on it lies
        if place + int.from_bytes(content[place : place + 4], "little") == one:
            content[place : place + 4] = (other - place).to_bytes(4, "little")
    assert content != path.read_bytes()
    path.write_bytes(content)
    with pytest.raises(ModelError, match="overlap"):
        fitted.load_state(path)
    assert_array_equal(fitted.predict(X), predictions)


def cases():
    net = MLP((6,)).build(n_features=4, n_outputs=2, random_state=0)
    images = rng.normal(size=(20, 1, 28, 28)).astype(np.float32)
    ids = rng.integers(0, 7, size=(20, 3))
    return {
        "mlp": (net, X, (y > 0).astype(int)),
        "lenet": (DATA / "lenet.onnx", images, np.arange(20) % 10),
        "torch_shared_classic": (DATA / "torch_shared_classic.onnx", ids, np.arange(20) % 2),
    }


@pytest.mark.skipif(HAS_FILES, reason="this onnxruntime has adapter files")
def test_adapter_files_need_a_newer_onnxruntime(tmp_path):
    with pytest.raises(RuntimeNotFoundError, match=r"Adapter files need onnxruntime 1.20 or newer"):
        adapted().fit(X, y).save_adapter(tmp_path / "a.onnx_adapter")


def test_parameters_are_checked_when_used():
    with pytest.raises(InvalidParameterError, match="'rank' parameter"):
        adapted(adapters=LoRA(rank="8")).describe()
