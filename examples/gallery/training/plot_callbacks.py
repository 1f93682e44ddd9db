"""
Find the rate, watch the training, go on after a crash
======================================================

Callbacks do something in the course of training. Three of them make a training that
finds its own learning rate, ends by itself, and goes on where it was when the
program that ran it is killed.
"""

import tempfile

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from onnxtrain_sklearn import MLP, OrtGradientClassifier
from onnxtrain_sklearn.callbacks import (
    Callback,
    Checkpoint,
    EarlyStopping,
    EpochScoring,
    LearningRateFinder,
)
from onnxtrain_sklearn.displays import TrainingDisplay

X, y = load_digits(return_X_y=True)
X_train, X_val, y_train, y_val = train_test_split(
    (X / 16).astype(np.float32), y, stratify=y, random_state=0
)

# %%
# ``LearningRateFinder`` tries growing rates before the first epoch and takes the
# one at which the loss falls fastest. ``EarlyStopping`` ends training when the loss
# on the validation rows has not fallen for ten epochs. ``Checkpoint`` stores the
# state of training after each fifth epoch.

folder = tempfile.mkdtemp()


def network(*more):
    """Return a network with the callbacks of this page."""
    callbacks = [
        LearningRateFinder(),
        EpochScoring("f1_macro"),
        EarlyStopping("validation_loss", patience=10),
    ]
    return OrtGradientClassifier(
        MLP((48,), dropout=0.2),
        callbacks=[*callbacks, Checkpoint(folder, every=5), *more],
        n_iter_no_change=np.inf,  # EarlyStopping alone ends training
        random_state=0,
    )


# %%
# A crash
# -------
#
# A callback of your own simulates a power failure: it raises an error in the
# eleventh epoch. The same call, run again, finds the checkpoint of epoch ten and
# goes on from there.


class PowerCut(Callback):
    """Fails once, in epoch eleven."""

    happened = False

    def after_epoch(self, training):
        if training.epochs_done == 11 and not PowerCut.happened:
            PowerCut.happened = True
            raise RuntimeError("no power")


try:
    network(PowerCut()).fit(X_train, y_train, X_val=X_val, y_val=y_val)
except RuntimeError as error:
    print("ended by:", error)
resumed = network(PowerCut()).fit(X_train, y_train, X_val=X_val, y_val=y_val)

# %%
# A network that was not interrupted ends with the same weights, to the bit.

folder = tempfile.mkdtemp()
straight = network(PowerCut()).fit(X_train, y_train, X_val=X_val, y_val=y_val)
assert all(
    (resumed.weights_[name] == straight.weights_[name]).all()
    for name in straight.weights_
)
row = resumed.history_[-1]
print(f"{resumed.n_iter_} epochs, the last one:", end=" ")
print(f"F1 {row['validation_f1_macro']:.3f}, loss {row['validation_loss']:.4f}")
print(resumed.callbacks_["EarlyStopping"])
assert row["validation_f1_macro"] > 0.9

# %%
# Left, the trial of rates before training; the dashed line is the rate that was
# taken. Right, what ``TrainingDisplay`` draws of the history.

found = resumed.callbacks_["LearningRateFinder"]
print(f"learning rate {found['suggestion']:.4f}")
figure = plt.figure(figsize=(9.5, 4.5), layout="constrained")
left, right = figure.subfigures(1, 2)
axes = left.subplots()
axes.plot(found["rates"], found["losses"])
axes.axvline(found["suggestion"], color="tab:orange", linestyle="--", label="taken")
axes.set(xscale="log", xlabel="learning rate", ylabel="loss of a step")
axes.legend()
TrainingDisplay.from_estimator(resumed, ax=right.subplots(2, 1))
plt.show()
