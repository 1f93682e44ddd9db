"""
A gradient penalty: train a network that small changes do not fool
==================================================================

A classifier is easy to fool where its loss changes quickly with its input. Double
backpropagation (Drucker and Le Cun, 1992) adds the squared gradient of the loss by
the input to the objective. The trained graph therefore holds a gradient, and
training differentiates it once more.
"""

import matplotlib.pyplot as plt
import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from onnxtrain_sklearn import OrtGradientRegressor, gradient_graph
from onnxtrain_sklearn.graph import GraphBuilder

X, y = load_digits(return_X_y=True)
X = (X / 16).astype(np.float32)
X_train, X_test, y_train, y_test = train_test_split(
    X, y, train_size=800, stratify=y, random_state=0
)


def classifier(seed):
    """Return a network with the loss of each row, and their sum."""
    rng = np.random.default_rng(seed)
    model = onnx.parser.parse_model("""
    <ir_version: 8, opset_import: ["": 18]>
    digits (float[N, 64] x, int64[N] label)
        => (float[N, 10] scores, float[N] loss, float total) {
        h = Gemm(x, W1, b1)
        a = Softplus(h)
        scores = Gemm(a, W2, b2)
        loss = SoftmaxCrossEntropyLoss <reduction = "none"> (scores, label)
        total = ReduceSum <keepdims = 0> (loss)
    }""")
    for name, shape in {"W1": (64, 64), "b1": 64, "W2": (64, 10), "b2": 10}.items():
        values = rng.normal(size=shape) / 8 if name[0] == "W" else np.zeros(shape)
        tensor = onnx.numpy_helper.from_array(values.astype(np.float32), name)
        model.graph.initializer.append(tensor)
    return model


# %%
# The objective as a graph
# ------------------------
#
# Rows do not affect each other: the gradient of the sum of the losses holds the
# gradient of each row's loss. The second pass over the network is again a graph
# that can be trained, with the same weights.


def with_penalty(model, strength):
    """Return the model with the penalized loss of each row as its output."""
    graph = ir.from_proto(
        gradient_graph(model, wrt="x", of="total", engine="portable")
    ).graph
    op = GraphBuilder(graph)
    values = {value.name: value for value in graph.outputs}
    squares = op.ReduceSumSquare(values["x_grad"], [1], keepdims=False)
    objective = op.Add(values["loss"], op.Mul(squares, strength))
    objective.name, objective.shape = "objective", ir.Shape(["N"])
    objective.type = ir.TensorType(ir.DataType.FLOAT)
    graph.outputs[:] = [objective]
    return ir.to_proto(ir.Model(graph, ir_version=8))


# %%
# Train
# -----
#
# The output is the objective of each row, which is never negative. Its absolute
# error to a target of 0 is the objective itself.


def train(strength):
    """Return a session that computes scores, and the loss's gradient by ``x``."""
    regressor = OrtGradientRegressor(
        with_penalty(classifier(seed=0), strength),
        loss="absolute_error",
        learning_rate_init=0.005,
        learning_rate="cosine",
        max_iter=120,
        n_iter_no_change=120,
        random_state=0,
    )
    regressor.fit({"x": X_train, "label": y_train}, np.zeros(len(X_train)))
    model = classifier(seed=0)
    for tensor in model.graph.initializer:
        tensor.CopyFrom(
            onnx.numpy_helper.from_array(
                regressor.weights_[tensor.name], tensor.name
            )
        )
    gradients = gradient_graph(model, wrt="x", of="total")
    return onnxruntime.InferenceSession(
        gradients.SerializeToString(), providers=["CPUExecutionProvider"]
    )


strengths = [0.0, 0.1, 0.5]
networks = {strength: train(strength) for strength in strengths}

# %%
# Attack
# ------
#
# The fast gradient sign method moves each pixel by ``epsilon`` in the direction
# that raises the loss.


def accuracy(network, epsilon):
    """Return the accuracy on test images that are moved by ``epsilon``."""
    feeds = {"x": X_test, "label": y_test}
    [gradient] = network.run(["x_grad"], feeds)
    feeds["x"] = X_test + np.float32(epsilon) * np.sign(gradient)
    [scores] = network.run(["scores"], feeds)
    return np.mean(scores.argmax(axis=1) == y_test)


epsilons = np.linspace(0, 0.2, 9)
curves = {
    strength: [accuracy(network, epsilon) for epsilon in epsilons]
    for strength, network in networks.items()
}
for strength, curve in curves.items():
    print(
        f"penalty {strength}: accuracy {curve[0]:.3f}, "
        f"{curve[4]:.3f} if each pixel moves by {epsilons[4]}"
    )
assert curves[0.5][4] > curves[0.0][4] + 0.1

figure, axes = plt.subplots(figsize=(6, 3.8), layout="constrained")
for strength, curve in curves.items():
    axes.plot(epsilons, curve, marker="o", label=f"{strength}")
axes.set(
    xlabel="change of each pixel", ylabel="accuracy on test images", ylim=(0, 1)
)
axes.legend(title="strength of the penalty")
plt.show()
