"""
Several inputs, several outputs
===============================

A network sees two images of digits and answers two questions: which of the two is
larger (a label), and what their sum is (a number). Its graph has two inputs and two
outputs, and both images go through the same layers.
"""

import matplotlib.pyplot as plt
import numpy as np
import onnx
from sklearn.datasets import load_digits

from onnxtrain_sklearn import OrtGradientMultiOutput
from onnxtrain_sklearn.displays import plot_graph

graph = onnx.parser.parse_model("""
<ir_version: 8, opset_import: ["": 18]>
compare (float[N, 64] first, float[N, 64] second)
=> (float[N, 3] larger, float[N, 1] sum)
{
    a = Gemm (first, read, read_bias)
    b = Gemm (second, read, read_bias)
    a_active = Relu (a)
    b_active = Relu (b)
    pair = Concat <axis = 1> (a_active, b_active)
    hidden = Gemm (pair, join, join_bias)
    active = Relu (hidden)
    larger = Gemm (active, larger_head, larger_bias)
    sum = Gemm (active, sum_head, sum_bias)
}""")
rng = np.random.default_rng(0)
shapes = {
    "read": (64, 48),
    "join": (96, 48),
    "larger_head": (48, 3),
    "sum_head": (48, 1),
}
shapes |= {
    "read_bias": (48,),
    "join_bias": (48,),
    "larger_bias": (3,),
    "sum_bias": (1,),
}
for name, shape in shapes.items():
    values = (rng.normal(0, shape[0] ** -0.5, shape) * (len(shape) > 1)).astype(
        np.float32
    )
    graph.graph.initializer.append(onnx.numpy_helper.from_array(values, name))

# %%
# Pairs of digits
# ---------------
#
# ``X`` is a dict of arrays by input, ``y`` a dict by output. Half of the pairs have
# no sum: their weight for that output is zero, and what ``y`` holds there is not
# read.

pixels, digits = load_digits(return_X_y=True)
pixels = (pixels / 16).astype(np.float32)


def pairs(n, rows):
    """Return n pairs of the given rows, with both answers."""
    i, j = rng.choice(rows, (2, n))
    larger = np.where(
        digits[i] > digits[j],
        "first",
        np.where(digits[i] < digits[j], "second", "equal"),
    )
    return {"first": pixels[i], "second": pixels[j]}, {
        "larger": larger,
        "sum": (digits[i] + digits[j]).astype(float),
    }


X_train, y_train = pairs(9000, np.arange(1200))
X_test, y_test = pairs(1000, np.arange(1200, len(digits)))
has_sum = rng.random(9000) < 0.5
y_train["sum"][~has_sum] = np.nan

net = OrtGradientMultiOutput(
    graph,
    loss={"larger": "log_loss", "sum": "huber"},
    loss_weights={"sum": 0.2},
    learning_rate="cosine",
    learning_rate_init=0.01,
    batch_size=64,
    max_iter=20,
    random_state=0,
)
net.fit(
    X_train,
    y_train,
    sample_weight={"larger": np.ones(9000), "sum": has_sum.astype(float)},
)
scores = net.output_scores(X_test, y_test)
print(f"which is larger: accuracy {scores['larger']:.3f}")
print(f"their sum: R² {scores['sum']:.3f}")
print("classes", net.classes_["larger"])
assert min(scores.values()) > 0.8

# %%
# Left, the graph, with its trained layers in orange: ``read`` occurs twice, as both
# images go through it. Right, pairs of images that the network has not seen, with
# its answers: the true sums in brackets, wrong labels in red.

figure = plt.figure(figsize=(9.5, 5.5), layout="constrained")
left, right = figure.subfigures(1, 2, width_ratios=[1.2, 1])
plot_graph(net, ax=left.subplots())
predicted = net.predict(X_test)
signs = {"first": ">", "second": "<", "equal": "="}
for i, axes in enumerate(right.subplots(6, 2).ravel()):
    axes.imshow(
        np.c_[
            X_test["first"][i].reshape(8, 8),
            np.zeros((8, 5)),
            X_test["second"][i].reshape(8, 8),
        ],
        cmap="gray_r",
    )
    right_one = predicted["larger"][i] == y_test["larger"][i]
    sign, total = signs[predicted["larger"][i]], predicted["sum"][i].item()
    answer = f"{sign}    sum {total:.1f} ({y_test['sum'][i]:.0f})"
    axes.set_title(
        answer, fontsize=9, pad=2, color="black" if right_one else "tab:red"
    )
    axes.set_axis_off()
plt.show()
