"""Training sessions as onnxruntime had them until 1.16: a graph with its loss, gradients and optimizer in one object.

A session runs two graphs: the gradient graph of the minibatch, then the update. It holds the weights as arrays.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from .._gradient.engine import choose_engine
from .._graph.protobuf import checked, load, to_proto
from .._graph.survival import require_result_loads
from .._runtime import objects as runtime
from .._support.refusal import refusing
from ..exceptions import ModelError, nearest
from .io_binding import IOBinding, SessionIOBinding
from .training_graphs import loss_output, session_graphs, trained_weights
from .training_parameters import TrainingParameters
from .training_state import StatefulSession, TrainingState, to_array
from .vjp import float_names, gradients_from, require_names

__all__ = ["GradientGraphBuilder", "IOBinding", "TrainingParameters", "TrainingSession"]


@dataclass(frozen=True)
class NodeArg:
    """Name, type and shape of an input or output, as onnxruntime reports them."""

    name: str
    type: str
    shape: list[Any]


class TrainingSession(StatefulSession):
    """Train a graph that computes its loss.

    Parameters
    ----------
    path_or_bytes : str, path, bytes or onnx.ModelProto
    parameters : TrainingParameters
    sess_options : onnxruntime.SessionOptions, default=None
        None: one thread.
    providers, provider_options : list, default=None
        As onnxruntime's InferenceSession takes them; None: the CPU.
    engine : {"auto", "ort-training", "portable"}, default="auto"
        The gradient engine.

    Examples
    --------
    >>> import numpy as np
    >>> import onnx.parser
    >>> from onnxtrain_sklearn.classic.training_session import TrainingParameters, TrainingSession
    >>> model = onnx.parser.parse_model('''<ir_version: 8, opset_import: ["": 18]>
    ...     linear (float[N, 2] X, float[N, 1] y) => (float loss) <float[2, 1] W = {0, 0}> {
    ...         Z = MatMul(X, W) D = Sub(Z, y) Q = Mul(D, D) loss = ReduceMean<keepdims = 0>(Q) }''')
    >>> parameters = TrainingParameters()
    >>> parameters.loss_output_name, parameters.training_optimizer_name = "loss", "SGDOptimizer"
    >>> session = TrainingSession(model.SerializeToString(), parameters)
    >>> feed = {"X": np.eye(2, dtype=np.float32), "y": np.ones((2, 1), np.float32)}
    >>> [loss] = session.run(["loss"], {**feed, "Learning_Rate": np.array([0.5], np.float32)})
    >>> float(loss), session.get_state()["W"].ravel().tolist()
    (1.0, [0.5, 0.5])
    """

    def __init__(
        self,
        path_or_bytes: str | os.PathLike[str] | bytes | onnx.ModelProto,
        parameters: TrainingParameters,
        sess_options: object = None,
        providers: Sequence[runtime.Provider] | None = None,
        provider_options: Sequence[Mapping[str, object]] | None = None,
        *,
        engine: str = "auto",
    ) -> None:
        if not isinstance(parameters, TrainingParameters):
            raise TypeError(f"parameters must be TrainingParameters, got {type(parameters).__name__}.")
        parameters.validate()
        runtime.require_options(sess_options, "SessionOptions")
        self._parameters, self._sess_options = parameters, sess_options
        model = load(path_or_bytes)
        loss = loss_output(model.graph, parameters.loss_output_name)
        self._state = TrainingState(trained_weights(model.graph, parameters), parameters.training_optimizer_name)
        self._state.load_optimizer(parameters.initial_state)
        self._sums, self._runs = {}, 0
        self._models = session_graphs(model, loss, parameters, self._state, choose_engine(engine))
        self.set_providers(providers, provider_options)

    def run(
        self, output_names: Sequence[str] | None, input_feed: Mapping[str, np.ndarray], run_options: object = None
    ) -> list[np.ndarray]:
        """Run the graph; take a step if the learning rate is fed.

        Parameters
        ----------
        output_names : list of str or None
            None: all outputs.
        input_feed : dict of str to ndarray
            The inputs, and the learning rate as ``lr_params_feed_name``, an array of one element.
        run_options : onnxruntime.RunOptions, default=None

        Returns
        -------
        list of ndarray
            The outputs, computed before the step.
        """
        runtime.require_options(run_options, "RunOptions")
        valid = [value.name for value in self.get_outputs()]
        names = valid if output_names is None else require_names(output_names, valid, "output_names")
        feed, rate = dict(input_feed), None
        if self._update is not None and (key := self._parameters.lr_params_feed_name) in feed:
            rate = _rate(feed.pop(key))
        known = [value.name for value in self._inputs]
        for name in feed:
            if name not in known:
                raise ModelError(
                    f"The graph has no input {name!r}.{nearest(name, [i.name for i in self.get_inputs()])}"
                )
        gradients = [f"{name}_grad" for name in self._state.weights] if rate is not None else []
        wanted = list(dict.fromkeys([*names, *gradients]))
        with refusing("The graph does not run on the data"):
            values = self._session.run(wanted, {**feed, **self._state.weights}, run_options)
        found = dict(zip(wanted, values, strict=True))
        if rate is not None:
            self._accumulate({name: found[f"{name}_grad"] for name in self._state.weights}, rate)
        return [found[name] for name in names]

    def _accumulate(self, gradients: Mapping[str, np.ndarray], rate: np.ndarray) -> None:
        """Accumulate gradients; take a step with their mean when there are enough."""
        steps = self._parameters.gradient_accumulation_steps
        self._runs += 1
        if steps > 1:
            self._sums = {n: self._sums.get(n, 0) + g / steps for n, g in gradients.items()}
        if self._runs % steps:
            return
        feed = self._state.feed(self._sums if steps > 1 else gradients)
        feed[self._parameters.lr_params_feed_name] = rate
        assert self._update is not None
        read = {value.name for value in self._update.get_inputs()}
        outputs = [value.name for value in self._update.get_outputs()]
        values = self._update.run(outputs, {name: array for name, array in feed.items() if name in read})
        self._state.take(dict(zip(outputs, values, strict=True)))
        self._sums = {}

    def run_with_ort_values(
        self, output_names: Sequence[str] | None, input_dict_ort_values: Mapping[str, Any], run_options: object = None
    ) -> list[Any]:
        """Run as :meth:`run` does, with ``onnxruntime.OrtValue`` inputs and outputs."""
        feed = {name: to_array(value) for name, value in input_dict_ort_values.items()}
        return [runtime.on_host(array) for array in self.run(output_names, feed, run_options)]

    def io_binding(self) -> IOBinding:
        """Return an object for binding inputs and outputs, for :meth:`run_with_iobinding`."""
        return IOBinding(self)

    def run_with_iobinding(self, iobinding: IOBinding, run_options: object = None) -> None:
        """Run as :meth:`run` does, on bound inputs; outputs are written to the memory they are bound to."""
        if not isinstance(iobinding, IOBinding):
            raise TypeError(f"expected what io_binding() returns, got {type(iobinding).__name__}.")
        self._sess.run_with_iobinding(iobinding._iobinding, run_options)

    def is_output_fp32_node(self, output_name: str) -> bool:
        """Whether an output is of type float32."""
        outputs = {value.name: value for value in self.get_outputs()}
        require_names([output_name], list(outputs), "output_name")
        return bool(outputs[output_name].type == "tensor(float)")

    def set_providers(
        self,
        providers: Sequence[runtime.Provider] | None = None,
        provider_options: Sequence[Mapping[str, object]] | None = None,
    ) -> None:
        """Recreate the sessions with these execution providers; weights and optimizer state are kept."""
        self._device = runtime.resolve_providers(providers, provider_options)
        gradient, update = self._models
        self._session = self._new_session(gradient)
        self._update = None if update is None else self._new_session(update)

    def _new_session(self, model: onnx.ModelProto) -> Any:
        return runtime.session(model.SerializeToString(), self._device, self._sess_options)

    @property
    def _inputs(self) -> list[Any]:
        return [value for value in self._session.get_inputs() if value.name not in self._state.weights]

    def get_inputs(self) -> list[Any]:
        """Return name, type and shape of each input, the learning rate last."""
        rate = NodeArg(self._parameters.lr_params_feed_name, "tensor(float)", [1])
        return [*self._inputs, *([rate] if self._update is not None else [])]

    def get_outputs(self) -> list[Any]:
        """Return name, type and shape of each output, including gradients if the parameters ask for them."""
        shown = self._parameters.set_gradients_as_graph_outputs
        gradients = {f"{name}_grad" for name in self._state.weights}
        return [value for value in self._session.get_outputs() if shown or value.name not in gradients]

    @property
    def _sess(self) -> CoreSession:
        """Return the session with the methods of the C bindings, which loops of onnxcustom call."""
        return CoreSession(self)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name in _DELEGATED:
            method: Callable[..., Any] = getattr(self._session, name)
            return method
        raise AttributeError(f"TrainingSession has no attribute {name!r}.")

    def __dir__(self) -> Iterable[str]:
        return [*super().__dir__(), *_DELEGATED]


_DELEGATED = (
    "disable_fallback",
    "enable_fallback",
    "end_profiling",
    "get_modelmeta",
    "get_overridable_initializers",
    "get_profiling_start_time_ns",
    "get_provider_options",
    "get_providers",
    "get_session_options",
)
"""Methods of the session for the gradient graph."""


class CoreSession:
    """A training session with the methods of onnxruntime's C bindings; the attribute ``_sess`` of a session.

    Parameters
    ----------
    session : TrainingSession
    """

    def __init__(self, session: TrainingSession) -> None:
        self._session = session

    @property
    def inputs_meta(self) -> list[Any]:
        """Name, type and shape of each input."""
        return self._session.get_inputs()

    @property
    def outputs_meta(self) -> list[Any]:
        """Name, type and shape of each output."""
        return self._session.get_outputs()

    def run(
        self, output_names: Sequence[str], input_feed: Mapping[str, np.ndarray], run_options: object = None
    ) -> list[np.ndarray]:
        """Run as :meth:`TrainingSession.run` does; without names, return all outputs."""
        return self._session.run(list(output_names) or None, input_feed, run_options)

    def run_with_ort_values(
        self, input_feed: Mapping[str, Any], output_names: Sequence[str], run_options: object = None
    ) -> list[Any]:
        """Run on values of the C bindings, which come before the names here."""
        found = self._session.run_with_ort_values(list(output_names) or None, input_feed, run_options)
        return [runtime.unwrapped_value(value) for value in found]

    def run_with_iobinding(self, iobinding: SessionIOBinding, run_options: object = None) -> None:
        """Run on bound inputs; outputs are written to the memory they are bound to."""
        if not isinstance(iobinding, SessionIOBinding):
            raise TypeError(f"expected the _iobinding of what io_binding() returns, got {type(iobinding).__name__}.")
        bound = iobinding.bound
        bound.take(self._session.run(list(bound.outputs), dict(bound.inputs), run_options))

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name in _CORE:
            method: Callable[..., Any] = getattr(self._session, name)
            return method
        raise AttributeError(f"The _sess of a TrainingSession has no attribute {name!r}.")


_CORE = (
    "end_profiling",
    "get_model_state",
    "get_optimizer_state",
    "get_partition_info_map",
    "get_profiling_start_time_ns",
    "get_providers",
    "get_state",
    "is_output_fp32_node",
    "load_state",
)
"""Methods that are the same in the C bindings."""


def _rate(value: Any) -> np.ndarray:
    array = np.asarray(value, np.float32).reshape(-1)
    if array.size != 1:
        raise ModelError(f"The learning rate must be one number, got {array.size}.")
    return array


class GradientGraphBuilder:
    """Build the gradient of a loss as a graph.

    Parameters
    ----------
    model_bytes : bytes, onnx.ModelProto or path
    y_names : set of str
        The outputs from which the gradient starts, usually the loss alone. The gradient of another one is what the loss
        gives it; if the loss does not depend on it, it is an input ``NAME_grad`` of the result.
    x_names : set of str
        Inputs or initializers with respect to which gradients are computed.
    loss : str
        The one of ``y_names`` whose gradient is one, in every element if it is not a scalar.
    engine : {"auto", "ort-training", "portable"}, default="auto"

    Examples
    --------
    >>> import onnx, onnx.parser
    >>> from onnxtrain_sklearn.classic.training_session import GradientGraphBuilder
    >>> model = onnx.parser.parse_model('''<ir_version: 8, opset_import: ["": 18]>
    ...     squares (float[3] x) => (float y) { z = Mul(x, x) y = ReduceSum <keepdims = 0> (z) }''')
    >>> builder = GradientGraphBuilder(model.SerializeToString(), {"y"}, {"x"}, "y")
    >>> builder.build()
    >>> [output.name for output in onnx.load_model_from_string(builder.get_model()).graph.output]
    ['y', 'x_grad']
    """

    def __init__(
        self,
        model_bytes: bytes | onnx.ModelProto | str | os.PathLike[str],
        y_names: Collection[str],
        x_names: Collection[str],
        loss: str,
        *,
        engine: str = "auto",
    ) -> None:
        if isinstance(y_names, str) or isinstance(x_names, str):
            raise TypeError("y_names and x_names are sets of names, not one name.")
        if not y_names or not x_names:
            raise ValueError("y_names and x_names must each hold a name.")
        self._given = sorted(y_names), sorted(x_names), loss, choose_engine(engine)
        self._source = checked(model_bytes)
        self._model: onnx.ModelProto | None = None

    def build(self) -> None:
        """Differentiate the graph."""
        starts, names, loss, engine = self._given
        model = load(self._source)
        floats = float_names([*model.graph.inputs, *model.graph.initializers.values()])
        result = gradients_from(model, starts, require_names(names, floats, "x_names"), loss, engine)
        self._model = to_proto(result)
        require_result_loads(self._model, self._source)

    def get_model(self) -> bytes:
        """Return the serialized graph with its gradients; raise RuntimeError before :meth:`build`."""
        if self._model is None:
            raise RuntimeError("The gradient graph has not been built: call build() first.")
        return bytes(self._model.SerializeToString())

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the graph with its gradients to a file."""
        Path(path).write_bytes(self.get_model())
