"""
A loss of your own
==================

Too little bread costs a bakery more than bread that is left over, and the cost
grows faster than the error. That is a loss for which no library has a name; here it
takes five lines. No gradient is written: the engine differentiates the operators.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.model_selection import GridSearchCV

from onnxtrain_sklearn import MLP, AdamW, OrtGradientRegressor
from onnxtrain_sklearn.losses import Loss


class Linex(Loss):
    """Linear-exponential loss, exp(a r) - a r - 1 of r = y - f."""

    tasks = frozenset({"regression"})

    def __init__(self, a=1.0):
        self.a = a

    def __call__(self, op, scores, y, link):
        scaled = op.Mul(op.Sub(y, scores), self.a)
        return op.Sub(op.Sub(op.Exp(scaled), scaled), 1.0)


# %%
# Loaves by the day
# -----------------
#
# The demand depends on the day of the week and the weather; its noise is larger on
# Saturdays. Demand is in hundreds of loaves.

rng = np.random.default_rng(0)
n = 4000
day, warmth = rng.integers(0, 7, n), rng.normal(0, 1, n)
saturday = day == 5
demand = (
    3
    + 2 * saturday
    - 0.5 * warmth
    + np.where(saturday, 0.8, 0.3) * rng.normal(0, 1, n)
)
X = np.c_[np.eye(7)[day], warmth].astype(np.float32)
train, test = slice(0, 3000), slice(3000, n)


def cost(net, X, y, a=3.0):
    """Return the mean of what errors cost, negative as scorers are."""
    r = a * (y - net.predict(X))
    return -np.mean(np.exp(r) - r - 1)


settings = {
    "learning_rate": "cosine",
    "learning_rate_init": 0.01,
    "max_iter": 20,
    "random_state": 0,
}
usual = OrtGradientRegressor(MLP((16,)), **settings).fit(X[train], demand[train])
own = OrtGradientRegressor(
    MLP((16,)), loss=Linex(a=3.0), optimizer=AdamW(max_grad_norm=10.0), **settings
).fit(X[train], demand[train])
for name, net in {"squared error": usual, "own loss": own}.items():
    too_little = np.mean(net.predict(X[test]) < demand[test])
    paid = -cost(net, X[test], demand[test])
    print(f"{name:13} cost {paid:.2f}, too little on {too_little:.0%} of the days")
assert cost(own, X[test], demand[test]) > cost(usual, X[test], demand[test])

# %%
# Parameters of the loss have names, which searches reach:

clipped = AdamW(max_grad_norm=10.0)
net = OrtGradientRegressor(MLP((16,)), loss=Linex(), optimizer=clipped, **settings)
search = GridSearchCV(net, {"loss__a": [0.5, 1.0, 3.0]}, scoring=cost, cv=2).fit(
    X[train], demand[train]
)
print(search.best_params_)

# %%
# Left, both losses. Right, what is baked for ordinary days and for Saturdays: where
# demand is less certain, the own loss bakes more in addition.

_, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
errors = np.linspace(-1.5, 1.0, 200)
left.plot(errors, errors**2, "--", label="squared error")
left.plot(errors, np.exp(3 * errors) - 3 * errors - 1, label="own loss, a = 3")
left.set(xlabel="demand less what was baked", ylabel="loss of a day", ylim=(0, 8))
left.legend()
line = np.linspace(-2, 2, 50)
for which, color in ((1, "tab:blue"), (5, "tab:red")):
    shown = (day == which)[test]
    right.scatter(
        warmth[test][shown], demand[test][shown], s=5, color=color, alpha=0.4
    )
    days = np.c_[np.tile(np.eye(7)[which], (50, 1)), line].astype(np.float32)
    name = "Saturday" if which == 5 else "Tuesday"
    right.plot(
        line, usual.predict(days), "--", color=color, label=f"{name}, squared error"
    )
    right.plot(line, own.predict(days), "-", color=color, label=f"{name}, own loss")
right.set(xlabel="warmth", ylabel="hundreds of loaves", xlim=(-2, 2))
right.legend(fontsize=8)
plt.show()
