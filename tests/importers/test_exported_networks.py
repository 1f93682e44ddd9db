"""Networks that PyTorch exported are trained as PyTorch trains them.

The files ``data/exported_*.onnx`` are what ``torch.onnx.export(..., dynamo=True)`` of PyTorch 2.13 wrote of an LSTM, an
attention with a causal mask, and a convolution with group and instance normalization; beside each lie data, and the
weights and predictions that PyTorch's own SGD ends with. Among their initializers are fillers, scales of scores, masks
and neutral scales. Where PyTorch is installed, more are exported and trained beside it.
"""

from __future__ import annotations

import io
from contextlib import redirect_stderr, redirect_stdout

import numpy as np
import pytest
from numpy.testing import assert_allclose

from onnxtrain_sklearn import SGD, OrtGradientRegressor
from tests.helpers.data import DATA

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

SETTINGS = {
    "optimizer": SGD(), "learning_rate_init": 0.05, "batch_size": 8, "max_iter": 4, "shuffle": False,
    "n_iter_no_change": 100, "engine": "portable",
}  # fmt: skip


@pytest.mark.parametrize("name", ["lstm", "mha", "norms"])
def test_weights_end_where_those_of_pytorch_do(name):
    known = np.load(DATA / f"exported_{name}.npz")
    trained = OrtGradientRegressor(str(DATA / f"exported_{name}.onnx"), **SETTINGS).fit(known["X"], known["y"])
    assert trained.describe().n_trained == known["n_parameters"]
    assert_allclose(trained.predict(known["X"]), known["prediction"], rtol=0, atol=2e-6)
    for key in (key for key in known.files if key.startswith("weights/")):
        assert_allclose(trained.weights_[key.removeprefix("weights/")], known[key], rtol=0, atol=1e-6, err_msg=key)


def networks():
    torch = pytest.importorskip("torch")
    nn = torch.nn

    class Recurrent(nn.Module):
        def __init__(self, cell):
            super().__init__()
            self.cell, self.head = cell(3, 4, batch_first=True), nn.Linear(4, 1)

        def forward(self, x):
            return self.head(self.cell(x)[0][:, -1])

    class Gated(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.gate, self.head = nn.Linear(3, 4), nn.Parameter(torch.tensor(0.3)), nn.Linear(4, 1)

        def forward(self, x):
            return self.head(self.gate * torch.relu(self.body(x)).mean(1) * 2.5)

    class Encoder(nn.Module):
        def __init__(self):
            super().__init__()
            layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)
            self.start, self.body, self.head = nn.Linear(3, 4), nn.TransformerEncoder(layer, 1), nn.Linear(4, 1)

        def forward(self, x):
            return self.head(self.body(self.start(x)).mean(1))

    return {"gru": lambda: Recurrent(nn.GRU), "lstm": lambda: Recurrent(nn.LSTM), "gated": Gated, "encoder": Encoder}


@pytest.mark.filterwarnings("ignore")  # of the exporters
@pytest.mark.parametrize("dynamo", [True, False])
@pytest.mark.parametrize("name", ["gru", "lstm", "gated", "encoder"])
def test_exports_train_as_in_pytorch(name, dynamo, tmp_path):
    torch = pytest.importorskip("torch")
    if dynamo:
        pytest.importorskip("onnxscript")
    torch.manual_seed(0)
    network, X, y = networks()[name]().eval(), torch.randn(16, 5, 3), torch.randn(16, 1)
    with torch.no_grad():
        for parameter in network.parameters():  # exporters make one of equal initializers
            parameter += 0.05 * torch.randn_like(parameter)
    axes = {"dynamic_shapes": ({0: torch.export.Dim("n", min=2)},)} if dynamo else {"dynamic_axes": {"x": {0: "n"}}}
    names = {} if dynamo else {"input_names": ["x"], "opset_version": 17}
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        torch.onnx.export(network, (X,), str(tmp_path / "net.onnx"), dynamo=dynamo, **axes, **names)
    trained = OrtGradientRegressor(str(tmp_path / "net.onnx"), **SETTINGS).fit(X.numpy(), y.numpy().ravel())
    assert trained.describe().n_trained == sum(p.numel() for p in network.parameters())
    optimizer = torch.optim.SGD(network.parameters(), lr=0.05)
    for first in list(range(0, 16, 8)) * 4:
        optimizer.zero_grad()
        ((network(X[first : first + 8]) - y[first : first + 8]) ** 2).mean().backward()
        optimizer.step()
    assert_allclose(trained.predict(X.numpy()), network(X).detach().numpy().ravel(), rtol=0, atol=2e-6)
