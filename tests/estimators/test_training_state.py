"""Preparation without a step, and the state from which another estimator or process goes on to the same bits."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import textwrap

import numpy as np
import onnx.parser
import pytest
from numpy.testing import assert_array_equal
from sklearn.exceptions import NotFittedError

from onnxtrain_sklearn import (
    LBFGS,
    MLP,
    SGD,
    Adam,
    Linear,
    OrtGradientClassifier,
    OrtGradientMultiOutput,
    OrtGradientRegressor,
    load_training,
)
from onnxtrain_sklearn.callbacks import EpochScoring, LearningRateFinder, SnapshotEnsemble
from onnxtrain_sklearn.exceptions import ModelError
from onnxtrain_sklearn.optimizers import OPTIMIZERS
from onnxtrain_sklearn.schedules import Cosine
from tests.helpers.environment import OWN_MEMORY, available_engines, can_compile
from tests.helpers.step_options import configured

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 5)).astype(np.float32)
LABELS = np.digitize(X[:, 0] + X[:, 1] * X[:, 2], [-0.5, 0.5])
NUMBERS = X @ [1.0, -2.0, 0.5, 0.0, 3.0] * 100 + 1000


def classifier(**settings):
    defaults = {"model": MLP((6,)), "batch_size": 16, "learning_rate_init": 0.02, "random_state": 0}
    return configured(OrtGradientClassifier(), **defaults | settings)


def regressor(**settings):
    defaults = {"model": MLP((6,)), "batch_size": 16, "learning_rate_init": 0.02, "random_state": 0}
    return configured(OrtGradientRegressor(), **defaults | settings)


def through_file(state):
    """Return a state as NumPy writes and reads it, without pickles."""
    file = io.BytesIO()
    np.savez(file, **state)
    with np.load(io.BytesIO(file.getvalue()), allow_pickle=False) as found:
        return {name: found[name] for name in found.files}


def assert_same(a, b):
    """Both predict the same bits, and hold the same state."""
    assert a.to_onnx().SerializeToString() == b.to_onnx().SerializeToString()
    one, other = a.training_state(), b.training_state()
    assert one.keys() == other.keys()
    for name, value in one.items():
        if name.startswith("log/"):
            continue  # the seconds of each epoch
        if isinstance(value, np.ndarray):
            assert_array_equal(value, other[name], err_msg=name)
        else:
            assert value == other[name] or value != value, name


# Preparation without a step.


def test_initialize_takes_no_step():
    net = classifier().initialize(X, LABELS)
    assert (net.t_, net.n_iter_, net.loss_curve_, net.history_) == (0, 0, [], [])
    assert net.predict(X).shape == LABELS.shape
    np.testing.assert_allclose(net.predict_proba(X).sum(axis=1), 1.0, rtol=1e-5)
    assert net.training_state()["counts/t"] == 0


def test_initialized_weights_are_those_of_the_builder():
    net = OrtGradientRegressor(MLP((6,)), random_state=3, learning_rate_init=0.0).initialize(X, NUMBERS)
    still = OrtGradientRegressor(MLP((6,)), random_state=3, learning_rate_init=0.0).partial_fit(X, NUMBERS)
    for name, array in still.weights_.items():
        assert_array_equal(net.weights_[name], array)


@pytest.mark.parametrize("kind", ["classifier", "regressor"])
@pytest.mark.parametrize("weighted", [False, True])
def test_partial_fit_after_initialize_is_the_first_partial_fit(kind, weighted):
    make, y = (classifier, LABELS) if kind == "classifier" else (regressor, NUMBERS)
    weights = RNG.uniform(0.5, 2, 60) if weighted else None
    known = {"classes": [0, 1, 2]} if kind == "classifier" else {}
    settings = {"engine": "portable"}
    assert_same(
        make(**settings).initialize(X, y, weights).partial_fit(X, y, sample_weight=weights),
        make(**settings).partial_fit(X, y, sample_weight=weights, **known),
    )


def test_classes_may_be_more_than_those_of_the_rows():
    net = classifier().initialize(X[LABELS < 2], LABELS[LABELS < 2], classes=[0, 1, 2])
    assert net.predict_proba(X).shape == (60, 3)
    assert net.partial_fit(X, LABELS).classes_.tolist() == [0, 1, 2]


def test_initialize_error_leaves_estimator_unchanged():
    net = classifier().partial_fit(X, LABELS, classes=[0, 1, 2])
    before = net.training_state()
    with pytest.raises(ValueError, match="inconsistent"):
        net.initialize(X, LABELS[:-1])
    assert before.keys() == net.training_state().keys()
    assert_array_equal(net.training_state()["parameters"], before["parameters"])
    fresh = classifier(max_iter=-1)
    with pytest.raises(ValueError, match="max_iter"):
        fresh.initialize(X, LABELS)
    assert not hasattr(fresh, "classes_")


def test_initialize_forgets_an_earlier_fit():
    net = classifier().fit(X, LABELS)
    assert net.initialize(X, LABELS).t_ == 0


# The same bits in another estimator.


BATCH_NORM = MLP((6,), normalization="batch")
ENGINES = [*available_engines(), "compiled"]
CASES = {
    "schedule": {"learning_rate": Cosine(total_steps=40)},
    "dropout": {"model": MLP((6,), dropout=0.3)},
    "dropout schedule": {"model": MLP((6,), dropout=0.3), "dropout_schedule": "cosine"},
    "batch normalization": {"model": BATCH_NORM},
    "average": {"optimizer__ema_decay": 0.9},
    "average of statistics": {"optimizer__ema_decay": 0.9, "model": BATCH_NORM},
    "groups": {"optimizer__accumulate": 3},
    "penalty and clipping": {"alpha": 0.1, "optimizer__max_grad_norm": 0.1},
    "frozen": {"model": MLP((6,)).build(5, 3, 0), "trainable": ["layers.1.*"]},
    "whole": {"batch_size": 200},
} | {name: {"optimizer": one()} for name, one in OPTIMIZERS.items() if one is not LBFGS}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("case", CASES)
def test_loaded_state_goes_on_to_the_same_bits(case, engine):
    if engine == "ort-training" and CASES[case].get("model") is BATCH_NORM:
        pytest.skip("ort-training does not differentiate the statistics of minibatches")
    if engine == "compiled":
        pytest.importorskip("llvmlite")
    settings = CASES[case] | {"engine": engine}
    trained = classifier(**settings).initialize(X, LABELS)
    for _ in range(3):
        trained.partial_fit(X, LABELS)
    other = classifier(**settings).initialize(X, LABELS).partial_fit(X[::-1], LABELS[::-1])
    other.load_training_state(through_file(trained.training_state()))
    assert_same(trained, other)
    for _ in range(2):
        assert_same(trained.partial_fit(X, LABELS), other.partial_fit(X, LABELS))


def test_state_of_a_device_goes_on_to_the_same_bits(monkeypatch):
    monkeypatch.setitem(OWN_MEMORY, "CPUExecutionProvider", "cpu")
    settings = {"engine": "portable", "model": BATCH_NORM, "optimizer": Adam(ema_decay=0.9)}
    trained, other = (classifier(**settings).initialize(X, LABELS) for _ in range(2))
    trained.partial_fit(X, LABELS)
    other.partial_fit(X[:32], LABELS[:32]).load_training_state(trained.training_state())
    assert_same(trained.partial_fit(X, LABELS), other.partial_fit(X, LABELS))


def test_state_of_a_regressor_holds_the_range_of_the_targets():
    settings = {"clip_predictions": True}
    trained, other = (regressor(**settings).initialize(X[:30], NUMBERS[:30]) for _ in range(2))
    trained.partial_fit(X, NUMBERS + 1e4 * (np.arange(60) == 59))
    assert_same(trained, other.load_training_state(trained.training_state()))
    assert_array_equal(trained.predict(X * 1e3), other.predict(X * 1e3))


def test_warm_start_goes_on_from_the_state_of_a_fit():
    settings = {"max_iter": 5, "warm_start": True, "early_stopping": True, "n_iter_no_change": 99}
    trained = classifier(**settings).fit(X, LABELS)
    other = classifier(**settings).initialize(X, LABELS).load_training_state(trained.training_state())
    assert_same(trained, other)
    assert_same(trained.fit(X, LABELS), other.fit(X, LABELS))


@pytest.mark.parametrize("engine", ENGINES)
def test_state_of_lbfgs_goes_on_to_the_same_bits(engine):
    """L-BFGS has no partial_fit, and a call of fit begins with an empty history of gradients, so it goes on by fit."""
    if engine == "compiled":
        pytest.importorskip("llvmlite")
    settings = {"optimizer": LBFGS(), "max_iter": 5, "warm_start": True, "engine": engine}
    trained = classifier(**settings).fit(X, LABELS)
    other = classifier(**settings).initialize(X, LABELS).load_training_state(through_file(trained.training_state()))
    assert_same(trained, other)
    assert_same(trained.fit(X, LABELS), other.fit(X, LABELS))
    assert trained.n_iter_ > 5


def test_memories_of_callbacks_and_history_are_part_of_the_state():
    settings = {"callbacks": [LearningRateFinder(steps=12), EpochScoring("accuracy", on="train")], "max_iter": 3}
    trained = classifier(**settings).fit(X, LABELS)
    other = classifier(**settings).initialize(X, LABELS).load_training_state(through_file(trained.training_state()))
    assert other.history_ == trained.history_
    assert_array_equal(
        other.callbacks_["LearningRateFinder"]["rates"], trained.callbacks_["LearningRateFinder"]["rates"]
    )
    assert_same(trained.partial_fit(X, LABELS), other.partial_fit(X, LABELS))


def test_snapshots_that_predict_together_are_part_of_the_state():
    settings = {"callbacks": [SnapshotEnsemble(2)], "max_iter": 4, "n_iter_no_change": np.inf}
    trained = classifier(**settings).fit(X, LABELS)
    other = classifier(**settings).initialize(X, LABELS).load_training_state(through_file(trained.training_state()))
    assert_array_equal(trained.predict_proba(X), other.predict_proba(X))


def test_state_is_a_copy():
    net = classifier().partial_fit(X, LABELS, classes=[0, 1, 2])
    state = net.training_state()
    before = {name: np.copy(value) for name, value in state.items()}
    net.partial_fit(X, LABELS)
    for name, value in before.items():
        assert_array_equal(state[name], value)
    loaded = net.load_training_state(state).to_onnx().SerializeToString()
    for value in state.values():
        if isinstance(value, np.ndarray) and value.ndim:
            value[...] = 0
    assert net.to_onnx().SerializeToString() == loaded


def test_average_of_two_states_is_that_of_their_weights():
    """Local SGD: two shards take a pass each, and go on from the mean of their weights."""
    one, other = (classifier(optimizer=SGD()).initialize(X, LABELS) for _ in range(2))
    states = [
        one.partial_fit(X[:30], LABELS[:30]).training_state(),
        other.partial_fit(X[30:], LABELS[30:]).training_state(),
    ]
    mean = np.mean([state["parameters"] for state in states], axis=0, dtype=np.float64).astype(np.float32)
    expected = {n: np.mean([one.weights_[n], other.weights_[n]], axis=0, dtype=np.float64) for n in one.weights_}
    one.load_training_state({**states[0], "parameters": mean})
    for name, array in expected.items():
        np.testing.assert_allclose(one.weights_[name], array, rtol=1e-6)


def test_balanced_weights_of_a_fit_are_part_of_the_state(tmp_path):
    """Training graphs hold the weight of each class, which comes from the rows of the fit."""
    settings = {"class_weight": "balanced", "max_iter": 2}
    trained = classifier(**settings).fit(X, LABELS)
    other = classifier(**settings).initialize(X[10:], LABELS[10:])
    other.load_training_state(through_file(trained.training_state()))
    assert_same(trained, other)
    trainings = []
    for i, net in enumerate((trained, other)):
        net.export_training(tmp_path / str(i))
        trainings.append(load_training(tmp_path / str(i), shuffle=False))
    expected = 20 / np.bincount(LABELS)
    for training in trainings:
        np.testing.assert_allclose(training.manifest["target"]["label_weights"], expected, rtol=1e-12)
        training.partial_fit(X, LABELS)
    for name, array in trainings[0].state.items():
        assert_array_equal(array, trainings[1].state[name])


# Another process.


SCRIPT = textwrap.dedent("""
    import sys, warnings
    import numpy as np
    from onnxtrain_sklearn import MLP, AdamW, OrtGradientClassifier
    warnings.simplefilter("ignore")
    folder, *engines = sys.argv[1:]
    data = np.load(f"{folder}/data.npz")
    for engine in engines:
        normalization = None if engine == "ort-training" else "batch"
        net = OrtGradientClassifier(MLP((6,), dropout=0.2, normalization=normalization), batch_size=16,
                                    optimizer=AdamW(ema_decay=0.9, accumulate=2), learning_rate="adaptive",
                                    random_state=0, engine=engine)
        net.initialize(data["X"], data["y"])
        graph = net.training_state()["graph"]
        with np.load(f"{folder}/{engine}.npz") as state:
            net.load_training_state(state)
        for _ in range(2):
            net.partial_fit(data["X"], data["y"])
        print(graph, net.to_onnx().SerializeToString().hex())
