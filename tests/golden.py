"""Digests of about 70 fits, to show that a change of structure changes no bit.

    python -m tests.golden store FILE       before the change
    python -m tests.golden compare FILE     after it, in the same environment on the same machine

Weights, losses, predictions and graphs are digested, by public names only. Times, paths of modules and dates of files
are left out. ``--only NAME,...`` runs some of the fits, ``--no-llvmlite`` without compiled code; ``-v`` prints times.
"""
# ruff: noqa: E402  (threads and compiled code are chosen before the imports)

from __future__ import annotations

import hashlib
import json
import os
import pickle
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
if "--no-llvmlite" in sys.argv:
    sys.modules["llvmlite"] = None  # type: ignore[assignment]
warnings.simplefilter("ignore")

import numpy as np
import onnx
import onnxruntime
import scipy.sparse as sp
from sklearn.base import clone
from sklearn.datasets import load_iris
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import GridSearchCV
from sklearn.naive_bayes import GaussianNB
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC, LinearSVC

import onnxtrain_sklearn as ots
from onnxtrain_sklearn import (
    LBFGS,
    MLP,
    SGD,
    Adagrad,
    Adam,
    AdamW,
    ConvNet,
    FineTuner,
    Linear,
    LoRA,
    OrtGradientClassifier,
    OrtGradientMultiOutput,
    OrtGradientRegressor,
    RealMLP,
    RealMLPClassifier,
    RealMLPRegressor,
    RMSprop,
    Runtime,
    TabM,
    TabMClassifier,
    TabMRegressor,
    callbacks,
    gradient_graph,
)

TRAINING = (
    "training" in Path(onnxruntime.__file__).as_posix()
    or hasattr(onnxruntime, "training")
    or os.path.isdir(os.path.join(os.path.dirname(onnxruntime.__file__), "training"))
)
NATIVE = "ort-training" if TRAINING else "portable"
DATA = Path("tests/files")

rng = np.random.default_rng(0)
X = rng.normal(size=(150, 8)).astype(np.float32)
y2 = (X[:, 0] + X[:, 1] * X[:, 2] > 0).astype(int)
y3 = y2 + (X[:, 3] > 0.5)
r1 = (X @ rng.normal(size=8) + np.sin(X[:, 0])).astype(np.float32)
r2 = np.stack([r1, X[:, 0] * 2 - X[:, 5]], 1)
multi = (X[:, :3] > 0).astype(int)
sw = rng.uniform(0.5, 2, size=150)
images = rng.normal(size=(60, 1, 8, 8)).astype(np.float32)
yi = (images.mean((1, 2, 3)) > 0).astype(int)
wide = sp.random(120, 2000, 0.02, format="csr", dtype=np.float32, random_state=0)
yw = (np.asarray(wide.sum(1)).ravel() > np.median(np.asarray(wide.sum(1)))).astype(int)
S = {"max_iter": 3, "batch_size": 32, "random_state": 0, "n_iter_no_change": 100}


def dig(value) -> str:
    h = hashlib.sha256()

    def feed(v):
        if isinstance(v, onnx.ModelProto):
            v = type(v).FromString(v.SerializeToString())
            h.update(v.SerializeToString(deterministic=True))
        elif isinstance(v, dict):
            for k in sorted(v, key=str):
                h.update(str(k).encode())
                feed(v[k])
        elif isinstance(v, (list, tuple)):
            for x in v:
                feed(x)
        elif isinstance(v, bytes):
            h.update(v)
        elif isinstance(v, np.ndarray) and v.dtype != object:
            h.update(str((v.dtype, v.shape)).encode())
            h.update(np.ascontiguousarray(v).tobytes())
        elif sp.issparse(v):
            feed(v.toarray())
        else:
            h.update(repr(v.tolist() if isinstance(v, np.ndarray) else v).encode())

    feed(value)
    return h.hexdigest()[:20]


def of(net, rows, *more):
    """Digest what a fitted estimator holds and predicts."""
    out = {"predict": net.predict(rows), "onnx": net.to_onnx()}
    for name in ("weights_", "loss_curve_", "n_iter_"):
        if hasattr(net, name):
            out[name] = getattr(net, name)
    if hasattr(net, "predict_proba"):
        try:
            out["proba"] = net.predict_proba(rows)
        except Exception as error:
            out["proba"] = type(error).__name__
    for i, m in enumerate(more):
        out[f"more{i}"] = m
    return {k: dig(v) for k, v in out.items()}


