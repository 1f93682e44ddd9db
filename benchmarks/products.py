"""The floor of a step: its matrix products and its update alone, beside whole steps of ``fit``.

The forward pass of a layer is one product, its backward pass two, and one for the first layer, whose input needs no
gradient. They are run by three libraries, and by compiled code of this package, on arrays that are there. The update
is that of one vector of all parameters, by NumPy and by a compiled loop as a fit runs them, without the scalars of
the step, and by PyTorch's fused kernel. Each competitor has a process of its own, in turns with the others. The floor
is the time of the fastest library for the products and of the fastest for the update, so the speed-up over a peer is
at most the peer's step by the floor. Needs PyTorch, skorch and llvmlite: run it in the environment of ``peers.py``.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
from fit_step import CASES, RATE, Case, Fit
from peers import AIMS, COMPETITORS, OPTIMIZERS, THREADS, measure, serve

Product = tuple[np.ndarray, np.ndarray, bool, bool]
"""Both operands, and whether each is transposed."""


def products(case: Case) -> Iterator[Product]:
    """Yield the products of a step."""
    rng, rows = np.random.default_rng(0), case.batch_size
    for i, (n, m) in enumerate(pairwise(case.layers)):
        h, w, g = (rng.standard_normal(shape, dtype=np.float32) for shape in ((rows, n), (n, m), (rows, m)))
        yield h, w, False, False
        yield h, g, True, False
        if i:
            yield g, w, False, True


def repeated(calls: Sequence[Callable[[], object]], case: Case) -> Fit:
    """Return what makes the calls as often as a fit takes steps."""

    def run(X: np.ndarray, y: np.ndarray) -> None:
        for _ in range(case.steps):
            for call in calls:
                call()

    return run


def graph_of_products(case: Case) -> tuple[Any, dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Return a graph of all products, its inputs and its outputs."""
    import onnx_ir as ir

    from onnxtrain_sklearn._ir.edits import append_output
    from onnxtrain_sklearn.graph import new_graph

    op, arrays, results = new_graph([], ir.DataType.FLOAT, "products"), {}, {}
    for i, (a, b, of_a, of_b) in enumerate(products(case)):
        operands = [ir.val(f"{name}{i}", ir.DataType.FLOAT, x.shape) for name, x in (("a", a), ("b", b))]
        op.graph.inputs.extend(operands)
        result = np.zeros((a.shape[of_a], b.shape[not of_b]), np.float32)
        like = ir.val("like", ir.DataType.FLOAT, result.shape)
        append_output(op.graph, op.Gemm(*operands, transA=int(of_a), transB=int(of_b)), f"y{i}", like)
        arrays |= {f"a{i}": a, f"b{i}": b}
        results[f"y{i}"] = result
    return op.graph, arrays, results


def by_onnxruntime(case: Case, optimizer: str) -> Fit:
    """Return the products in one session, in the forms that a fit has them in."""
    import onnx_ir as ir

    from onnxtrain_sklearn._ort import devices, sessions
    from onnxtrain_sklearn._ort.binding import Binding
    from onnxtrain_sklearn._training.pass_rewrites import transpose_operands

    graph, arrays, results = graph_of_products(case)
    transpose_operands(graph)
    content = ir.to_proto(ir.Model(graph, ir_version=8)).SerializeToString()
    session = sessions.create_session(content, devices.resolve_device())
    return repeated([Binding(session, arrays, results).run], case)


def by_own_code(case: Case, optimizer: str) -> Fit:
    """Return the products as one function of machine code."""
    from onnxtrain_sklearn._compiler.code import BoundCode, graph_code
    from onnxtrain_sklearn._compiler.kernels import tile_of
    from onnxtrain_sklearn._ort.llvm import features

    graph, arrays, results = graph_of_products(case)
    return repeated([BoundCode(graph_code(graph, tile_of(features())), arrays, results).run], case)


def by_numpy(case: Case, optimizer: str) -> Fit:
    calls = []
    for a, b, of_a, of_b in products(case):
        a, b = a.T if of_a else a, b.T if of_b else b
        result = np.zeros((len(a), b.shape[1]), np.float32)
        calls.append(lambda a=a, b=b, result=result: np.matmul(a, b, result))
    return repeated(calls, case)


def by_torch(case: Case, optimizer: str) -> Fit:
    import torch

    calls = []
    for a, b, of_a, of_b in products(case):
        left, right = (torch.from_numpy(x).T if of else torch.from_numpy(x) for x, of in ((a, of_a), (b, of_b)))
        result = torch.zeros(len(left), right.shape[1])
        calls.append(lambda left=left, right=right, result=result: torch.mm(left, right, out=result))
    return repeated(calls, case)


