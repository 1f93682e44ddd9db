"""CPU microseconds of a training step in Python, Node and WebAssembly beside TensorFlow.js: make bench-web.

The five networks are those of fit_step.py, trained by Adam on one thread. Python exports training graphs and runs them
by onnxruntime; `web_steps.mjs` runs the same folders by onnxruntime-node and onnxruntime-web, and the same networks by
TensorFlow.js on its JavaScript and its WebAssembly backend. "step" hands over one minibatch after the other
(TensorFlow.js: `trainOnBatch`), "epoch" all rows at once (`model.fit`). The programs take turns, and the least CPU time
of all counts.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime
from fit_step import CASES

from onnxtrain_sklearn import MLP, OrtGradientClassifier
from onnxtrain_sklearn._export.state_files import tensors_of

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
RATE = 0.001
PROGRAMS = ("onnxruntime-node", "onnxruntime-web", "tfjs-cpu", "tfjs-wasm")
TITLES = {
    "python": "Python",
    "onnxruntime-node": "Node",
    "onnxruntime-web": "WebAssembly",
    "tfjs-cpu": "TensorFlow.js, JavaScript",
    "tfjs-wasm": "TensorFlow.js, WebAssembly",
}


def name_of(sizes: tuple[int, ...], batch: int) -> str:
    return f"{list(sizes)}, {batch} rows"


def export(folder: Path) -> dict[str, dict]:
    """Write a folder of training graphs for each network; return the cases by name."""
    rng, found = np.random.default_rng(0), {}
    for case in CASES:
        X = rng.normal(size=(64, case.layers[0])).astype(np.float32)
        y = np.arange(64) % case.layers[-1]
        model = OrtGradientClassifier(
            MLP(case.layers[1:-1]), optimizer="adam", batch_size=case.batch_size, random_state=0
        )
        model.export_training(folder / name_of(case.layers, case.batch_size), X, y)
        found[name_of(case.layers, case.batch_size)] = {
            "sizes": list(case.layers),
            "batch": case.batch_size,
            "steps": 20 if case.batch_size * max(case.layers) < 50_000 else 3,  # a step takes seconds in JavaScript
        }
    return found


def least(run: Callable[[], None], steps: int, seconds: float) -> float:
    """Return the least microseconds of CPU time a step of several runs of all steps."""
    begin, best = time.perf_counter(), float("inf")
    while best == float("inf") or time.perf_counter() - begin < seconds:
        started = time.process_time()
        run()
        best = min(best, (time.process_time() - started) * 1e6 / steps)
    return best


class PythonLoop:
    """The loops of docs/training_anywhere.md."""

    def __init__(self, folder: Path, sizes: list[int], batch: int, steps: int) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self.manifest = json.loads((folder / "manifest.json").read_text())
        self.sessions = {
            name: onnxruntime.InferenceSession(folder / f"{name}.onnx", options) for name in ("step", "epoch")
        }
        self.state = tensors_of((folder / "state.safetensors").read_bytes(), "state")
        rng, self.batch, self.count = np.random.default_rng(0), batch, steps
        self.X = rng.normal(size=(steps * batch, sizes[0])).astype(np.float32)
        y = np.arange(len(self.X)) % sizes[-1]
        self.y = y if sizes[-1] > 2 else y.astype(np.float32)[:, None]

    def _run(self, name: str, feeds: dict[str, np.ndarray]) -> None:
        outputs = {one["output"]: one["name"] for one in self.manifest["state"]["tensors"]}
        results = self.sessions[name].run(list(outputs), feeds | self.state)
        self.state = dict(zip(outputs.values(), results, strict=True))

    def steps(self) -> None:
        weights, rate = np.ones(self.batch, np.float32), np.array(RATE, np.float32)
        for start in range(0, len(self.X), self.batch):
            rows = slice(start, start + self.batch)
            feeds = {"X": self.X[rows], "y": self.y[rows], "sample_weight": weights, "learning_rate": rate}
            self._run("step", feeds)

    def epoch(self) -> None:
        feeds = {"X": self.X, "y": self.y, "sample_weight": np.ones(len(self.X), np.float32)}
        feeds["learning_rate"] = np.full(self.count, RATE, np.float32)
        self._run("epoch", feeds | {"order": np.arange(len(self.X)).reshape(self.count, self.batch)})


def in_python(folder: Path, cases: dict[str, dict], seconds: float) -> dict[str, dict[str, float]]:
    found = {}
    for name, one in cases.items():
        loop = PythonLoop(folder / name, **one)
        loop.steps()
        found[name] = {form: least(getattr(loop, form), one["steps"], seconds) for form in ("steps", "epoch")}
    return found


def in_javascript(program: str, modules: Path, folder: Path, cases: dict, seconds: float) -> dict:
    from tests.helpers.web import node

    command = [str(node()), str(ROOT / "benchmarks" / "web_steps.mjs"), program, str(modules), str(folder)]
    done = subprocess.run([*command, json.dumps(cases), str(seconds)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{program}: {done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def table(results: dict[str, dict], cases: dict[str, dict]) -> str:
    """Return the rows of a table in Markdown: a line for each network and form."""
    lines = ["| network | form | " + " | ".join(TITLES.values()) + " |", "|---|---|" + "---|" * len(TITLES)]
    for name in cases:
        for form in ("steps", "epoch"):
            numbers = (f"{results[program][name][form]:,.0f}" for program in TITLES)
            lines.append(f"| {name} | {form.rstrip('s')} | " + " | ".join(numbers) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--packages", type=Path, default=ROOT / "build" / "web" / "node_modules")
    parser.add_argument("--seconds", type=float, default=1.0, help="time of each program for a network and a form")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--networks", type=int, default=len(CASES), help="only so many")
    options = parser.parse_args()
    results: dict[str, dict] = {}
    with tempfile.TemporaryDirectory() as temporary:
        cases = dict(list(export(Path(temporary)).items())[: options.networks])
        for i in range(options.rounds):
            for program in TITLES:
                arguments = (Path(temporary), cases, options.seconds)
                new = (
                    in_python(*arguments)
                    if program == "python"
                    else in_javascript(program, options.packages, *arguments)
                )
                old = results.setdefault(program, new)
                results[program] = {n: {f: min(old[n][f], new[n][f]) for f in new[n]} for n in new}
                print(f"round {i + 1}, {program}", file=sys.stderr, flush=True)
    print(f"onnxruntime {onnxruntime.__version__}, {os.cpu_count()} processors, one thread each")
    print(table(results, cases))


if __name__ == "__main__":
    main()