def folder_digest(path):
    return {f.relative_to(path).as_posix(): dig(f.read_bytes()) for f in sorted(Path(path).rglob("*")) if f.is_file()}


FITS = {}


def fit(function):
    FITS[function.__name__] = function
    return function


def simple(name, make, rows, y, **kw):
    FITS[name] = lambda: of(make().fit(rows, y, **kw), rows)


C, R = OrtGradientClassifier, OrtGradientRegressor
for engine in ["portable", "compiled", "auto", *([NATIVE] if TRAINING else [])]:
    simple(f"clf_mlp_{engine}", lambda e=engine: C(MLP((16,)), engine=e, **S), X, y3)
    simple(f"reg_mlp_{engine}", lambda e=engine: R(MLP((16, 8), dropout=0.2), engine=e, alpha=1e-3, **S), X, r1)
    simple(
        f"conv_{engine}", lambda e=engine: C(ConvNet(), engine=e, optimizer=AdamW(max_grad_norm=0.5), **S), images, yi
    )
for name, o in {
    "sgd": SGD(momentum=0.9, nesterov=True),
    "adam": Adam(),
    "adamw": AdamW(),
    "rmsprop": RMSprop(),
    "adagrad": Adagrad(),
    "lbfgs": LBFGS(),
}.items():
    simple(f"opt_{name}", lambda o=o: R(MLP((12,)), optimizer=o, **S), X, r1)
    if name != "lbfgs":
        simple(f"opt_{name}_compiled", lambda o=o: C(MLP((12,)), optimizer=o, engine="compiled", **S), X, y2)
simple("weighted", lambda: C(MLP((8,)), class_weight="balanced", **S), X, y3, sample_weight=sw)
simple("multilabel", lambda: C(MLP((8,)), **S), X, multi)
simple("several_targets", lambda: R(MLP((8,)), target_scaling="auto", **S), X, r2)
simple("early_stopping", lambda: C(MLP((8,)), early_stopping=True, **{**S, "max_iter": 8}), X, y2)
simple("ema_accumulate", lambda: R(MLP((8,)), optimizer=AdamW(ema_decay=0.9, accumulate=2), **S), X, r1)
simple("drop_last", lambda: R(MLP((8,)), drop_last=True, l1_ratio=0.5, alpha=0.01, **S), X, r1)
simple(
    "schedules",
    lambda: R(
        MLP((8,)),
        optimizer=AdamW(weight_decay_schedule="linear"),
        learning_rate="cosine",
        dropout_schedule="linear",
        **S,
    ),
    X,
    r1,
)
simple("factors", lambda: R(MLP((8,)), runtime=Runtime(checkpoint_activations=True), **S), X, r1)
simple("sparse", lambda: C(MLP((8,)), optimizer=AdamW(max_grad_norm=0.1), **S), wide, yw)
simple("sparse_lazy", lambda: C(MLP((8,)), optimizer=AdamW(lazy_rows=True), **S), wide, yw)
simple("sparse_sgd", lambda: C(Linear(), optimizer="sgd", learning_rate_init=0.1, **S), wide, yw)
simple("tabm_net", lambda: C(TabM(4, (16,)), **S), X, y2)
simple("realmlp_net", lambda: C(RealMLP(), **S), X, y2)
for loss in ["huber", "quantile", "poisson", "absolute_error"]:
    simple(f"loss_{loss}", lambda q=loss: R(MLP((8,)), loss=q, **S), X, np.abs(r1) if loss == "poisson" else r1)
for loss in ["focal", "hinge"]:
    simple(f"loss_{loss}", lambda q=loss: C(MLP((8,)), loss=q, **S), X, y2)


@fit
def session_options():
    return of(
        R(
            MLP((8,)),
            runtime=Runtime(session_options={"intra_op_num_threads": 1}, providers=["CPUExecutionProvider"]),
            **S,
        ).fit(X, r1),
        X,
    )


@fit
def device_cpu():
    return of(R(MLP((8,)), device="cpu", **S).fit(X, r1), X)


