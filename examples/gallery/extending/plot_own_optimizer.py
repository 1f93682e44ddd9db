"""
An optimizer of your own
========================

An optimizer is one small class: it names the arrays of its state, and writes one
update of all parameters in ONNX operators. It then runs inside the training step as
the built-in ones do, in exported training graphs too. This one is Signum (Bernstein
et al., 2018): each weight moves by the same amount, in the direction of the sign of
its averaged gradient.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_breast_cancer
from sklearn.preprocessing import scale

from onnxtrain_sklearn import SGD, Adam, Linear, OrtGradientClassifier
from onnxtrain_sklearn.optimizers import Optimizer, Slot


class Signum(Optimizer):
    """Signum: m ← β m + (1 - β) g, p ← p - η sign(m)."""

    def __init__(self, beta=0.9, **options):
        super().__init__(**options)
        self.beta = beta

    def slots(self, p):
        return {"momentum": Slot(p.shape)}

    def update(self, op, p, g, state, k):
        ahead = op.Sub(state["momentum"], g)
        momentum = op.Add(g, op.Mul(ahead, self.beta))
        step = op.Mul(op.Sign(momentum), k["learning_rate"])
        return op.Sub(p, step), {"momentum": momentum}


# %%
# Two weights, to see where they go
# ---------------------------------
#
# A logistic regression on two columns, the second of which has a tenth of the
# scale: its loss is a long valley. ``partial_fit`` makes one pass over the rows,
# here in one step of all of them.

X, y = load_breast_cancer(return_X_y=True)
X = scale(X)[:, [0, 1]] * [1.0, 0.1]
optimizers = {
    "SGD": (SGD(), 0.5),
    "Adam": (Adam(), 0.1),
    "Signum": (Signum(), 0.05),
}
losses, paths = {}, {}
for name, (optimizer, rate) in optimizers.items():
    net = OrtGradientClassifier(
        Linear(fit_intercept=False),
        optimizer=optimizer,
        learning_rate_init=rate,
        batch_size=len(X),
        random_state=0,
    )
    paths[name] = np.array(
        [net.partial_fit(X, y, classes=[0, 1]).coef_.ravel() for _ in range(150)]
    )
    losses[name] = net.loss_curve_
    after_10, last = losses[name][9], losses[name][-1]
    print(f"{name:6} loss after 10 steps {after_10:.4f}, after 150 {last:.4f}")
assert losses["Signum"][-1] < losses["SGD"][-1]

# %%
# Left, the paths over the contours of the loss. Signum moves along a diagonal, as
# both weights move by the same amount; SGD follows the gradient, which hardly has a
# share along the valley.

_, (left, right) = plt.subplots(
    1, 2, figsize=(9.5, 3.8), layout="constrained", width_ratios=[1.3, 1]
)
corners = np.concatenate(list(paths.values()))
low, high = corners.min(0) - 0.6, corners.max(0) + 0.6
first, second = np.meshgrid(
    np.linspace(low[0], high[0], 80), np.linspace(low[1], high[1], 80)
)
margins = np.where(y, 1, -1)[:, None] * (
    X @ np.stack([first.ravel(), second.ravel()])
)
heights = np.logaddexp(0, -margins).mean(0).reshape(first.shape)
left.contour(
    first,
    second,
    heights,
    levels=np.geomspace(heights.min() * 1.001, heights.max(), 40),
    colors="silver",
    linewidths=0.7,
)
for (name, path), style in zip(paths.items(), ("o-", "s-", "^-"), strict=True):
    left.plot(*path.T, style, markersize=2.5, linewidth=1, label=name)
    right.plot(np.arange(1, 151), losses[name], label=name)
left.set(xlabel="weight of the first column", ylabel="weight of the second column")
right.set(xlabel="step", ylabel="training loss")
left.legend()
plt.show()
