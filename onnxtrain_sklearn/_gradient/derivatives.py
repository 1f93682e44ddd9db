"""Derivatives of ONNX models as ONNX models: gradients, products with Jacobians and Hessians, Jacobians.

Everything is made of one operation, the gradient of a scalar (:func:`_add_gradients`), which an engine computes:

- The product of a vector ``c`` with a Jacobian (vjp) is the gradient of the scalar ``sum(c * y)``.
- The product of a Jacobian with a vector ``t`` (jvp): the vjp is linear in ``c``, so the jvp is the gradient with
  respect to ``c`` of ``sum(vjp(c) * t)``.
- The product of a Hessian with a vector ``v`` (hvp) is the gradient of ``sum(gradient * v)``.
- A Jacobian holds a vjp for each element of ``y``: the nodes that depend on ``c`` become the body of a Scan.

Values within the graph are differentiated by cutting the graph there (:func:`_cut`): their readers read an input
instead, so that a rewrite of the graph cannot pass over the value, and every engine can differentiate with respect to
it. :func:`_join` puts the computed value back.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import onnx
import onnx_ir as ir
import onnx_ir.passes.common

from .._importers.load import checked
from .._importers.ort_fusions import lower
from .._ir.control_flow import fold
from .._ir.edits import (
    keep_outputs,
    multiply_by_columns,
    remove_identity_transposes,
    remove_unread,
    remove_unread_initializers,
    replace_inputs,
)
from .._ir.files import read
from .._ir.limits import require_loadable, require_result_loads, require_values_within_limits
from .._ir.protobuf import from_proto
from .._ir.queries import dims, every_node, is_float, reads
from .._ir.shapes import infer_declared, infer_shapes
from .._model.activation import use_stable_forms
from .._model.batch_axis import trace_rows
from .._model.graph_comparison import PlainSession, compare_outputs, draws, plain_session, random_feeds
from .._model.weights import NOT_WEIGHTS
from .._utils.errors import refusing
from ..exceptions import ModelError, instead_of, nearest
from ..graph import FLOAT, GraphBuilder, Names, copy_type, names_of
from .batched_steps import batch_steps
from .engine import checked_engine, differentiate_lowered
from .path import dependent


def gradient_graph(
    model: onnx.ModelProto,
    wrt: str | Sequence[str],
    of: str | None = None,
    *,
    weights_as_inputs: bool = False,
    engine: str = "auto",
) -> onnx.ModelProto:
    """Return a model that computes the outputs of ``model`` and the gradient of a scalar.

    Parameters
    ----------
    model : onnx.ModelProto
        A float graph. It is not modified.
    wrt : str or sequence of str
        Names of floating-point values with respect to which the gradient is computed: initializers, inputs, or values
        that nodes of the main graph compute.
    of : str, default=None
        Name of the scalar that is differentiated, an output or another value; None: the first output.
    weights_as_inputs : bool, default=False
        Make the initializers of ``wrt``, and all others that hold several floats and are not settings of an operator
        (such as the statistics of a normalization), inputs as well. The stored numbers stay their defaults.
    engine : {"auto", "ort-training", "portable"}, default="auto"
        The gradient engine. "auto" considers the installed engines that are verified for every operator between the
        names and the output. It takes ort-training unless a measured table of operators finds the portable engine
        clearly faster.

    Returns
    -------
    onnx.ModelProto
        The inputs, initializers and outputs of ``model``, then ``of`` if it is no output, and for each name in ``wrt``
        an output ``NAME_grad`` of its shape and type (``NAME_grad_2`` if the model has a value of that name already).
        Its opset is that of ``model``, or on the portable engine the
        first newer one with the operators that the gradient needs (an embedding needs 16). Any onnxruntime that
        supports the opset loads it.

    Raises
    ------
    ModelError
        A name is not in the graph or not of floating-point type, ``of`` is not a scalar, or an output is not what
        onnxruntime computes of ``model`` as given, on random inputs.
    UnsupportedOperatorError
        An operator between the names and the output has no verified gradient in the engine, or the engine does not
        support the opset: "ort-training" supports 11 to 21, "portable" 11 to 26.

    See Also
    --------
    vjp_graph : Of an output of any shape.
    jvp_graph : Along a direction of the inputs.
    jacobian_graph : Of every element of an output.
    hvp_graph : Second derivatives along a direction.

    Notes
    -----
    The gradient with respect to a value contains all ways on which it affects ``of``. If ``wrt`` names two values of
    which one is computed from the other, the gradient of the earlier one contains the way through the later one, as
    with ``torch.autograd.grad``. A value that does not affect ``of`` has a gradient of zeros.

    The outputs are compared once. Inputs are random floats (positive ones if others give NaN) and the integers 0 and 1,
    free sizes are 3. They are not compared where the model draws random numbers, has inputs of text or
    bfloat16 or of unknown rank, takes more than a million numbers, is larger than 2 GB, or where onnxruntime does not
    run it on such inputs, as with operators of your own domain or sizes that must fit each other. The gradients are
    not compared here: the tests of the package check those of each operator.

    Examples
    --------
    >>> import onnx
    >>> from onnxtrain_sklearn import gradient_graph
    >>> model = onnx.parser.parse_model('''
    ...     <ir_version: 8, opset_import: ["": 18]>
    ...     squares (float[3] x) => (float y) { z = Mul(x, x) y = ReduceSum <keepdims = 0> (z) }''')
    >>> [output.name for output in gradient_graph(model, wrt="x").graph.output]
    ['y', 'x_grad']
    >>> [output.name for output in gradient_graph(model, wrt=["x", "z"]).graph.output]
    ['y', 'x_grad', 'z_grad']
    """
    names = _names(wrt)
    with refusing("The gradients of the graph cannot be built"):
        task = _Task(model, names, of, weights_as_inputs)
        task.require_scalar()
        gradients = task.add_gradients(task.names, [_Term(task.of)], engine)
        return task.result(gradients)


def vjp_graph(
    model: onnx.ModelProto,
    wrt: str | Sequence[str],
    of: str | None = None,
    *,
    weights_as_inputs: bool = False,
    engine: str = "auto",
) -> onnx.ModelProto:
    """Return a model that computes the product of a vector with the Jacobian of a value (reverse mode).

    Parameters
    ----------
    model : onnx.ModelProto
        A float graph. It is not modified.
    wrt : str or sequence of str
        Names of floating-point values: initializers, inputs, or values that nodes of the main graph compute.
    of : str, default=None
        Name of the value of any shape that is differentiated, an output or another value; None: the first output.
    weights_as_inputs : bool, default=False
        Make weights inputs, as :func:`gradient_graph` does.
    engine : {"auto", "ort-training", "portable"}, default="auto"
        The gradient engine.

    Returns
    -------
    onnx.ModelProto
        The model with a further input ``OF_cotangent``, of the type and shape of ``of``, and for each name in ``wrt``
        an output ``NAME_grad``: the gradient of ``sum(of * OF_cotangent)``.

    Raises
    ------
    ModelError, UnsupportedOperatorError
        As :func:`gradient_graph`.

    Examples
    --------
    >>> import numpy as np, onnx, onnxruntime
    >>> from onnxtrain_sklearn import vjp_graph
    >>> model = onnx.parser.parse_model('''
    ...     <ir_version: 8, opset_import: ["": 18]>
    ...     squares (float[3] x) => (float[3] y) { y = Mul(x, x) }''')
    >>> session = onnxruntime.InferenceSession(vjp_graph(model, "x", "y").SerializeToString())
    >>> x, cotangent = np.float32([1, 2, 3]), np.float32([1, 0, 10])
    >>> session.run(["x_grad"], {"x": x, "y_cotangent": cotangent})[0].tolist()
    [2.0, 0.0, 60.0]
    """
    names = _names(wrt)
    with refusing("The product with the Jacobian cannot be built"):
        task = _Task(model, names, of, weights_as_inputs)
        cotangent = task.add_input_like(task.of, "cotangent")
        gradients = task.add_gradients(task.names, [_Term(task.of, cotangent)], engine)
        return task.result(gradients)


def jvp_graph(
    model: onnx.ModelProto,
    wrt: str | Sequence[str],
    of: str | None = None,
    *,
    weights_as_inputs: bool = False,
    engine: str = "auto",
) -> onnx.ModelProto:
    """Return a model that computes the derivative of a value along a direction (the Jacobian times a vector).

    Parameters
    ----------
    model : onnx.ModelProto
        A float graph. It is not modified.
    wrt : str or sequence of str
        Names of floating-point values: initializers, inputs, or values that nodes of the main graph compute.
    of : str, default=None
        Name of the value of any shape that is differentiated, an output or another value; None: the first output.
    weights_as_inputs : bool, default=False
        Make weights inputs, as :func:`gradient_graph` does.
    engine : {"auto", "ort-training", "portable"}, default="auto"
        The gradient engine; "auto" takes the portable one.

    Returns
    -------
    onnx.ModelProto
        The model with a further input ``NAME_tangent`` for each name in ``wrt``, of its type and shape, and an output
        ``OF_jvp`` of the shape of ``of``: its change per unit of a step in the direction of the tangents.

    Raises
    ------
    ModelError
        As :func:`gradient_graph`.
    UnsupportedOperatorError
        As :func:`gradient_graph`, or the engine cannot differentiate the gradient of an operator.

    Examples
    --------
    >>> import numpy as np, onnx, onnxruntime
    >>> from onnxtrain_sklearn import jvp_graph
    >>> model = onnx.parser.parse_model('''
    ...     <ir_version: 8, opset_import: ["": 18]>
    ...     squares (float[3] x) => (float[3] y) { y = Mul(x, x) }''')
    >>> session = onnxruntime.InferenceSession(jvp_graph(model, "x", "y").SerializeToString())
    >>> x, tangent = np.float32([1, 2, 3]), np.float32([1, 0, 10])
    >>> session.run(["y_jvp"], {"x": x, "x_tangent": tangent})[0].tolist()
    [2.0, 0.0, 60.0]
    """
    names = _names(wrt)
    with refusing("The product with the Jacobian cannot be built"):
        task = _Task(model, names, of, weights_as_inputs)
        engine = _twice(engine)
        tangents = [task.add_input_like(name, "tangent") for name in task.names]
        cotangent = task.add_input_like(task.of, "cotangent")
        gradients = task.add_gradients(task.names, [_Term(task.of, cotangent)], engine, temporary=True)
        terms = [_Term(gradient, tangent) for gradient, tangent in zip(gradients, tangents, strict=True)]
        [product] = task.add_gradients([cotangent], terms, engine, temporary=True)
        task.fill(cotangent)
        return task.result([task.name_output(product, f"{task.of}_jvp")])


def hvp_graph(
    model: onnx.ModelProto,
    wrt: str | Sequence[str],
    of: str | None = None,
    *,
    weights_as_inputs: bool = False,
    engine: str = "auto",
) -> onnx.ModelProto:
    """Return a model that computes the product of the Hessian of a scalar with a vector.

    Parameters
    ----------
    model : onnx.ModelProto
        A float graph. It is not modified.
    wrt : str or sequence of str
        Names of floating-point values: initializers, inputs, or values that nodes of the main graph compute.
    of : str, default=None
        Name of the scalar that is differentiated, an output or another value; None: the first output.
    weights_as_inputs : bool, default=False
        Make weights inputs, as :func:`gradient_graph` does.
    engine : {"auto", "ort-training", "portable"}, default="auto"
        The gradient engine; "auto" takes the portable one.

    Returns
    -------
    onnx.ModelProto
        The model with a further input ``NAME_vector`` for each name in ``wrt``, of its type and shape, and an output
        ``NAME_hvp``: the change of ``NAME_grad`` per unit of a step of all names in the direction of the vectors.

    Raises
    ------
    ModelError
        As :func:`gradient_graph`.
    UnsupportedOperatorError
        As :func:`gradient_graph`, or the engine cannot differentiate the gradient of an operator.

    Examples
    --------
    >>> import numpy as np, onnx, onnxruntime
    >>> from onnxtrain_sklearn import hvp_graph
    >>> model = onnx.parser.parse_model('''
    ...     <ir_version: 8, opset_import: ["": 18]>
    ...     cubes (float[3] x) => (float y) { z = Mul(x, x) u = Mul(z, x) y = ReduceSum <keepdims = 0> (u) }''')
    >>> session = onnxruntime.InferenceSession(hvp_graph(model, "x", "y").SerializeToString())
    >>> x, vector = np.float32([1, 2, 3]), np.float32([1, 0, 10])
    >>> session.run(["x_hvp"], {"x": x, "x_vector": vector})[0].tolist()
    [6.0, 0.0, 180.0]
    """
    names = _names(wrt)
    with refusing("The product with the Hessian cannot be built"):
        task = _Task(model, names, of, weights_as_inputs)
        task.require_scalar()
        engine = _twice(engine)
        vectors = [task.add_input_like(name, "vector") for name in task.names]
        gradients = task.add_gradients(task.names, [_Term(task.of)], engine, temporary=True)
        terms = [_Term(gradient, vector) for gradient, vector in zip(gradients, vectors, strict=True)]
        products = task.add_gradients(task.names, terms, engine, temporary=True)
        return task.result(
            [task.name_output(product, f"{name}_hvp") for name, product in zip(task.names, products, strict=True)]
        )


def jacobian_graph(
    model: onnx.ModelProto,
    wrt: str | Sequence[str],
    of: str | None = None,
    *,
    per_row: bool = False,
    weights_as_inputs: bool = False,
    engine: str = "auto",
) -> onnx.ModelProto:
    """Return a model that computes the derivatives of every element of a value.

    Parameters
    ----------
    model : onnx.ModelProto
        A float graph. It is not modified.
    wrt : str or sequence of str
        Names of floating-point values: initializers, inputs, or values that nodes of the main graph compute.
    of : str, default=None
        Name of the value of any shape that is differentiated, an output or another value; None: the first output.
    per_row : bool, default=False
        Compute only the derivatives of a row of ``of`` with respect to the same row of each name in ``wrt``, along the
        first axis. The others are zero if no row affects the result of another one, which is checked.
    weights_as_inputs : bool, default=False
        Make weights inputs, as :func:`gradient_graph` does.
    engine : {"auto", "ort-training", "portable"}, default="auto"
        The gradient engine.

    Returns
    -------
    onnx.ModelProto
        The model with an output ``NAME_jacobian`` for each name in ``wrt``, of the shape ``(*of.shape, *wrt.shape)``,
        or with ``per_row`` ``(rows, *of.shape[1:], *wrt.shape[1:])``.

    Raises
    ------
    ModelError
        As :func:`gradient_graph`, or ``per_row`` is True although rows may affect each other.
    UnsupportedOperatorError
        As :func:`gradient_graph`.

    Notes
    -----
    A Scan runs the backward pass once for each element of ``of``, with ``per_row`` once for each element of a row; the
    forward pass runs once.

    Examples
    --------
    >>> import numpy as np, onnx, onnxruntime
    >>> from onnxtrain_sklearn import jacobian_graph
    >>> model = onnx.parser.parse_model('''
    ...     <ir_version: 8, opset_import: ["": 18]>
    ...     squares (float[N, 2] x) => (float[N, 2] y) { y = Mul(x, x) }''')
    >>> jacobian = jacobian_graph(model, "x", "y", per_row=True)
    >>> session = onnxruntime.InferenceSession(jacobian.SerializeToString())
    >>> session.run(["x_jacobian"], {"x": np.float32([[1, 2], [3, 4]])})[0].tolist()
    [[[2.0, 0.0], [0.0, 4.0]], [[6.0, 0.0], [0.0, 8.0]]]
    """
    names = _names(wrt)
    with refusing("The Jacobian cannot be built"):
        task = _Task(model, names, of, weights_as_inputs)
        if per_row:
            task.require_separate_rows()
        cotangent = task.add_input_like(task.of, "cotangent")
        gradients = task.add_gradients(task.names, [_Term(task.of, cotangent)], engine, temporary=True)
        return task.result(task.scan(cotangent, gradients, per_row))


def _names(wrt: str | Sequence[str]) -> list[str]:
    if not isinstance(wrt, Iterable):
        raise TypeError(f"wrt must be the name of a value, or a list of names, {instead_of(wrt)}.")
    names = [wrt] if isinstance(wrt, str) else list(dict.fromkeys(wrt))
    if not names:
        raise ValueError("wrt is an empty list: name at least one value.")
    return names


def _twice(engine: str) -> str:
    """Return the engine for second derivatives; ort-training cannot differentiate its own gradients."""
    return "portable" if checked_engine(engine) == "auto" else engine


class _Term(NamedTuple):
    """A summand of the differentiated scalar: ``sum(value * factor)``, or a value that is a scalar already."""

    value: str
    factor: str | None = None


class _Task:
    """A graph to which derivatives are added; values are known by name, because an engine returns another graph.

    Attributes
    ----------
    model : onnx_ir.Model
        The graph: read, with known shapes, and in forms whose gradients do not overflow.
    names : list of str
        The names in ``wrt``.
    of : str
        The value that is differentiated.
    """

    def __init__(self, model: onnx.ModelProto, names: list[str], of: str | None, weights_as_inputs: bool) -> None:
        self.names = names
        self._given = model
        self._proto = checked(model)
        self.model = from_proto(self._proto)
        graph = self.model.graph
        onnx_ir.passes.common.RemoveInitializersFromInputsPass()(self.model)
        self.model.ir_version = max(4, self.model.ir_version)  # before version 4, every initializer had to be an input
        self._outputs = [v.name or "" for v in graph.outputs]

        # Find the values that ``wrt`` and ``of`` name.
        values = _values(graph)
        self.of = self._outputs[0] if of is None else of
        for argument, name in [("of", self.of), *(("wrt", name) for name in self.names)]:
            if name not in values:
                inner = any(v.name == name for node in every_node(graph) for v in node.outputs)
                where = " It is a value of a subgraph (If, Loop, Scan)." if inner else nearest(name, values)
                raise ModelError(f"{argument} names {name!r}, which is no value of the graph.{where}")
        self._held = set(graph.initializers)
        self._remove_unread = False
        if self.of not in self._outputs:
            self._outputs.append(self.of)
            graph.outputs.append(values[self.of])

        # Numbers that callers may replace are no constants to the rewrites below.
        self._defaults = dict[str, ir.TensorProtocol]()
        if weights_as_inputs:
            for name, value in list(graph.initializers.items()):
                tensor = value.const_value
                if tensor is not None and (name in self.names or _holds_weights(value)):
                    self._defaults[name] = tensor
                    del graph.initializers[name]
                    value.const_value = None
                    graph.inputs.append(value)

        # Rewrite: standard operators, known shapes, forms whose gradients do not overflow. No rewrite may pass over a
        # value that is asked for.
        within = [name for name in dict.fromkeys([*self.names, self.of]) if values[name].producer() is not None]
        if within:
            infer_declared(self.model, infer_shapes)
        cuts = _cut(graph, within)
        remove_identity_transposes(self.model)
        _name_free_axes(graph)
        infer_declared(lower(self.model), fold)
        use_stable_forms(self.model)
        require_values_within_limits(self.model)
        require_loadable(self.model)
        multiply_by_columns(self.model)
        _join(self.model.graph, cuts)

        values = _values(self.model.graph)
        for name in self.names:
            if not is_float(values[name]):
                raise ModelError(f"wrt names {name!r} of type {values[name].dtype}; only floats have a gradient.")
        if not is_float(values[self.of]):
            raise ModelError(f"{self.of!r} is of type {values[self.of].dtype}; only floats have a gradient.")

    def require_scalar(self) -> None:
        """Raise ModelError if the value that is differentiated is not a scalar."""
        shape = dims(_values(self.model.graph)[self.of])
        if shape != []:
            found = "a shape that could not be inferred" if shape is None else f"shape {tuple(shape)}"
            raise ModelError(
                f"The derivative is taken of a scalar, but {self.of!r} has {found}. Reduce it first, or use vjp_graph "
                f"or jacobian_graph."
            )

    def require_separate_rows(self) -> None:
        """Raise ModelError if rows of the inputs may affect each other, or a value has no axis of rows."""
        graph = self.model.graph
        values = _values(graph)
        for name in [*self.names, self.of]:
            if not dims(values[name]):
                raise ModelError(f"per_row=True takes values whose first axis is that of the rows; {name!r} has none.")
            if name in graph.initializers or name in self._defaults:
                raise ModelError(f"per_row=True: {name!r} is a weight, which all rows share. Leave per_row out.")
        # Cut the graph at the values in ``wrt``: upstream of them, operators may mix rows.
        apart = self.model.clone()
        within = [name for name in self.names if values[name].producer() is not None]
        if self.of in within:
            return
        _cut(apart.graph, within)
        batches = {(dims(values[name]) or [None])[0] for name in self.names}
        by_row = [v.name for v in apart.graph.inputs if v.name and (dims(v) or [None])[0] in batches - {None}]
        fixed = next((batch for batch in batches if isinstance(batch, int)), 0)
        finding = trace_rows(apart.graph, {*by_row, *self.names}, [_values(apart.graph)[self.of]], fixed)
        if not finding.certain or finding.node:
            how = "meet" if finding.certain else "may meet"
            raise ModelError(
                f"per_row=True: rows {how} at {finding.node}, so that a row may affect the result of another. Leave "
                f"per_row out to get all derivatives."
            )

    def add_input_like(self, name: str, kind: str) -> str:
        """Add an input ``NAME_KIND`` of the type and shape of a value; return its name."""
        graph = self.model.graph
        free = names_of(graph).free(f"{name}_{kind}", 2)
        graph.inputs.append(copy_type(ir.Value(name=free), _values(graph)[name]))
        return free

    def add_gradients(
        self, names: Sequence[str], terms: Sequence[_Term], engine: str, *, temporary: bool = False
    ) -> list[str]:
        """Add the gradients of the sum of ``terms`` with respect to ``names``; return the names of the gradients.

        The gradients are outputs called ``NAME_grad``. If they are ``temporary``, they are values with other names.
        """
        graph = self.model.graph
        values = _values(graph)
        cuts = _cut(graph, [name for name in names if values[name].producer() is not None])
        values = _values(graph)  # after :func:`_cut`, the name of a cut value is that of an input
        op = GraphBuilder(graph, prefix="derivative")

        def product(value: ir.Value, factor: ir.Value) -> ir.Value:
            op.dtype = value.dtype or op.dtype
            return scalar(op.ReduceSum(copy_type(op.Mul(value, factor), value), keepdims=False))

        def scalar(value: ir.Value) -> ir.Value:
            value.dtype, value.shape = value.dtype or op.dtype, ir.Shape([])
            return value

        summands = [values[v] if factor is None else product(values[v], values[factor]) for v, factor in terms]

        # A cut value that depends on another name passes its gradient on to it. This gradient is known only after the
        # backward pass; an input stands for it until then.
        reached = dependent(graph, {values[name] for name in names})
        passed_on = dict[str, str]()
        for name, cut in cuts.items():
            if values[cut.computed] in reached:
                gradient = copy_type(ir.Value(name=op.taken.free(f"{name}/passed_on")), values[name])
                graph.inputs.append(gradient)
                summands.append(product(values[cut.computed], gradient))
                passed_on[name] = gradient.name or ""

        # Differentiate the sum, unless it is an output as it is.
        total = summands[0]
        if len(summands) > 1:
            widest = ir.DataType.DOUBLE if any(v.dtype is ir.DataType.DOUBLE for v in summands) else ir.DataType.FLOAT
            alike = len({v.dtype for v in summands}) == 1
            op.dtype = summands[0].dtype or op.dtype if alike else widest
            total = summands[0] if alike else op.Cast(summands[0], to=int(widest))
            for summand in summands[1:]:
                total = scalar(op.Add(total, summand if alike else op.Cast(summand, to=int(widest))))
        elif total.producer() is None:
            total = op.Identity(total)
        is_own = not total.is_graph_output()
        if is_own:
            graph.outputs.append(scalar(total))
        # An engine calls its results NAME_grad. Rename existing values of that name, such as gradients in the graph.
        values, aside = _values(graph), dict[str, str]()
        shown = Names(v.name for v in (*graph.inputs, *graph.outputs, *graph.initializers.values()) if v.name)
        numbered = {name: shown.numbered(f"{name}_grad", 2) for name in names}
        for name in names:
            if f"{name}_grad" in values:
                aside[f"{name}_grad"] = values[f"{name}_grad"].name = op.taken.free(f"{name}_grad/earlier")
        self.model = differentiate_lowered(self.model, names, total.name or "", engine).model
        graph = self.model.graph
        outputs = {v.name: v for v in graph.outputs}
        if is_own:
            graph.outputs.remove(outputs[total.name])

        # The backward pass reads the shape of a product ``value * factor``. Take that of ``value``, so that
        # the product need not be computed.
        for node in graph:
            source = node.inputs[0].producer() if node.op_type in ("Shape", "Size") and node.inputs[0] else None
            if source is not None and source.op_type == "Mul" and (source.name or "").startswith("derivative/"):
                node.replace_input_with(0, source.inputs[0])

        replace_inputs(graph, {given: outputs[f"{name}_grad"] for name, given in passed_on.items()})
        _join(graph, cuts)
        graph.sort()
        batch_steps(self.model, {*self.names, *names, self.of})
        self._remove_unread |= is_own or temporary
        values = _values(graph)
        taken = names_of(graph)
        gradients = list[str]()
        for name in names:
            gradient = values[f"{name}_grad"]
            if temporary:
                graph.outputs.remove(gradient)
                gradient.name = taken.free(f"derivative/{name}_grad")
            elif f"{name}_grad" in aside:
                if numbered[name] in values:  # a value within the graph already has this name
                    values[numbered[name]].name = taken.free(f"derivative/{numbered[name]}")
                gradient.name = numbered[name]
            gradients.append(gradient.name or "")
        for name, held in aside.items():
            values[held].name = name
        return gradients

    def name_output(self, value: str, name: str) -> str:
        """Make a value an output called ``name``, or ``name_2`` if that name is taken; return the output's name."""
        graph = self.model.graph
        found = _values(graph)[value]
        if found.producer() is None or found.is_graph_output():
            found = copy_type(GraphBuilder(graph, prefix="derivative").Identity(found), found)
        found.name = names_of(graph).free(name, 2)
        graph.outputs.append(found)
        return found.name

    def fill(self, cotangent: str) -> None:
        """Replace the input ``cotangent``, on which the results depend only by where it is zero, by nonzero constants.

        A gradient is linear in the cotangent, so its derivative with respect to the cotangent does not depend on the
        cotangent. There is one exception: where a Where drops a result, rules replace a product by zero if the
        cotangent is zero. The numbers are all different, so that sums of their multiples do not cancel.
        """
        graph = self.model.graph
        like = _values(graph)[self.of]
        if _values(graph)[cotangent].uses():
            op = GraphBuilder(graph, prefix="derivative")
            positions = op.Range(np.array(0), op.Size(like), np.array(1))
            numbers = op.Add(op.Sin(op.Cast(positions, to=FLOAT)), 2.0)
            filled = op.Cast(op.Reshape(numbers, op.Shape(like)), to=int(like.dtype or op.dtype))
            replace_inputs(graph, {cotangent: copy_type(filled, like)})
            graph.sort()
        else:
            graph.inputs.remove(_values(graph)[cotangent])

    def scan(self, cotangent: str, gradients: Sequence[str], per_row: bool) -> list[str]:
        """Compute ``gradients`` for each element of the value (per row) that ``cotangent`` belongs to."""
        graph = self.model.graph
        values = _values(graph)
        given, of = values[cotangent], values[self.of]
        downstream, moved = {given}, list[ir.Node]()
        for node in graph:
            if not downstream.isdisjoint(reads(node)):
                downstream.update(node.outputs)
                moved.append(node)
        graph.remove(moved)

        # The body: a cotangent that is one at an element and zero elsewhere, and the backward pass.
        op = GraphBuilder(graph, prefix="jacobian")
        inner = op.body("element")
        inner.dtype = given.dtype or op.dtype
        shape = op.Shape(of)
        sizes = op.Slice(shape, [1], [np.iinfo(np.int64).max]) if per_row else shape
        size = op.ReduceProd(sizes, axes=[0], keepdims=True)
        position = inner.input("position", ir.DataType.INT64, ())
        positions = op.Range(np.array(0), op.Squeeze(size, axes=[0]), np.array(1))
        element = inner.Cast(inner.Equal(positions, position), to=int(inner.dtype))
        element = inner.Reshape(element, op.Concat(np.array([1]), sizes, axis=0) if per_row else shape)
        replace_inputs(graph, {cotangent: copy_type(inner.Expand(element, shape) if per_row else element, given)})
        inner.graph.extend(moved)
        for name in gradients:
            inner.graph.outputs.append(copy_type(inner.Identity(values[name]), values[name]))
        found = op.emit("Scan", positions, body=inner.graph, num_scan_inputs=1, outputs=len(gradients))

        # The first axis of each result of the Scan runs over the elements; reshape it to the axes of the value.
        results = []
        for name, value in zip(self.names, found, strict=True):
            source = values[name]
            rank = len(dims(source) or [])
            of_source = op.Shape(source)
            value.type = source.type
            if per_row:
                value = op.Transpose(value, perm=[1, 0, *range(2, rank + 1)])
                of_source = op.Slice(of_source, [1], [np.iinfo(np.int64).max])
            empty = 1 if op.opset >= 14 else None  # allowzero: with no rows, a size of 0 means 0, not "copy the size"
            value = op.Reshape(value, op.Concat(shape, of_source, axis=0), allowzero=empty)
            value.type = source.type
            rest = None if source.shape is None else list(source.shape)[1 if per_row else 0 :]
            if of.shape is not None and rest is not None:
                value.shape = ir.Shape([*of.shape, *rest])
            results.append(self.name_output(value.name or "", f"{name}_jacobian"))
        graph.sort()
        return results

    def result(self, outputs: Sequence[str]) -> onnx.ModelProto:
        """Return the model with its original outputs and ``outputs``; check that the original outputs are unchanged."""
        graph = self.model.graph
        values = {v.name: v for v in graph.outputs}
        graph.outputs[:] = [values[name] for name in [*self._outputs, *outputs]]
        if self._remove_unread:
            remove_unread(graph, list(graph))
            remove_unread_initializers(graph, kept=self._held)
        for name, tensor in self._defaults.items():
            value = next(v for v in graph.inputs if v.name == name)
            value.const_value = tensor
            graph.register_initializer(value)
        result = ir.to_proto(self.model)

        session = plain_session(result)
        if session is None:
            require_result_loads(result, self._proto)
            return result
        # The rewritten graph must compute the outputs of the given model. (The tests of the package check the
        # derivatives.) The graph that computes derivatives may have inputs that the given model lacks.
        given = read(self._given)
        if {v.name for v in result.graph.input} - {v.name for v in given.graph.input} - self._defaults.keys():
            forward = self.model.clone()
            keep_outputs(forward, list(forward.graph.outputs)[: len(given.graph.output)], inputs=True)
            session = plain_session(ir.to_proto(forward))
        if session is not None:
            _require_values_as_given(given, session)
        return result


