"""Training sessions as onnxruntime had them until 1.16: a graph with its loss, gradients and optimizer in one object.

A :class:`TrainingSession` runs two graphs: the gradient graph of the minibatch, then the update. ``TrainingState``
holds weights and optimizer state as arrays; ``session_graphs`` makes the graphs. :class:`IOBinding` binds its inputs
and outputs to memory. :class:`GradientGraphBuilder` makes a gradient graph alone.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import DTypeLike

from .._data.columns import require_in_memory
from .._gradient.engine import checked_engine
from .._importers.load import checked, load
from .._ir.edits import initializers_to_inputs
from .._ir.limits import require_result_loads
from .._ir.protobuf import to_proto
from .._ir.queries import dims
from .._model.weights import array_of
from .._ort import objects as runtime
from .._ort.devices import resolve_device
from .._utils.errors import refusing
from .._utils.typing import DType
from ..exceptions import ModelError, nearest
from ..graph import GraphBuilder, copy_type
from .grad_helper import float_names, gradients_from, require_names, vjp_graph
from .optimizers import MOMENTS, UPDATE_COUNT, TrainingParameters, Update, attributes_of, emit_updates

__all__ = ["GradientGraphBuilder", "IOBinding", "TrainingParameters", "TrainingSession"]


@dataclass(frozen=True)
class NodeArg:
    """Name, type and shape of an input or output, as onnxruntime reports them."""

    name: str
    type: str
    shape: list[Any]


class TrainingSession:
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
        self._sums: dict[str, np.ndarray] = {}
        self._runs = 0
        # Kept for set_providers, which makes sessions of the same graphs on another device.
        self._models = session_graphs(model, loss, parameters, self._state, checked_engine(engine))
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
        for name, value in feed.items():
            require_in_memory(value, f"input_feed[{name!r}]")
        # The learning rate is no input of the gradient graph: it asks for a step.
        if self._update is not None and (key := self._parameters.lr_params_feed_name) in feed:
            rate = np.asarray(feed.pop(key), np.float32).reshape(-1)
            if rate.size != 1:
                raise ModelError(f"The learning rate must be one number, got {rate.size}.")
        known = [value.name for value in self._inputs]
        for name in feed:
            if name not in known:
                hint = nearest(name, [one.name for one in self.get_inputs()])
                raise ModelError(f"The graph has no input {name!r}.{hint}")
        gradients = [f"{name}_grad" for name in self._state.weights] if rate is not None else []
        wanted = list(dict.fromkeys([*names, *gradients]))
        # The weights are inputs, not initializers, so that a step needs no new session.
        with refusing("The graph does not run on the data"):
            values = self._session.run(wanted, {**feed, **self._state.weights}, run_options)
        found = dict(zip(wanted, values, strict=True))
        if rate is not None:
            self._step({name: found[f"{name}_grad"] for name in self._state.weights}, rate)
        return [found[name] for name in names]

    def _step(self, gradients: Mapping[str, np.ndarray], rate: np.ndarray) -> None:
        """Add up gradients; when there are enough, take a step with their mean."""
        steps = self._parameters.gradient_accumulation_steps
        self._runs += 1
        if steps > 1:  # sums of shares: after the last run they are the mean
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

    def get_state(self) -> dict[str, np.ndarray]:
        """Return copies of all weights, moments (``Moment_1_NAME``) and counts (``Update_Count_NAME``) by name.

        ``SGDOptimizer`` has neither moments nor counts.
        """
        return self._state.all_arrays()

    def load_state(self, dict: Mapping[str, Any], strict: bool = False) -> None:
        """Set weights, moments and counts by name, as :meth:`get_state` returns them.

        Parameters
        ----------
        dict : dict of str to ndarray
        strict : bool, default=False
            Whether missing or unknown names raise ValueError; else they are ignored.
        """
        self._state.load(dict, strict=strict)
        self._sums, self._runs = {}, 0  # sums of gradients at the weights before

    def get_model_state(self, include_mixed_precision_weights: bool = False) -> dict[str, dict[str, np.ndarray]]:
        """Return copies of the weights, under "full_precision"."""
        if include_mixed_precision_weights:
            raise ValueError("There are no weights of mixed precision: leave include_mixed_precision_weights=False.")
        return {"full_precision": self._state.model_state()}

    def get_optimizer_state(self) -> dict[str, dict[str, np.ndarray]]:
        """Return copies of moments and counts by weight; empty for ``SGDOptimizer`` and without an optimizer."""
        return self._state.optimizer_state()

    def get_partition_info_map(self) -> dict[str, dict[str, list[int]]]:
        """Return how weights are partitioned among processes: they are not."""
        return {}

    def io_binding(self) -> IOBinding:
        """Return an object for binding inputs and outputs, for :meth:`run_with_iobinding`."""
        return IOBinding(self)

    def run_with_iobinding(self, iobinding: IOBinding, run_options: object = None) -> None:
        """Run as :meth:`run` does, on bound inputs; outputs are written to the memory they are bound to."""
        if not isinstance(iobinding, IOBinding):
            raise TypeError(f"expected what io_binding() returns, got {type(iobinding).__name__}.")
        self._sess.run_with_iobinding(iobinding._iobinding, run_options)

    def is_output_fp32_node(self, output_name: str) -> bool:
        """Return True if an output is of type float32."""
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
        self._given = sorted(y_names), sorted(x_names), loss, checked_engine(engine)
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


# Inputs and outputs that are bound to memory, with the methods of onnxruntime's IOBinding.


class BoundArrays:
    """The arrays to which inputs and outputs are bound.

    Parameters
    ----------
    inputs, outputs : set of str
        The names that can be bound.

    Attributes
    ----------
    inputs : dict of str to ndarray
    outputs : dict of str to (ndarray or None)
        In the order of binding; None: each run makes a new array.
    results : list of ndarray
        The outputs of the last run.
    """

    def __init__(self, inputs: Collection[str], outputs: Collection[str]) -> None:
        self._valid = {"input": inputs, "output": outputs}
        self.inputs: dict[str, np.ndarray] = {}
        self.outputs: dict[str, np.ndarray | None] = {}
        self.results: list[np.ndarray] = []
        self._kept: list[Any] = []

    def bind_input(self, name: str, array: np.ndarray) -> None:
        """Bind an input; raise ModelError if the graph has none of this name."""
        self.inputs[self._checked(name, "input")] = array

    def bind_output(self, name: str, place: np.ndarray | None) -> None:
        """Bind an output; raise ModelError if the graph has none of this name."""
        self.outputs[self._checked(name, "output")] = place

    def _checked(self, name: str, kind: str) -> str:
        if name not in self._valid[kind]:
            raise ModelError(f"The graph has no {kind} {name!r}.{nearest(name, self._valid[kind])}")
        return name

    def view(self, ortvalue: object) -> np.ndarray:
        """Return the memory of an OrtValue as an array, and keep the value alive."""
        value = runtime.unwrapped_value(ortvalue)
        if value is None:
            raise TypeError(f"expected an OrtValue, got {type(ortvalue).__name__}.")
        self._kept.append(value)  # an array over its memory would not keep it
        _require_host(value.device_name())
        return _array_at("cpu", runtime.dtype_of(value.data_type()), value.shape(), value.data_ptr())

    def take(self, results: Sequence[np.ndarray]) -> None:
        """Store the outputs of a run, and write them to the memory to which they are bound."""
        for (name, place), array in zip(self.outputs.items(), results, strict=True):
            if place is not None:
                if place.shape != array.shape or place.dtype != array.dtype:
                    raise ModelError(
                        f"Output {name!r} is {array.dtype}{list(array.shape)}, but is bound to memory for "
                        f"{place.dtype}{list(place.shape)}."
                    )
                place[...] = array
        self.results = list(results)


class _Binding:
    """The methods that onnxruntime's two classes have in common."""

    def __init__(self, bound: BoundArrays) -> None:
        self.bound = bound

    def bind_ortvalue_input(self, name: str, ortvalue: object) -> None:
        """Bind an input to an OrtValue; each run reads it."""
        self.bound.bind_input(name, self.bound.view(ortvalue))

    def bind_ortvalue_output(self, name: str, ortvalue: object) -> None:
        """Bind an output to an OrtValue; each run writes to it."""
        self.bound.bind_output(name, self.bound.view(ortvalue))

    def copy_outputs_to_cpu(self) -> list[np.ndarray]:
        """Return the outputs of the last run."""
        return [array.copy() for array in self.bound.results]

    def synchronize_inputs(self) -> None:
        """Do nothing: inputs in host memory need no synchronization."""

    def synchronize_outputs(self) -> None:
        """Do nothing: outputs in host memory need no synchronization."""

    def clear_binding_inputs(self) -> None:
        """Remove all bindings of inputs."""
        self.bound.inputs = {}

    def clear_binding_outputs(self) -> None:
        """Remove all bindings of outputs."""
        self.bound.outputs, self.bound.results = {}, []


