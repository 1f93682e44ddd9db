"""
A gradient rule of your own: train through rounding
===================================================

A network is to run with weights of few bits. Rounding them after training costs
accuracy; rounding them *in* training costs less where bits are few, as the other
weights can make up for it. But rounding is a staircase: its derivative is zero. The
usual remedy is a rule of one's own: round on the way forward, and pass the gradient
on as if nothing had happened (the straight-through estimator of Bengio et al.,
2013).

In a graph such a rule is an expression: ``h(w) + constant(f(w) - h(w))`` has the
value of ``f`` and the gradient of ``h``, where ``constant`` hides a number from the
gradient. ``Round`` does that: its derivative is zero everywhere. Files that
onnxruntime has quantized to eight bits need no rule of your own: the estimators
train them in this way.
"""

import matplotlib.pyplot as plt
import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
from sklearn.base import BaseEstimator
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from sklearn.utils import check_random_state

from onnxtrain_sklearn import OrtGradientClassifier, gradient_graph
from onnxtrain_sklearn.graph import GraphBuilder


def constant(op, x):
    """Return x to 24 binary places, with a derivative of zero."""
    return op.Mul(op.Round(op.Mul(x, 2.0**24)), 2.0**-24)


def rounded(op, weight, bits):
    """Return the weight on a grid of few bits, with the gradient of the weight."""
    levels = 2.0 ** (bits - 1) - 1
    step = constant(
        op, op.Mul(op.ReduceMean(op.Abs(weight), keepdims=False), 2 * levels**-0.5)
    )
    on_grid = op.Mul(op.Clip(op.Round(op.Div(weight, step)), -levels, levels), step)
    return op.Add(weight, constant(op, op.Sub(on_grid, weight)))


# %%
# The rule, checked
# -----------------
#
# ``gradient_graph`` returns a graph that computes a gradient. For the sum of w², w
# rounded to three bits, it is 2 q, where q are the rounded weights. Without the
# rule it would be zero.


def on_grid(weight, bits):
    """Return an array of weights on the grid of ``rounded``."""
    levels = 2 ** (bits - 1) - 1
    step = 2 * np.mean(np.abs(weight)) * levels**-0.5
    return (np.clip(np.round(weight / step), -levels, levels) * step).astype(
        np.float32
    )


w = np.array([-1.0, -0.6, 0.1, 0.45], np.float32)
value = ir.val("w", ir.DataType.FLOAT, (4,))
op = GraphBuilder(
    ir.Graph([value], [], nodes=[], opset_imports={"": 18}, name="check")
)
q = rounded(op, value, bits=3)
total = op.ReduceSum(op.Mul(q, q), keepdims=False)
total.name, total.type, total.shape = "total", value.type, ir.Shape([])
op.graph.outputs.append(total)
check = gradient_graph(ir.to_proto(ir.Model(op.graph, ir_version=8)), wrt="w")
session = onnxruntime.InferenceSession(
    check.SerializeToString(), providers=["CPUExecutionProvider"]
)
gradient = session.run(["w_grad"], {"w": w})[0]
print("weights ", w)
print("gradient", gradient.round(4) + 0.0)
assert np.allclose(gradient, 2 * on_grid(w, 3), atol=1e-5)

# %%
# A network with rounded weights
# ------------------------------
#
# A graph builder is an object with a method ``build``. This one writes a perceptron
# whose matrices are rounded where they are read; with 32 bits they are not.


class RoundedMLP(BaseEstimator):
    """A perceptron with one hidden layer and matrices of few bits."""

    def __init__(self, hidden=24, bits=32):
        self.hidden = hidden
        self.bits = bits

    def build(self, n_features, n_outputs, random_state=None):
        rng = check_random_state(random_state)
        x = ir.val("X", ir.DataType.FLOAT, ("N", n_features))
        op = GraphBuilder(
            ir.Graph([x], [], nodes=[], opset_imports={"": 18}, name="rounded"),
            constant_nodes=True,
        )
        hidden = op.Relu(self._layer(op, rng, "first", x, n_features, self.hidden))
        scores = self._layer(op, rng, "last", hidden, self.hidden, n_outputs)
        scores.name, scores.type, scores.shape = (
            "scores",
            x.type,
            ir.Shape(["N", n_outputs]),
        )
        op.graph.outputs.append(scores)
        return ir.to_proto(ir.Model(op.graph, ir_version=8))

    def _layer(self, op, rng, name, x, n_in, n_out):
        weight = op.parameter(
            f"{name}.weight",
            rng.normal(0, n_in**-0.5, (n_in, n_out)).astype(np.float32),
        )
        bias = op.parameter(f"{name}.bias", np.zeros(n_out, np.float32))
        return op.Add(
            op.MatMul(
                x, weight if self.bits == 32 else rounded(op, weight, self.bits)
            ),
            bias,
        )


X, y = load_digits(return_X_y=True)
X_train, X_test, y_train, y_test = train_test_split(
    (X / 16).astype(np.float32), y, stratify=y, random_state=0
)
settings = {
    "learning_rate": "cosine",
    "learning_rate_init": 0.01,
    "max_iter": 30,
    "batch_size": 64,
    "random_state": 0,
}
full = OrtGradientClassifier(RoundedMLP(), **settings).fit(X_train, y_train)
bits = [2, 3, 4, 5]
after, during = [], []
for number in bits:
    net = OrtGradientClassifier(RoundedMLP(bits=number), **settings).fit(
        X_train, y_train
    )
    during.append(net.score(X_test, y_test))
    model = full.to_onnx()
    for tensor in model.graph.initializer:
        if tensor.name.endswith(".weight"):
            array = onnx.numpy_helper.to_array(tensor)
            tensor.CopyFrom(
                onnx.numpy_helper.from_array(on_grid(array, number), tensor.name)
            )
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    after.append(np.mean(session.run(["label"], {"X": X_test})[0] == y_test))
    print(f"{number} bits: rounded after training {after[-1]:.3f}", end=", ")
    print(f"in training {during[-1]:.3f}")
print(f"not rounded: {full.score(X_test, y_test):.3f}")
assert during[0] > after[0]

# %%
# Left, the accuracy. Right, the rounded weights of the first layer that was trained
# with two bits: each pixel is added, taken away or left out.

figure, (left, right) = plt.subplots(
    1, 2, figsize=(9.5, 3.8), layout="constrained", width_ratios=[1, 1.4]
)
left.plot(bits, during, "o-", label="rounded in training")
left.plot(bits, after, "s--", label="rounded after training")
left.axhline(
    full.score(X_test, y_test), color="gray", linestyle=":", label="not rounded"
)
left.set(xlabel="bits of a weight", ylabel="accuracy on new images", xticks=bits)
left.legend()
two = (
    OrtGradientClassifier(RoundedMLP(bits=2), **settings)
    .fit(X_train, y_train)
    .weights_["first.weight"]
)
signs = np.sign(on_grid(two, 2)).T.reshape(4, 6, 8, 8)
tiles = (
    np.pad(signs, ((0, 0), (0, 0), (1, 1), (1, 1)), constant_values=np.nan)
    .transpose(0, 2, 1, 3)
    .reshape(40, 60)
)
right.imshow(tiles, cmap="coolwarm", vmin=-1.5, vmax=1.5)
right.set_axis_off()
right.set_title("The 24 hidden units: -1 (blue), 0, 1 (red)", fontsize=10)
plt.show()
