"""
Train on the edge: a training step as an ONNX file
==================================================

A network for digits ships to a device that has onnxruntime and nothing else of this
page: no scikit-learn, no package for training. Its user writes slanted digits.
``export_training`` writes the training step itself as an ONNX graph; the device
runs it on its user's digits, and the weights return.
"""

import json
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import onnxruntime
from scipy import ndimage
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from onnxtrain_sklearn import MLP, OrtGradientClassifier

X, y = load_digits(return_X_y=True)
X = (X / 16).astype(np.float32)
X_home, X_user, y_home, y_user = train_test_split(
    X, y, test_size=0.4, stratify=y, random_state=0
)
slanted = [
    ndimage.affine_transform(
        image.reshape(8, 8), [[1, 0], [-0.7, 1]], [0, 2.5], order=1
    )
    for image in X_user
]
X_device, X_later, y_device, y_later = train_test_split(
    np.reshape(slanted, (-1, 64)).astype(np.float32),
    y_user,
    train_size=160,
    stratify=y_user,
    random_state=0,
)

net = OrtGradientClassifier(
    MLP((32,)), learning_rate_init=0.01, batch_size=16, tol=0.1, random_state=0
)
net.fit(X_home, y_home)
print(f"accuracy at home {net.score(X_home, y_home):.3f}")
print(f"accuracy on slanted digits {net.score(X_later, y_later):.3f}")
before = net.score(X_later, y_later)

# %%
# What ships
# ----------
#
# ``step.onnx`` is a step: minibatch, learning rate and state go in, loss and new
# state come out. ``manifest.json`` says what they are called.

folder = Path(tempfile.mkdtemp())
net.export_training(folder)
for file in sorted(folder.iterdir()):
    print(f"{file.name:18} {file.stat().st_size / 1000:6.1f} kB")

# %%
# On the device
# -------------
#
# From here to the end of this section, only NumPy and onnxruntime are used. The
# state is a set of tensors that each step reads and returns; it starts from
# ``state.safetensors``, a header and raw numbers.

manifest = json.loads((folder / "manifest.json").read_text())
content = (folder / "state.safetensors").read_bytes()
size = int.from_bytes(content[:8], "little")
header = json.loads(content[8 : 8 + size])
types = {"F32": np.float32, "F64": np.float64, "I64": np.int64}
state = {}
for tensor in manifest["state"]["tensors"]:
    entry = header[tensor["name"]]
    start, end = (8 + size + offset for offset in entry["data_offsets"])
    state[tensor["name"]] = np.frombuffer(
        content[start:end], types[entry["dtype"]]
    ).reshape(entry["shape"])

step = onnxruntime.InferenceSession(
    folder / "step.onnx", providers=["CPUExecutionProvider"]
)
predict = onnxruntime.InferenceSession(
    folder / "predict.onnx", providers=["CPUExecutionProvider"]
)
names = [output.name for output in step.get_outputs()]
batch, rng, losses, accuracies = (
    manifest["batch_size"],
    np.random.default_rng(0),
    [],
    [before],
)
for _ in range(12):
    for rows in rng.permutation(len(X_device)).reshape(-1, batch):
        feeds = {
            "X": X_device[rows],
            "y": y_device[rows],
            "sample_weight": np.ones(batch, np.float32),
        }
        feeds["learning_rate"] = np.array(0.003, np.float32)
        results = dict(zip(names, step.run(names, feeds | state), strict=True))
        state = {
            tensor["name"]: results[tensor["output"]]
            for tensor in manifest["state"]["tensors"]
        }
        losses.append(float(results["loss"]))
    labels = predict.run(None, {"X": X_later, "parameters": state["parameters"]})[0]
    accuracies.append(np.mean(labels == y_later))
print(f"accuracy on slanted digits after {len(losses)} steps {accuracies[-1]:.3f}")
assert accuracies[-1] > before + 0.1

# %%
# Back in the estimator
# ---------------------
#
# ``load_state`` takes the state of the device. The estimator predicts what the
# device predicts, and ``partial_fit`` would go on from there.

net.load_state(state)
assert (net.predict(X_later) == labels).all()
print(f"the estimator on slanted digits {net.score(X_later, y_later):.3f}")

# %%
# The loss of the steps on the device, and the accuracy on later digits of its user.

figure = plt.figure(figsize=(9, 3.4), layout="constrained")
left, right = figure.subfigures(1, 2, width_ratios=[1, 2.2])
for column, (images, targets) in zip(
    left.subplots(5, 2).T, ((X_home, y_home), (X_device, y_device)), strict=True
):
    for digit, axes in enumerate(column):
        axes.imshow(images[targets == digit][0].reshape(8, 8), cmap="gray_r")
        axes.set_axis_off()
left.suptitle("At home, on the device", fontsize=10)
axes = right.subplots()
axes.plot(
    np.arange(1, len(losses) + 1), losses, color="silver", label="loss of a step"
)
axes.set(xlabel="step on the device", ylabel="loss")
accuracy = axes.twinx()
accuracy.plot(
    np.arange(13) * len(losses) / 12,
    accuracies,
    "o-",
    color="tab:orange",
    label="accuracy on later digits",
)
accuracy.set(ylabel="accuracy", ylim=(0, 1))
right.legend(loc="outside upper center", ncols=2)
plt.show()
