"""Parameters of the estimators and data that nobody should give, beside some that are right."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pandas as pd
import scipy.sparse as sp

from onnxtrain_sklearn import LBFGS, MLP, SGD, Linear, LoRA, Runtime, losses, schedules

WILD: list[Any] = [
    None,
    -1,
    0,
    1,
    2.5,
    float("nan"),
    float("inf"),
    "",
    "x",
    "n" * 500,
    b"",
    [],
    {},
    (),
    [1],
    ["x"],
    True,
    False,
    np.float32(0.1),
    np.int64(2),
    np.array([1, 2]),
    10**30,
    -(10**30),
    1j,
    object(),
    dict,
    {"a": 1},
    {1: 2},
    np.nan,
    "auto",
    "all",
    "*",
]


def is_matrix(name: str, array: np.ndarray) -> bool:
    return array.ndim > 1


def always(name: str, array: np.ndarray) -> str:
    return "no"


PARAMETERS: dict[str, list[Any]] = {
    "loss": [*losses.LOSSES, losses.LogLoss(), losses.LogLoss(0.1), losses.Huber(float("nan")), losses.LogLoss],
    "optimizer": [
        "sgd",
        "adam",
        "adamw",
        "rmsprop",
        "adagrad",
        "lbfgs",
        SGD(momentum=0.9),
        SGD(momentum=2.0),
        LBFGS(),
        SGD,
    ],
    "learning_rate_init": [0.1, 0.0, 1e30, 1e-300],
    "learning_rate": ["constant", "cosine", "one_cycle", "linear", schedules.Cosine(), schedules.Cosine],
    "batch_size": [1, 2, 5, 10**6, 10**9],
    "max_iter": [1, 3],
    "shuffle": [False],
    "alpha": [0.1, 1e300],
    "l1_ratio": [0.5, 1.0],
    "optimizer__max_grad_norm": [0.1, 1e300],
    "adapters": [LoRA(1), LoRA(2, ["W*"])],
    "trainable": ["*", ["*"], "W*", ["W", "b"], "Y", is_matrix, always],
    "model__output": ["Y", "Z", "label", "probabilities", "H"],
    "model__output_kind": ["scores", "probabilities", "means"],
    "model__training_mode": [True],
    "tol": [0.0, float("inf"), -float("inf")],
    "n_iter_no_change": [1, 2],
    "early_stopping": [True],
    "validation_split": [0.5, 0.01, 0.99],
    "warm_start": [True],
    "random_state": [1, np.random.RandomState(1), np.random.default_rng(1)],
    "verbose": [0],
    "device": ["cpu", "cuda", "cuda:7", "cpu:0"],
    "runtime": [
        Runtime(checkpoint_activations=True),
        *map(Runtime, [["CPUExecutionProvider"], ["CUDA"], "CPUExecutionProvider", [("CPUExecutionProvider", {})]]),
        *(Runtime(provider_options=given) for given in ([{}], [{"a": "b"}], 3)),
        Runtime(session_options={"intra_op_num_threads": 1}),
        Runtime(session_options={"x.y": 1}),
        Runtime(session_options={"intra_op_num_threads": -5}),
        Runtime(session_options={"graph_optimization_level": "x"}),
        Runtime(session_options=[]),
        Runtime,
    ],
    "optimizer__lazy_rows": [True, False],
    "model__class_axis": [1, -1, "auto"],
    "ignore_label": [0, -100, None, "a", 1.0],
    "class_weight": ["balanced", {0: 1, 1: 2, 2: 3}, {0: -1}, {"a": "b"}],
    "clip_predictions": [True],
    "model": [
        MLP((3,)),
        MLP((3, 3), "mish", dropout=0.5, normalization="batch", residual=True),
        MLP(()),
        MLP((0,)),
        MLP("x"),
        MLP,
        Linear(),
        "mlp",
        b"",
        "",
        [],
        np.zeros(3),
    ],
}

NO_CALLS = {"max_iter": (10**30,), "verbose": tuple(WILD)}
"""Values that are right and would take long, or print much."""


def drawn_parameters(rng: random.Random, chance: float, names: list[str]) -> dict[str, Any]:
    """Return some parameters of an estimator, among those ``names``, each with a right value or a wild one."""
    found: dict[str, Any] = {}
    while rng.random() < chance:
        name = rng.choice([n for n in PARAMETERS if n in names or "__" in n])
        wild = [
            value
            for value in WILD
            if not any(value is other or repr(value) == repr(other) for other in NO_CALLS.get(name, ()))
        ]
        found[name] = rng.choice(wild) if wild and rng.random() < 0.4 else rng.choice(PARAMETERS[name])
    return found


def drawn_data(rng: random.Random, X: Any, y: np.ndarray, chance: float) -> tuple[Any, Any, Any]:
    """Return data and row weights that are like the ones given, or not."""
    weights = rng.choice([None, None, None, np.arange(len(y)) + 1.0])
    if rng.random() < chance:
        X = (
            {k: _array(rng, v) if rng.random() < 0.5 else v for k, v in X.items()}
            if isinstance(X, dict)
            else _array(rng, X)
        )
    if rng.random() < chance / 2:
        y = _array(rng, y)
    if rng.random() < chance / 3:
        weights = _array(rng, np.ones(12))
    if rng.random() < chance / 10:
        X = rng.choice([{"X": X}, {"x": X, "X": X}, {}, WILD[rng.randrange(len(WILD))]])
    return X, y, weights


def _array(rng: random.Random, array: Any) -> Any:
    """Return an array, or what is none, in another form, of another type or with other numbers."""
    kind = rng.choice(list(FORMS))
    try:
        return FORMS[kind](rng, np.array(array))
    except (ValueError, TypeError, IndexError, OverflowError):
        return array


def _with(rng: random.Random, array: np.ndarray) -> np.ndarray:
    array = array.astype(rng.choice([np.float64, np.float32, object]))
    array.flat[rng.randrange(array.size)] = rng.choice(
        [np.nan, np.inf, -np.inf, 1e300, -1e300, 1e39, 1e-320, None, "a"]
    )
    return array


def _integers(rng: random.Random, array: np.ndarray) -> np.ndarray:
    array = array.astype(np.int64)
    array.flat[rng.randrange(array.size)] = rng.choice([-1, 10**6, 2**40, 2**63 - 1, -(2**63)])
    return array


def _typed(rng: random.Random, array: np.ndarray) -> np.ndarray:
    types = [
        np.float64,
        np.float16,
        np.int8,
        np.int64,
        np.uint64,
        bool,
        object,
        str,
        "S3",
        complex,
        "M8[s]",
        np.longdouble,
    ]
    return array.astype(rng.choice(types))


def _frame(rng: random.Random, array: np.ndarray) -> Any:
    columns: list[Any] = [f"c{i}" for i in range(array.reshape(len(array), -1).shape[1])]
    if rng.random() < 0.3:
        columns = rng.choice([[0, *columns[1:]], ["same"] * len(columns), list(range(len(columns)))])
    frame = pd.DataFrame(array.reshape(len(array), -1), columns=columns)
    if rng.random() < 0.4:
        frame[frame.columns[0]] = rng.choice([["a", "b"] * (len(frame) // 2), [None] * len(frame)])
    return frame


FORMS: dict[str, Any] = {
    "number": _with,
    "integer": _integers,
    "type": _typed,
    "frame": _frame,
    "series": lambda rng, a: pd.Series(list(a)),
    "list": lambda rng, a: a.tolist(),
    "ragged": lambda rng, a: [*a.tolist()[:-1], [1.0]],
    "flat": lambda rng, a: a.ravel(),
    "deep": lambda rng, a: a[..., None],
    "deeper": lambda rng, a: a[None],
    "rows": lambda rng, a: a[: rng.choice([0, 1, 2, 3])],
    "columns": lambda rng, a: a[:, : rng.choice([0, 1, 3])],
    "wide": lambda rng, a: np.concatenate([a, a], axis=-1),
    "fortran": lambda rng, a: np.asfortranarray(a),
    "backwards": lambda rng, a: a[::-1],
    "frozen": lambda rng, a: _frozen(a),
    "masked": lambda rng, a: np.ma.masked_array(a, mask=a > 0),
    "matrix": lambda rng, a: np.asmatrix(a),
    "sparse": lambda rng, a: rng.choice([sp.csr_matrix, sp.coo_array, sp.dok_matrix, sp.csc_array])(a),
    "swapped": lambda rng, a: a.astype(a.dtype.newbyteorder()),
    "records": lambda rng, a: np.array([tuple(r) for r in a], [(f"f{i}", float) for i in range(a.shape[1])]),
    "constant": lambda rng, a: np.full_like(a, rng.choice([0, 1, 5])),
    "words": lambda rng, a: np.array(["a", "b", "c"])[np.arange(a.size) % 3].reshape(a.shape),
    "none": lambda rng, a: None,
    "scalar": lambda rng, a: 3,
    "iterator": lambda rng, a: iter(a),
    "zero": lambda rng, a: np.array(0.0),
    "wild": lambda rng, a: rng.choice(WILD),
}


def _frozen(array: np.ndarray) -> np.ndarray:
    array.flags.writeable = False
    return array