class SessionIOBinding(_Binding):
    """Inputs and outputs in host memory, with the methods of the class of this name in onnxruntime's C bindings.

    Parameters
    ----------
    session : object
        The attribute ``_sess`` of a :class:`~.TrainingSession`.
    """

    def __init__(self, session: Any) -> None:
        names = ({value.name for value in values} for values in (session.inputs_meta, session.outputs_meta))
        super().__init__(BoundArrays(*names))
        self._returned: runtime.OrtValueVector = None

    def bind_input(self, name: str, *place: Any) -> None:
        """Bind an input to an array, or to memory given as OrtDevice, element type, shape and address."""
        if len(place) == 1:
            require_in_memory(place[0], repr(name))
            self.bound.bind_input(name, np.asarray(place[0]))
            return
        device, element_type, shape, address = place
        self.bound.bind_input(name, _array_at(runtime.device_name(device), element_type, shape, address))

    def bind_output(
        self,
        name: str,
        device: runtime.OrtDevice,
        element_type: DTypeLike | None = None,
        shape: Sequence[int] | None = None,
        address: int | None = None,
    ) -> None:
        """Bind an output to new memory, or to memory at an address."""
        self.bound.bind_output(name, _output_at(runtime.device_name(device), element_type, shape, address))

    def get_outputs(self) -> runtime.OrtValueVector:
        """Return the outputs of the last run; their memory is kept until the next call."""
        device = runtime.ort_device(resolve_device())
        self._returned = runtime.vector(runtime.value_of(array, device) for array in self.bound.results)
        return self._returned