FITTED = {
    "logistic": lambda: make_pipeline(StandardScaler(), LogisticRegression()).fit(X, y3),
    "mlp": lambda: MLPClassifier((8,), max_iter=20, random_state=0).fit(X, y3),
    "svc": lambda: SVC(random_state=0).fit(X, y2),
    "linear_svc": lambda: LinearSVC(random_state=0).fit(X, y3),
    "nb": lambda: GaussianNB().fit(X, y3),
    "forest": lambda: RandomForestClassifier(5, max_depth=3, random_state=0).fit(X, y3),
}
for name, m in FITTED.items():

    def tune(m=m):
        model = m()
        y = y3 if len(model.classes_) == 3 else y2
        net = C(model, finetune=None, **S).fit(X, y)
        auto = C(model, random_state=0).fit(X, y)
        try:
            back = dig(net.to_sklearn().predict(X))
        except Exception as error:
            back = type(error).__name__
        return {**of(net, X, back), **{f"auto_{k}": v for k, v in of(auto, X).items()}}

    FITS[f"fitted_{name}"] = tune


@fit
def fitted_ridge():
    model = make_pipeline(StandardScaler(), Ridge()).fit(X, r1)
    net = R(model, finetune=FineTuner(), random_state=0).fit(X, r1 + 1)
    return of(net, X, net.to_sklearn().predict(X), net.to_sklearn()[-1].coef_)


@fit
def partial_and_pickle():
    net = C(MLP((16,), dropout=0.1), **S)
    for i in range(0, 150, 50):
        net.partial_fit(X[i : i + 50], y3[i : i + 50], classes=[0, 1, 2])
    again = pickle.loads(pickle.dumps(net))
    again.partial_fit(X, y3)
    net.partial_fit(X, y3)
    return {**of(again, X), **{f"direct_{k}": v for k, v in of(net, X).items()}}


@fit
def warm_start():
    net = R(MLP((8,)), warm_start=True, **S).fit(X, r1)
    net.set_params(max_iter=2).fit(X, r1)
    return of(net, X, clone(net).fit(X, r1).predict(X))


@fit
def grid_search():
    search = GridSearchCV(C(MLP((8,)), **S), {"model__hidden_layer_sizes": [(4,), (8,)], "alpha": [0.0, 0.1]}, cv=2)
    try:
        search.fit(X, y2)
    except ValueError:
        search = GridSearchCV(C(MLP((8,)), **S), {"alpha": [0.0, 0.1]}, cv=2).fit(X, y2)
    return {"scores": dig(search.cv_results_["mean_test_score"]), **of(search.best_estimator_, X)}


@fit
def multi_output():
    W, A, B = (", ".join(f"{v:.4f}" for v in np.random.default_rng(1).normal(size=n)) for n in (48, 6, 18))
    model = onnx.parser.parse_model(
        f"""
<ir_version: 8, opset_import: ["": 18]>
net (float[N, 8] X) => (float[N, 1] size, float[N, 3] kind)
<float[8, 6] W = {{{W}}}, float[6, 1] A = {{{A}}}, float[6, 3] B = {{{B}}}> {{
  H0 = MatMul(X, W)  H = Tanh(H0)  size = MatMul(H, A)  kind = MatMul(H, B) }}"""
    )
    net = OrtGradientMultiOutput(model, loss={"size": "squared_error", "kind": "log_loss"}, **S)
    net.fit(X, {"size": r1, "kind": y3})
    p = net.predict(X)
    again = pickle.loads(pickle.dumps(net))
    return {
        "predict": dig(p),
        "onnx": dig(net.to_onnx()),
        "weights": dig(net.weights_),
        "training": dig(again.to_training_onnx(batch_size=16)),
        "again": dig(again.predict(X)),
    }


@fit
def training_onnx():
    net = C(MLP((8,)), **S).fit(X, y3)
    return {
        "a": dig(net.to_training_onnx()),
        "b": dig(net.to_training_onnx(batch_size=7)),
        "r": dig(R(MLP((8,)), optimizer="sgd", **S).fit(X, r1).to_training_onnx()),
    }


@fit
def export_training():
    net = C(MLP((8,)), learning_rate="cosine", **S).fit(X, y3)
    with tempfile.TemporaryDirectory() as folder:
        net.export_training(folder + "/one")
        ots.export_training(
            make_pipeline(StandardScaler(), LogisticRegression()).fit(X, y3),
            folder + "/two",
            X,
            y3,
            loss="log_loss",
            optimizer="adamw",
        )
        training = ots.load_training(folder + "/one")
        found = {"one": folder_digest(folder + "/one"), "two": folder_digest(folder + "/two")}
        state = training.state
        net.load_state(state)
        return {
            **found["one"],
            **{f"two/{k}": v for k, v in found["two"].items() if k != "manifest.json"},
            "state": dig(dict(state)),
            **of(net.partial_fit(X, y3), X),
        }


