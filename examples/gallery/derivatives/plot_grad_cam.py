"""
Grad-CAM: where does a convolutional network look?
==================================================

Grad-CAM colors the regions of an image that speak for a class. It weights each
channel of the last convolution by the mean gradient of the score of that class, and
adds up the weighted channels. The activations and their gradient lie inside the
network; ``vjp_graph`` returns one graph that computes both.
"""

import matplotlib.pyplot as plt
import numpy as np
import onnx
import onnxruntime
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from onnxtrain_sklearn import OrtGradientClassifier, vjp_graph

X, y = load_digits(return_X_y=True)
X = (X / 16).astype(np.float32).reshape(-1, 1, 8, 8)
X_train, X_test, y_train, y_test = train_test_split(
    X, y, stratify=y, random_state=0
)

# %%
# A network that ends in a mean over all positions, and so takes images of any size.
# It is trained on single digits.

graph = onnx.parser.parse_model("""
<ir_version: 8, opset_import: ["": 18]>
network (float[N, 1, H, W] X) => (float[N, 10] scores) {
    c1 = Conv <pads = [1, 1, 1, 1]> (X, W1, b1)
    a1 = Relu(c1)
    p1 = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (a1)
    c2 = Conv <pads = [1, 1, 1, 1]> (p1, W2, b2)
    a2 = Relu(c2)
    c3 = Conv <pads = [1, 1, 1, 1]> (a2, W3, b3)
    activations = Relu(c3)
    means = GlobalAveragePool(activations)
    features = Flatten(means)
    scores = Gemm(features, W4, b4)
}""")
rng = np.random.default_rng(0)
for i, shape in enumerate(
    [(24, 1, 3, 3), (48, 24, 3, 3), (48, 48, 3, 3), (48, 10)], 1
):
    n_inputs = shape[0] if i == 4 else np.prod(shape[1:])
    weight = rng.normal(0, np.sqrt(2 / n_inputs), shape).astype(np.float32)
    bias = np.zeros(shape[1] if i == 4 else shape[0], np.float32)
    for name, array in ((f"W{i}", weight), (f"b{i}", bias)):
        graph.graph.initializer.append(onnx.numpy_helper.from_array(array, name))

net = OrtGradientClassifier(
    graph,
    learning_rate="cosine",
    learning_rate_init=0.005,
    batch_size=32,
    max_iter=20,
    random_state=0,
).fit(X_train, y_train)
print(f"accuracy on single digits {net.score(X_test, y_test):.3f}")
assert net.score(X_test, y_test) > 0.95

# %%
# One graph for activations and gradients
# ---------------------------------------
#
# ``vjp_graph`` adds an input, ``scores_cotangent``: a weight for each score. With a
# 1 at a class and 0 elsewhere, the gradient is that of the score of this class, for
# each row its own.

model = vjp_graph(net.to_onnx(), wrt="activations", of="scores")
model.graph.output.append(onnx.ValueInfoProto(name="activations"))
print("inputs:", [value.name for value in model.graph.input])
print("outputs:", [value.name for value in model.graph.output])
session = onnxruntime.InferenceSession(
    model.SerializeToString(), providers=["CPUExecutionProvider"]
)


def grad_cam(images, labels):
    """Return a map for each image: where it speaks for its label."""
    feeds = {"X": images, "scores_cotangent": np.eye(10, dtype=np.float32)[labels]}
    values, gradients = session.run(["activations", "activations_grad"], feeds)
    weights = gradients.mean(axis=(2, 3), keepdims=True)
    return np.maximum((weights * values).sum(axis=1), 0)


# %%
# Two digits in an image
# ----------------------
#
# The network has never seen such images. The map for the left digit should lie on
# the left, and that for the right one on the right.

pairs = rng.integers(len(X_test), size=(500, 2))
pairs = pairs[y_test[pairs[:, 0]] != y_test[pairs[:, 1]]]
labels = y_test[pairs]
images = np.zeros((len(pairs), 1, 12, 24), np.float32)
for image, (left, right) in zip(images[:, 0], pairs, strict=True):
    top, bottom = rng.integers(0, 5, 2)
    image[top : top + 8, 2:10] = X_test[left, 0]
    image[bottom : bottom + 8, 14:22] = X_test[right, 0]
maps = [grad_cam(images, labels[:, side]) for side in (0, 1)]
print("shape of the maps:", maps[0].shape)

middle = maps[0].shape[2] // 2
on_the_left = [cam[:, :, :middle].sum(axis=(1, 2)) for cam in maps]
on_the_right = [cam[:, :, middle:].sum(axis=(1, 2)) for cam in maps]
left_found = np.mean(on_the_left[0] > on_the_right[0])
right_found = np.mean(on_the_right[1] > on_the_left[1])
print(
    f"most of the map lies on the side of its digit: {left_found:.3f} of the left"
)
print(f"digits, {right_found:.3f} of the right ones")
assert min(left_found, right_found) > 0.7

# %%
# Some images, and the maps of their digits.

figure, axes = plt.subplots(5, 3, figsize=(8, 7.2), layout="constrained")
for i, row in enumerate(axes):
    row[0].imshow(images[i, 0], cmap="gray_r")
    for column, cam, label in zip(row[1:], maps, labels[i], strict=True):
        column.imshow(images[i, 0], cmap="gray_r")
        column.imshow(
            cam[i], cmap="Reds", alpha=0.7, extent=(-0.5, 23.5, 11.5, -0.5)
        )
        column.set_title(f"for {label}", fontsize=10, pad=2)
for each in axes.ravel():
    each.set_axis_off()
plt.show()
