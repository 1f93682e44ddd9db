"""The parameters of the estimator of several outputs: those of the others, and what is given by output."""

from __future__ import annotations

from collections.abc import Mapping

from .._estimators.parameters import CLASSIFIER, SHARED
from .._support.declared import Parameter
from .._support.rules import Instance, OneOf

_BY_OUTPUT = Instance(Mapping, "a dict by output")

_LEFT_OUT = ("output", "finetune")

OUTPUTS: Mapping[str, Parameter] = {
    **{name: declared for name, declared in SHARED.items() if name not in _LEFT_OUT},
    "model": Parameter("onnx.ModelProto, bytes, path or ONNXProgram", """
The graph to train, with the outputs that ``loss`` names: float32 or float64; float16 and bfloat16 are trained in
float32 and exported in their own type. Training starts from the weights in it; the model itself is not changed.
:meth:`describe` lists the weights. A final activation of an output is recognized: its loss is taken on the scores
before it."""),
    "loss": Parameter("dict of str to str, Loss or block", """
The loss on each trained output, by its name: a name in :data:`onnxtrain_sklearn.losses.LOSSES` or an object. A loss for
classification makes the output one of labels, a loss for regression one of numbers; a loss of your own says by its
attribute ``tasks`` which it is. Outputs without a loss are left out: they are neither trained nor predicted.""",
        (Instance(Mapping, "a dict of losses by output"), None)),
    "loss_weights": Parameter("dict of str to float, or None", """
What the loss on each output is multiplied by in their sum, by output; 1 for those that it does not name. None: 1 for
all.""", (Instance(Mapping, "a dict of numbers by output"), None)),
    "output_kind": Parameter("str or dict of str to str", """
What the outputs of the graph hold, as in :class:`OrtGradientClassifier` ("auto", "scores", "probabilities") and
:class:`OrtGradientRegressor` ("auto", "scores", "means"): for all, or by output, "auto" for others.""",
        (OneOf(("auto", "scores")), _BY_OUTPUT)),
    "class_axis": Parameter('{"auto", 1, -1} or dict', """
Axis of the classes in scores at each position of a row, as in :class:`OrtGradientClassifier`: for all outputs with
labels, or by output, "auto" for others.""", (OneOf(("auto", 1, -1)), _BY_OUTPUT)),
    "ignore_label": Parameter("int, float, str, None or dict", """
Label that does not count, as in :class:`OrtGradientClassifier`: for all outputs with labels,
or by output, -100 for others.""", (*CLASSIFIER["ignore_label"].rules, _BY_OUTPUT)),
    "class_weight": Parameter('"balanced", None or dict', """
Weights of the classes: "balanced" for all outputs with labels, or by output a dict of weights by label or "balanced",
as in :class:`OrtGradientClassifier`; None for others.
"balanced" is not for ``partial_fit``.""", (OneOf(("balanced",)), _BY_OUTPUT, None)),
    "scoring": Parameter("callable or None", """
Score on the validation data, higher is better, in place of the mean of the scores of the outputs: a function
``(estimator, X, y) -> float``. It is called after each epoch with an estimator that predicts the validation data ``X``
by the weights of that epoch. It needs validation data: ``early_stopping=True``, or ``X_val`` and ``y_val``."""),
}  # fmt: skip
"""The parameters of :class:`OrtGradientMultiOutput`."""