@fit
def adapters():
    tuned = C(
        MLPClassifier((8,), max_iter=20, random_state=0).fit(X, y3), finetune=None, adapters=LoRA(rank=2), **S
    ).fit(X, y3)
    out = of(tuned, X, tuned.to_onnx(adapter=True))
    if not TRAINING:
        with tempfile.TemporaryDirectory() as folder:
            tuned.save_adapter(folder + "/a.onnx_adapter")
            out["file"] = dig(Path(folder, "a.onnx_adapter").read_bytes())
    return out


@fit
def checkpoints():
    with tempfile.TemporaryDirectory() as folder:
        point = callbacks.Checkpoint(folder + "/c")
        net = C(MLP((8,), dropout=0.1), callbacks=[point], **S).fit(X, y3)
        names = sorted(p.relative_to(folder).as_posix() for p in Path(folder).rglob("*"))
        return {**of(net, X), "names": dig(names)}


@fit
def other_callbacks():
    net = C(MLP((8,)), callbacks=[callbacks.GradientStatistics(), callbacks.WeightAveraging()], **S).fit(X, y3)
    return of(net, X)


@fit
def artifacts():
    net = R(Linear(), **S).fit(X, r1)
    with tempfile.TemporaryDirectory() as folder:
        net.export_artifacts(folder)
        return folder_digest(folder)


@fit
def classic():
    from onnxtrain_sklearn.classic import onnxblock
    from onnxtrain_sklearn.classic.artifacts import LossType, OptimType, generate_artifacts
    from onnxtrain_sklearn.classic.grad_helper import DerivativeOptions, onnx_derivative
    from onnxtrain_sklearn.classic.ortgradient import OrtGradientForwardBackward
    from onnxtrain_sklearn.classic.training_session import TrainingParameters, TrainingSession  # noqa: F401

    model = onnx.parser.parse_model("""
<ir_version: 8, opset_import: ["": 18]>
linear (float[N, 2] X) => (float[N, 1] Y) <float[2, 1] W = {0.5, -1}, float[1] b = {0.1}>
{ Z = MatMul(X, W)  Y = Add(Z, b) }""")
    out = {
        f"d{int(o)}": dig(onnx_derivative(model, options=o))
        for o in (DerivativeOptions.Zero, DerivativeOptions.KeepOutputs)
    }
    trained = OrtGradientForwardBackward(model)
    function = trained.new_instance()
    W, b = trained.get_initializer("W"), trained.get_initializer("b")
    f = function.forward([X[:, :2], W, b], training=True)[0].numpy()
    out["fb"] = dig([f, *[g.numpy() for g in function.backward([f])]])
    with tempfile.TemporaryDirectory() as folder:
        generate_artifacts(
            model,
            requires_grad=["W"],
            frozen_params=["b"],
            loss=LossType.MSELoss,
            optimizer=OptimType.AdamW,
            artifact_directory=folder,
        )
        out.update(folder_digest(folder))
    out["block"] = dig(sorted(onnxblock.__all__))
    return out


@fit
def gradients():
    model = onnx.parser.parse_model("""
<ir_version: 8, opset_import: ["": 18]>
net (float[N, 3] X) => (float loss) <float[3, 2] W = {0.5, -1, 0.25, 2, 1, -0.5}, float[2] b = {0.1, 0.2}>
{ A = MatMul(X, W)  B = Add(A, b)  C = Relu(B)  loss = ReduceMean <keepdims = 0> (C) }""")
    return {
        e: dig(gradient_graph(model, wrt=["W", "b"], engine=e)) for e in ["portable", *([NATIVE] if TRAINING else [])]
    }


@fit
def realmlp():
    import pandas as pd

    T = pd.DataFrame({"a": X[:, 0], "b": X[:, 1], "c": np.where(X[:, 2] > 0, "u", "v")})
    small = {"max_iter": 2, "random_state": 0}
    clf = RealMLPClassifier(**small).fit(T, y3)
    reg = RealMLPRegressor(**small).fit(X, r1)
    again = pickle.loads(pickle.dumps(clf))
    return {
        "onnx": dig(clf.to_onnx()),
        "proba": dig(clf.predict_proba(T)),
        "again": dig(again.predict_proba(T)),
        "ronnx": dig(reg.to_onnx()),
        "r": dig(reg.predict(X)),
    }


