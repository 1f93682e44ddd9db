"""``doctor``: show what is installed, and test whether it computes right."""

from __future__ import annotations

import argparse
import platform
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser
import onnx_ir as ir
from sklearn.datasets import load_iris

from .._estimators.classifier import OrtGradientClassifier
from .._gradient.engine import available_engines, gradient_graph
from .._ort import devices, llvm, packages, sessions
from .._ort.wrong_kernels import saturate
from .._training.formula_updates import compiled_update, formula_of, numpy_update
from .._training.machine_code import COMPILED, auto_compiles, can_compile
from ..exceptions import RuntimeNotFoundError
from ..models import MLP
from ..optimizers import AdamW, update_graph
from .console import Command, Console, Outcome, Record, sentence
from .onnx_files import runner_of, save

REQUIRED = ("onnxtrain-sklearn", "numpy", "scipy", "scikit-learn", "onnx", "onnx-ir", "skl2onnx", "flatbuffers")

OPTIONAL = ("llvmlite", "pandas", "pyarrow", "matplotlib", "skops", "joblib", "torch", "lightgbm", "xgboost")

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
    return Outcome(record, _doctor_lines(record), all(check["passed"] for check in checks))


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
    if not error < 1e-5:
        raise ValueError(f"The gradient of the sum of cubes is off by {error:.2g}.")
    return f"off by {error:.1g}"


def _check_compiled_update() -> str:
    """Compare the compiled update of AdamW with NumPy's, bit by bit."""
    graph = update_graph(AdamW(), ir.DataType.FLOAT)
    formula, results = formula_of(graph), []
    assert formula is not None
    for make in (numpy_update, compiled_update):
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
        save(net.to_onnx(), path)
        session = runner_of(path).session
    (labels,) = sessions.run_session(session, ["label"], {session.get_inputs()[0].name: X.astype(np.float32)})
    accuracy = float(np.mean(labels == y))
    if accuracy < 0.9 or not np.array_equal(labels, net.predict(X.astype(np.float32))):
        raise ValueError(f"The written file has an accuracy of {accuracy:.3f} on iris, or predicts other labels.")
    return f"accuracy {accuracy:.3f} on iris"


def _package_lines(record: Record) -> list[str]:
    runtime = record["onnxruntime"]
    named = (
        ", ".join(f"{name} {version}" for name, version in runtime["distributions"].items()) or "not installed by pip"
    )
    return [
        f"{record['python']} on {record['platform']}, {record['threads']} threads",
        *(f"{name} {version or 'not installed'}" for name, version in record["versions"].items()),
        "optional: " + ", ".join(f"{name} {version or '-'}" for name, version in record["optional"].items()),
        f"onnxruntime {runtime['version'] or 'cannot be used'} ({named})",
    ]


def _doctor_lines(record: Record) -> list[str]:
    runtime = record["onnxruntime"]
    lines = [
        *_package_lines(record),
        f"  up to opset {runtime['opset']}, ai.onnx.ml {runtime['ml_opset']}, IR {runtime['ir_version']}",
        f"  providers: {', '.join(runtime['providers'])}",
        f"engines: {', '.join(record['engines'])}{'; compiled code in long fits' * record['auto_compiles']}",
        f"products of unsigned by signed bytes: {record['integer_products']}",
    ]
    for check in record["self_test"]:
        verdict = "passed" if check["passed"] else "FAILED"
        lines.append(f"{verdict} {check['name']} ({check['seconds']:.1f} s): {check['detail']}")
    return [*lines, *(f"advice: {text}" for text in record["advice"])]


DOCTOR = Command(_doctor_arguments, _doctor)