""")


def half_trained(engine, file):
    """Write the state after half of the epochs; return the graph, and the model after all."""
    normalization = None if engine == "ort-training" else "batch"  # whose statistics it does not differentiate
    model = MLP((6,), dropout=0.2, normalization=normalization)
    settings = {
        "model": model,
        "optimizer__ema_decay": 0.9,
        "optimizer__accumulate": 2,
        "learning_rate": "adaptive",
        "engine": engine,
    }
    settings["learning_rate_init"] = 0.001
    net = classifier(**settings).initialize(X, LABELS)
    graph = net.training_state()["graph"]
    for _ in range(2):
        net.partial_fit(X, LABELS)
    np.savez(file, **net.training_state())
    for _ in range(2):
        net.partial_fit(X, LABELS)
    return f"{graph} {net.to_onnx().SerializeToString().hex()}"


@pytest.mark.long
def test_another_process_goes_on_to_the_same_bits(tmp_path):
    np.savez(tmp_path / "data.npz", X=X, y=LABELS)
    engines = [*available_engines(), *(["compiled"] if can_compile() else [])]
    expected = [half_trained(engine, tmp_path / f"{engine}.npz") for engine in engines]
    arguments = [sys.executable, "-c", SCRIPT, str(tmp_path), *engines]
    ran = subprocess.run(arguments, capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines() == expected


PREPARED = textwrap.dedent("""
    import hashlib, sys
    import numpy as np
    from onnxtrain_sklearn import MLP, OrtGradientClassifier
    data = np.load(sys.argv[1])
    for engine in sys.argv[2:]:
        net = OrtGradientClassifier(MLP((6,), dropout=0.2), random_state=0, engine=engine)
        net.initialize(data["X"], data["y"])
        for graph in (net.to_onnx(), net.to_training_onnx()):
            print(hashlib.sha256(graph.SerializeToString()).hexdigest())
        print(net.training_state()["graph"])
