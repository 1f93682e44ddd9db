"""
Recalibrate a model in production as the data drift
===================================================

A model predicts how much heat a building needs, from the weather and the hour. Then
the building changes: one month after another more of it is insulated, and a
thermometer begins to show too much. Each month brings sixty readings with the true
need. ``fit`` of the model in production on these rows returns the next model, as a
fitted scikit-learn model again.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.ensemble import GradientBoostingRegressor

from onnxtrain_sklearn import OrtGradientRegressor

rng = np.random.default_rng(0)


def readings(n, month):
    """Return weather and hour of n readings in a month, and the heat needed."""
    outside = 8 - 9 * np.cos(2 * np.pi * month / 12) + rng.normal(0, 4, n)
    wind, hour = rng.gamma(2.0, 2.0, n), rng.uniform(0, 24, n)
    insulation = np.clip((month - 3) / 10, 0, 1)
    heat = (1 - 0.35 * insulation) * np.maximum(19 - outside, 0) * (3 + 0.1 * wind)
    heat += 6 * ((hour > 6) & (hour < 22)) + rng.normal(0, 2, n)
    return np.c_[outside + 2.5 * np.clip((month - 5) / 6, 0, 1), wind, hour], heat


first = [readings(250, month) for month in range(-12, 0)]  # the year before
X_year, y_year = (np.concatenate(parts) for parts in zip(*first, strict=True))
fixed = GradientBoostingRegressor(n_estimators=30, random_state=0).fit(
    X_year, y_year
)

# %%
# Predict, then update
# --------------------
#
# A month is predicted with what is known before it, then sixty labeled readings
# update the model. The update tries by cross-validation how far to go, from a shift
# of all predictions to new values in the leaves of the trees, and keeps the old
# model where nothing is better on rows held out. Three ways stand beside each
# other: the fixed model, a model fitted on the last sixty readings alone, and the
# fine-tuned one.

months = range(0, 18, 2)
errors = {"fixed": [], "refitted on the last rows": [], "fine-tuned": []}
models = dict.fromkeys(errors, fixed)
for month in months:
    X_next, y_next = readings(2000, month)
    for name, model in models.items():
        errors[name].append(np.sqrt(np.mean((model.predict(X_next) - y_next) ** 2)))
    X_new, y_new = readings(60, month)
    models["refitted on the last rows"] = GradientBoostingRegressor(
        n_estimators=30, random_state=0
    ).fit(X_new, y_new)
    tuner = OrtGradientRegressor(models["fine-tuned"], random_state=0).fit(
        X_new, y_new
    )
    models["fine-tuned"] = tuner.to_sklearn()

for name, values in errors.items():
    early, late = np.mean(values[:3]), np.mean(values[5:])
    print(f"{name:26} RMSE {early:.2f} until month 4, {late:.2f} from month 10 on")
assert np.mean(errors["fine-tuned"][5:]) < np.mean(errors["fixed"][5:])
assert type(models["fine-tuned"]) is GradientBoostingRegressor

# %%
# The model in production is a ``GradientBoostingRegressor`` all the time: its trees
# split as they did, and their leaves hold other numbers.

_, axes = plt.subplots(figsize=(7.5, 3.8), layout="constrained")
for (name, values), style in zip(errors.items(), ("--", ":", "-"), strict=True):
    axes.plot(months, values, style, marker="o", markersize=4, label=name)
axes.axvspan(3, 13, color="orange", alpha=0.12, label="insulation under way")
axes.set(xlabel="month in production", ylabel="RMSE of the month's predictions")
axes.set_ylim(bottom=0)
axes.legend()
plt.show()
