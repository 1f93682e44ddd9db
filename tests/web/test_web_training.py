"""Estimators whose training goes on in Node: fitted pipelines, schedules, dropout."""

from __future__ import annotations

import json

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler

from onnxtrain_sklearn import (
    MLP,
    AdamW,
    Linear,
    OrtGradientClassifier,
    OrtGradientMultiOutput,
    OrtGradientRegressor,
    schedules,
)
from tests.helpers.meeting_losses import PairRanking
from tests.helpers.several_outputs import KINDS, data, graph
from tests.helpers.step_options import configured
from tests.helpers.training import quietly
from tests.helpers.training_graphs import SETTINGS, tensors_of
from tests.helpers.web import in_node


def test_a_fitted_pipeline_trained_in_node_comes_back_to_scikit_learn(tmp_path):
    X, y = load_breast_cancer(return_X_y=True)
    X = X.astype(np.float32)
    pipeline = make_pipeline(StandardScaler(), LogisticRegression(C=1e-3)).fit(X[:300], y[:300])
    settings = {"batch_size": 64, "learning_rate_init": 0.02, "shuffle": False, "random_state": 0}
    model = configured(OrtGradientClassifier(pipeline, optimizer=AdamW()), **settings).partial_fit(X[:300], y[:300])
    model.export_training(tmp_path / "graphs")
    X[300:].tofile(tmp_path / "X.float32")
    (tmp_path / "y.json").write_text(json.dumps(y[300:].tolist()))
    lines = in_node(
        tmp_path,
        """
const rows = { [trainer.manifest.graphs.predict.inputs[0].name]: await floats("X.float32") };
const y = trainer.encode(JSON.parse(await file("y.json")));
for (let epoch = 0; epoch < 20; epoch++) await trainer.epoch({ ...rows, y }, { learningRate: 0.02 });
const { label } = await trainer.predict(rows);
console.log(JSON.stringify(Array.from(label.data, Number)));
""",
    )
    back = model.load_state(tmp_path / "trained.safetensors").to_sklearn()
    assert isinstance(back, Pipeline)
    assert [type(step) for _, step in back.steps] == [StandardScaler, LogisticRegression]
    np.testing.assert_array_equal(back.predict(X[300:]), json.loads(lines[0]))
    before, after = (log_loss(y[300:], one.predict_proba(X[300:])) for one in (pipeline, back))
    assert after < before / 4
    assert np.abs(back[-1].coef_ - pipeline[-1].coef_).max() > 0.01


def test_scheduled_factors_and_dropout_in_node(tmp_path):
    """Without its factors a step is refused; with them the weights are those of Python, also of single steps."""
    X = np.random.default_rng(0).normal(size=(40, 5)).astype(np.float32)
    y = np.digitize(X[:, 0], [-0.5, 0.5])
    model = configured(
        OrtGradientClassifier(MLP((8,)), optimizer=AdamW(weight_decay=0.4, weight_decay_schedule="cosine")),
        **SETTINGS | {"max_iter": 4},
    )
    quietly(model.partial_fit, X, y, classes=[0, 1, 2]).export_training(tmp_path / "graphs")
    X.tofile(tmp_path / "X.float32")
    factors = [schedules.Cosine().factor(schedules.Progress(step=i, total_steps=12)) for i in range(12)]
    (tmp_path / "given.json").write_text(json.dumps([y.tolist(), factors]))
    lines = in_node(
        tmp_path,
        """
const [labels, factors] = JSON.parse(await file("given.json"));
const rows = { X: await floats("X.float32"), y: trainer.encode(labels) };
try { await trainer.epoch(rows, { learningRate: 0.01 }); } catch (error) { console.log(error.message); }
const rates = { learningRate: () => 0.01, weightDecayFactor: (step) => factors[step] };
await trainer.epoch(rows, rates);
for (let start = 0; start < 40; start += 16) {
  await trainer.step({ X: rows.X.subarray(start * 5, (start + 16) * 5), y: rows.y.subarray(start, start + 16) }, rates);
}
""",
    )
    assert lines == ["Give weightDecayFactor: a number, or a function of the number of the step."]
    for _ in range(2):
        model.partial_fit(X, y)
    expected = model.weights_
    model.load_state(tmp_path / "trained.safetensors")
    for name, array in expected.items():
        np.testing.assert_allclose(model.weights_[name], array, rtol=0, atol=1e-6)


