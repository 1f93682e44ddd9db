"""Private names of scikit-learn and skl2onnx: which are there, and what works without them."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from onnxtrain_sklearn import MLP, OrtGradientClassifier, Runtime
from onnxtrain_sklearn._fitted import skl2onnx_bridge, sklearn_private
from onnxtrain_sklearn._ort import sessions
from onnxtrain_sklearn._ort.packages import onnxruntime
from onnxtrain_sklearn.exceptions import ModelError
from tests.helpers.source_code import FOLDER, nodes_of_file
from tests.helpers.training import quietly
from tests.helpers.tuning import tune

X = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)
Y = (X[:, 0] > 0).astype(int)


@pytest.mark.parametrize("name", sklearn_private.NAMES)
def test_installed_version_of_sklearn_has(name):
    assert getattr(sklearn_private, name) is getattr(importlib.import_module(sklearn_private.NAMES[name]), name)


@pytest.mark.parametrize("key", skl2onnx_bridge.PRIVATE)
def test_installed_version_of_skl2onnx_has(key):
    module, name = skl2onnx_bridge.PRIVATE[key]
    assert hasattr(importlib.import_module(module), name)


def private_imports(file):
    """Yield what a file imports from scikit-learn and skl2onnx by a private name."""
    for node in nodes_of_file(file):
        names = [node.module] if isinstance(node, ast.ImportFrom) and node.module and not node.level else []
        names = [f"{names[0]}.{alias.name}" for alias in node.names] if names else names
        names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        for name in names:
            parts = name.split(".")
            if parts[0] in ("sklearn", "skl2onnx") and any(part.startswith("_") for part in parts):
                yield name


def test_no_other_module_imports_a_private_name():
    found = {str(file.relative_to(FOLDER)): sorted(private_imports(file)) for file in sorted(FOLDER.rglob("*.py"))}
    assert not {file: names for file, names in found.items() if names}


BLOCKED = """
import sys
from importlib.abc import MetaPathFinder

import {before}

blocked = {blocked}

class Blocker(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name in blocked:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Blocker())
"""

NETWORK = """
import numpy as np
from onnxtrain_sklearn import MLP, OrtGradientClassifier

X = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)
y = (X[:, 0] > 0).astype(int)
OrtGradientClassifier(MLP((4,)), max_iter=30, learning_rate_init=0.1).fit(X, y, sample_weight=np.ones(40)).predict(X)
assert not [name for name in blocked if name in sys.modules]
"""


def run_without(blocked, *arguments, before="sys", then=NETWORK):
    """Run a program that cannot import the modules ``blocked``; return what it printed, errors included."""
    command = [sys.executable, "-W", "ignore", "-c", BLOCKED.format(blocked=blocked, before=before) + then, *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    assert done.returncode == 0, done.stdout
    return done.stdout


WITHOUT_SKL2ONNX = """
import os
import pickle
from pathlib import Path

import numpy as np
import onnx
import pandas as pd
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from onnxtrain_sklearn import MLP, OrtGradientClassifier, RealMLPClassifier, register_converters
from onnxtrain_sklearn._cli.program import main
from onnxtrain_sklearn.exceptions import ModelError

os.chdir(sys.argv[1])
X = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)
y = (X[:, 0] > 0).astype(int)
table = pd.DataFrame({"a": X[:, 0], "b": np.where(X[:, 1] > 0, "low", "high")})
for net, rows in ((OrtGradientClassifier(MLP((4,)), max_iter=2), X), (RealMLPClassifier(max_iter=2), table)):
    net.fit(rows, y)
    expected = net.predict(rows)
    assert (pickle.loads(pickle.dumps(net)).predict(rows) == expected).all()
    onnx.checker.check_model(net.to_onnx())
OrtGradientClassifier(OrtGradientClassifier(max_iter=2).fit(X, y).to_onnx(), max_iter=2).fit(X, y)

table.assign(y=y).to_csv("t.csv", index=False)
train = ["train", "t.csv", "--target", "y", "--output", "m.onnx", "-q", "--set"]
assert main([*train, "max_iter=2", "n_ensembles=1"]) == 0
assert main(["predict", "m.onnx", "t.csv", "--output", "p.csv", "-q"]) == 0
assert len(pd.read_csv("p.csv")) == 40
Path("m.onnx").unlink()
assert main([*train, "max_iter=1000000000", "--model", "mlp"]) == 1  # before it trains
assert not Path("m.onnx").exists()

remedy = r'which cannot be imported .*pip install "onnxtrain-sklearn\\[fitted\\]"'
fitted = LogisticRegression().fit(X, y)
for needs in (
    register_converters,
    OrtGradientClassifier(fitted).fit,
    OrtGradientClassifier(make_pipeline(StandardScaler(), fitted).fit(X, y)).fit,
):
    with pytest.raises(ModelError, match=remedy):
        needs(*(() if needs is register_converters else (X, y)))