class _Cut(NamedTuple):
    """A value that is cut: the new name of the computed value, and whether it was an output of the graph before."""

    computed: str
    is_output: bool


def _values(graph: ir.Graph) -> dict[str, ir.Value]:
    """Return the values of the main graph by name."""
    computed = (v for node in graph for v in node.outputs)
    return {v.name: v for v in (*graph.inputs, *graph.initializers.values(), *computed) if v.name}


def _holds_weights(value: ir.Value) -> bool:
    """Return True if ``value`` holds more than one float and no operator reads it as a setting."""
    array = None if not is_float(value) or value.const_value is None else value.const_value
    return (
        array is not None
        and array.size > 1
        and not any(index in NOT_WEIGHTS.get(node.op_type, ()) and not node.domain for node, index in value.uses())
    )


def _name_free_axes(graph: ir.Graph) -> None:
    """Name the free axes of inputs if there is a Loop: equal names show that its states keep their sizes."""
    if any(node.op_type == "Loop" and not node.domain for node in every_node(graph)):
        for value in graph.inputs:
            sizes = list(value.shape or ())
            free = [isinstance(size, ir.SymbolicDim) and size.value is None for size in sizes]
            if any(free):
                value.shape = ir.Shape([f"{value.name}/{i}" if free[i] else size for i, size in enumerate(sizes)])


