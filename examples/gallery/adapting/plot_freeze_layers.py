"""
Freeze layers, and give parameters rates of their own
=====================================================

A trained network is adapted to other data. How much of it should move?
``trainable`` says which parameters are trained, by names, patterns or a function;
``learning_rate_factors`` of the optimizer multiplies the rate of those that are, by
patterns again.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from onnxtrain_sklearn import MLP, AdamW, GraphModel, OrtGradientClassifier

X, y = load_digits(return_X_y=True)
X = (X / 16).astype(np.float32)
X_old, X_new, y_old, y_new = train_test_split(
    X, y, test_size=0.5, stratify=y, random_state=0
)
mirrored = X_new.reshape(-1, 8, 8)[:, :, ::-1].reshape(-1, 64)
X_few, X_test, y_few, y_test = train_test_split(
    mirrored, y_new, train_size=100, stratify=y_new, random_state=0
)

settings = {
    "learning_rate_init": 0.01,
    "max_iter": 500,
    "tol": 1e-2,
    "random_state": 0,
}
net = OrtGradientClassifier(MLP((64, 32)), **settings).fit(X_old, y_old)
given = net.to_onnx()
print(f"accuracy on images as they are {net.score(X_new, y_new):.3f}")
print(f"accuracy on mirrored images {net.score(mirrored, y_new):.3f}")

# %%
# The file of the trained network is the model of the next one. ``describe`` lists
# its parameters: two hidden layers and the last one.

print(
    OrtGradientClassifier(
        GraphModel(given, output="probabilities"), trainable="layers.2.*"
    ).describe()
)

# %%
# Five ways to train it
# ---------------------
#
# The last pattern that matches a name counts. ``0.1`` and ``0.3`` mean a tenth and
# three tenths of the rate. No gradient is computed for frozen parameters.

ways = {
    "everything": {},
    "first layer": {"trainable": "layers.0.*"},
    "last layer": {"trainable": "layers.2.*"},
    "biases": {"trainable": lambda name, array: array.ndim == 1},
    "slower at the top": {
        "optimizer": AdamW(
            learning_rate_factors={"layers.1.*": 0.3, "layers.2.*": 0.1}
        )
    },
}
names = [f"layers.{i}.{kind}" for i in range(3) for kind in ("weight", "bias")]
accuracy, moved = {}, {}
for way, choice in ways.items():
    tuned = OrtGradientClassifier(
        GraphModel(given, output="probabilities"), **choice, **settings
    ).fit(X_few, y_few)
    accuracy[way] = tuned.score(X_test, y_test)
    pairs = [(net.weights_[name], tuned.weights_[name]) for name in names]
    moved[way] = [
        np.linalg.norm(new - old) / np.linalg.norm(old) for old, new in pairs
    ]
    trained = tuned.describe().n_trained
    print(f"{way:17} trains {trained:4} numbers, accuracy {accuracy[way]:.3f}")
assert [change > 0 for change in moved["last layer"]] == [False] * 4 + [True] * 2
assert accuracy["first layer"] > accuracy["last layer"] + 0.03

# %%
# A mirror changes what the first layer sees: training that layer alone repairs it
# as well as training everything does, and better than a new last layer can. The
# picture shows by how much each parameter moved, relative to its size.

figure, axes = plt.subplots(figsize=(8, 3.6), layout="constrained")
image = axes.imshow(
    np.array(list(moved.values())), cmap="Oranges", vmin=0, vmax=1.5
)
axes.set_xticks(range(len(names)), [name.removeprefix("layers.") for name in names])
axes.set_yticks(range(len(ways)), [f"{way} ({accuracy[way]:.2f})" for way in ways])
for row, values in enumerate(moved.values()):
    for column, value in enumerate(values):
        axes.text(
            column,
            row,
            f"{value:.2f}" if value else "frozen",
            ha="center",
            va="center",
            fontsize=8,
            color="white" if value > 1 else "black",
        )
axes.set_title(
    "Change of each parameter; in brackets the accuracy on mirrored images",
    fontsize=10,
)
figure.colorbar(image, ax=axes, label="relative change", extend="max")
plt.show()
