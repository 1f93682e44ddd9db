"""
A table with categories and missing values, as one ONNX file
============================================================

Rents of flats: a city, a year that is often missing, yes-or-no columns, numbers in
units of their own. ``RealMLPRegressor`` takes the data frame as it is, and so does
the ONNX file that it writes: scaling, categories and missing values are part of the
graph.
"""

import matplotlib.pyplot as plt
import numpy as np
import onnxruntime
import pandas as pd
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.model_selection import train_test_split

from onnxtrain_sklearn import RealMLPRegressor, TabMRegressor

rng = np.random.default_rng(0)
n = 2500
level = {"Bonn": 11.0, "Lyon": 13.0, "Oslo": 19.0, "Turin": 9.0, "Vienna": 14.0}
flats = pd.DataFrame(
    {
        "city": rng.choice(list(level), n, p=[0.25, 0.2, 0.15, 0.25, 0.15]),
        "area": rng.gamma(9.0, 8.0, n) + 15,
        "floor": rng.integers(0, 9, n),
        "lift": pd.Series(rng.choice([True, False], n), dtype="boolean"),
        "built": rng.integers(1900, 2025, n).astype(float),
    }
)
without_lift = np.where(
    flats["lift"].to_numpy(bool), 0.0, 25.0 * np.maximum(flats["floor"] - 2, 0)
)
charm = 60 * np.cos((flats["built"] - 1900) / 20)
rent = (
    flats["city"].map(level) * flats["area"] ** 0.9
    + charm
    - without_lift
    + rng.normal(0, 40, n)
)
flats.loc[rng.random(n) < 0.3, "built"] = np.nan
flats.loc[rng.random(n) < 0.1, "lift"] = pd.NA
flats.loc[rng.random(n) < 0.05, "city"] = None
X_train, X_test, y_train, y_test = train_test_split(
    flats, rent, test_size=1000, random_state=0
)
print(X_train.head())

# %%
# Fit
# ---
#
# RealMLP and TabM are networks with settings that their authors tuned over many
# tables; the small ``max_iter`` keeps this page quick. Gradient boosting stands
# beside them.

models = {
    "RealMLP": RealMLPRegressor(max_iter=40, random_state=0),
    "TabM, 8 small networks": TabMRegressor(
        n_members=8,
        mini=True,
        hidden_layer_sizes=(64, 64),
        max_iter=200,
        random_state=0,
    ),
    "HistGradientBoosting": HistGradientBoostingRegressor(
        categorical_features="from_dtype", random_state=0
    ),
}
for name, model in models.items():
    as_categories = (
        (lambda X: X.astype({"city": "category"}))
        if name.startswith("Hist")
        else (lambda X: X)
    )
    model.fit(as_categories(X_train), y_train)
    error = np.sqrt(np.mean((model.predict(as_categories(X_test)) - y_test) ** 2))
    print(f"{name:22} RMSE {error:.1f}")

# %%
# One file
# --------
#
# The graph has an input for each column: text for the city, a number for each of
# the others. NaN stands for a missing number, empty text for a missing category.

net = models["RealMLP"]
session = onnxruntime.InferenceSession(
    net.to_onnx().SerializeToString(), providers=["CPUExecutionProvider"]
)
feeds = {}
for column in session.get_inputs():
    values = X_test[column.name]
    if column.type == "tensor(string)":
        values = values.fillna("").to_numpy(str).astype(object)
    else:
        values = values.astype("Float64").to_numpy(np.float32, na_value=np.nan)
    feeds[column.name] = values.reshape(-1, 1)
    print(f"{column.name:6} {column.type}")
predicted = session.run(None, feeds)[0].ravel()
assert np.allclose(predicted, net.predict(X_test), rtol=1e-4)
assert 1 - np.mean((predicted - y_test) ** 2) / np.var(y_test) > 0.9

# %%
# Left, rents of flats that the network has not seen. Right, what it has learned of
# the year of construction: it is not told that the effect goes up and down.

_, (left, right) = plt.subplots(1, 2, figsize=(9, 3.8), layout="constrained")
for i, city in enumerate(level):
    own = (X_test["city"] == city).to_numpy()
    left.scatter(y_test[own], predicted[own], s=6, color=f"C{i}", label=city)
unknown = X_test["city"].isna().to_numpy()
left.scatter(
    y_test[unknown],
    predicted[unknown],
    s=14,
    color="black",
    marker="x",
    linewidth=0.7,
    label="missing",
)
left.axline((500, 500), slope=1, color="gray", linewidth=0.8)
left.set(xlabel="rent", ylabel="predicted rent")
left.legend(fontsize=8)

years = np.arange(1900, 2025, 5.0)
usual = pd.DataFrame(
    {"city": "Bonn", "area": 70.0, "floor": 1, "lift": True, "built": years}
)
usual["lift"] = usual["lift"].astype("boolean")
right.plot(
    years,
    11 * 70**0.9 + 60 * np.cos((years - 1900) / 20),
    color="gray",
    label="as generated",
)
right.plot(years, net.predict(usual), color="tab:orange", label="RealMLP")
right.axhline(
    net.predict(usual.assign(built=np.nan))[0],
    color="tab:orange",
    linestyle=":",
    label="year missing",
)
right.set(xlabel="built in", ylabel="rent of 70 m² in Bonn")
right.legend()
plt.show()
