"""Writes quantized networks, and what PyTorch's ``fake_quantize`` trains them to.

Run where PyTorch, onnxruntime, onnx and scikit-learn are installed: ``python make_quantized_files.py``.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import onnx
import torch
from onnx import numpy_helper
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
from sklearn.datasets import load_digits

HERE = Path(__file__).parent
STEPS, BATCH, RATE = 20, 32, 0.05
NETS = {
    "quantized_mlp": (False, torch.nn.Sequential(torch.nn.Linear(64, 12), torch.nn.ReLU(), torch.nn.Linear(12, 10))),
    "quantized_cnn": (
        True,
        torch.nn.Sequential(
            torch.nn.Conv2d(1, 4, 3),
            torch.nn.ReLU(),
            torch.nn.MaxPool2d(2),
            torch.nn.Flatten(),
            torch.nn.Linear(36, 10),
        ),
    ),
}


class Rows(CalibrationDataReader):
    """Some rows, by which the ranges of activations are chosen."""

    def __init__(self, X: np.ndarray) -> None:
        self._batches = iter([{"X": X[i : i + 50]} for i in range(0, 200, 50)])

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self._batches, None)


def quantized(net: torch.nn.Module, X: np.ndarray, per_channel: bool) -> onnx.ModelProto:
    """Return the network in the form of QuantizeLinear and DequantizeLinear."""
    with tempfile.TemporaryDirectory() as folder:
        first, second = f"{folder}/float.onnx", f"{folder}/quantized.onnx"
        names = {"input_names": ["X"], "output_names": ["scores"], "dynamic_axes": {"X": [0], "scores": [0]}}
        torch.onnx.export(net, (torch.from_numpy(X[:2]),), first, dynamo=False, opset_version=17, **names)
        types = {"weight_type": QuantType.QInt8, "activation_type": QuantType.QUInt8}
        rows = Rows(0.7 * X)  # so that some numbers are clipped
        quantize_static(first, second, rows, quant_format=QuantFormat.QDQ, per_channel=per_channel, **types)
        return onnx.load(second)


class Replay:
    """Runs a quantized file in PyTorch, with trained weights in place of its integers."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.nodes, self.arrays = model.graph.node, {}
        for tensor in model.graph.initializer:
            self.arrays[tensor.name] = numpy_helper.to_array(tensor)
        self.weights: dict[str, torch.Tensor] = {}
        for node in (n for n in self.nodes if n.op_type == "DequantizeLinear" and n.input[0] in self.arrays):
            integers, scale, zero = (torch.from_numpy(self.arrays[name].copy()) for name in node.input)
            shape = self._shape(node, integers.ndim)
            array = (integers.float() - zero.float().reshape(shape)) * scale.reshape(shape)
            self.weights[node.input[0].removesuffix("_quantized")] = array.requires_grad_()

    def _shape(self, node: onnx.NodeProto, rank: int) -> list[int]:
        axis = next((a.i for a in node.attribute if a.name == "axis"), 1)
        many = self.arrays[node.input[1]].size > 1
        return [-1 if i == axis else 1 for i in range(rank)] if many else []

    def _fake(self, node: onnx.NodeProto, x: torch.Tensor) -> torch.Tensor:
        scale, zero = (torch.from_numpy(self.arrays[name].copy()) for name in node.input[1:])
        if zero.dtype == torch.int32:  # a bias: rounded, not clipped
            return x + (torch.round(x / scale) * scale - x).detach()
        low, high = (0, 255) if zero.dtype == torch.uint8 else (-128, 127)
        if scale.numel() == 1:
            return torch.fake_quantize_per_tensor_affine(x, float(scale), int(zero), low, high)
        axis = next((a.i for a in node.attribute if a.name == "axis"), 1)
        return torch.fake_quantize_per_channel_affine(x, scale, zero.int(), axis, low, high)

    def __call__(self, X: torch.Tensor) -> torch.Tensor:
        known: dict[str, torch.Tensor] = {"X": X}
        for node in self.nodes:
            known[node.output[0]] = self._run(node, known)
        return known["scores"]

    def _run(self, node: onnx.NodeProto, known: dict[str, torch.Tensor]) -> torch.Tensor:
        x = known.get(node.input[0])
        settings = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
        match node.op_type:
            case "QuantizeLinear":
                return x
            case "DequantizeLinear":
                return self._fake(node, self.weights[node.input[0].removesuffix("_quantized")] if x is None else x)
            case "Gemm":
                w = known[node.input[1]]
                return x @ (w.T if settings.get("transB") else w) + known[node.input[2]]
            case "Conv":
                return torch.nn.functional.conv2d(x, known[node.input[1]], known[node.input[2]])
            case "MaxPool":
                return torch.nn.functional.max_pool2d(x, settings["kernel_shape"], settings["strides"])
            case "Relu":
                return torch.relu(x)
            case "Flatten":
                return x.flatten(1)
        raise NotImplementedError(node.op_type)


def main() -> None:
    X, y = load_digits(return_X_y=True)
    X, y = (X / 16).astype(np.float32), y.astype(np.int64)
    for name, (is_image, net) in NETS.items():
        torch.manual_seed(0)
        for layer in net:
            if hasattr(layer, "reset_parameters"):
                layer.reset_parameters()
        rows = X.reshape(-1, 1, 8, 8) if is_image else X
        optimizer = torch.optim.Adam(net.parameters(), 0.01)
        for i in range(40):
            part = slice(30 * i, 30 * i + 30)
            loss = torch.nn.functional.cross_entropy(net(torch.from_numpy(rows[part])), torch.from_numpy(y[part]))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        model = quantized(net, rows, per_channel=is_image)
        onnx.save(model, HERE / f"{name}.onnx")
        replay, found = Replay(model), {"losses": []}
        trained = torch.optim.SGD(replay.weights.values(), RATE)
        for i in range(STEPS):
            part = slice(BATCH * i, BATCH * i + BATCH)
            loss = torch.nn.functional.cross_entropy(replay(torch.from_numpy(rows[part])), torch.from_numpy(y[part]))
            trained.zero_grad()
            loss.backward()
            if not i:
                found |= {f"gradient/{key}": w.grad.numpy().copy() for key, w in replay.weights.items()}
            trained.step()
            found["losses"].append(float(loss))
        found |= {f"final/{key}": w.detach().numpy() for key, w in replay.weights.items()}
        np.savez_compressed(HERE / f"{name}.npz", **found)
        print(name, [n.op_type for n in model.graph.node], found["losses"][::5])


if __name__ == "__main__":
    main()
