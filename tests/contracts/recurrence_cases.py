"""The cases of recurrences, which the portable engine unrolls or enters."""

from __future__ import annotations

import re

import numpy as np

from tests.contracts import references
from tests.contracts.gradient_cases import Case, adding_to, ints

CASES: list[Case] = []
case = adding_to(CASES)

STEPS, ROWS, FEATURES, SIZE = 3, 2, 3, 2
GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
OUTPUTS = {"RNN": "s, e", "GRU": "s, e", "LSTM": "s, e, k"}


def recurrence(name, settings="", inputs="x, w, r, b", outputs="s", ways=1, rows_first=False, **options):
    """Add a case of a recurrence; with ``rows_first`` the symbolic dimension is that of the rows, not of the steps."""
    n = GATES[name] * SIZE
    shapes = {
        "w": (ways, n, FEATURES), "r": (ways, n, SIZE), "b": (ways, 2 * n), "l": ints(3, 1).astype(np.int32),
        "h": (ways, ROWS, SIZE), "c": (ways, ROWS, SIZE), "p": (ways, 3 * SIZE),
    }  # fmt: skip
    given = {k: v for k, v in shapes.items() if k in re.findall(r"\w+", inputs)}
    used = re.findall(r"\w", outputs)
    product = {1: f"y = Tanh({used[0]})", 2: "y = Mul(s, e)", 3: "q = Mul(s, e) y = Mul(q, k)"}[len(used)]
    body = f"{outputs} = {name}<hidden_size = {SIZE}{settings}>({inputs}) {product}"
    x = (STEPS, ROWS, FEATURES)
    if rows_first:
        body, x = "t = Transpose<perm = [1, 0, 2]>(x) " + body.replace("(x,", "(t,"), (ROWS, STEPS, FEATURES)
    case(name, body, x=x, **given, **options)


FUNCTIONS = {
    "RNN": "Relu LeakyRelu Tanh ScaledTanh HardSigmoid Elu Softsign Softplus Sigmoid Affine ThresholdedRelu".split(),
    "GRU": ["HardSigmoid|Softsign", "Sigmoid|ScaledTanh", "HardSigmoid|Affine"],
    "LSTM": ["HardSigmoid|Softsign|Elu", "Sigmoid|Tanh|LeakyRelu", "Sigmoid|Affine|ScaledTanh"],
}
for name in GATES:
    recurrence(name, opsets=(11, 13, 14, 17, 18, 21, 22))
    recurrence(name, rows_first=True)
    recurrence(name, inputs="x, w, r")
    recurrence(name, inputs="x, w, r, b, , h" + ", c" * (name == "LSTM"))
    recurrence(name, inputs="x, w, r, b, l", rows_first=True)
    recurrence(name, inputs="x, w, r, b, l, h" + ", c" * (name == "LSTM"), outputs=OUTPUTS[name])
    recurrence(name, outputs=", e")
    recurrence(name, wrt=["r"])
    recurrence(name, wrt=["x"])
    recurrence(name, ", clip = 0.3", rows_first=True)
    for way, count in (("reverse", 1), ("bidirectional", 2), ("forward", 1)):
        recurrence(name, f', direction = "{way}"', ways=count, opsets=(11, 18))
        recurrence(name, f', direction = "{way}"', ways=count, rows_first=True, inputs="x, w, r, b, l, h")
        recurrence(name, f', direction = "{way}"', ways=count, outputs=", e", inputs="x, w, r, , l")
    for functions in FUNCTIONS[name]:
        listed = ", ".join(f'"{f}"' for f in functions.split("|"))
        vague = any(f in functions for f in ("Affine", "ScaledTanh")) or (
            name == "RNN" and functions in references.ALPHA
        )
        recurrence(name, f", activations = [{listed}]", refused="activation_alpha" if vague else "")
        recurrence(name, f", activations = [{listed}], activation_alpha = [0.7, 0.9], activation_beta = [0.4, 0.6]")
    doubled = ", ".join(f'"{f}"' for f in (FUNCTIONS[name][0] + "|" + FUNCTIONS[name][1]).split("|"))
    recurrence(
        name, f', direction = "bidirectional", activations = [{doubled}], activation_alpha = [0.7, 0.8], '
        "activation_beta = [0.4, 0.6]", ways=2, refused="count activation_alpha" if name == "RNN" else "",
    )  # fmt: skip
    case(
        name, f"y = {name}<hidden_size = 2, layout = 1>(x, w, r)",
        x=(2, 3, 3), w=(1, 2 * GATES[name], 3), r=(1, 2 * GATES[name], 2), refused="layout",
    )  # fmt: skip
both = ', direction = "bidirectional", activations = ["LeakyRelu", "Elu"], activation_alpha = [0.7, 0.9]'
recurrence("RNN", both, ways=2)
for settings in ("", ", clip = 0.3"):
    recurrence("GRU", f", linear_before_reset = 1{settings}")
    recurrence(
        "GRU", f', linear_before_reset = 1, direction = "bidirectional"{settings}', ways=2, inputs="x, w, r, b, l"
    )
recurrence("GRU", ", linear_before_reset = 1", inputs="x, w, r")
empty = {"x": (STEPS, ROWS, FEATURES), "l": ints(0, 2).astype(np.int32), "h": (1, ROWS, SIZE), "c": (1, ROWS, SIZE)}
for name, states, ends in (("LSTM", "h, c", "s, e, k"), ("GRU", "h", "s, e")):  # RNN of onnxruntime 1.19 leaves memory
    some = {key: array for key, array in empty.items() if key in ("x", "l", *states.split(", "))}
    shapes = {"w": (1, GATES[name] * SIZE, FEATURES), "r": (1, GATES[name] * SIZE, SIZE)}
    body = f"{ends} = {name}<hidden_size = {SIZE}>(x, w, r, , l, {states}) a = Tanh(e) y = Add(s, a)"
    case(name, body, **some, **shapes)
recurrence("LSTM", inputs="x, w, r, b, , h, c, p", outputs="s, e, k")
recurrence("LSTM", ", clip = 0.3", inputs="x, w, r, b, l, h, c, p", rows_first=True)
recurrence("LSTM", ", input_forget = 1")
recurrence("LSTM", outputs=", , k")