class IOBinding(_Binding):
    """The result of :meth:`~.TrainingSession.io_binding`: inputs and outputs in host memory.

    Parameters
    ----------
    session : TrainingSession
    """

    def __init__(self, session: Any) -> None:
        self._iobinding = SessionIOBinding(session._sess)
        super().__init__(self._iobinding.bound)

    def bind_cpu_input(self, name: str, arr_on_cpu: np.ndarray) -> None:
        """Bind an input to an array; each run reads it."""
        require_in_memory(arr_on_cpu, repr(name))
        self.bound.bind_input(name, np.asarray(arr_on_cpu))

    def bind_input(
        self,
        name: str,
        device_type: str,
        device_id: int,
        element_type: DTypeLike,
        shape: Sequence[int],
        buffer_ptr: int,
    ) -> None:
        """Bind an input to host memory at an address."""
        self.bound.bind_input(name, _array_at(device_type, element_type, shape, buffer_ptr))

    def bind_output(
        self,
        name: str,
        device_type: str = "cpu",
        device_id: int = 0,
        element_type: DTypeLike | None = None,
        shape: Sequence[int] | None = None,
        buffer_ptr: int | None = None,
    ) -> None:
        """Bind an output to new memory, or to host memory at an address."""
        self.bound.bind_output(name, _output_at(device_type, element_type, shape, buffer_ptr))

    def get_outputs(self) -> list[Any]:
        """Return the outputs of the last run as ``onnxruntime.OrtValue``."""
        return [runtime.on_host(array) for array in self.bound.results]

    def get_outputs_as_ortvaluevector(self) -> Any:
        """Return the outputs of the last run as an OrtValueVector."""
        return self._iobinding.get_outputs()