def updated_by_numpy(case: Case, optimizer: str) -> Fit:
    """Return the update of a fit of this package without llvmlite."""
    from onnxtrain_sklearn._training.update_executors import NumpyUpdate

    return own_update(case, optimizer, NumpyUpdate)


def updated_by_loop(case: Case, optimizer: str) -> Fit:
    """Return the update of a fit of this package, compiled by llvmlite."""
    from onnxtrain_sklearn._training.update_executors import CompiledUpdate

    return own_update(case, optimizer, CompiledUpdate)


def own_update(case: Case, optimizer: str, make: Callable[..., Any]) -> Fit:
    import onnx_ir as ir

    from onnxtrain_sklearn import SGD, AdamW
    from onnxtrain_sklearn._training.update_executors import formula_of
    from onnxtrain_sklearn._utils.errors import ignores_float_errors
    from onnxtrain_sklearn.optimizers import update_graph

    found = update_graph({"sgd": SGD(), "adamw": AdamW()}[optimizer], ir.DataType.FLOAT)
    formula, (weights, gradients) = formula_of(found), vectors(case)
    assert formula is not None
    state = {name: np.full_like(weights, slot.fill) for name, slot in found.slots.items()}
    scalars = {name: np.array(value, np.float32) for name, value in found.scalars(RATE, 1).items()}
    update = make(formula, {"parameters": weights, **state}, gradients, scalars)
    return ignores_float_errors(repeated([update.run], case))


def updated_by_torch(case: Case, optimizer: str) -> Fit:
    import torch

    weights, gradients = map(torch.from_numpy, vectors(case))
    weights.grad = gradients
    rule = {"sgd": torch.optim.SGD, "adamw": torch.optim.AdamW}[optimizer]
    return repeated([rule([weights], lr=RATE, fused=True).step], case)


def vectors(case: Case) -> list[np.ndarray]:
    """Return all parameters, and their gradients."""
    rng, size = np.random.default_rng(0), sum((n + 1) * m for n, m in pairwise(case.layers))
    return [rng.standard_normal(size, dtype=np.float32) for _ in range(2)]


PRODUCTS = {"compiled": by_own_code, "onnxruntime": by_onnxruntime, "numpy": by_numpy, "torch.mm": by_torch}
UPDATES = {"numpy update": updated_by_numpy, "loop update": updated_by_loop, "torch update": updated_by_torch}


def serve_parts(name: str, pipe: Connection) -> None:
    """As :func:`peers.serve`, for the parts of a step too."""
    COMPETITORS.update(PRODUCTS | UPDATES)
    serve(name, pipe)


def report(number: int, cpu: dict[str, float | str]) -> str:
    """Return a line with the times of one case, the floor, and what it allows at most beside the peers."""
    known = {name: time for name, time in cpu.items() if not isinstance(time, str)}
    floor = sum(min(known[name] for name in parts if name in known) for parts in (PRODUCTS, UPDATES))
    cells = "".join(f"{known[name]:>14,.1f}" if name in known else f"{'–':>14}" for name in cpu)
    most = [f"{name} {known[name] / floor:.2f} ({aims[number]})" for name, aims in AIMS.items() if name in known]
    return f"{cells}{floor:>12,.1f}  {', '.join(most)}"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="CPU time of products and update of a step beside whole steps.")
    parser.add_argument("--repeat", type=int, default=5, help="alternating repetitions (default: %(default)s)")
    parser.add_argument("--cases", type=int, nargs="+", default=range(len(CASES)), help="numbers from 0 (default: all)")
    options = parser.parse_args(arguments)
    os.environ.pop("OPENBLAS_CORETYPE", None)
    os.environ.update(dict.fromkeys(THREADS, "1"))  # read by the new processes
    context, pipes = multiprocessing.get_context("spawn"), {}
    for name in (*PRODUCTS, *UPDATES, "ours", *AIMS):
        pipes[name], theirs = context.Pipe()
        context.Process(target=serve_parts, args=(name, theirs), daemon=True).start()
    names = "".join(f"{name:>14}" for name in pipes)
    print(f"{'CPU µs of a step':<33}{names}{'floor':>12}  most speed-up (aim)", flush=True)
    for number in options.cases:
        for optimizer in OPTIMIZERS:
            found = measure(pipes, number, optimizer, options.repeat)
            cpu = {name: times if isinstance(times, str) else times[1] for name, times in found.items()}
            print(f"{CASES[number]!s:<26} {optimizer:<6}{report(number, cpu)}", flush=True)
    for pipe in pipes.values():
        pipe.send(None)


if __name__ == "__main__":
    main()
