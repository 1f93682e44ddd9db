"""Models whose weights stay in files beside them: they train, predict and are written as models in memory are."""

from __future__ import annotations

import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnx.helper
import onnx.numpy_helper
import onnxruntime
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from onnxtrain_sklearn import GraphModel, LoRA, OrtGradientClassifier, OrtGradientRegressor, gradient_graph
from onnxtrain_sklearn._gradient import engine
from onnxtrain_sklearn._importers.load import given_graph
from onnxtrain_sklearn._ir import files, limits
from onnxtrain_sklearn._ort import sessions
from onnxtrain_sklearn.exceptions import ModelError, UnsupportedOperatorError
from tests.helpers.training import NEVER

pytestmark = [
    pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning"),
    pytest.mark.skipif(not sessions.reads_in_place(), reason="onnxruntime before 1.20 does not read weights in files"),
]

WIDTH = 160  # each of the square matrices has 102,400 bytes
rng = np.random.default_rng(0)
X = rng.normal(size=(48, WIDTH)).astype(np.float32)
y = (X[:, :3] + 0.1 * rng.normal(size=(48, 3))).argmax(1)


@pytest.fixture
def path(tmp_path, monkeypatch):
    """Return the path of a small model, whose weights are treated as those of a model above 2 GiB."""
    draws = np.random.default_rng(1)
    arrays = {f"body.{i}": draws.normal(size=(WIDTH, WIDTH)) / np.sqrt(WIDTH) for i in range(2)}
    arrays |= {"head.weight": draws.normal(size=(WIDTH, 3)) / np.sqrt(WIDTH), "head.bias": np.zeros(3)}
    model = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["": 18]> net (float[N, {WIDTH}] X) => (float[N, 3] Y) {{
        a = MatMul(X, body.0) b = Tanh(a) c = Gemm <transB = 1> (b, body.1) d = Relu(c) e = Add(b, d)
        Y = Gemm(e, head.weight, head.bias) }}""".replace("body.", "body_").replace("head.", "head_")
    )
    for name, array in arrays.items():
        tensor = onnx.numpy_helper.from_array(array.astype(np.float32), name.replace(".", "_"))
        model.graph.initializer.append(tensor)
    target = tmp_path / "given" / "model.onnx"
    target.parent.mkdir()
    onnx.save(model, target, save_as_external_data=True, location="model.weights", size_threshold=0)
    monkeypatch.setattr(files, "IN_PLACE", 0)
    return target


TRAINED = {"a head": {"trainable": "head_*"}, "factors": {"adapters": LoRA(2)}, "a matrix": {"trainable": "body_1"}}


def fitted(model, **settings):
    common = {"learning_rate_init": 0.01, "batch_size": 16, "max_iter": 5, "tol": NEVER, "random_state": 0}
    return OrtGradientClassifier(GraphModel(model, output_kind="scores"), **common | settings).fit(X, y)


@pytest.mark.parametrize("what", TRAINED)
def test_training_is_that_of_a_model_in_memory(path, what):
    settings = TRAINED[what]
    whole, found = fitted(onnx.load(path), engine="portable", **settings), fitted(path, **settings)
    assert found.engine_ == "portable"
    assert found.loss_curve_[-1] < 0.9 * found.loss_curve_[0]
    assert_allclose(found.loss_curve_, whole.loss_curve_, rtol=1e-5)
    assert_allclose(found.predict_proba(X), whole.predict_proba(X), rtol=0, atol=1e-5)
    held = {f"body_{i}" for i in range(2)} - ({"body_1"} if what == "a matrix" else set())
    assert held.isdisjoint(found.weights_)
    constants = {entry.name: entry.reason for entry in found.describe().of("constant")}
    assert {constants[name] for name in held} == {"a frozen weight, which stays in its file"}


@pytest.mark.parametrize("what", TRAINED)
def test_files_hold_all_weights(path, what, tmp_path):
    found = fitted(path, **TRAINED[what])
    written = tmp_path / "trained" / "new.onnx"
    written.parent.mkdir()
    returned, expected = found.to_onnx(path=written), (found.predict(X), found.predict_proba(X))
    shutil.rmtree(path.parent)  # the new files stand alone
    assert sorted(os.listdir(written.parent)) == ["new.onnx", "new.onnx.data"]
    assert returned == onnx.load(written, load_external_data=False)
    onnx.checker.check_model(written)
    session = onnxruntime.InferenceSession(written, providers=["CPUExecutionProvider"])
    labels, probabilities = session.run(None, {"X": X})
    assert_array_equal(labels, expected[0])
    assert_allclose(probabilities, expected[1], rtol=0, atol=1e-6)
    with pytest.raises(ModelError, match="is not there any more"):
        found.to_onnx(path=written)


def test_written_files_train_on(path, tmp_path):
    first = fitted(path, adapters=LoRA(2))
    first.to_onnx(raw_scores=True, path=tmp_path / "first.onnx")
    given = GraphModel(tmp_path / "first.onnx", output="probabilities", output_kind="scores")
    second = OrtGradientClassifier(given, trainable="*lora*", max_iter=1, tol=NEVER, learning_rate_init=1e-9).fit(X, y)
    assert_allclose(second.predict_proba(X), first.predict_proba(X), rtol=0, atol=1e-5)


def test_numbers_and_further_calls(path):
    targets = X[:, :3].astype(np.float64)
    found = OrtGradientRegressor(path, adapters=LoRA(2), max_iter=3, tol=NEVER, random_state=0).fit(X, targets)
    before = found.predict(X)
    assert np.abs(found.partial_fit(X, targets).predict(X) - before).max() > 1e-6
    other = OrtGradientRegressor(path, adapters=LoRA(2), max_iter=1, tol=NEVER, early_stopping=True).fit(X, targets)
    other.load_state(found.weights_)
    assert_allclose(other.predict(X), found.predict(X), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "use",
    [
        lambda net, folder: net.to_onnx(),
        lambda net, folder: pickle.dumps(net),
        lambda net, folder: net.export_training(folder / "graphs"),
        lambda net, folder: net.to_training_onnx(),
    ],
    ids=["a message", "a pickle", "training graphs", "a training step"],
)
def test_forms_without_files_are_refused(path, use, tmp_path):
    found = fitted(path, trainable="head_*")
    with pytest.raises(ModelError, match=r"above 2 GiB, whose weight '.*' .* by to_onnx\(path=...\)"):
        use(found, tmp_path)
    assert sorted(os.listdir(tmp_path)) == ["given"]
    found.predict(X)
    assert found._repr_html_()


def test_an_engine_that_takes_messages_is_refused(path, monkeypatch):
    monkeypatch.setattr(engine, "checked_engine", lambda name: name)  # no onnxruntime here has both
    model = given_graph(path)
    assert engine._engines_to_try(model, [], "auto") == ["portable"]
    with pytest.raises(UnsupportedOperatorError, match="'body_0' stays in its file"):
        engine._engines_to_try(model, [], "ort-training")


def test_the_given_files_are_not_written_over(path):
    found, before = fitted(path, trainable="head_*"), (path.parent / "model.weights").read_bytes()
    shutil.move(path.parent / "model.weights", path.parent / "model.onnx.data")
    with pytest.raises(ModelError):  # the file of the weights has moved
        found.to_onnx(path=path.parent / "other.onnx")
    assert (path.parent / "model.onnx.data").read_bytes() == before


def test_a_path_to_the_given_weights_is_refused(path):
    proto = onnx.load(path, load_external_data=False)
    shutil.move(path.parent / "model.weights", path.parent / "model.onnx.data")
    for tensor in proto.graph.initializer:
        tensor.external_data[0].value = "model.onnx.data"
    onnx.save(proto, path)
    with pytest.raises(ModelError, match=r"reads its weights from .* give another path"):
        fitted(path, trainable="head_*").to_onnx(path=path)


def test_the_graph_is_not_written_over_the_given_weights(path):
    found, weights = fitted(path, trainable="head_*"), path.parent / "model.weights"
    before = weights.read_bytes()
    with pytest.raises(ModelError, match=r"reads its weights from .*model.weights'?: give another path"):
        found.to_onnx(path=weights)
    assert weights.read_bytes() == before


@pytest.mark.parametrize("change", ["in place", "another file", "removed"])
def test_fitted_models_notice_changed_weights(path, change):
    found, weights = fitted(path, adapters=LoRA(2)), path.parent / "model.weights"
    expected, content = found.predict_proba(X), weights.read_bytes()
    if change == "in place":
        with weights.open("r+b") as file:
            file.write(bytes(4 * WIDTH))
    elif change == "another file":
        (path.parent / "new").write_bytes(bytes(len(content)))
        os.replace(path.parent / "new", weights)
    else:
        weights.unlink()
    facts = sessions._files[os.path.realpath(weights)]
    for call in (found.predict_proba, found.predict, lambda X: found.score(X, y), lambda X: found.partial_fit(X, y)):
        with pytest.raises(ModelError, match=r"has changed since it was read|is not there any more"):
            call(X)
    weights.write_bytes(content)
    os.utime(weights, ns=(facts[1], facts[1]))
    assert_array_equal(found.predict_proba(X), expected)


@pytest.mark.long
@pytest.mark.parametrize("whole", [False, True], ids=["in place", "another file"])
def test_new_estimators_train_rewritten_weights(path, whole):
    """Each estimator predicts with the file that it was fitted to, or refuses; a new one is as one of a new process."""
    weights, settings = path.parent / "model.weights", {"adapters": LoRA(2)}
    old, first = fitted(path, **settings), (weights.read_bytes(), weights.stat().st_mtime_ns)
    rewritten = (0.5 * np.frombuffer(first[0], np.float32)).tobytes()
    if whole:
        (path.parent / "new").write_bytes(rewritten)
        os.replace(path.parent / "new", weights)
    else:
        weights.write_bytes(rewritten)
    os.utime(weights, ns=(first[1] + 10**9,) * 2)
    new, expected = fitted(path, **settings), fitted(onnx.load(path), engine="portable", **settings)
    assert np.abs(new.predict_proba(X) - expected.predict_proba(X)).max() < 1e-5
    assert new.partial_fit(X, y).t_ > expected.t_
    after = new.predict_proba(X)
    with pytest.raises(ModelError, match=r"has changed since it was read.*fit a new estimator"):
        old.predict(X)
    new.to_onnx(path=path.parent / "trained.onnx")
    session = onnxruntime.InferenceSession(path.parent / "trained.onnx", providers=["CPUExecutionProvider"])
    assert_allclose(session.run(None, {"X": X})[1], after, rtol=0, atol=1e-6)
    with pytest.raises(ModelError, match="reads its weights from"):
        new.to_onnx(path=weights)

    weights.write_bytes(first[0])  # the first file again: that of ``old``, as its time is the same too
    os.utime(weights, ns=(first[1], first[1]))
    assert old.predict_proba(X).shape == after.shape
    with pytest.raises(ModelError, match="has changed since it was read"):
        new.predict(X)
    assert np.abs(fitted(path, **settings).predict_proba(X) - old.predict_proba(X)).max() == 0


def test_weights_outside_of_the_folder_are_refused(path, tmp_path):
    (tmp_path / "secret").write_bytes((path.parent / "model.weights").read_bytes())
    for location in ("../secret", str(tmp_path / "secret")):
        proto = onnx.load(path, load_external_data=False)
        for tensor in proto.graph.initializer:
            tensor.external_data[0].value = location
        onnx.save(proto, path)
        with pytest.raises(ModelError, match="is not in the folder"):
            fitted(path, trainable="head_*")
    (path.parent / "link").symlink_to(tmp_path / "secret")
    for tensor in proto.graph.initializer:
        tensor.external_data[0].value = "link"
    onnx.save(proto, path)
    with pytest.raises(ModelError, match="is not in the folder"):
        fitted(path, trainable="head_*")


def test_hard_links_are_refused(path, tmp_path):
    os.link(path.parent / "model.weights", tmp_path / "secret")
    with pytest.raises(ModelError, match="has hard links"):
        fitted(path, trainable="head_*")


def test_other_functions_name_the_way(path, monkeypatch):
    monkeypatch.setattr(limits, "LARGEST_MESSAGE", 100_000)
    with pytest.raises(ModelError, match="Give an estimator the path"):
        gradient_graph(str(path), wrt=["X"])
    with pytest.raises(ModelError, match="Give an estimator the path"):
        fitted(path.read_bytes(), trainable="head_*")


LARGE = """
import sys, threading, time
import numpy as np, onnx, onnx.helper
import onnxruntime
from onnxtrain_sklearn import GraphModel, LoRA, OrtGradientClassifier
path, what, layers, width = sys.argv[1], sys.argv[2], 40, 4096
size, rng = 4 * width * width, np.random.default_rng(0)
with open(path + ".weights", "wb") as file:
    for _ in range(layers):
        rows = rng.standard_normal((64, width), np.float32) / np.float32(width**0.5)
        for _ in range(width // 64):
            file.write(rows.tobytes())
made, nodes, last = [], [], "X"
for i in range(layers):
    tensor = onnx.TensorProto(name=f"w{i}", data_type=1, dims=[width, width], data_location=1)
    for key, value in {"location": "model.onnx.weights", "offset": str(i * size), "length": str(size)}.items():
        tensor.external_data.add(key=key, value=value)
    made.append(tensor)
    nodes.append(onnx.helper.make_node("MatMul", [last, f"w{i}"], [f"m{i}"], name=f"n{i}"))
    nodes.append(onnx.helper.make_node("Tanh", [f"m{i}"], [f"t{i}"], name=f"a{i}"))
    last = f"t{i}"
made.append(onnx.numpy_helper.from_array(rng.standard_normal((width, 3), np.float32) / 64, "head"))
nodes.append(onnx.helper.make_node("MatMul", [last, "head"], ["Y"], name="head"))
ends = [onnx.helper.make_tensor_value_info(n, 1, ["N", k]) for n, k in (("X", width), ("Y", 3))]
graph = onnx.helper.make_graph(nodes, "g", ends[:1], ends[1:], made)
onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=8), path)