def _output_at(
    device_type: str, element_type: DTypeLike | None, shape: Sequence[int] | None, address: int | None
) -> np.ndarray | None:
    """Return the array at an address; None without an address: a run then makes the array."""
    _require_host(device_type)
    if address is None:
        return None
    if element_type is None or shape is None:
        raise TypeError("An output at an address (buffer_ptr) needs element_type and shape.")
    return _array_at(device_type, element_type, shape, address)


def _require_host(device_type: str) -> None:
    if device_type.lower() != "cpu":
        raise ValueError(f"Training sessions bind only host memory ('cpu'), got {device_type!r}.")


def _array_at(device_type: str, element_type: DTypeLike | None, shape: Sequence[int], address: int) -> np.ndarray:
    """Return the array at an address in host memory."""
    _require_host(device_type)
    dtype: DType = np.dtype(element_type)
    # The array does not own the memory: as with onnxruntime's own binding, the caller keeps it alive.
    size = int(np.prod(shape)) * dtype.itemsize
    memory: Any = (ctypes.c_char * size).from_address(address)
    return np.frombuffer(memory, dtype).reshape(tuple(shape))


# The state of a training session: weights, moments and counts of the optimizer; saving and loading them.


class TrainingState:
    """Weights by name, moments by weight and slot, and the number of updates of each weight.

    Parameters
    ----------
    weights : dict of str to ndarray
    optimizer : str
        Name of the optimizer; "": none.
    """

    def __init__(self, weights: Mapping[str, np.ndarray], optimizer: str) -> None:
        self.weights = {name: np.array(array) for name, array in weights.items()}
        self.optimizer = optimizer
        self.counts = dict.fromkeys(self.weights, 0)
        self.moments: dict[str, dict[str, np.ndarray]] = {}
        if optimizer not in ("", "SGDOptimizer"):
            self.moments = {n: {m: np.zeros_like(w) for m in MOMENTS} for n, w in self.weights.items()}

    def model_state(self) -> dict[str, np.ndarray]:
        """Return copies of the weights."""
        return {name: array.copy() for name, array in self.weights.items()}

    def optimizer_state(self) -> dict[str, dict[str, np.ndarray]]:
        """Return copies of moments and counts by weight; empty where the optimizer has no moments."""
        return {
            name: {
                **{slot: array.copy() for slot, array in slots.items()},
                UPDATE_COUNT: np.array([self.counts[name]]),
            }
            for name, slots in self.moments.items()
        }

    def all_arrays(self) -> dict[str, np.ndarray]:
        """Return copies of weights, moments and counts in one dict."""
        state = self.model_state()
        for weight, slots in self.optimizer_state().items():
            state |= {f"{slot}_{weight}": array for slot, array in slots.items()}
        return state

    def load(self, given: Mapping[str, Any], *, strict: bool) -> None:
        """Load a state of :meth:`all_arrays`; ``strict`` raises for missing or unknown names."""
        current = self.all_arrays()
        missing = current.keys() - given.keys()
        unknown = given.keys() - current.keys()
        if strict and (missing or unknown):
            raise ModelError(f"The state does not fit: missing {sorted(missing)}, unknown {sorted(unknown)}.")
        # All arrays are checked before one is set: a state that does not fit leaves the session as it was.
        new = {name: to_array(given[name]) for name in current if name in given}
        for name, array in new.items():
            if array.shape != current[name].shape or array.dtype != current[name].dtype:
                found, expected = (f"{a.dtype}{list(a.shape)}" for a in (array, current[name]))
                raise ModelError(f"The state holds {name!r} as {found}, expected {expected}.")
        current |= new
        self.weights = {name: current[name] for name in self.weights}
        self.moments = {n: {m: current[f"{m}_{n}"] for m in slots} for n, slots in self.moments.items()}
        self.counts |= {name: int(current[f"{UPDATE_COUNT}_{name}"][0]) for name in self.moments}

    def load_optimizer(self, state: Mapping[str, Mapping[str, np.ndarray]]) -> None:
        """Load a state of :meth:`optimizer_state`, or a part of it."""
        known = self.optimizer_state()
        flat = {}
        for name, slots in state.items():
            for slot, array in slots.items():
                if slot not in known.get(name, {}):
                    raise ModelError(f"The optimizer has no state {slot!r} of {name!r}; its weights are {list(known)}.")
                flat[f"{slot}_{name}"] = array
        self.load(flat, strict=False)

    def feed(self, gradients: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return the inputs of the update graph; the counts include this update."""
        feed: dict[str, np.ndarray] = {}
        for name, weight in self.weights.items():
            moments = {f"{m}_{name}": array for m, array in self.moments.get(name, {}).items()}
            count = {f"{UPDATE_COUNT}_{name}": np.array([self.counts[name] + 1])}
            feed |= {name: weight, f"{name}_grad": gradients[name], **moments, **count}
        return feed

    def take(self, found: Mapping[str, np.ndarray]) -> None:
        """Store the outputs of the update graph."""
        self.weights = {name: found[f"New_{name}"] for name in self.weights}
        self.moments = {n: {m: found[f"New_{m}_{n}"] for m in slots} for n, slots in self.moments.items()}
        self.counts = {name: count + 1 for name, count in self.counts.items()}


def to_array(value: Any) -> np.ndarray:
    """Return a copy of an array or of an OrtValue as an array."""
    unwrapped = runtime.unwrapped_value(value)
    require_in_memory(value, "the value")
    return np.array(value) if unwrapped is None else runtime.copied_array(unwrapped)


# The graphs of a training session: the trained weights, their gradients, the update, the whole step.


def loss_output(graph: ir.Graph, name: str) -> str:
    """Return the name of the loss; raise ValueError if it is not an output of one element."""
    outputs = {v.name or "": v for v in graph.outputs}
    if name not in outputs:
        raise ModelError(f"loss_output_name={name!r} is no output of the graph.{nearest(name, outputs)}")
    if (shape := dims(outputs[name])) is None or any(size != 1 for size in shape):
        found = "an unknown shape" if shape is None else f"shape {outputs[name].shape}"
        raise ModelError(f"The loss must have one element, but {name!r} has {found}. Reduce it first.")
    return name


def trained_weights(graph: ir.Graph, parameters: TrainingParameters) -> dict[str, np.ndarray]:
    """Return the weights to train by name, in the order of the graph."""
    floats = float_names(list(graph.initializers.values()))
    wanted, excluded = (
        require_names(sorted(getattr(parameters, role)), floats, role)
        for role in ("weights_to_train", "weights_not_to_train")
    )
    if both := set(wanted) & set(excluded):
        raise ValueError(f"weights_to_train and weights_not_to_train both name {sorted(both)}.")
    left_out = set(excluded)
    for node in graph:  # immutable weights are found by operator, position among its inputs, and value
        for position, expected in parameters.immutable_weights.get(node.op_type, {}).items():
            value = node.inputs[position] if position < len(node.inputs) else None
            held = None if value is None else value.const_value
            if value is not None and held is not None and held.size == 1 and float(held.numpy().item()) == expected:
                left_out.add(value.name or "")
    names = [name for name in floats if (name in wanted or not wanted) and name not in left_out]
    if not names:
        raise ModelError("There is no weight to train: the graph has no float initializer that is not left out.")
    for role in ("optimizer_attributes_map", "optimizer_int_attributes_map"):
        require_names(list(getattr(parameters, role)), names, role)
    for name in names if parameters.training_optimizer_name else ():  # refuses unknown ones before any work
        attributes_of(parameters, name)
    return {name: array_of(graph.initializers[name]) for name in names}


def session_graphs(
    model: ir.Model, loss: str, parameters: TrainingParameters, state: TrainingState, engine: str
) -> tuple[onnx.ModelProto, onnx.ModelProto | None]:
    """Return the gradient graph and the update graph; write the files that the parameters name."""
    names = list(state.weights)
    gradient = _gradients(model, names, loss, parameters.loss_scale, engine)
    initializers_to_inputs(gradient.graph, names)
    proto = to_proto(gradient)
    update = None
    if parameters.training_optimizer_name:
        graph = ir.Graph([], [], nodes=[], opset_imports={"": 18}, name="update")
        update = to_proto(_with_update(ir.Model(graph, ir_version=8), parameters, state))
    if path := parameters.model_after_graph_transforms_path:
        onnx.save(to_proto(model.clone()), path)
    if path := parameters.model_with_gradient_graph_path:
        onnx.save(proto, path)
    if path := parameters.model_with_training_graph_path:
        onnx.save(proto if update is None else to_proto(_with_update(gradient, parameters, state)), path)
    return proto, update


def _gradients(model: ir.Model, names: Sequence[str], loss: str, scale: float, engine: str) -> ir.Model:
    """Return the graph with gradients of the loss; they are those of ``scale`` times the loss, divided by it."""
    outputs = [v.name or "" for v in model.graph.outputs]
    if not scale:
        return vjp_graph(model, outputs, names, engine, seeded=(), ones=[loss])
    # Differentiate a further output, the scaled loss, and divide the gradients: a run returns the loss unscaled.
    source = model.clone()
    value = next(v for v in source.graph.outputs if v.name == loss)
    op = GraphBuilder(source.graph, dtype=value.dtype or ir.DataType.FLOAT, prefix="loss_scale")
    scaled = op.Mul(value, float(scale))
    source.graph.outputs.append(copy_type(scaled, value))
    result = vjp_graph(source, [*outputs, scaled.name or ""], names, engine, seeded=(), ones=[scaled.name or ""])
    graph = result.graph
    op = GraphBuilder(graph, prefix="loss_scale")
    graph.outputs[:] = [v for v in graph.outputs if v.name != scaled.name]
    wanted = {f"{name}_grad" for name in names}
    for i, gradient in enumerate(graph.outputs):
        if (name := gradient.name) in wanted:
            op.dtype = gradient.dtype or ir.DataType.FLOAT
            gradient.name = op.name("scaled")
            new = graph.outputs[i] = copy_type(op.Div(gradient, float(scale)), gradient)
            new.name = name
    return result


def _with_update(model: ir.Model, parameters: TrainingParameters, state: TrainingState) -> ir.Model:
    """Emit the update into a graph, in place; weights and gradients that it does not have become inputs."""
    graph = model.graph
    rate = ir.val(parameters.lr_params_feed_name, ir.DataType.FLOAT, (1,))
    graph.inputs.append(rate)
    op = GraphBuilder(graph, prefix="update")
    named = {v.name: v for v in [*graph.inputs, *graph.outputs]}
    updates = {}
    for name, array in state.weights.items():
        dtype = ir.DataType.from_numpy(array.dtype)
        specs = [name, f"{name}_grad", *(f"{moment}_{name}" for moment in state.moments.get(name, ()))]
        values = [named.get(one) or ir.val(one, dtype, array.shape) for one in specs]
        count = ir.val(f"{UPDATE_COUNT}_{name}", ir.DataType.INT64, (1,))
        graph.inputs.extend(value for value in [*values, count] if value.name not in named)
        weight, gradient, *moments = values
        updates[name] = Update(weight, gradient, moments, rate, count)
    for name, results in emit_updates(op, parameters, updates).items():
        for end, value in zip(("", *(f"{moment}_" for moment in MOMENTS)), results, strict=False):
            weight = updates[name].weight
            value.name = f"New_{end}{name}"
            value.type = weight.type
            value.shape = weight.shape
            graph.outputs.append(value)
    return model