""")


@pytest.mark.slow
def test_two_processes_prepare_the_same_bytes_of_the_graph(tmp_path):
    np.savez(tmp_path / "data.npz", X=X, y=LABELS)
    engines = [*available_engines(), *(["compiled"] if can_compile() else [])]
    arguments = [sys.executable, "-c", PREPARED, str(tmp_path / "data.npz"), *engines]
    found = [
        subprocess.run(
            arguments, env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
        ).stdout.splitlines()
        for seed in ("1", "2")
    ]
    assert found[0] == found[1]
    assert len(found[0]) == 3 * len(engines)


# Several outputs.


SEVERAL = """<ir_version: 8, opset_import: ["": 18]> g (float[N, 5] X) => (float[N, 1] a, float[N, 3] b)
    <float[5, 1] V = {0.1, 0.2, 0.3, 0.4, 0.5}, float[5, 3] W = {0.1, 0.2, 0.3, 0.4, 0.5, -0.1, -0.2, -0.3, -0.4, -0.5,
    0.1, 0.2, 0.3, 0.4, 0.5}> { a = MatMul(X, V) b = MatMul(X, W) }"""


def test_state_of_several_outputs_goes_on_to_the_same_bits():
    def made(scale=1.0):
        losses = {"a": "squared_error", "b": "log_loss"}
        several = OrtGradientMultiOutput(onnx.parser.parse_model(SEVERAL), loss=losses, batch_size=16, random_state=0)
        return several.initialize(X, {"a": NUMBERS * scale, "b": LABELS})

    y = {"a": NUMBERS, "b": LABELS}
    trained, other = made(), made()
    assert trained.t_ == 0
    other.partial_fit(X[:30], {"a": NUMBERS[:30], "b": LABELS[:30]})
    other.load_training_state(through_file(trained.partial_fit(X, y).training_state()))
    assert_same(trained.partial_fit(X, y), other.partial_fit(X, y))


def test_state_holds_balanced_weights_of_each_output(tmp_path):
    def made(rows):
        losses = {"a": "squared_error", "b": "log_loss"}
        several = OrtGradientMultiOutput(
            onnx.parser.parse_model(SEVERAL), loss=losses, batch_size=16, max_iter=1, class_weight="balanced"
        )
        return several.initialize(X[rows], {"a": NUMBERS[rows], "b": LABELS[rows]})

    trained, other = made(slice(None)), made(slice(20, None))
    other.load_training_state(through_file(trained.training_state()))
    other.export_training(tmp_path / "folder")
    found = load_training(tmp_path / "folder").manifest["targets"][1]["label_weights"]
    np.testing.assert_allclose(found, 20 / np.bincount(LABELS), rtol=1e-12)


# States that do not fit.


def refused(net, state, match):
    """The state is refused, and the estimator is as it was."""
    before = net.training_state()
    with pytest.raises(ModelError, match=match):
        net.load_training_state(state)
    after = net.training_state()
    assert before.keys() == after.keys()
    for name, value in before.items():
        assert_array_equal(value, after[name])


@pytest.fixture(scope="module")
def net():
    return classifier(optimizer=Adam(ema_decay=0.9), model=BATCH_NORM).partial_fit(X, LABELS, classes=[0, 1, 2])


@pytest.mark.parametrize(
    "other",
    [
        {"model": MLP((7,))},
        {"model": MLP((6, 6))},
        {"model": MLP((6,), activation="tanh")},
        {"model": MLP((6,), dropout=0.5)},
    ],
    ids=["width", "depth", "activation", "dropout"],
)
def test_state_of_another_graph_is_refused(other):
    state = classifier(**other).partial_fit(X, LABELS, classes=[0, 1, 2]).training_state()
    refused(classifier().initialize(X, LABELS), state, "belongs to another graph|whose constant")


def scaled_graph(scale):
    return onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["": 18]> g (float[N, 5] X) => (float[N, 3] Y)
        <float s = {{{scale}}}, float[5, 3] W = {{0.1, 0.2, 0.3, 0.4, 0.5, -0.1, -0.2, -0.3, -0.4, -0.5, 0.1, 0.2, 0.3,
        0.4, 0.5}}> {{ Z = Mul(X, s) Y = MatMul(Z, W) }}""")


