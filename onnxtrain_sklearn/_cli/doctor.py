"""``doctor`` and ``bench``: test this machine and time it.

``doctor`` shows what is installed, and tests whether it computes right. ``bench`` times a training step of a network
with each engine.
"""

from __future__ import annotations

import argparse
import math
import platform
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser
import onnx_ir as ir
from sklearn.datasets import load_iris

from .._estimators.classifier import OrtGradientClassifier
from .._estimators.graph_plan import trainable_graph_of
from .._estimators.regressor import OrtGradientRegressor
from .._gradient.derivatives import gradient_graph
from .._gradient.engine import available_engines
from .._model.trainable import TensorSpec
from .._ort import devices, llvm, packages, sessions
from .._ort.wrong_kernels import saturate
from .._training.history import Epoch
from .._training.programs import COMPILED, can_compile
from .._training.step_choice import auto_compiles
from .._training.update_executors import CompiledUpdate, NumpyUpdate, formula_of
from ..exceptions import ModelError, RuntimeNotFoundError
from ..models import MLP, GraphModel
from ..optimizers import AdamW, update_graph
from .console import (
    Command,
    Console,
    Outcome,
    Record,
    UsageError,
    apply_settings,
    parsed_settings,
    sentence,
    write_model,
)
from .model_option import BUILDERS, ModelOption, model_named
from .predict import runner_of

REQUIRED = ("onnxtrain-sklearn", "numpy", "scipy", "scikit-learn", "onnx", "onnx-ir")

OPTIONAL = (
    "skl2onnx",
    "llvmlite",
    "pandas",
    "pyarrow",
    "matplotlib",
    "skops",
    "joblib",
    "torch",
    "lightgbm",
    "xgboost",
)

COMPILED_UPDATES = "updates by llvmlite"

CUBE = """<ir_version: 8, opset_import: ["": 18]>
    cube (float[3] x) => (float y) { square = Mul(x, x) cubes = Mul(square, x) y = ReduceSum <keepdims = 0> (cubes) }"""


def _doctor_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--no-self-test", action="store_true", help="list what is installed, and train nothing")


def _doctor(options: argparse.Namespace, console: Console) -> Outcome:
    installed = packages.installed_distributions()
    record: dict[str, Any] = {
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "executable": sys.executable,
        "platform": platform.platform(),
        "threads": devices.available_threads(),
        "versions": {name: _version_of(name) for name in REQUIRED},
        "optional": {name: _version_of(name) for name in OPTIONAL},
        "onnxruntime": {"version": None, "distributions": installed, "mixed": len(installed) > 1},
    }
    # Without onnxruntime there is nothing to ask below; the command then says what is installed in its place.
    try:
        packages.require_runtime()
    except RuntimeNotFoundError as error:
        record["error"] = {"type": type(error).__name__, "message": sentence(error)}
        console.error(f"error: {sentence(error)}")
        return Outcome(record, _package_lines(record), succeeded=False)
    limits = sessions.supported_versions()
    checks = [] if options.no_self_test else _checks(console)
    record |= {
        "onnxruntime": record["onnxruntime"]
        | {
            "version": packages.version(),
            "providers": devices.available_providers(),
            "opset": limits.opset,
            "ml_opset": limits.ml_opset,
            "ir_version": limits.ir_version,
        },
        "engines": list(available_engines()),
        "auto_compiles": auto_compiles(),
        "integer_products": "saturating" if saturate() else "exact",
        "self_test": checks,
    }
    record["advice"] = _advice(record)
    runtime = record["onnxruntime"]
    lines = [
        *_package_lines(record),
        f"  up to opset {runtime['opset']}, ai.onnx.ml {runtime['ml_opset']}, IR {runtime['ir_version']}",
        f"  providers: {', '.join(runtime['providers'])}",
        f"engines: {', '.join(record['engines'])}{'; compiled code in long fits' * record['auto_compiles']}",
        f"products of unsigned by signed bytes: {record['integer_products']}",
        *(
            f"{'passed' if one['passed'] else 'FAILED'} {one['name']} ({one['seconds']:.1f} s): {one['detail']}"
            for one in checks
        ),
        *(f"advice: {text}" for text in record["advice"]),
    ]
    return Outcome(record, lines, all(check["passed"] for check in checks))


