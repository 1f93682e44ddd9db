"""
Integrated gradients: which pixels make the score?
==================================================

Integrated gradients distribute the score of a class over the pixels of an image.
They add up the gradient on the way from a baseline, here a blank image, to the
image. Nothing is left over: the attributions of all pixels sum to the difference of
the two scores. ``gradient_graph`` makes the graph that computes the gradients.
"""

import matplotlib.pyplot as plt
import numpy as np
import onnx
import onnxruntime
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from onnxtrain_sklearn import ConvNet, OrtGradientClassifier, gradient_graph

X, y = load_digits(return_X_y=True)
X = (X / 16).astype(np.float32).reshape(-1, 8, 8)
X_train, X_test, y_train, y_test = train_test_split(
    X, y, stratify=y, random_state=0
)
net = OrtGradientClassifier(
    ConvNet((16, 32)),
    learning_rate="cosine",
    learning_rate_init=0.005,
    batch_size=32,
    max_iter=20,
    random_state=0,
).fit(X_train, y_train)
print(f"accuracy {net.score(X_test, y_test):.3f}")
assert net.score(X_test, y_test) > 0.97

# %%
# The scalar to differentiate
# ---------------------------
#
# ``gradient_graph`` differentiates a scalar. Two nodes add one to the file of the
# network: the sum of the scores, each times a weight, which is a further input.
# Rows do not affect each other, so that the gradient by the images holds the
# gradient of each row.

model = net.to_onnx()
model.graph.input.append(
    onnx.helper.make_tensor_value_info("weight", onnx.TensorProto.FLOAT, ["N", 10])
)
model.graph.node.extend(
    [
        onnx.helper.make_node("Mul", ["scores", "weight"], ["weighted"]),
        onnx.helper.make_node("ReduceSum", ["weighted"], ["total"], keepdims=0),
    ]
)
model = gradient_graph(model, wrt="X", of="total")
print("outputs:", [output.name for output in model.graph.output])
session = onnxruntime.InferenceSession(
    model.SerializeToString(), providers=["CPUExecutionProvider"]
)


def run(images, label):
    """Return the sum of the scores of a label, and its gradient by the images."""
    weight = np.zeros((len(images), 10), np.float32)
    weight[:, label] = 1
    return session.run(["total", "X_grad"], {"X": images, "weight": weight})


# %%
# Along the way
# -------------
#
# The integral is a mean over points in the middles of equal steps. All points of an
# image are one batch.


def integrated_gradients(image, label, n_steps=256):
    """Return the share of each pixel in the score of the label."""
    steps = (np.arange(n_steps, dtype=np.float32) + 0.5) / n_steps
    _, gradients = run(steps[:, None, None] * image, label)
    return image * gradients.mean(axis=0)


def difference(image, label):
    """Return how much the score of a label exceeds that of a blank image."""
    return run(image[None], label)[0] - run(0 * image[None], label)[0]


# %%
# Completeness: the sums of the attributions are the differences of the scores, for
# all classes. The error comes from the steps, and falls with their number.

cases = [(image, label) for image in X_test[:10] for label in range(10)]
expected = np.array([difference(*case) for case in cases])
for n_steps in (4, 16, 64, 256):
    sums = np.array([integrated_gradients(*case, n_steps).sum() for case in cases])
    error = abs(sums - expected).max()
    print(
        f"{n_steps:3} steps: differences up to {abs(expected).max():.1f}, "
        f"largest error {error:.4f}"
    )
assert error < 0.01 * abs(expected).max()

# %%
# Why this digit and not that one? Attributions of two classes may be subtracted.
# Red pixels speak for the class, blue ones against it. Blank pixels are those of
# the baseline, so that nothing is attributed to them.

shown = [np.flatnonzero(y_test == digit)[0] for digit in (3, 4, 7, 8, 9)]
predicted = net.predict_proba(X_test[shown]).argsort(axis=1)
rows = {"image": [], "first class": [], "second class": [], "difference": []}
titles = []
for i, (*_, second, first) in zip(shown, predicted, strict=True):
    one, two = (integrated_gradients(X_test[i], label) for label in (first, second))
    titles.append(
        [f"{y_test[i]}", f"for {first}", f"for {second}", f"{first} − {second}"]
    )
    for kept, values in zip(
        rows.values(), (X_test[i], one, two, one - two), strict=True
    ):
        kept.append(values)
limit = np.abs(rows["difference"]).max()
figure, axes = plt.subplots(4, 5, figsize=(8, 7), layout="constrained")
for line, (name, values) in zip(axes, rows.items(), strict=True):
    for column, each in enumerate(values):
        if name == "image":
            line[column].imshow(each, cmap="gray_r")
        else:
            drawn = line[column].imshow(
                each, cmap="RdBu_r", vmin=-limit, vmax=limit
            )
        line[column].set_title(titles[column][list(rows).index(name)], fontsize=10)
        line[column].set_axis_off()
figure.colorbar(drawn, ax=axes[1:], label="share in the score", shrink=0.6)
plt.show()