def test_state_behind_another_scale_of_the_inputs_is_refused():
    one, other = (classifier(model=scaled_graph(s), trainable=["W"]).initialize(X, LABELS) for s in (1.0, 3.0))
    refused(one, other.training_state(), "constant 's'|frozen weights")


def test_state_of_another_scale_of_the_targets_is_refused():
    state = regressor().initialize(X, NUMBERS * 10).training_state()
    refused(regressor().initialize(X, NUMBERS), state, "of y")


def test_state_of_other_classes_is_refused(net):
    other = classifier(optimizer=Adam(ema_decay=0.9), model=BATCH_NORM).initialize(X, LABELS + 5)
    refused(net, other.training_state(), r"fitted to the same labels\.$")


def test_state_of_other_frozen_weights_is_refused():
    settings = {"trainable": ["layers.1.*"]}
    one, other = (classifier(model=MLP((6,)).build(5, 3, i), **settings).initialize(X, LABELS) for i in (0, 1))
    refused(one, other.training_state(), "frozen weights")


def test_state_of_another_optimizer_is_refused(net):
    state = classifier(optimizer=SGD(momentum=0.9, ema_decay=0.9), model=BATCH_NORM).initialize(X, LABELS)
    refused(net, state.training_state(), "set the optimizer that the state was trained with")


