"""
Adversarial examples: FGSM and PGD
==================================

Small changes of all pixels, chosen well, make a network see another digit. The
gradient of the loss by the image says which change does most harm. FGSM takes one
step along its sign; PGD takes many small ones and stays within the same bound.
``gradient_graph`` computes the gradient for both. Then a network is trained on
attacked images, and attacked as well.
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

# %%
# The gradient of the loss
# ------------------------
#
# A node adds the loss to the file of the network, the sum over the rows, and an
# input for the true labels. With ``weights_as_inputs=True`` the same graph attacks
# any network of this form: ``weights_`` holds the weights by the names of inputs.

model = net.to_onnx()
model.graph.input.append(
    onnx.helper.make_tensor_value_info("true", onnx.TensorProto.INT64, ["N"])
)
model.graph.node.append(
    onnx.helper.make_node(
        "SoftmaxCrossEntropyLoss", ["scores", "true"], ["loss"], reduction="sum"
    )
)
model = gradient_graph(model, wrt="X", of="loss", weights_as_inputs=True)
options = onnxruntime.SessionOptions()
options.log_severity_level = 3  # no warning that weights are inputs
session = onnxruntime.InferenceSession(
    model.SerializeToString(), options, providers=["CPUExecutionProvider"]
)


def attack(net, images, labels, size, n_steps):
    """Return images that differ from the given ones by at most ``size`` a pixel.

    One step is FGSM. Several are PGD: each goes a part of the way, and its result
    is clipped to the bound and to the range of the pixels.
    """
    step = size if n_steps == 1 else 2.5 * size / n_steps
    low, high = np.maximum(images - size, 0), np.minimum(images + size, 1)
    found = images
    for _ in range(n_steps):
        feeds = {"X": found, "true": labels, **net.weights_}
        [slope] = session.run(["X_grad"], feeds)
        found = np.clip(found + step * np.sign(slope), low, high, dtype=np.float32)
    return found


# %%
# Accuracy over the size of the change
# ------------------------------------
#
# Beside both attacks, random signs of the same size: they do much less harm.

rng = np.random.default_rng(0)
sizes = [0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3]
signs = rng.choice([-1, 1], X_test.shape).astype(np.float32)


def accuracies(net):
    """Return the accuracy by size, for random signs, FGSM and PGD."""
    return {
        "random signs": [
            net.score(np.clip(X_test + size * signs, 0, 1), y_test)
            for size in sizes
        ],
        "FGSM": [
            net.score(attack(net, X_test, y_test, size, 1), y_test)
            for size in sizes
        ],
        "PGD, 10 steps": [
            net.score(attack(net, X_test, y_test, size, 10), y_test)
            for size in sizes
        ],
    }


plain = accuracies(net)
print("size         ", "  ".join(f"{size:5.2f}" for size in sizes))
for name, values in plain.items():
    print(f"{name:13}", "  ".join(f"{value:.3f}" for value in values))
assert plain["random signs"][3] > plain["FGSM"][3] + 0.3
assert plain["FGSM"][3] > plain["PGD, 10 steps"][3]

# %%
# Train on attacked images
# ------------------------
#
# ``partial_fit`` makes an epoch. Before each one, the images are attacked by PGD
# with the weights of that moment.

robust = OrtGradientClassifier(
    ConvNet((16, 32)), learning_rate_init=0.004, batch_size=32, random_state=0
)
robust.partial_fit(X_train, y_train, classes=range(10))
for _ in range(20):
    robust.partial_fit(attack(robust, X_train, y_train, 0.15, 5), y_train)
trained = accuracies(robust)
for name, values in trained.items():
    print(f"{name:13}", "  ".join(f"{value:.3f}" for value in values))
assert trained["PGD, 10 steps"][3] > plain["PGD, 10 steps"][3] + 0.3
assert trained["PGD, 10 steps"][0] > 0.9

# %%
# The accuracy of both networks, and images that PGD changes by 0.15 so that the
# first network takes them for another digit.

figure = plt.figure(figsize=(9, 3.8), layout="constrained")
left, right = figure.subfigures(1, 2, width_ratios=[1.3, 1])
axes = left.subplots()
for (name, values), color in zip(plain.items(), ("gray", "C0", "C3"), strict=True):
    axes.plot(sizes, values, "o-", color=color, label=name)
    axes.plot(sizes, trained[name], "s--", color=color, markerfacecolor="white")
axes.set(xlabel="largest change of a pixel (range 0 to 1)", ylabel="accuracy")
axes.set_ylim(0, 1.02)
axes.legend(title="dashed: trained on attacks", fontsize=9)
shown = attack(net, X_test, y_test, 0.15, 10)
before, after = net.predict(X_test), net.predict(shown)
fooled = np.flatnonzero((before == y_test) & (after != y_test))[:3]
for column, i in zip(right.subplots(2, 3).T, fooled, strict=True):
    for axes, image, label in zip(
        column, (X_test[i], shown[i]), (before[i], after[i]), strict=True
    ):
        axes.imshow(image, cmap="gray_r", vmin=0, vmax=1)
        axes.set_title(f"seen as {label}", fontsize=9, pad=2)
        axes.set_axis_off()
right.suptitle("Before and after the attack", fontsize=10)
plt.show()