def used():  # a page that several sessions map counts once
    return next(int(line.split()[1]) for line in open("/proc/self/smaps_rollup") if line.startswith("Pss:")) * 1024

start, peak, going = used(), 0, True
def watch():
    global peak
    while going:
        peak = max(peak, used())
        time.sleep(0.05)
watcher = threading.Thread(target=watch)
watcher.start()
X = rng.standard_normal((16, width), np.float32)
y = np.arange(16) % 3
settings = {"trainable": "head"} if what == "head" else {"adapters": LoRA(2)}
net = OrtGradientClassifier(GraphModel(path, output_kind="scores"), max_iter=2, tol=1.0, batch_size=8, **settings)
net.fit(X, y)
found = net.predict_proba(X)
net.to_onnx(path=path + ".trained.onnx")
going = False
watcher.join()
print("PEAK", (peak - start) / (layers * size))
del net
options = onnxruntime.SessionOptions()
options.add_session_config_entry("session.disable_prepacking", "1")  # else it holds the weights twice
session = onnxruntime.InferenceSession(path + ".trained.onnx", options, providers=["CPUExecutionProvider"])
assert np.abs(session.run(None, {"X": X})[1] - found).max() < 1e-4
print("SAME")
"""


@pytest.mark.slow
@pytest.mark.parametrize("what", ["head", "factors"])
def test_a_model_of_two_and_a_half_gib(what, tmp_path):
    if not os.path.exists("/proc/self/smaps_rollup"):
        pytest.skip("memory is measured on Linux")
    if shutil.disk_usage(tmp_path).free < 12 * 2**30:
        pytest.skip("needs 12 GiB of disk")
    facts = Path("/proc/meminfo").read_text().splitlines()
    free = next(int(line.split()[1]) for line in facts if line.startswith("MemAvailable"))
    if free < 8 * 2**20:
        pytest.skip("needs 8 GiB of memory")
    command = [sys.executable, "-W", "ignore", "-c", LARGE, str(tmp_path / "model.onnx"), what]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    finally:
        for name in os.listdir(tmp_path):
            os.unlink(tmp_path / name)
    assert "SAME" in done.stdout, done.stderr[-3000:]
    assert float(done.stdout.split()[1]) < 1.3
