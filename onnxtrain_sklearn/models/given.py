"""A model together with how its graph is read: which output is trained, and what it holds."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Integral
from typing import Any, ClassVar

from .._ir.files import without_program
from .._utils.params import Component, Instance, OneOf, Range, Rules, copied
from ..exceptions import InvalidParameterError, instead_of
from .base import ModelLike

_BY_OUTPUT = Instance(Mapping, "a dict by output")


class GraphModel(Component):
    """A model, and how its graph is read.

    A plain model is read with the defaults. All settings apply to ONNX graphs. ``output_kind`` and ``class_axis`` also
    apply to graphs of your own builders, ``output`` to a fitted model that gets a new head. ``fit`` refuses a setting
    that does not apply to the model.

    Parameters
    ----------
    graph : onnx.ModelProto, bytes, path, ONNXProgram, fitted estimator, graph builder, str or None
        The model, as the estimators take it without settings.
    output : str or None, default=None
        The output to train. None: the first float output that depends on a float initializer. With
        ``FineTuner(new_head=True)`` it may be any tensor inside the graph, which the new head then reads; with a loss
        that the graph computes (``loss="output"``), any that predictions are to return. To train
        several outputs, use :class:`~onnxtrain_sklearn.OrtGradientMultiOutput`, whose ``loss`` names them.
    features : str or None, default=None
        The tensor inside the graph that ``transform`` of an estimator returns. None: the input of the last layer;
        with ``loss="reconstruction"``, of the narrowest one. It may be set after ``fit``.
    output_kind : {"auto", "scores", "probabilities", "means"} or dict of str to str, default="auto"
        The content of the output. For several outputs, a dict by output; those that it lacks are "auto". ``fit`` runs
        the graph as given on some rows of ``X``, and raises ModelError if the untrained estimator predicts something
        else.

        For a classifier: "scores" are logits or margins. "probabilities" are those of the classes, or of the second of
        two; if the scores before them cannot be found, the loss is computed from their logarithms. "auto" chooses
        probabilities if a softmax or sigmoid is found, or if the last operators keep every number in [0, 1]; with a
        warning also if the numbers lie in [0, 1] and add up to one on rows of ``X``. Otherwise it chooses scores.

        For a regressor: "means" are the predictions. "scores" are the logarithms of the means for losses with a log
        link (poisson, gamma, tweedie), and equal to the means for all others. "auto" chooses means if the last
        operators allow no negative number (Exp, Softplus, Relu, Sigmoid, bounds), otherwise scores.
    training_mode : bool, default=False
        Whether to switch BatchNormalization and Dropout of an ONNX graph to training mode: training then uses batch
        statistics, updates running statistics, and drops units. False: train the graph as it is; a file exported in
        evaluation mode has fixed statistics and no Dropout. Predictions and ``to_onnx()`` always use evaluation mode. A
        BatchNormalization whose scale and shift ``trainable`` freezes keeps its statistics in any case. If the exporter
        folded normalizations into convolutions, a warning says so, or an error if no node is left to switch.
    class_axis : {"auto", 1, -1} or dict of str to these, default="auto"
        Axis of the classes if the graph has scores at each position of a row, such as the words of a text or the pixels
        of an image, and ``y`` a label at each position. "auto" assumes labels at positions if ``y`` has more than two
        axes, or fewer than the scores; the axis is the last one for scores (n, ..., k), the first after the rows for
        (n, k, ...). Set 1 or -1 to choose the axis, or to say that scores without an axis of classes belong to the
        second of two classes at each position. For several outputs, a dict by output; those that it lacks are "auto".
        Not for regressors.
    constant_inputs : dict of str to number or array, default=None
        Inputs of the graph that are the same in every call, such as a sampling rate, a flag or an adjacency matrix. X
        then lacks them. They become constants of the graph: predictions, pickles and exported files need nothing else,
        and a file that ``to_onnx`` writes lacks these inputs. They are never trained. Types and shapes are those that
        the graph declares; numbers that its type cannot hold are refused. None: X holds all inputs.
    batch_axis : int or dict of str to int, default=0
        Axis of the rows in the file: of all inputs and outputs, or a dict by their names, in which those with the rows
        first need no entry. X, y and predictions have the rows first in any case: for an input (2, N, 64) with
        ``batch_axis={"state": 1}``, X holds an array (N, 2, 64). The inputs of ``to_onnx()`` have the axes of the file,
        and so has the output of a regressor; labels, probabilities and exported training graphs have the rows first.

    Examples
    --------
    >>> import onnx
    >>> from sklearn.datasets import load_iris
    >>> from onnxtrain_sklearn import GraphModel, OrtGradientClassifier
    >>> graph = onnx.parser.parse_model('''<ir_version: 8, opset_import: ["": 18]>
    ... net (float[N, 4] X) => (float[N, 3] scores, float[N, 3] probabilities)
    ... <float[4, 3] W = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}, float[3] b = {0, 0, 0}>
    ... { scores = Gemm(X, W, b)  probabilities = Softmax(scores) }''')
    >>> X, y = load_iris(return_X_y=True)
    >>> model = GraphModel(graph, output="probabilities")
    >>> classifier = OrtGradientClassifier(model, learning_rate_init=0.05, tol=1e-3, random_state=0).fit(X, y)
    >>> classifier.score(X, y) > 0.9
    True

    A graph with the rate of its signal as an input, and a state with the rows on axis 1:

    >>> import numpy as np
    >>> from onnxtrain_sklearn import OrtGradientRegressor
    >>> graph = onnx.parser.parse_model('''<ir_version: 8, opset_import: ["": 18]>
    ... net (float[N, 4] signal, float[1, N, 4] state, float rate) => (float[N, 1] y)
    ... <float[4, 1] W = {1, 1, 1, 1}, int64[1] axis = {0}>
    ... { last = Squeeze(state, axis)  sum = Add(signal, last)  scaled = Mul(sum, rate)  y = MatMul(scaled, W) }''')
    >>> model = GraphModel(graph, constant_inputs={"rate": 0.5}, batch_axis={"state": 1})
    >>> X = {"signal": np.ones((5, 4)), "state": np.ones((5, 1, 4))}
    >>> regressor = OrtGradientRegressor(model, max_iter=20, tol=1e9, n_iter_no_change=1).fit(X, np.zeros(5))
    >>> [(value.name, len(value.type.tensor_type.shape.dim)) for value in regressor.to_onnx().graph.input]
    [('signal', 2), ('state', 3)]
    """

    __module__ = "onnxtrain_sklearn.models"  # the path by which pickles name it
    valid: ClassVar[Rules] = {
        "output": (Instance(str, "the name of an output of the graph"), None),
        "output_kind": (OneOf(("auto", "scores", "probabilities", "means")), _BY_OUTPUT),
        "features": (Instance(str, "the name of a tensor inside the graph"), None),
        "training_mode": (bool,),
        "class_axis": (OneOf(("auto", 1, -1)), _BY_OUTPUT),
        "constant_inputs": (Instance(Mapping, "a dict from names of inputs to numbers or arrays"), None),
        "batch_axis": (Range(Integral, 0), Instance(Mapping, "a dict from names of inputs and outputs to axes")),
    }

    def __init__(
        self,
        graph: ModelLike = None,
        output: str | None = None,
        output_kind: str | Mapping[str, str] = "auto",
        *,
        features: str | None = None,
        training_mode: bool = False,
        class_axis: int | str | Mapping[str, int | str] = "auto",
        constant_inputs: Mapping[str, Any] | None = None,
        batch_axis: int | Mapping[str, int] = 0,
    ) -> None:
        self.graph = graph
        self.output = output
        self.output_kind = output_kind
        self.features = features
        self.training_mode = training_mode
        self.class_axis = class_axis
        self.constant_inputs = constant_inputs
        self.batch_axis = batch_axis

    def validate(self) -> None:
        """Raise InvalidParameterError if a setting breaks its rules, or the model has settings of its own."""
        super().validate()
        if isinstance(self.graph, GraphModel):
            raise InvalidParameterError(
                f"The 'graph' parameter of GraphModel must be a model, {instead_of(self.graph)}."
            )
        given: Any = self.batch_axis
        every = list(given.values()) if isinstance(given, Mapping) else [given]
        if any(isinstance(axis, bool) or not isinstance(axis, Integral) or axis < 0 for axis in every):
            raise InvalidParameterError(
                f"The 'batch_axis' parameter of GraphModel must be the number of an axis, at least 0, or a dict from "
                f"names of inputs and outputs to such numbers, got {self.batch_axis!r}."
            )

    def set_params(self, **params: Any) -> GraphModel:
        """Set settings, or with ``graph__NAME`` parameters of the builder or the fitted model; return the object."""
        nested = [name for name in params if name.startswith("graph__")]
        graph = params.get("graph", self.graph)
        if nested and (isinstance(graph, type) or not hasattr(graph, "set_params")):
            raise ValueError(f"{nested[0]} sets a parameter of graph, which has none; {instead_of(graph)}.")
        return super().set_params(**params)

    def __sklearn_clone__(self) -> Any:
        """Return a copy; a fitted model in it stays fitted."""
        settings = {name: copied(value) for name, value in self.get_params(deep=False).items() if name != "graph"}
        graph = without_program(self.graph)
        return type(self)(graph if hasattr(graph, "fit") else copied(graph), **settings)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state of a copy; programs of ``torch.onnx.export`` cannot be copied, their protobuf can."""
        state: dict[str, Any] = super().__getstate__()
        return state | {"graph": without_program(self.graph)}


def resolve_graph_model(model: ModelLike) -> GraphModel:
    """Return a model with its settings, validated; a plain model has the defaults."""
    if not isinstance(model, GraphModel):
        return GraphModel(model)
    model.validate()
    return model


def bare_model(model: ModelLike) -> ModelLike:
    """Return a model without its settings."""
    return model.graph if isinstance(model, GraphModel) else model
