"""
Predict a range: quantiles from one network
===========================================

A forecast of a single number hides how sure it is. The pinball loss of a level q
has the q-quantile as its minimum; a network with three outputs and three such
losses predicts a median and a range around it. Its layers are shared.
"""

import matplotlib.pyplot as plt
import numpy as np
import onnx

from onnxtrain_sklearn import OrtGradientMultiOutput
from onnxtrain_sklearn.losses import Quantile

rng = np.random.default_rng(0)


def load_by_hour(n):
    """Return hours and the load of a power line, noisier in the evening, skewed."""
    hour = rng.uniform(0, 24, n)
    mean = (
        5
        + 2 * np.sin((hour - 9) / 24 * 2 * np.pi)
        + np.exp(-((hour - 19) ** 2) / 6)
    )
    return hour, mean + (0.2 + 0.8 * np.exp(-((hour - 19) ** 2) / 8)) * (
        rng.gamma(2.0, 1.0, n) - 1.7
    )


def rows(hour):
    """Return cosines and sines of the hour as columns."""
    angles = hour[:, None] / 24 * 2 * np.pi * np.arange(1, 5)
    return np.c_[np.cos(angles), np.sin(angles)].astype(np.float32)


hour, load = load_by_hour(6000)
hour_test, load_test = load_by_hour(4000)

# %%
# One graph, three losses
# -----------------------

graph = onnx.parser.parse_model("""
<ir_version: 8, opset_import: ["": 18]>
forecast (float[N, 8] X) => (float[N, 1] low, float[N, 1] median, float[N, 1] high)
{
    first = Gemm (X, w0, b0)
    active = Relu (first)
    second = Gemm (active, w1, b1)
    hidden = Relu (second)
    low = Gemm (hidden, w_low, b_low)
    median = Gemm (hidden, w_median, b_median)
    high = Gemm (hidden, w_high, b_high)
}""")
heads = {f"w_{name}": (32, 1) for name in ("low", "median", "high")} | {
    f"b_{n}": (1,) for n in ("low", "median", "high")
}
for name, shape in {
    "w0": (8, 32),
    "b0": (32,),
    "w1": (32, 32),
    "b1": (32,),
    **heads,
}.items():
    values = (rng.normal(0, shape[0] ** -0.5, shape) * (len(shape) > 1)).astype(
        np.float32
    )
    graph.graph.initializer.append(onnx.numpy_helper.from_array(values, name))

levels = {"low": 0.05, "median": 0.5, "high": 0.95}
net = OrtGradientMultiOutput(
    graph,
    loss={name: Quantile(level) for name, level in levels.items()},
    learning_rate="cosine",
    learning_rate_init=0.01,
    batch_size=64,
    max_iter=30,
    random_state=0,
).fit(rows(hour), dict.fromkeys(levels, load))

# %%
# Is it right?
# ------------
#
# The share of new loads below each prediction should be its level.

predicted = {
    name: values.ravel() for name, values in net.predict(rows(hour_test)).items()
}
for name, level in levels.items():
    share = np.mean(load_test < predicted[name])
    print(f"{name:6} level {level:.2f}: {share:.3f} of the new loads are below")
    assert abs(share - level) < 0.05
inside = np.mean((load_test > predicted["low"]) & (load_test < predicted["high"]))
print(f"within the range: {inside:.3f}, which should be 0.90")

# %%
# Left, the range over the day: wide in the evening, and wider above the median than
# below. Right, the share of loads within the range, hour by hour.

_, (left, right) = plt.subplots(
    1, 2, figsize=(9.5, 3.8), layout="constrained", width_ratios=[1.5, 1]
)
line = np.linspace(0, 24, 200)
low, median, high = (net.predict(rows(line))[name].ravel() for name in levels)
left.scatter(hour_test, load_test, s=3, color="gray", alpha=0.4)
left.fill_between(
    line, low, high, color="tab:orange", alpha=0.35, label="0.05 to 0.95"
)
left.plot(line, median, color="tab:red", label="median")
left.set(xlabel="hour", ylabel="load", xlim=(0, 24), ylim=(1.5, 13))
left.legend(loc="upper left")
within = (load_test > predicted["low"]) & (load_test < predicted["high"])
right.bar(
    np.arange(24) + 0.5,
    [within[hour_test.astype(int) == h].mean() for h in range(24)],
    color="silver",
)
right.axhline(0.9, color="black", linestyle="--", label="0.90")
right.set(
    xlabel="hour",
    ylabel="share of loads within the range",
    xlim=(0, 24),
    ylim=(0.6, 1),
)
right.legend()
plt.show()