with pytest.raises(ModelError, match="is a network of onnxtrain_sklearn"):  # refused with skl2onnx, too
    OrtGradientClassifier(OrtGradientClassifier(max_iter=2).fit(X, y)).fit(X, y)
"""


@pytest.mark.slow
def test_what_needs_skl2onnx_names_the_extra(tmp_path):
    pytest.importorskip("pandas")
    said = run_without(["skl2onnx"], str(tmp_path), then=WITHOUT_SKL2ONNX)
    assert 'pip install "onnxtrain-sklearn[fitted]"' in said  # of ``train --model mlp``


@pytest.mark.exhaustive
def test_networks_train_where_skl2onnx_is_another_version():
    hidden = sorted({module for module, _ in skl2onnx_bridge.PRIVATE.values()})
    run_without([*hidden, "skl2onnx"])


@pytest.mark.exhaustive
def test_networks_train_without_the_private_names_of_sklearn():
    code = """
import importlib, sys
from sklearn.utils import all_estimators
all_estimators()  # its own modules import what is deleted here
import {modules}
for module, name in {names}:
    delattr(sys.modules[module], name)
import numpy as np
from onnxtrain_sklearn import MLP, OrtGradientClassifier
X = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)
OrtGradientClassifier(MLP((4,)), max_iter=30).fit(X, X[:, 0] > 0, sample_weight=np.ones(40)).predict(X)
"""
    names = [(module, name) for name, module in sklearn_private.NAMES.items()]
    code = code.format(modules=", ".join(sorted({module for module, _ in names})), names=names)
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_missing_private_name_of_sklearn_is_reported(monkeypatch):
    monkeypatch.setitem(sklearn_private.NAMES, "_gone", "sklearn.utils")
    with pytest.raises(ModelError, match=r"has no sklearn\.utils\._gone, which fitted models"):
        sklearn_private._gone  # noqa: B018


def test_missing_private_name_of_skl2onnx_is_reported(monkeypatch):
    monkeypatch.setitem(skl2onnx_bridge.PRIVATE, "names", ("skl2onnx._supported_operators", "_gone"))
    with pytest.raises(ModelError, match=r"has no skl2onnx\._supported_operators\._gone") as error:
        OrtGradientClassifier(LogisticRegression().fit(X, Y)).fit(X, Y)
    OrtGradientClassifier(tol=9.0, n_iter_no_change=1).fit(X, Y)  # needs no conversion
    named = re.search(r"pip install (skl2onnx==1.20)\.0\.$", str(error.value))[1]
    declared = (Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8")
    assert f'"{named.replace("==", ">=")}"' in declared


class PublicParts:
    """An object of onnxruntime without its private attributes; it notes which were asked for, and what ran."""

    asked: ClassVar[list[str]] = []
    ran: ClassVar[list[str]] = []

    def __init__(self, real):
        self.real = real

    def __getattr__(self, name):
        if name.startswith("_"):
            self.asked.append(name)
            raise AttributeError(name)
        return getattr(self.real, name)

    def io_binding(self):
        return PublicParts(self.real.io_binding())

    def run_with_iobinding(self, binding):
        self.ran.append("bound")
        self.real.run_with_iobinding(binding.real)

    def run(self, outputs, feeds):
        self.ran.append("fed")
        return self.real.run(outputs, feeds)


def test_networks_train_without_private_onnxruntime_names(monkeypatch):
    """A step of three sessions and predictions, with equal bits; errors of a run are the same."""
    tune(monkeypatch, least_elements=10**6)  # NumPy needs no session

    def results():
        own = {"session.intra_op.allow_spinning": "0"}  # sessions with such options are not shared
        settings = {"max_iter": 2, "tol": -np.inf, "random_state": 0, "runtime": Runtime(session_options=own)}
        settings["alpha"] = 0
        net = OrtGradientClassifier(MLP((7,)), **settings).set_params(optimizer__max_grad_norm=1.0)
        found = quietly(net.fit, X, Y).predict_proba(X), net.predict(X[:1]), *net.weights_.values()
        session = sessions.create_session(net.model_.SerializeToString(), net._state.device)
        with pytest.raises(ModelError) as error:
            sessions.session_runner(session)(["label"], {"X": np.zeros((2, 4), np.float32)})
        return [one.tobytes() for one in found], str(error.value)

    expected = results()
    plain = onnxruntime.InferenceSession
    monkeypatch.setattr(onnxruntime, "InferenceSession", lambda *given, **named: PublicParts(plain(*given, **named)))
    assert results() == expected
    assert set(PublicParts.asked) == {"_sess", "_iobinding"}
    assert [PublicParts.ran.count(how) for how in ("bound", "fed")] == [6, 3]
