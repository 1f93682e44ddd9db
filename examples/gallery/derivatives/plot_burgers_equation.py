"""
A network that satisfies Burgers' equation
==========================================

Burgers' equation, ``du/dt + u du/dx = v d²u/dx²``, describes a wave that steepens
while it moves. A network ``u(x, t)`` learns to satisfy it: derivatives of the
network are outputs of the trained graph, so that the loss sees how far the
equation is from being satisfied. No solution is given, only the values at the
beginning and at the ends. The result is compared with the exact solution.
"""

from itertools import pairwise

import matplotlib.pyplot as plt
import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime

from onnxtrain_sklearn import OrtGradientRegressor, gradient_graph
from onnxtrain_sklearn.graph import GraphBuilder

VISCOSITY = 0.1 / np.pi
rng = np.random.default_rng(0)

# %%
# The network and its derivatives
# -------------------------------
#
# Points do not affect each other. The gradient of the sum of ``u`` therefore holds
# the derivatives at each point, and the gradient of the sum of ``du/dx`` the second
# derivatives.

network = onnx.parser.parse_model("""
<ir_version: 8, opset_import: ["": 18]>
wave (float[N, 2] point) => (float[N, 1] u, float sum_u) {
    h1 = Gemm(point, W1, b1)  a1 = Tanh(h1)
    h2 = Gemm(a1, W2, b2)  a2 = Tanh(h2)
    h3 = Gemm(a2, W3, b3)  a3 = Tanh(h3)
    u = Gemm(a3, W4, b4)  sum_u = ReduceSum <keepdims = 0> (u)
}""")
widths = [2, 24, 24, 24, 1]
for layer, (n_in, n_out) in enumerate(pairwise(widths), 1):
    weight = rng.normal(size=(n_in, n_out)) * np.sqrt(2 / (n_in + n_out))
    for name, values in ((f"W{layer}", weight), (f"b{layer}", np.zeros(n_out))):
        network.graph.initializer.append(
            onnx.numpy_helper.from_array(values.astype(np.float32), name)
        )


def add_output(graph, value, name, shape):
    """Make a value an output of the graph."""
    value.name, value.type = name, ir.TensorType(ir.DataType.FLOAT)
    value.shape = ir.Shape(shape)
    graph.outputs.append(value)


first = ir.from_proto(
    gradient_graph(network, wrt="point", of="sum_u", engine="portable")
)
op = GraphBuilder(first.graph)
slopes = next(value for value in first.graph.outputs if value.name == "point_grad")
du_dx = op.Slice(slopes, [0], [1], [1])
add_output(first.graph, op.ReduceSum(du_dx, keepdims=False), "sum_du_dx", [])

second = ir.from_proto(
    gradient_graph(
        ir.to_proto(first), wrt="point", of="sum_du_dx", engine="portable"
    )
)

# %%
# The trained output is ``u`` where ``u`` is known, elsewhere the residual of the
# equation. Its target there is zero.

op = GraphBuilder(second.graph)
values = {value.name: value for value in second.graph.outputs}
u, slopes = values["u"], values["point_grad"]
du_dx, du_dt = op.Slice(slopes, [0], [1], [1]), op.Slice(slopes, [1], [2], [1])
d2u_dx2 = op.Slice(values["point_grad_2"], [0], [1], [1])
residual = op.Sub(op.Add(du_dt, op.Mul(u, du_dx)), op.Mul(d2u_dx2, VISCOSITY))
known = ir.val("known", ir.DataType.FLOAT, ("N", 1))
second.graph.inputs.append(known)
second.graph.outputs.clear()
add_output(
    second.graph, op.Where(op.Greater(known, 0.5), u, residual), "fit", ["N", 1]
)

# %%
# Train
# -----
#
# The wave begins as ``-sin(pi x)`` and stays 0 at the ends.

inside = rng.uniform([-1, 0], [1, 1], size=(3000, 2))
beginning = np.c_[rng.uniform(-1, 1, 400), np.zeros(400)]
ends = np.c_[rng.choice([-1.0, 1.0], 200), rng.uniform(0, 1, 200)]
is_known = np.repeat([0, 1], [len(inside), len(beginning) + len(ends)])
X = {
    "point": np.vstack([inside, beginning, ends]).astype(np.float32),
    "known": is_known[:, None].astype(np.float32),
}
y = np.r_[
    np.zeros(len(inside)), -np.sin(np.pi * beginning[:, 0]), np.zeros(len(ends))
]
regressor = OrtGradientRegressor(
    ir.to_proto(second),
    learning_rate_init=0.005,
    learning_rate="cosine",
    max_iter=600,
    n_iter_no_change=600,
    batch_size=450,
    random_state=0,
)
regressor.fit(X, y, sample_weight=1 + 19 * is_known)
print(f"{regressor.n_iter_} epochs, loss {regressor.loss_:.5f}")

# %%
# Compare with the exact solution
# -------------------------------
#
# The substitution of Cole and Hopf turns the equation into the heat equation. Its
# solution is an integral, here a sum over the points of a Gauss-Hermite rule.

nodes, gauss = np.polynomial.hermite.hermgauss(120)


def exact(x, t):
    """Return the solution at places ``x`` and times ``t``."""
    shifted = x[..., None] - nodes * np.sqrt(4 * VISCOSITY * t[..., None])
    weight = gauss * np.exp(-np.cos(np.pi * shifted) / (2 * np.pi * VISCOSITY))
    return -(weight * np.sin(np.pi * shifted)).sum(-1) / weight.sum(-1)


trained = regressor.to_onnx()
trained.graph.output.append(
    onnx.helper.make_tensor_value_info("u", onnx.TensorProto.FLOAT, None)
)
session = onnxruntime.InferenceSession(
    trained.SerializeToString(), providers=["CPUExecutionProvider"]
)
x, t = np.meshgrid(np.linspace(-1, 1, 201), np.linspace(0, 1, 101))
grid = np.c_[x.ravel(), t.ravel()].astype(np.float32)
[predicted] = session.run(
    ["u"], {"point": grid, "known": np.ones((len(grid), 1), np.float32)}
)
predicted, solution = predicted.reshape(x.shape), exact(x, t)
error = np.linalg.norm(predicted - solution) / np.linalg.norm(solution)
print(f"relative error {error:.4f}, at most {abs(predicted - solution).max():.4f}")
assert error < 0.02

figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.5), layout="constrained")
mesh = left.pcolormesh(t, x, predicted, cmap="RdBu_r", shading="gouraud")
figure.colorbar(mesh, ax=left, label="u")
left.set(xlabel="t", ylabel="x", title="network")
for time, color in ((0, "tab:blue"), (40, "tab:orange"), (100, "tab:green")):
    right.plot(x[time], solution[time], color="gray", linewidth=4, alpha=0.4)
    right.plot(x[time], predicted[time], color=color, label=f"t = {t[time, 0]:.1f}")
right.set(xlabel="x", ylabel="u", title="exact solution in gray")
right.legend()
plt.show()
