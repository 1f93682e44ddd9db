"""
Influence: which training rows raise the loss on new data?
==========================================================

How would the loss on test data change if a training row were left out? Fitting the
model again for each row answers that, and takes as many fits as there are rows.
Influence functions estimate all answers from one fit: a row moves the weights by
the inverse Hessian times its gradient. Conjugate gradients solve for that with
products of the Hessian and a vector, which ``hvp_graph`` computes; the Hessian
itself is never stored.
"""

import matplotlib.pyplot as plt
import numpy as np
import onnx
import onnxruntime
from scipy.sparse.linalg import LinearOperator, cg
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.model_selection import train_test_split

from onnxtrain_sklearn import gradient_graph, hvp_graph, jvp_graph

X, y = load_digits(return_X_y=True)
X = (X / 16).astype(np.float32)
X_train, X_test, y_train, y_test = train_test_split(
    X, y, train_size=300, stratify=y, random_state=0
)
rng = np.random.default_rng(0)
wrong = rng.choice(len(y_train), 15, replace=False)
y_train[wrong] = (y_train[wrong] + rng.integers(1, 10, 15)) % 10


def fit(rows):
    """Return a logistic regression on these training rows."""
    estimator = LogisticRegression(
        C=1.0, fit_intercept=False, tol=1e-8, max_iter=5000
    )
    return estimator.fit(X_train[rows], y_train[rows])


every = np.arange(len(X_train))
fitted = fit(every)
print(
    f"15 of 300 labels are wrong; test accuracy {fitted.score(X_test, y_test):.3f}"
)

# %%
# Three graphs
# ------------
#
# The model, its loss on each row, and the objective that was minimized: the sum of
# the losses and half the sum of the squared weights.

graph = onnx.parser.parse_model("""
<ir_version: 8, opset_import: ["": 18]>
regression (float[N, 64] x, int64[N] label)
    => (float objective, float total, float[N] loss) {
    scores = MatMul(x, weights)
    loss = SoftmaxCrossEntropyLoss <reduction = "none"> (scores, label)
    total = ReduceSum <keepdims = 0> (loss)
    squares = ReduceSumSquare <keepdims = 0> (weights)
    half = Constant <value_float = 0.5> ()
    penalty = Mul(half, squares)
    objective = Add(total, penalty)
}""")
weights = fitted.coef_.T.astype(np.float32)
graph.graph.initializer.append(onnx.numpy_helper.from_array(weights, "weights"))


def session(model):
    """Return a session that runs the model."""
    return onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )


gradient = session(gradient_graph(graph, wrt="weights", of="total"))
hessian = session(hvp_graph(graph, wrt="weights", of="objective"))
slope = session(jvp_graph(graph, wrt="weights", of="loss"))

# %%
# The inverse Hessian of the objective times the gradient of the test loss is a
# direction in the space of weights. The influence of a training row is the slope of
# its loss in this direction: ``jvp_graph`` computes it for all rows at once.

train = {"x": X_train, "label": y_train}
n_products = 0


def multiply(vector):
    """Return the product of the Hessian and a vector."""
    global n_products
    n_products += 1
    matrix = vector.reshape(weights.shape).astype(np.float32)
    return hessian.run(["weights_hvp"], {**train, "weights_vector": matrix})[
        0
    ].ravel()


test = {"x": X_test, "label": y_test}
target = gradient.run(["weights_grad"], test)[0].ravel() / len(X_test)
operator = LinearOperator(
    (weights.size, weights.size), matvec=multiply, dtype=float
)
solution, failed = cg(operator, target, rtol=1e-4)
assert not failed
direction = solution.reshape(weights.shape).astype(np.float32)
[influence] = slope.run(["loss_jvp"], {**train, "weights_tangent": direction})
print(f"{n_products} products with a Hessian of {weights.size} by {weights.size}")

# %%
# Leave rows out and fit again
# ----------------------------
#
# The estimates are compared with fits that lack a row: the 20 rows of the largest
# influence, and 40 others.

largest = np.argsort(-abs(influence))
rows = np.r_[largest[:20], rng.choice(largest[20:], 40, replace=False)]


def test_loss(estimator):
    """Return the mean loss on the test data."""
    return log_loss(y_test, estimator.predict_proba(X_test))


before = test_loss(fitted)
change = np.array([test_loss(fit(np.delete(every, row))) - before for row in rows])
correlation = np.corrcoef(influence[rows], change)[0, 1]
print(f"correlation of estimate and refit {correlation:.4f}")
assert correlation > 0.95

# %%
# The estimate is the first order of the change. Where a row matters much, the refit
# changes the loss by more than that.
#
# A negative influence means that the test loss falls without the row. Wrong labels
# show in it.

harmful = np.argsort(influence)[:30]
n_found = np.isin(wrong, harmful).sum()
print(f"{n_found} of 15 wrong labels are among the 30 rows that do most harm")
assert n_found >= 10

# %%
# On the left each refitted row, on the right the images that do most harm, with
# their labels.

figure = plt.figure(figsize=(9, 4), layout="constrained")
left, right = figure.subfigures(1, 2, width_ratios=[1.2, 1])
axes = left.subplots()
is_wrong = np.isin(rows, wrong)
for chosen, name, color in (
    (~is_wrong, "correct label", "tab:blue"),
    (is_wrong, "wrong label", "tab:red"),
):
    axes.scatter(influence[rows][chosen], change[chosen], s=18, c=color, label=name)
axes.axline((0, 0), slope=1, color="gray", linewidth=1)
axes.ticklabel_format(scilimits=(0, 0), useMathText=True)
axes.set(
    xlabel="estimated change of the test loss", ylabel="change after refitting"
)
axes.legend(title="row left out")
for axes, row in zip(right.subplots(3, 4).ravel(), harmful, strict=False):
    axes.imshow(X_train[row].reshape(8, 8), cmap="gray_r")
    color = "tab:red" if row in wrong else "black"
    axes.set_title(f"labeled {y_train[row]}", color=color, fontsize=9, pad=2)
    axes.set_axis_off()
right.suptitle("Most harmful rows", fontsize=10)
plt.show()