def test_state_without_the_average_is_refused(net):
    state = classifier(optimizer=Adam(), model=BATCH_NORM).initialize(X, LABELS).training_state()
    refused(net, state, "holds no moving average .* and this training has one: set ema_decay")
    plain = classifier(optimizer=Adam(), model=BATCH_NORM).initialize(X, LABELS)
    refused(plain, net.training_state(), "holds a moving average .* and this training has none: set ema_decay")


def test_state_of_another_engine_is_refused():
    pytest.importorskip("llvmlite")
    state = classifier(engine="compiled").initialize(X, LABELS).training_state()
    refused(classifier(engine="portable").initialize(X, LABELS), state, "engine 'compiled'")
    taken = classifier().partial_fit(X, LABELS, classes=[0, 1, 2]).load_training_state(state)
    assert taken.engine_ == "compiled"


def changed(name, value):
    return lambda state: {**state, name: value(state[name]) if callable(value) else value}


def without(name):
    return lambda state: {n: v for n, v in state.items() if n != name}


HOSTILE = {
    "empty": (lambda state: {}, "lacks 'format'"),
    "unknown entry": (lambda s: {**s, "parameter": 1}, "Did you mean 'parameters'"),
    "unknown group": (lambda s: {**s, "slotz/x": np.ones(3)}, "unknown entry"),
    "format": (changed("format", 2), "format 2"),
    "no parameters": (without("parameters"), "lacks 'parameters'"),
    "no statistics": (without("statistics"), "lacks 'statistics'"),
    "no slot": (lambda s: {n: v for n, v in s.items() if n != next(k for k in s if k.startswith("slots/"))}, "vectors"),
    "one slot more": (lambda s: {**s, "slots/x": s["parameters"]}, "vectors"),
    "no random state": (without("rng/state/key"), "does not belong to this training"),
    "no progress": (without("progress/step"), "progress must be numbers"),
    "no log": (without("log/text"), "does not fit"),
    "NaN": (changed("parameters", lambda a: np.where(np.arange(len(a)) == 3, np.nan, a).astype(a.dtype)), "finite"),
    "infinite average": (changed("average", lambda a: a + np.float32(np.inf)), "finite"),
    "text for weights": (changed("parameters", "x"), "finite|does not fit"),
    "shape": (changed("parameters", lambda a: a[:-1]), "another shape or type"),
    "matrix": (changed("parameters", lambda a: a[None]), "another shape or type"),
    "type": (changed("parameters", lambda a: a.astype(np.float64)), "another shape or type"),
    "integers": (changed("parameters", lambda a: np.zeros(len(a), int)), "another shape or type"),
    "objects": (changed("parameters", lambda a: a.astype(object)), "does not fit"),
    "huge count": (changed("counts/t", 2**70), "number of steps"),
    "negative count": (changed("counts/t", -1), "number of steps"),
    "count of truth": (changed("counts/t", True), "number of steps"),
    "float count": (changed("counts/draws", 1.5), "number of steps"),
    "huge progress": (changed("progress/step", 2**64), "numbers of steps"),
    "unknown progress": (lambda s: {**s, "progress/x": 1}, "does not belong to this training"),
    "position beyond the key": (changed("rng/state/pos", 10**6), "position"),
    "negative position": (changed("rng/state/pos", -5), "position"),
    "short key": (changed("rng/state/key", lambda a: a[:10]), "key of 624 words"),
    "other generator": (changed("rng/bit_generator", "PCG64"), "does not belong to this training"),
    "infinite normal": (changed("rng/gauss", np.inf), "not finite"),
    "seed": (changed("seed", -1), "'seed' must be an integer"),
    "rows": (changed("minibatch_rows", "many"), "'minibatch_rows' must be an integer"),
    "log that is no text": (changed("log/text", "{"), "does not fit"),
    "deep log": (changed("log/text", "[" * 100_000), "does not fit"),
    "rows that are no dicts": (changed("log/text", json.dumps({"rows": [1], "memories": {}})), "are not dicts"),
    "matrix of losses": (changed("losses", np.ones((2, 2))), "history is incomplete"),
    "text in the history": (changed("history/best_loss", "x"), "history must be numbers"),
    "constants": (changed("constants", "{"), "cannot be read"),
    "deep constants": (changed("constants", "[" * 100_000), "cannot be read"),
    "graph": (changed("graph", "0" * 32), "another graph"),
    "engine": (changed("engine", "other"), "engine 'other'"),
    "snapshots": (lambda s: {**s, "snapshots": np.ones((2, 3), np.float32)}, "'snapshots' in another shape"),
    "balanced weights": (lambda s: {**s, "balanced/0": np.ones(2)}, "balanced weights of other classes"),
    "negative weights": (lambda s: {**s, "balanced/0": -np.ones(3)}, "finite and not negative"),
    "weights of another output": (lambda s: {**s, "balanced/1": np.ones(3)}, "balanced weights of other outputs"),
    "ranges": (lambda s: {**s, "ranges/0/low": np.ones(1)}, "ranges of other targets"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_state_is_an_error_that_changes_nothing(case, net):
    change, match = HOSTILE[case]
    refused(net, change(net.training_state()), match)


def test_state_must_be_a_mapping(net):
    with pytest.raises(TypeError, match="A training state is a dict"):
        net.load_training_state([1, 2])


def test_load_training_state_of_unfitted_estimator_names_initialize():
    with pytest.raises(NotFittedError, match=r"OrtGradientRegressor is not fitted.*call initialize\(X, y\)"):
        OrtGradientRegressor(Linear()).load_training_state({})


def test_unfitted_estimators_have_no_state():
    for call in (lambda e: e.training_state(), lambda e: e.load_training_state({})):
        with pytest.raises(ValueError, match="not fitted"):
            call(OrtGradientRegressor(Linear()))
