"""Whether float32 and float64 part at a kink: the branches that ReLU and max-pooling take, for ``networks.py``.

A number that rounding moves past zero switches a unit on or off, and the gradient jumps. Here PyTorch computes the
first gradient in float64 once more, with the branches of a float32 run: what is left of the error is the formulas'.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import onnx
import onnxruntime
import torch
from network_errors import gradient_error, matched, of_torch
from network_runs import Batch, File, OurRun, TorchRun, prepared, trained_on
from torch import Tensor, nn
from torch.nn import functional

from onnxtrain_sklearn._training.passes import PassGraph
from onnxtrain_sklearn._training.step import HostStep

Call = tuple[Tensor, tuple[Any, ...]]


class Branches(NamedTuple):
    """What the calls of ReLU and of max-pooling read, in their order; of pooling with its settings."""

    relus: list[Tensor]
    pools: list[Call]


def branches(file: File) -> dict[str, Any]:
    """Return how many units are on the other side of a kink, and the errors of the gradients with equal branches."""
    module, data = prepared(file)
    data, start = data[:1], {n: p.detach().double().numpy() for n, p in module.named_parameters()}
    (exact, seen), (theirs, seen_torch) = (_recorded(module, data, t) for t in (torch.float64, torch.float32))
    ours, seen_here = _our_branches(module, data, file, seen)
    names = matched(ours, start, list(exact.gradients))
    found = {n: of_torch(ours.gradients, n, start[n].shape) for n in names}
    switched = [np.abs(x.numpy()[_differs(x, y)]) for x, y in zip(seen.relus, seen_here.relus, strict=True)]
    return {
        "switched": int(sum(part.size for part in switched)),
        "units": int(sum(x.numel() for x in seen.relus)),
        "switched_torch": int(sum(_differs(x, y).sum() for x, y in zip(seen.relus, seen_torch.relus, strict=True))),
        "distance": float(max((part.max() for part in switched if part.size), default=0.0)),
        "gradient": gradient_error(found, _with_branches(module, data, seen_here)),  # type: ignore[arg-type]
        "gradient_torch": gradient_error(theirs.gradients, _with_branches(module, data, seen_torch)),
    }


def _differs(x: Tensor, y: Tensor) -> np.ndarray:
    return ((x > 0) != (y > 0)).numpy()


@contextmanager
def _replaced(relu: Any, pool: Any) -> Iterator[None]:
    own = functional.relu, functional.max_pool2d
    functional.relu, functional.max_pool2d = relu, pool
    try:
        yield
    finally:
        functional.relu, functional.max_pool2d = own


def _recorded(module: nn.Module, data: Sequence[Batch], dtype: torch.dtype) -> tuple[TorchRun, Branches]:
    seen, own = Branches([], []), (functional.relu, functional.max_pool2d)

    def relu(x: Tensor, inplace: bool = False) -> Tensor:
        seen.relus.append(x.detach().clone())
        return own[0](x)

    def pool(x: Tensor, *settings: Any, **options: Any) -> Tensor:
        taken = _pool_settings(*settings, **options)
        seen.pools.append((x.detach().clone(), taken))
        return own[1](x, *taken)

    with _replaced(relu, pool):
        return TorchRun(module, dtype).run(data), seen


def _pool_settings(
    kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False, **_: Any
) -> tuple[Any, ...]:
    return kernel_size, stride, padding, dilation, ceil_mode


def _with_branches(module: nn.Module, data: Sequence[Batch], taken: Branches) -> dict[str, np.ndarray]:
    """Return the gradients in float64 where each unit is on, and each window chooses, as in ``taken``."""
    relus = iter(taken.relus)
    chosen = iter([functional.max_pool2d(x, *settings, return_indices=True)[1] for x, settings in taken.pools])

    def pool(x: Tensor, *settings: Any, **options: Any) -> Tensor:
        index = next(chosen)
        return x.flatten(2).gather(2, index.flatten(2)).reshape(index.shape)

    with _replaced(lambda x, inplace=False: x * (next(relus) > 0).to(x.dtype), pool):
        return TorchRun(module, torch.float64).run(data).gradients


def _our_branches(module: nn.Module, data: Sequence[Batch], file: File, seen: Branches) -> tuple[OurRun, Branches]:
    """Train a step here, and return what its nodes read where PyTorch's calls do: the nearest numbers."""
    fed: dict[str, Any] = {}
    bind, gradients = PassGraph.bind, HostStep.compute_gradients

    def bound(source: PassGraph, inputs: Any, *rest: Any, **options: Any) -> Any:
        fed["inputs"], fed["graph"] = inputs, source.program.graph
        return bind(source, inputs, *rest, **options)

    def first(step: HostStep, *settings: Any) -> float:
        fed.setdefault("arrays", {name: np.array(array) for name, array in fed["inputs"].items()})
        return gradients(step, *settings)

    PassGraph.bind, HostStep.compute_gradients = bound, first  # type: ignore[method-assign]
    try:
        run = trained_on(module, data, file, plain=True)
    finally:
        PassGraph.bind, HostStep.compute_gradients = bind, gradients  # type: ignore[method-assign]
    values = _values_read(fed["graph"], fed["arrays"])
    pools = [(_nearest(x, values["MaxPool"]), settings) for x, settings in seen.pools]
    return run, Branches([_nearest(x, values["Relu"]) for x in seen.relus], pools)


def _values_read(graph: bytes, arrays: dict[str, np.ndarray]) -> dict[str, list[np.ndarray]]:
    """Return what the nodes of each kind read."""
    proto = onnx.load_model_from_string(graph)
    read = {kind: [n.input[0] for n in proto.graph.node if n.op_type == kind] for kind in ("Relu", "MaxPool")}
    known = {value.name for value in (*proto.graph.output, *proto.graph.input)}
    wanted = list(dict.fromkeys(name for names in read.values() for name in names))
    proto.graph.output.extend(onnx.ValueInfoProto(name=name) for name in wanted if name not in known)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options)
    found = session.run(wanted, {value.name: arrays[value.name] for value in session.get_inputs()})
    by_name = dict(zip(wanted, found, strict=True))
    return {kind: [by_name[name] for name in names] for kind, names in read.items()}


def _nearest(x: Tensor, arrays: Sequence[np.ndarray]) -> Tensor:
    alike = [array for array in arrays if array.shape == tuple(x.shape)]
    return torch.from_numpy(min(alike, key=lambda array: float(np.abs(array - x.numpy()).max())))
