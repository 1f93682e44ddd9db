"""
Images: a convolutional network, and a new head for other classes
==================================================================

A convolutional network learns to tell six digits apart, wherever they stand on a
canvas. Then come four other digits, with few images of each. What the network has
learned about strokes and loops is of use there too: ``FineTuner(new_head=True)``
keeps the layers up to a tensor inside the graph, and fits a linear layer for the
new classes behind it.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split

from onnxtrain_sklearn import ConvNet, FineTuner, GraphModel, OrtGradientClassifier

rng = np.random.default_rng(0)
pixels, digits = load_digits(return_X_y=True)
images = np.zeros((len(pixels), 14, 14), np.float32)
for image, row, (top, left) in zip(
    images, pixels, rng.integers(0, 7, (len(pixels), 2)), strict=True
):
    image[top : top + 8, left : left + 8] = row.reshape(8, 8) / 16
known = digits < 6
X_train, X_test, y_train, y_test = train_test_split(
    images[known], digits[known], random_state=0
)

net = OrtGradientClassifier(
    ConvNet((16, 32)),
    learning_rate="cosine",
    learning_rate_init=0.01,
    batch_size=32,
    max_iter=20,
    random_state=0,
).fit(X_train, y_train)
print(f"digits 0 to 5: accuracy {net.score(X_test, y_test):.3f}")
assert net.score(X_test, y_test) > 0.95

# %%
# Where to cut
# ------------
#
# The file of the network is an ONNX graph like any other. A head may sit on any
# tensor in it; ``output`` names one. Here it is the input of the last layer, the
# features of an image.

given = net.to_onnx()
for node in given.graph.node:
    print(f"{node.op_type:12} -> {', '.join(node.output)}")
features = next(
    node.input[0]
    for node in reversed(given.graph.node)
    if node.op_type in ("Gemm", "MatMul")
)
print("features:", features)

# %%
# Other digits, few images
# ------------------------
#
# The weights before the cut stay, as ``tune_body=False`` says: features are
# computed once, and only the head is fitted. Beside it, a logistic regression on
# the pixels of the same few images.

X_new, X_rest, y_new, y_rest = train_test_split(
    images[~known], digits[~known], train_size=160, random_state=0
)
numbers, with_head, on_pixels = (20, 40, 80, 160), [], []
for n in numbers:
    order = np.argsort(
        [np.sum(y_new[:i] == label) for i, label in enumerate(y_new)], kind="stable"
    )[:n]
    few, labels = X_new[order], y_new[order]  # about as many of each digit
    head = OrtGradientClassifier(
        GraphModel(given, output=features),
        finetune=FineTuner(new_head=True, tune_body=False, cv=2),
    )
    with_head.append(head.fit(few, labels).score(X_rest, y_rest))
    plain = LogisticRegression(max_iter=1000).fit(few.reshape(n, -1), labels)
    on_pixels.append(plain.score(X_rest.reshape(len(X_rest), -1), y_rest))
    print(f"{n:3} images: new head {with_head[-1]:.3f}, pixels {on_pixels[-1]:.3f}")
assert head.classes_.tolist() == [6, 7, 8, 9]
assert with_head[-1] > on_pixels[-1] + 0.1

# %%
# The accuracy on all other images of the new digits, and what the head of 160
# images makes of some of them.

figure = plt.figure(figsize=(9, 3.4), layout="constrained")
left, right = figure.subfigures(1, 2)
axes = left.subplots()
axes.plot(numbers, with_head, marker="o", label="new head on the features")
axes.plot(
    numbers,
    on_pixels,
    marker="s",
    linestyle="--",
    label="logistic regression on pixels",
)
axes.set(
    xlabel="labeled images of 6, 7, 8 and 9", ylabel="accuracy", xticks=numbers
)
axes.legend()
predicted = head.predict(X_rest)
wrong, right_ones = (
    np.flatnonzero(predicted != y_rest),
    np.flatnonzero(predicted == y_rest),
)
shown = np.r_[right_ones[:12], wrong[:6]]
for axes, i in zip(right.subplots(3, 6).ravel(), shown, strict=False):
    axes.imshow(X_rest[i], cmap="gray_r")
    axes.set_title(
        predicted[i],
        color="black" if predicted[i] == y_rest[i] else "tab:red",
        fontsize=9,
        pad=2,
    )
for axes in right.axes:
    axes.set_axis_off()
right.suptitle("Predicted digits, wrong ones in red", fontsize=10)
plt.show()
