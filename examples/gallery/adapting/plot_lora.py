"""
Low-rank adapters: one model, many users
========================================

One network serves many users, and each wants it adapted. ``LoRA`` leaves the
matrices of the network as they are and trains a product of two thin matrices beside
each. What is stored for a user is these factors alone.
"""

import matplotlib.pyplot as plt
import numpy as np
from scipy import ndimage
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from onnxtrain_sklearn import MLP, GraphModel, LoRA, OrtGradientClassifier

X, y = load_digits(return_X_y=True)
X = (X / 16).astype(np.float32)
X_base, X_own, y_base, y_own = train_test_split(
    X, y, test_size=0.5, stratify=y, random_state=0
)
settings = {
    "learning_rate": "cosine",
    "learning_rate_init": 0.01,
    "max_iter": 40,
    "batch_size": 32,
    "random_state": 0,
}
base = OrtGradientClassifier(MLP((128, 128)), **settings).fit(X_base, y_base)
given = base.to_onnx()

# %%
# Three users
# -----------
#
# One turns the paper, one writes with a slant, one sees all in a mirror.


def turned(rows):
    """Return the images turned by ninety degrees."""
    return np.rot90(rows.reshape(-1, 8, 8), axes=(1, 2)).reshape(-1, 64).copy()


def slanted(rows):
    """Return the images with a slant."""
    images = [
        ndimage.affine_transform(
            row.reshape(8, 8), [[1, 0], [0.8, 1]], [0, -3], order=1
        )
        for row in rows
    ]
    return np.reshape(images, (-1, 64))


users = {
    "turned": turned(X_own),
    "slanted": slanted(X_own),
    "mirrored": X_own.reshape(-1, 8, 8)[:, :, ::-1].reshape(-1, 64),
}
split = {
    name: train_test_split(rows, y_own, train_size=200, random_state=0)
    for name, rows in users.items()
}

# %%
# Rank by rank
# ------------
#
# An adapter of rank r has r numbers for each row and each column of a matrix.
# ``adapters_`` holds the factors, ``weights_`` and ``to_onnx()`` have them merged
# into the matrices.

ranks = [1, 2, 4, 8]
accuracy = {name: [base.score(part[1], part[3])] for name, part in split.items()}
for name, (X_few, X_test, y_few, y_test) in split.items():
    for rank in ranks:
        adapters = LoRA(rank=rank, targets="*.weight")
        net = OrtGradientClassifier(
            GraphModel(given, output="probabilities"), adapters=adapters, **settings
        ).fit(X_few, y_few)
        accuracy[name].append(net.score(X_test, y_test))
    full = OrtGradientClassifier(
        GraphModel(given, output="probabilities"), **settings
    ).fit(X_few, y_few)
    accuracy[name].append(full.score(X_test, y_test))
    print(
        f"{name:8}",
        "  ".join(f"{score:.3f}" for score in accuracy[name]),
        "(given, rank 1, 2, 4, 8, all numbers)",
    )
numbers = {factor: array.shape for factor, array in net.adapters_.items()}
print(numbers)
assert all(scores[3] > scores[0] + 0.2 for scores in accuracy.values())

# %%
# The operators of the adapted graph are those of the given one: it costs nothing to
# run.

operators = [
    sorted(node.op_type for node in model.graph.node)
    for model in (net.to_onnx(), given)
]
print(operators[0])
assert operators[0] == operators[1]

# %%
# The accuracy by the numbers that are trained and stored for a user. The last
# points train all numbers of the network.

n_in_and_out = sum(
    sum(array.shape) for name, array in base.weights_.items() if array.ndim == 2
)
everything = sum(array.size for array in base.weights_.values())
stored = [rank * n_in_and_out for rank in ranks] + [everything]
_, axes = plt.subplots(figsize=(7.5, 3.8), layout="constrained")
for (name, scores), marker in zip(accuracy.items(), "os^", strict=True):
    drawn = axes.plot(stored[:-1], scores[1:-1], marker + "-", label=name)[0]
    axes.plot(
        stored[-1],
        scores[-1],
        marker,
        color=drawn.get_color(),
        markerfacecolor="white",
    )
    axes.axhline(scores[0], color=drawn.get_color(), linestyle=":", linewidth=1)
axes.set_xscale("log")
axes.set_xticks(
    stored,
    [
        f"{n:,}\n{f'rank {r}' if r else 'all'}"
        for n, r in zip(stored, [*ranks, 0], strict=True)
    ],
)
axes.minorticks_off()
axes.set(
    xlabel="numbers that are trained and stored",
    ylabel="accuracy on new images of the user",
    ylim=(0, 1),
)
axes.legend(title="dotted: not adapted")
plt.show()