@fit
def tabm():
    small = {"max_iter": 2, "random_state": 0}
    clf = TabMClassifier(**small).fit(X, y3)
    reg = TabMRegressor(**small).fit(X, r1)
    with tempfile.TemporaryDirectory() as folder:
        clf.export_training(folder + "/one", X, y3)
        files = folder_digest(folder + "/one")
    return {"onnx": dig(clf.to_onnx()), "proba": dig(clf.predict_proba(X)), "ronnx": dig(reg.to_onnx()), **files}


for name in ["lstm", "mha", "norms"]:

    def exported(name=name):
        known = np.load(DATA / f"exported_{name}.npz")
        return of(
            R(
                str(DATA / f"exported_{name}.onnx"), optimizer=SGD(), learning_rate_init=0.05, engine="portable", **S
            ).fit(known["X"], known["y"]),
            known["X"],
        )

    FITS[f"exported_{name}"] = exported


@fit
def ml_file():
    from skl2onnx import to_onnx

    model = make_pipeline(StandardScaler(), LogisticRegression()).fit(X, y3)
    given = to_onnx(model, X[:1], options={"zipmap": False}, target_opset=18)
    return of(C(given.SerializeToString(), **S).fit(X, y3), X)


@fit
def skl2onnx_plugin():
    from skl2onnx import to_onnx

    net = make_pipeline(StandardScaler(), C(MLP((8,)), **S)).fit(X, y3)
    given = to_onnx(net, X[:1], target_opset=18)
    session = onnxruntime.InferenceSession(given.SerializeToString(), providers=["CPUExecutionProvider"])
    return {"labels": dig(session.run(None, {session.get_inputs()[0].name: X})[0])}


@fit
def described():
    net = C(MLP((8,)), **S).fit(X, y3)
    return {"text": dig(str(net.describe())), "html": dig(len(net._repr_html_()))}


@fit
def command_line():
    with tempfile.TemporaryDirectory() as folder:
        load_iris(as_frame=True).frame.to_csv(folder + "/iris.csv", index=False)
        call = [sys.executable, "-W", "ignore", "-m", "onnxtrain_sklearn"]
        done = subprocess.run(
            [*call, "train", "iris.csv", "--target", "target", "--output", "iris.onnx"],
            cwd=folder,
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONPATH": os.getcwd()},
        )
        help_ = subprocess.run(
            [*call, "--help"], cwd=folder, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": os.getcwd()}
        )
        return {
            "rc": done.returncode,
            "file": dig(Path(folder, "iris.onnx").read_bytes()) if not done.returncode else done.stderr[-300:],
            "help": dig(help_.stdout),
        }


@fit
def public_names():
    import inspect

    return {
        "all": dig(sorted(ots.__all__)),
        **{
            f"signature_{n}": dig(str(inspect.signature(getattr(ots, n))))
            for n in sorted(ots.__all__)
            if inspect.isclass(getattr(ots, n))
        },
        **{f"all_{m.__name__}": dig(sorted(n for n in dir(m) if not n.startswith("_"))) for m in ()},
    }


def main():
    mode, file = sys.argv[1:3]
    only = sys.argv[sys.argv.index("--only") + 1].split(",") if "--only" in sys.argv else None
    if "--no-llvmlite" in sys.argv and only is None:
        only = [
            n
            for n in FITS
            if "compiled" not in n and n.startswith(("clf", "reg", "opt", "sparse", "ema", "multi", "several"))
        ]
    results, total = {}, time.perf_counter()
    for name, function in FITS.items():
        if only and name not in only:
            continue
        start = time.perf_counter()
        try:
            results[name] = function()
        except Exception as error:
            results[name] = {"ERROR": f"{type(error).__name__}: {error}"[:300].replace(os.getcwd(), "")}
        if "-v" in sys.argv or "ERROR" in results[name]:
            print(f"{name:<28}{time.perf_counter() - start:6.2f} s {results[name].get('ERROR', '')}", flush=True)
    print(f"{len(results)} fits, {time.perf_counter() - total:.0f} s; package {ots.__file__}")
    if mode == "store":
        Path(file).write_text(json.dumps(results, indent=1, sort_keys=True))
        return 0
    known = json.loads(Path(file).read_text())
    wrong = [
        f"{n}.{k}"
        for n in results
        for k in {*results[n], *known.get(n, {})}
        if results[n].get(k) != known.get(n, {}).get(k)
    ]
    missing = [] if only else sorted({*known} - {*results})
    print("different:", sorted(wrong) or "nothing", "missing:", missing or "nothing")
    return bool(wrong or missing)


if __name__ == "__main__":
    sys.exit(main())