def test_rows_that_fill_no_minibatch_are_left_out_in_node(tmp_path):
    """Of 45 rows five; a given order is taken whole, and so are too few rows for one minibatch."""
    X = np.random.default_rng(0).normal(size=(45, 5)).astype(np.float32)
    y = np.digitize(X[:, 0], [-0.5, 0.5])
    settings = SETTINGS | {"batch_size": 8, "drop_last": True, "optimizer__accumulate": 3}
    model = quietly(configured(OrtGradientClassifier(MLP((8,))), **settings).partial_fit, X, y, classes=[0, 1, 2])
    model.export_training(tmp_path / "graphs")
    X.tofile(tmp_path / "X.float32")
    (tmp_path / "y.json").write_text(json.dumps(y.tolist()))
    lines = in_node(
        tmp_path,
        """
const rows = { X: await floats("X.float32"), y: trainer.encode(JSON.parse(await file("y.json"))) };
const losses = await trainer.epoch(rows, { learningRate: 0.01 });
await writeFile("FOLDER/one.safetensors", trainer.saveState());
const whole = await trainer.epoch(rows, { learningRate: 0.01, order: [...Array(45).keys()] });
const few = await trainer.epoch({ X: rows.X.subarray(0, 15), y: rows.y.subarray(0, 3) }, { learningRate: 0.01 });
console.log(losses.length, whole.length, few.length);
""".replace("FOLDER", str(tmp_path)),
    )
    assert lines == ["2 2 1"]
    expected = model.partial_fit(X, y).weights_
    model.load_state(tmp_path / "one.safetensors")
    for name, array in expected.items():
        np.testing.assert_allclose(model.weights_[name], array, rtol=0, atol=1e-6)


def test_rows_of_weight_zero_are_in_no_minibatch_in_node(tmp_path):
    """Of 45 rows nine weigh nothing, and so does a class: 24 rows are three minibatches."""
    X = np.random.default_rng(0).normal(size=(45, 5)).astype(np.float32)
    y, weights = np.arange(45) % 3, np.where(np.arange(45) % 5, 1 + np.arange(45) % 4, 0)
    model = configured(
        OrtGradientClassifier(MLP((8,)), class_weight={0: 0.0, 1: 1.0, 2: 2.0}),
        **SETTINGS | {"batch_size": 8, "drop_last": True},
    )
    quietly(model.fit, X, y, weights).export_training(tmp_path / "graphs")
    X.tofile(tmp_path / "X.float32")
    (tmp_path / "given.json").write_text(json.dumps([y.tolist(), weights.tolist()]))
    lines = in_node(
        tmp_path,
        """
const [labels, sampleWeight] = JSON.parse(await file("given.json"));
const rows = { X: await floats("X.float32"), y: trainer.encode(labels) };
const losses = await trainer.epoch(rows, { learningRate: 0.01, sampleWeight });
const nothing = { learningRate: 0.01, sampleWeight: labels.map(() => 0) };
try { await trainer.epoch(rows, nothing); } catch (error) { console.log(error.message); }
console.log(losses.length);
""",
    )
    assert lines == ["All rows have weight zero.", "3"]
    expected = model.partial_fit(X, y, sample_weight=weights).weights_
    model.load_state(tmp_path / "trained.safetensors")
    for name, array in expected.items():
        np.testing.assert_allclose(model.weights_[name], array, rtol=0, atol=1e-6)


@pytest.mark.parametrize("class_weight", [None, {"class": {"a": 0.2, "b": 5.0, "c": 1.0}}])
def test_unlabeled_rows_of_outputs_are_skipped_in_node(class_weight, tmp_path):
    """Without weights of classes both outputs weigh the rows alike: a minibatch divides by their sum."""
    X, y = data(40)
    y, weights = {name: y[name] for name in ("class", "number")}, np.arange(40) % 4 / 2.0
    losses = {name: KINDS[name].loss for name in y}
    model = configured(OrtGradientMultiOutput(graph(list(y)), loss=losses, class_weight=class_weight), **SETTINGS)
    quietly(model.fit, X, y, weights).export_training(tmp_path / "graphs")
    X.tofile(tmp_path / "X.float32")
    (tmp_path / "given.json").write_text(json.dumps([y["class"].tolist(), y["number"].tolist(), weights.tolist()]))
    lines = in_node(
        tmp_path,
        """
const [labels, numbers, weights] = JSON.parse(await file("given.json"));
const rows = { X: await floats("X.float32"), "y/class": trainer.encode(labels, "class") };
rows["y/number"] = trainer.encode(numbers, "number");
const weighted = { ...rows, ...trainer.weights(rows, { class: weights, number: weights }) };
console.log((await trainer.epoch(weighted, { learningRate: 0.01 })).length);
""",
    )
    assert lines == ["2"]
    model.partial_fit(X, y, sample_weight=weights)
    arrays = tensors_of((tmp_path / "trained.safetensors").read_bytes(), "state")
    np.testing.assert_allclose(arrays["parameters"], model._state.parameters.vector, rtol=0, atol=1e-5)


