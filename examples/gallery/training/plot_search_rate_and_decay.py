"""
Search the learning rate and the weight decay
=============================================

The learning rate decides more than any other setting of a network, and the weight
decay often comes second. The estimators are scikit-learn's, so its searches find
both: first a grid over the rate alone, then a random search that gives many
candidates a few epochs, and the best of them more.
"""

import matplotlib.pyplot as plt
import numpy as np
from scipy.stats import loguniform
from sklearn.datasets import load_digits
from sklearn.experimental import enable_halving_search_cv  # noqa: F401
from sklearn.model_selection import (
    GridSearchCV,
    HalvingRandomSearchCV,
    train_test_split,
)
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler

from onnxtrain_sklearn import MLP, AdamW, OrtGradientClassifier

X, y = load_digits(return_X_y=True)
X_train, X_test, y_train, y_test = train_test_split(
    X, y, train_size=900, stratify=y, random_state=0
)

# %%
# The schedule "cosine" lowers the rate to zero over ``max_iter`` epochs, whatever
# their number is: a candidate with four epochs is trained to its end, as one with
# thirty-six is. ``early_stopping="best_epoch"`` takes all these epochs and keeps
# the best one.

net = OrtGradientClassifier(
    MLP((32,)),
    optimizer=AdamW(),
    learning_rate="cosine",
    early_stopping="best_epoch",
    max_iter=8,
    random_state=0,
)
pipeline = make_pipeline(MinMaxScaler(), net)
rates = np.geomspace(1e-4, 1.0, 9)
grid = GridSearchCV(
    pipeline, {"ortgradientclassifier__learning_rate_init": rates}, cv=3
).fit(X_train, y_train)
for rate, score in zip(rates, grid.cv_results_["mean_test_score"], strict=True):
    print(f"rate {rate:6.4f}: accuracy {score:.3f}")
assert 1e-3 <= grid.best_params_["ortgradientclassifier__learning_rate_init"] <= 0.3

# %%
# Rate and decay together
# -----------------------
#
# Successive halving draws 27 pairs, trains each for four epochs, and gives the best
# third three times as many, twice. The resource is ``max_iter`` of the network.
# ``optimizer__weight_decay`` is a parameter of the optimizer: nested names reach
# it, as everywhere in scikit-learn.

space = {
    "ortgradientclassifier__learning_rate_init": loguniform(1e-3, 0.3),
    "ortgradientclassifier__optimizer__weight_decay": loguniform(1e-3, 10.0),
}
search = HalvingRandomSearchCV(
    pipeline,
    space,
    n_candidates=27,
    resource="ortgradientclassifier__max_iter",
    min_resources=4,
    max_resources=36,
    factor=3,
    cv=3,
    random_state=0,
).fit(X_train, y_train)
for name, value in search.best_params_.items():
    print(f"{name} = {value:.3g}")
print(f"accuracy on new rows {search.score(X_test, y_test):.3f}")
assert search.score(X_test, y_test) > 0.92

# %%
# The picture
# -----------
#
# Left, the grid: below a thousandth the network does not get far in eight epochs,
# and a rate of one is too much. Right, the pairs of the random search: the larger
# the dot, the more epochs the pair was given.

_, (left, right) = plt.subplots(1, 2, figsize=(9, 3.8), layout="constrained")
results = grid.cv_results_
left.errorbar(
    rates,
    results["mean_test_score"],
    results["std_test_score"],
    marker="o",
    capsize=3,
)
left.set(
    xscale="log",
    xlabel="learning rate",
    ylabel="accuracy, mean of three folds",
    title="Grid over the rate",
)

results = search.cv_results_
dots = right.scatter(
    *(results[f"param_{name}"].astype(float) for name in space),
    s=12 * results["n_resources"],
    c=results["mean_test_score"],
    cmap="viridis",
    edgecolor="black",
    linewidth=0.5,
    alpha=0.8,
)
right.set(
    xscale="log",
    yscale="log",
    xlabel="learning rate",
    ylabel="weight decay",
    title="Successive halving",
)
right.figure.colorbar(dots, ax=right, label="accuracy, mean of three folds")
plt.show()
