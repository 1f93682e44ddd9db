"""
A search whose candidates end by themselves
===========================================

The number of epochs is no setting to search for: with ``early_stopping`` each
candidate ends when its loss on rows held out no longer falls, and goes back to its
best weights. A search then spends its time where it pays.
"""

import matplotlib.pyplot as plt
import numpy as np
from scipy.stats import loguniform
from sklearn.datasets import load_digits
from sklearn.model_selection import RandomizedSearchCV, train_test_split

from onnxtrain_sklearn import MLP, OrtGradientClassifier

X, y = load_digits(return_X_y=True)
X_train, X_test, y_train, y_test = train_test_split(
    (X / 16).astype(np.float32), y, stratify=y, random_state=0
)

net = OrtGradientClassifier(
    MLP(),
    early_stopping=True,
    n_iter_no_change=5,
    validation_split=0.15,
    tol=1e-3,
    max_iter=200,
    random_state=0,
)

# %%
# Besides the accuracy, a scorer notes the number of epochs of each fit.
# ``model__hidden_layer_sizes`` is a parameter of the graph builder within the
# estimator.


def epochs(net, X, y):
    """Return the number of epochs of a fitted network, as a scorer."""
    return net.n_iter_


space = {
    "model__hidden_layer_sizes": [(16,), (64,), (64, 32)],
    "model__dropout": [0.0, 0.2],
    "learning_rate_init": loguniform(1e-3, 0.1),
    "batch_size": [32, 128],
}
search = RandomizedSearchCV(
    net,
    space,
    n_iter=12,
    cv=2,
    scoring={"accuracy": "accuracy", "epochs": epochs},
    refit="accuracy",
    random_state=0,
).fit(X_train, y_train)
results = search.cv_results_
for i in np.argsort(results["rank_test_accuracy"])[:3]:
    chosen = {
        name.removeprefix("model__"): value
        for name, value in results["params"][i].items()
    }
    chosen["learning_rate_init"] = round(float(chosen["learning_rate_init"]), 4)
    score, number = results["mean_test_accuracy"][i], results["mean_test_epochs"][i]
    print(f"accuracy {score:.3f} after {number:.0f} epochs: {chosen}")
used = results["mean_test_epochs"]
print(f"epochs: {used.min():.0f} to {used.max():.0f}, {used.mean():.0f} on average")
assert used.max() < 200

# %%
# The best one was fitted again on all training rows. Its validation scores are in
# ``validation_scores_``; the weights are those of the best epoch, which for a
# classifier is the one with the least validation loss.

best = search.best_estimator_
kept = np.argmin([epoch["validation_loss"] for epoch in best.history_]) + 1
print(f"accuracy on new rows {best.score(X_test, y_test):.3f}", end=", ")
print(f"epoch {kept} of {best.n_iter_}")
assert best.best_validation_score_ == best.validation_scores_[kept - 1]
assert best.score(X_test, y_test) > 0.94

# %%
# Left, all candidates: those with low rates take the most epochs. Right, the
# validation scores of the best one.

_, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
rates = np.array(
    [candidate["learning_rate_init"] for candidate in results["params"]]
)
dots = left.scatter(
    used,
    results["mean_test_accuracy"],
    c=rates,
    norm="log",
    cmap="plasma",
    edgecolor="black",
)
left.set(
    xlabel="epochs, mean of two folds",
    ylabel="accuracy, mean of two folds",
    title="Candidates",
)
left.figure.colorbar(dots, ax=left, label="learning rate")
right.plot(np.arange(1, best.n_iter_ + 1), best.validation_scores_, marker=".")
right.axvline(kept, color="tab:orange", linestyle="--", label="best epoch, kept")
right.set(
    xlabel="epoch", ylabel="accuracy on rows held out", title="The best candidate"
)
right.legend()
plt.show()