def _version_of(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _advice(record: Record) -> list[str]:
    """Return advice on packages that would make this environment complete or faster."""
    runtime, advice = record["onnxruntime"], []
    if runtime["mixed"]:
        listed = " ".join(runtime["distributions"])
        advice.append(
            f"Several distributions of onnxruntime overwrite each other: pip uninstall -y {listed}, then one."
        )
    if "ort-training" not in record["engines"]:
        advice.append(
            "The engine ort-training needs onnxruntime-training (Linux, Python up to 3.12); portable needs none."
        )
        if record["optional"]["llvmlite"] is None:  # the training build has fused kernels instead
            advice.append("Updates of AdamW take a fifth of the time, to the same weights: pip install llvmlite.")
    if any(check["name"] == COMPILED_UPDATES and not check["passed"] for check in record["self_test"]):
        advice.append("pip install -U llvmlite, or uninstall it: NumPy updates to the same weights.")
    lacking = [name for name in ("pandas", "pyarrow", "matplotlib") if record["optional"][name] is None]
    if lacking:
        advice.append(f"train and predict lack {', '.join(lacking)}: pip install {' '.join(lacking)}.")
    if record["optional"]["skl2onnx"] is None:
        advice.append('Fitted models and pipelines need skl2onnx: pip install "onnxtrain-sklearn[fitted]".')
    return advice


def _checks(console: Console) -> list[dict[str, Any]]:
    found = []
    for engine in available_engines():
        found.append(_check(f"gradient by {engine}", partial(_check_gradient, engine), console))
        found.append(_check(f"training by {engine}", partial(_check_training, engine, "cpu"), console))
    if llvm.is_installed():
        found.append(_check(COMPILED_UPDATES, _check_compiled_update, console))
    if llvm.is_installed() and can_compile():
        found.append(_check("training by compiled", partial(_check_training, COMPILED, "cpu"), console))
    if "CUDAExecutionProvider" in devices.available_providers():
        found.append(_check("training on cuda", partial(_check_training, "auto", "cuda"), console))
    return found


def _check(name: str, run: Callable[[], str], console: Console) -> dict[str, Any]:
    console.progress(f"checking {name}")
    begun = time.monotonic()
    try:
        passed, detail = True, run()
    except Exception as error:  # any error is the result of the check
        passed, detail = False, sentence(error)
    return {"name": name, "passed": passed, "detail": detail, "seconds": time.monotonic() - begun}


def _check_gradient(engine: str) -> str:
    """Compare the gradient of a sum of cubes with the known one."""
    model = gradient_graph(onnx.parser.parse_model(CUBE), wrt="x", engine=engine)
    session = sessions.create_session(model.SerializeToString(), devices.resolve_device())
    x = np.array([1.0, -2.0, 0.5], np.float32)
    (got,) = sessions.run_session(session, ["x_grad"], {"x": x})
    error = float(np.abs(got - 3 * x**2).max())
    if not error < 1e-5:  # so written, NaN is refused too
        raise ValueError(f"The gradient of the sum of cubes is off by {error:.2g}.")
    return f"off by {error:.1g}"


def _check_compiled_update() -> str:
    """Compare the compiled update of AdamW with NumPy's, bit by bit."""
    graph = update_graph(AdamW(), ir.DataType.FLOAT)
    formula, results = formula_of(graph), []
    assert formula is not None
    for make in (NumpyUpdate, CompiledUpdate):
        vectors = {name: np.linspace(0.1, 1, 99, dtype=np.float32) for name in ("parameters", *graph.slots)}
        scalars = {name: np.array(value, np.float32) for name, value in graph.scalars(0.1, 1).items()}
        make(formula, vectors, np.linspace(-1, 1, 99, dtype=np.float32), scalars).run()
        results.append({name: vector.tobytes() for name, vector in vectors.items()})
    if results[0] != results[1]:
        raise ValueError("The compiled update of AdamW differs from NumPy's.")
    return "equal to NumPy's to the bit"


def _check_training(engine: str, device: str) -> str:
    """Train on iris, write the file, and compare its predictions with the estimator's."""
    X, y = load_iris(return_X_y=True)
    net = OrtGradientClassifier(
        MLP((16,)), learning_rate_init=0.02, max_iter=60, random_state=0, engine=engine, device=device
    )
    with warnings.catch_warnings(), tempfile.TemporaryDirectory() as folder:
        warnings.simplefilter("ignore")
        net.fit(X.astype(np.float32), y)
        path = Path(folder) / "iris.onnx"
        write_model(net.to_onnx(), path)
        session = runner_of(path).session
    (labels,) = sessions.run_session(session, ["label"], {session.get_inputs()[0].name: X.astype(np.float32)})
    accuracy = float(np.mean(labels == y))
    if accuracy < 0.9 or not np.array_equal(labels, net.predict(X.astype(np.float32))):
        raise ValueError(f"The written file has an accuracy of {accuracy:.3f} on iris, or predicts other labels.")
    return f"accuracy {accuracy:.3f} on iris"


def _package_lines(record: Record) -> list[str]:
    runtime = record["onnxruntime"]
    named = ", ".join(f"{name} {version}" for name, version in runtime["distributions"].items())
    return [
        f"{record['python']} on {record['platform']}, {record['threads']} threads",
        *(f"{name} {version or 'not installed'}" for name, version in record["versions"].items()),
        "optional: " + ", ".join(f"{name} {version or '-'}" for name, version in record["optional"].items()),
        f"onnxruntime {runtime['version'] or 'cannot be used'} ({named or 'not installed by pip'})",
    ]


DOCTOR = Command(_doctor_arguments, _doctor)


# bench


STEPS = 16
"""Minibatches of an epoch."""


@dataclass
class Timer:
    """Callback that ends training after some seconds, and keeps the time of each epoch but the first."""

    seconds: float
    begun: float = 0.0
    last: float = 0.0
    epochs: list[float] = field(default_factory=list)

    def __call__(self, epoch: Epoch) -> bool:
        # The first epoch holds what a fit does once, such as compiling the step.
        now = time.perf_counter()
        if epoch.number == 1:
            self.begun = now
        else:
            self.epochs.append(now - self.last)
        self.last = now
        return len(self.epochs) > 2 and now - self.begun > self.seconds


@dataclass(frozen=True)
class Problem:
    """Random rows for a network, as one array or by input, and their targets."""

    X: Any
    y: np.ndarray
    classifies: bool


def _bench_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("model", nargs="?", default="mlp", help=f"{', '.join(BUILDERS)} or an ONNX file; default: %(default)s")
    add("--batch", type=_positive_number, default=32, metavar="ROWS", help="rows of a minibatch; default: %(default)s")
    add(
        "--features", type=_positive_number, default=20, metavar="N", help="columns, of a builder; default: %(default)s"
    )
    add("--classes", type=_positive_number, default=2, metavar="N", help="classes, of a builder; default: %(default)s")
    add("--seconds", type=float, default=1.0, help="time for each engine; default: %(default)s")
    add("--set", nargs="+", action="extend", default=[], metavar="NAME=VALUE", help="parameters of the estimator")


def _positive_number(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"a number from 1, got {text}")
    return value


def _bench(options: argparse.Namespace, console: Console) -> Outcome:
    option = model_named(options.model)
    if option.kind not in ("builder", "graph"):
        raise UsageError(f"bench takes a builder ({', '.join(BUILDERS)}) or an ONNX graph, got {options.model!r}.")
    settings = parsed_settings(options.set)
    if fixed := [name for name in ("batch_size", "max_iter", "callbacks", "model") if name in settings]:
        raise UsageError(f"--set {fixed[0]!r} is set by bench itself (--batch, --seconds).")
    rng = np.random.default_rng(0)
    rows = options.batch * STEPS
    if option.kind == "graph":
        problem = _graph_problem(option, rng, rows)
    elif 2 <= options.classes <= rows:
        X = rng.normal(size=(rows, options.features)).astype(np.float32)
        problem = Problem(X, np.arange(rows) % options.classes, True)  # each class occurs
    else:
        raise UsageError(f"--classes must be 2 to {rows}, the rows of {STEPS} minibatches, got {options.classes}.")
    wanted = settings.get("engine", "auto")
    results = {}
    for engine in available_engines() if wanted == "auto" else (str(wanted),):
        console.progress(f"timing {option.text} with the engine {engine}")
        results[engine] = _timed(option, problem, settings | {"engine": engine}, options)
    lines = [f"{option.text}, minibatches of {options.batch} rows"]
    for engine, one in results.items():
        if one["error"] is not None:
            lines.append(f"{engine}: {one['error']}")
            continue
        step = one["microseconds_per_step"]
        lines.append(
            f"{engine}: {step['least']:.0f} µs a step at best, {step['median']:.0f} µs in the middle of {one['steps']} "
            f"steps, {one['rows_per_second']:,.0f} rows a second; {one['microseconds_per_prediction']:.0f} µs to "
            f"predict a row"
        )
    record = {"model": option.text, "batch": options.batch, "engines": results}
    return Outcome(record, lines, any(one["error"] is None for one in results.values()))


def _graph_problem(option: ModelOption, rng: np.random.Generator, rows: int) -> Problem:
    """Return random rows in the shapes of a graph's inputs."""
    source, fitted = trainable_graph_of(GraphModel(option.model))
    if fitted is not None:
        raise UsageError(
            f"{option.text} is the file of a fitted model, which is fine-tuned by other steps: give a graph."
        )

    def random_rows(spec: TensorSpec) -> np.ndarray:
        if None in spec.shape[1:]:
            raise UsageError(f"The input {spec.name!r} has the shape {spec.shape}: bench takes graphs of known sizes.")
        shape = (rows, *(int(size) for size in spec.shape[1:] if size is not None))
        if spec.dtype.kind == "f":
            return rng.normal(size=shape).astype(spec.dtype)
        return rng.integers(0, 2, shape).astype(spec.dtype)  # valid indices of embeddings of any size

    arrays = {spec.name: random_rows(spec) for spec in source.inputs}
    X = arrays if len(arrays) > 1 else next(iter(arrays.values()))
    if None in source.output_row or len(source.output_row) > 1:
        raise UsageError(f"bench takes graphs with an output of rows of known length, got {source.output_row}.")
    width = math.prod(size for size in source.output_row if size is not None)
    if source.link in ("softmax", "sigmoid"):
        return Problem(X, np.arange(rows) % max(2, width), True)
    return Problem(X, rng.normal(size=(rows, width)).squeeze(), False)


def _timed(
    option: ModelOption, problem: Problem, settings: Mapping[str, object], options: argparse.Namespace
) -> dict[str, Any]:
    """Return the microseconds of a step in the fastest epoch and in the middle one, and of a prediction of a row."""
    timer = Timer(options.seconds)
    kind: Any = OrtGradientClassifier if problem.classifies else OrtGradientRegressor
    # The timer alone ends the fit: no number of epochs, and no loss that stays the same.
    estimator = kind(option.model, batch_size=options.batch, max_iter=10**9, tol=0.0, random_state=0)
    apply_settings(estimator, {"n_iter_no_change": math.inf, **settings})
    estimator.callbacks = [timer]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            estimator.fit(problem.X, problem.y)
    except ModelError as error:
        return {"error": sentence(error)}
    steps = np.array(timer.epochs) / STEPS * 1e6
    one = {name: array[:1] for name, array in problem.X.items()} if isinstance(problem.X, dict) else problem.X[:1]
    predictions = []
    for _ in range(30):
        begun = time.perf_counter()
        estimator.predict(one)
        predictions.append(time.perf_counter() - begun)
    return {
        "error": None,
        "steps": len(steps) * STEPS,
        "microseconds_per_step": {"least": float(np.min(steps)), "median": float(np.median(steps))},
        "rows_per_second": float(options.batch / np.median(steps) * 1e6),
        "microseconds_per_prediction": min(predictions) * 1e6,  # what disturbs a call makes it longer
    }


BENCH = Command(_bench_arguments, _bench)