def test_several_outputs_in_node(tmp_path):
    """Labels, numbers and labels at positions, of which some do not count; labels that are missing have weight zero."""
    X, y = data(40)
    y = {name: y[name] for name in ("class", "number", "words")}
    weights = {"class": np.arange(40) % 4 / 2.0, "number": None, "words": None}
    class_weight = {"class": {"a": 0.2, "b": 5.0, "c": 1.0}}
    losses = {name: KINDS[name].loss for name in y}
    model = configured(OrtGradientMultiOutput(graph(list(y)), loss=losses, class_weight=class_weight), **SETTINGS)
    quietly(model.fit, X, y).export_training(tmp_path / "graphs")
    X.tofile(tmp_path / "X.float32")
    words = np.where(y["words"] < 0, -1, y["words"]).ravel()
    given = [y["class"].tolist(), y["number"].tolist(), words.tolist(), weights["class"].tolist()]
    (tmp_path / "given.json").write_text(json.dumps(given))
    lines = in_node(
        tmp_path,
        """
const [labels, numbers, words, weights] = JSON.parse(await file("given.json"));
const rows = { X: await floats("X.float32"), "y/class": trainer.encode(labels, "class") };
rows["y/number"] = trainer.encode(numbers, "number");
rows["y/words"] = BigInt64Array.from(words, BigInt);
try { await trainer.epoch(rows, { learningRate: 0.01 }); } catch (error) { console.log(error.message); }
try { trainer.encode(labels); } catch (error) { console.log(error.message); }
const weighted = { ...rows, ...trainer.weights(rows, { class: weights }) };
await trainer.epoch(weighted, { learningRate: 0.01 });
const part = (start, end) => Object.fromEntries(Object.entries(weighted).map(([name, values]) =>
  [name, values.slice(start * values.length / 40, end * values.length / 40)]));
for (const [start, end] of [[0, 16], [16, 32], [32, 40]]) await trainer.step(part(start, end), { learningRate: 0.01 });
const { class_label: found } = await trainer.predict({ X: rows.X });
console.log(JSON.stringify(found.data));
""",
    )
    for _ in range(2):
        model.partial_fit(X, y, sample_weight=weights)
    arrays = tensors_of((tmp_path / "trained.safetensors").read_bytes(), "state")
    np.testing.assert_allclose(arrays["parameters"], model._state.parameters.vector, rtol=0, atol=1e-5)
    assert lines[:2] == [
        "The labels have weights: add trainer.weights(rows) to the rows.",
        "Name the output: class,number,words.",
    ]
    np.testing.assert_array_equal(json.loads(lines[2]), model.predict(X)["class"])


def test_minibatches_in_which_rows_meet_are_not_filled_up_in_node(tmp_path):
    """Of 24 rows a step takes 8 at a time, to the weights of Python; 20 rows are refused."""
    X = np.random.default_rng(0).normal(size=(24, 4)).astype(np.float32)
    y = X @ [0.4, -0.2, 0.3, 0.1]
    model = configured(
        OrtGradientRegressor(Linear(), loss=PairRanking()), **SETTINGS | {"batch_size": 8, "target_scaling": None}
    )
    model.set_params(optimizer="sgd")  # ranks leave the bias alone: AdamW would make rates of its rounding
    quietly(model.partial_fit, X, y).export_training(tmp_path / "graphs")
    X.tofile(tmp_path / "X.float32")
    y.astype(np.float32).tofile(tmp_path / "y.float32")
    lines = in_node(
        tmp_path,
        """
const { inputs, graphs, target } = trainer.manifest, name = graphs.predict.inputs[0].name;
const rows = { [name]: await floats("X.float32"), [target.input]: await floats("y.float32") };
const few = { [name]: rows[name].subarray(0, 80), [target.input]: rows[target.input].subarray(0, 20) };
for (const run of [() => trainer.epoch(few, { learningRate: 0.01 }), () => trainer.step(few, { learningRate: 0.01 })]) {
  try { await run(); } catch (error) { console.log(error.message); }
}
console.log((await trainer.epoch(rows, { learningRate: 0.01 })).length);
""",
    )
    assert "give a multiple of 8 rows whose weight is not zero, got 20." in lines[0]
    assert lines[1:] == ["A step takes 8 rows, got 20.", "3"]
    expected = model.set_params(learning_rate_init=0.01).partial_fit(X, y).weights_
    model.load_state(tmp_path / "trained.safetensors")
    for one, array in expected.items():
        np.testing.assert_allclose(model.weights_[one], array, rtol=0, atol=1e-6)