def _cut(graph: ir.Graph, names: Sequence[str]) -> dict[str, _Cut]:
    """Cut the graph at computed values: their readers read inputs of the same names, and they become outputs."""
    cuts = dict[str, _Cut]()
    values = _values(graph)
    taken = names_of(graph)
    for name in names:
        value = values[name]
        if value.dtype is None:
            raise ModelError(f"The type of {name!r} cannot be inferred, so no derivative can be taken there.")
        given = copy_type(ir.Value(name=name), value)
        value.name = taken.free(f"{name}/computed")
        for node, index in list(value.uses()):
            node.replace_input_with(index, given)
        graph.inputs.append(given)
        cuts[name] = _Cut(value.name, value.is_graph_output())
        if not value.is_graph_output():
            graph.outputs.append(value)
    return cuts


def _join(graph: ir.Graph, cuts: Mapping[str, _Cut]) -> None:
    """Undo :func:`_cut`, also if the graph has been rewritten."""
    computed = {v.name: v for v in graph.outputs}
    values = {name: computed[cut.computed] for name, cut in cuts.items()}
    replace_inputs(graph, values)
    for name, value in values.items():
        value.name = name
        if not cuts[name].is_output:
            graph.outputs.remove(value)


def _require_values_as_given(given: onnx.ModelProto, made: PlainSession) -> None:
    """Raise ModelError if, on random inputs, a gradient graph does not compute the outputs of the model as given."""
    if draws(given) or random_feeds(given, 0) is None or (session := plain_session(given)) is None:
        return
    names = [value.name for value in given.graph.output]
    for trial in range(2):
        feeds = random_feeds(given, trial)
        assert feeds is not None
        found = made.run(names, feeds)
        outcome = compare_outputs(session, names, feeds, "random inputs", found, lambda: made.proto)
        if outcome.different:
            raise ModelError(
                f"The gradient graph does not compute what onnxruntime computes of the model as given: "
                f"{outcome.different} Export the model with another opset (18 is a good choice) or without that "
                f"operator, and please report it."
            )
        if not outcome.reason:
            return
