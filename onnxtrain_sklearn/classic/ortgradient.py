"""Forward and backward passes of an ONNX graph under the caller's control, as in onnxcustom.

:class:`OrtGradientForwardBackward` prepares a graph once and creates a class for it, which holds the sessions and the
names. An instance of that class runs the graph forward on inputs and weights, and backward from gradients of its
outputs; it holds the forward passes that await their backward pass. With onnxruntime-training both passes are halves of
one session (its TrainingAgent), otherwise ``TwoSessions`` runs them. The gradients are those of
:func:`onnxtrain_sklearn.gradient_graph`: an operator without a proven gradient is refused.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeAlias

import numpy as np
import onnx
import onnx_ir as ir

from .._data.columns import require_in_memory
from .._gradient.engine import checked_engine
from .._importers.load import checked, load
from .._ir.edits import initializers_to_inputs, keep_outputs
from .._ir.protobuf import to_proto
from .._ort import objects as runtime
from .._ort.devices import OWN_MEMORY, Device
from .._utils.errors import refusing
from ..exceptions import ModelError, nearest
from .grad_helper import float_names, require_names, split, vjp_graph, with_yield

__all__ = ["OrtGradientForwardBackward", "OrtGradientForwardBackwardFunction"]

_PARAMETERS = (
    "weights_to_train input_names output_names class_name sess_options providers provider_options run_options "
    "graph_builder_config device_index enable_logging debug engine"
).split()


class OrtGradientForwardBackward:
    """Prepare a graph for forward and backward passes.

    Parameters
    ----------
    onnx_model : onnx.ModelProto, bytes or path
        The graph that computes the outputs; no loss is needed.
    weights_to_train : list of str, default=None
        Initializers with respect to which gradients are computed, in the order in which :meth:`~.forward` takes them;
        None: all of floating-point type.
    input_names, output_names : list of str, default=None
        The order of all inputs, and the outputs to compute; None: those of the graph.
    class_name : str, default=None
        Name of the created class.
    sess_options : onnxruntime.SessionOptions, default=None
        Options of all sessions; None: one thread.
    providers, provider_options : list, default=None
        As onnxruntime's InferenceSession takes them; None: the CPU.
    run_options : onnxruntime.RunOptions, default=None
        Options of the runs of sessions; onnxruntime-training's agent takes none for its passes.
    graph_builder_config : OrtModuleGraphBuilderConfiguration, default=None
        Only ``initializer_names_to_train`` and ``input_names_require_grad`` are used; settings that change how the
        gradient graph is built raise ValueError.
    device_index : int, default=0
        Index of the GPU.
    enable_logging : bool, default=False
        Whether to log to the logger "onnxtrain_sklearn", at level INFO.
    debug : bool, default=False
        Whether each pass checks its values: dense tensors, finite numbers.
    engine : {"auto", "ort-training", "portable"}, default="auto"
        The gradient engine. "portable" always uses two sessions.

    Attributes
    ----------
    cls_type_ : type
        The created subclass of :class:`OrtGradientForwardBackwardFunction`; :meth:`new_instance` makes instances.

    Notes
    -----
    Weights may be in any order, and there may be several outputs. Inputs and outputs may be integers, which have no
    gradient. Pickles keep the attributes of session and run options, not their configuration entries.

    Examples
    --------
    >>> import numpy as np
    >>> import onnx.parser
    >>> from onnxtrain_sklearn.classic.ortgradient import OrtGradientForwardBackward
    >>> model = onnx.parser.parse_model('''<ir_version: 8, opset_import: ["": 18]>
    ...     linear (float[N, 2] X) => (float[N, 1] Y) <float[2, 1] W = {1, -2}> { Y = MatMul(X, W) }''')
    >>> trained = OrtGradientForwardBackward(model)
    >>> function = trained.new_instance()
    >>> X, W = np.ones((3, 2), dtype=np.float32), trained.get_initializer("W")
    >>> function.forward([X, W], training=True)[0].numpy().ravel().tolist()
    [-1.0, -1.0, -1.0]
    >>> X_grad, W_grad = function.backward([np.ones((3, 1), dtype=np.float32)])
    >>> W_grad.numpy().ravel().tolist()
    [3.0, 3.0]
    """

    def __init__(
        self,
        onnx_model: onnx.ModelProto | bytes | str | os.PathLike[str],
        weights_to_train: Sequence[str] | None = None,
        input_names: Sequence[str] | None = None,
        output_names: Sequence[str] | None = None,
        class_name: str | None = None,
        sess_options: object = None,
        providers: Sequence[runtime.Provider] | None = None,
        provider_options: Sequence[Mapping[str, object]] | None = None,
        run_options: object = None,
        graph_builder_config: object = None,
        device_index: int = 0,
        enable_logging: bool = False,
        debug: bool = False,
        *,
        engine: str = "auto",
    ) -> None:
        runtime.require_options(sess_options, "SessionOptions")
        runtime.require_options(run_options, "RunOptions")
        self.onnx_model = checked(onnx_model)
        self.sess_options, self.run_options = sess_options, run_options
        self.providers, self.provider_options, self.device_index = providers, provider_options, device_index
        self.enable_logging, self.debug = bool(enable_logging), bool(debug)
        self.engine = checked_engine(engine)
        self.class_name = "OrtGradientFunction" if class_name is None else class_name
        self._device = runtime.resolve_providers(providers, provider_options, device_index)
        config = _ConfigNames(graph_builder_config)
        graph = self.onnx_model.graph
        chosen = config.weights(weights_to_train)
        floats = self._select_initializer_names(self.onnx_model)
        self.weights_to_train = floats if chosen is None else require_names(chosen, floats, "weights_to_train")
        own = [i.name for i in graph.input if i.name not in {one.name for one in graph.initializer}]
        self.input_names = own if input_names is None else require_names(input_names, own, "input_names")
        if missing := set(own) - set(self.input_names):
            raise ValueError(f"input_names must hold all inputs of the graph; {sorted(missing)} are missing.")
        outputs = [o.name for o in graph.output]
        self.output_names = outputs if output_names is None else require_names(output_names, outputs, "output_names")
        self.inputs_with_gradient = config.inputs(self.input_names)
        self._init_next()

    def _init_next(self) -> None:
        self._logger = logging.getLogger("onnxtrain_sklearn") if self.enable_logging else None
        self.cls_type_ = self._create_onnx_graphs()

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without the class and its sessions; options of onnxruntime are stored by their values."""
        state = {k: v for k, v in vars(self).items() if k not in ("cls_type_", "_logger")}
        options = {name: runtime.option_values(state[name]) for name in ("sess_options", "run_options")}
        return {**state, **options, "onnx_model": self.onnx_model.SerializeToString()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self.onnx_model = checked(state["onnx_model"])
        self.sess_options = runtime.options_from("SessionOptions", state["sess_options"])
        self.run_options = runtime.options_from("RunOptions", state["run_options"])
        self._init_next()

    def __repr__(self) -> str:
        return f"{type(self).__name__}(...)"

    @staticmethod
    def _repr_helper_(obj: Any, indent: int = 0) -> str:
        """Return a short text for a model, a list or a dict for logs; further lines are indented by ``indent``."""
        if isinstance(obj, onnx.ModelProto):
            return f"<graph {obj.graph.name!r} of {len(obj.graph.node)} nodes>"
        if isinstance(obj, dict):
            lines = [f"{k}={OrtGradientForwardBackward._repr_helper_(v, indent + 2)}" for k, v in obj.items()]
            return f"\n{' ' * indent}".join(lines)
        if isinstance(obj, list | tuple):
            return f"[{', '.join(OrtGradientForwardBackward._repr_helper_(v, indent) for v in obj)}]"
        return repr(obj)

    @staticmethod
    def _provider_name_to_device_type(provider_name: str) -> str:
        """Return the device type of a provider: "cpu" or "cuda"."""
        known = {"CPUExecutionProvider": "cpu", **OWN_MEMORY}
        if provider_name not in known:
            raise ValueError(f"Unknown execution provider {provider_name!r}.{nearest(provider_name, known)}")
        return known[provider_name]

    @staticmethod
    def _select_initializer_names(onnx_model: onnx.ModelProto) -> list[str]:
        """Return the names of the initializers of floating-point type."""
        graph = onnx_model.graph
        return [i.name for i in graph.initializer if ir.DataType(i.data_type).is_floating_point()]

    def get_initializer(self, name: str, exc: bool = True) -> np.ndarray | None:
        """Return an initializer of the graph.

        Parameters
        ----------
        name : str
        exc : bool, default=True
            Whether an unknown name raises; else None is returned.

        Returns
        -------
        ndarray or None

        Raises
        ------
        ValueError
            There is no initializer of this name.
        """
        held = {tensor.name: tensor for tensor in self.onnx_model.graph.initializer}
        if name in held:
            return np.array(ir.serde.deserialize_tensor(held[name]).numpy())
        if exc:
            raise ModelError(f"The graph has no initializer {name!r}.{nearest(name, held)}")
        return None

    def new_instance(self) -> OrtGradientForwardBackwardFunction:
        """Return an instance of ``cls_type_``, which runs forward and backward passes."""
        return self.cls_type_()

    def _create_onnx_graphs(self) -> type[OrtGradientForwardBackwardFunction]:
        """Return the class that runs the graph, with its sessions and names as attributes."""
        weights = self.weights_to_train
        names = [*self.input_names, *self.weights_to_train]
        model = load(self.onnx_model)
        # The forward graph alone, with the weights as inputs, for passes without a backward pass.
        evaluated = model.clone()
        initializers_to_inputs(evaluated.graph, weights)
        by_name = {v.name: v for v in evaluated.graph.outputs}
        keep_outputs(evaluated, [by_name[name] for name in self.output_names])
        sess_eval = runtime.session(to_proto(evaluated).SerializeToString(), self._device, self.sess_options)
        # The graph of both passes.
        floats = [n for n in float_names(model.graph.inputs) if n in self.inputs_with_gradient]
        wrt = [*(n for n in self.input_names if n in floats), *weights]
        if not wrt:
            raise ModelError("The graph has neither float inputs nor float initializers, so nothing has a gradient.")
        trained = vjp_graph(model, self.output_names, wrt, self.engine)
        initializers_to_inputs(trained.graph, weights)
        seeds = [n for n in self.output_names if f"{n}_grad" in {v.name for v in trained.graph.inputs}]
        gradients = [f"{name}_grad" for name in wrt]
        device = runtime.ort_device(self._device)
        # The names are those of onnxcustom's class: programs that were written for it read these attributes.
        attributes: dict[str, Any] = {
            "__doc__": f"Forward and backward passes of {self._repr_helper_(self.onnx_model)}.",
            "__module__": __name__,
            "_run_options": self.run_options,
            "_sess": runtime.session(self.onnx_model.SerializeToString(), self._device, self.sess_options),
            "_sess_eval": sess_eval,
            "_logger": self._logger,
            "_debug": self.debug,
            "_input_names": self.input_names,
            "_output_names": self.output_names,
            "_weights_to_train": weights,
            "_grad_input_names": names,
            "_bw_fetches_names": gradients,
            "_onx_inp": names,
            "_onx_out": gradients,
            "_graph_info": GraphInfo(
                user_input_names=list(self.input_names),
                user_output_names=list(self.output_names),
                initializer_names=[tensor.name for tensor in self.onnx_model.graph.initializer],
                initializer_names_to_train=list(weights),
                user_input_grad_names={name: f"{name}_grad" for name in wrt if name not in weights},
                initializer_grad_names_to_train=[f"{name}_grad" for name in weights],
                module_output_gradient_name=[f"{name}_grad" for name in seeds],
                output_grad_indices_non_differentiable=[i for i, n in enumerate(self.output_names) if n not in seeds],
            ),
            "_optimized_pre_grad_model": to_proto(evaluated),
            "_graph_builder": None,
            "_device": self._device,
            "_types": {v.name: runtime.dtype_of(v.type) for v in [*sess_eval.get_inputs(), *sess_eval.get_outputs()]},
            "_fw_outputs_device_info": [device] * len(self.output_names),
            "_fw_no_grad_output_device_info": [device] * len(self.output_names),
            "_bw_outputs_device_info": [device] * len(gradients),
        }
        # The agent that runs the passes: onnxruntime-training's, or two sessions.
        if self.engine == "portable" or not runtime.has_training_agent():
            given = (self._device, self.sess_options, self.run_options)
            attributes |= {
                "_training_agent": TwoSessions(trained, names, self.output_names, gradients, *given),
                "_trained_onnx": to_proto(trained),
                "_cache": None,
                "_new_state": staticmethod(PassState),
            }
        else:
            proto = to_proto(with_yield(trained, self.output_names))
            options = runtime.quiet_options() if self.sess_options is None else self.sess_options
            with runtime.keeping_activations(options):
                session = runtime.session(proto.SerializeToString(), self._device, options)
            devices = (attributes["_fw_outputs_device_info"], attributes["_bw_outputs_device_info"])
            attributes |= {
                "_training_agent": runtime.training_agent(session, names, devices[0], gradients, devices[1]),
                "_training_session": session,
                "_trained_onnx": proto,
                "_cache": runtime.value_cache(),
                "_new_state": staticmethod(runtime.pass_state),
            }
        if self._logger is not None:
            self._logger.info("[%s] %s", self.class_name, self._repr_helper_(attributes, 2))
        return type(self.class_name, (OrtGradientForwardBackwardFunction,), attributes)


class _ConfigNames:
    """Names of weights and inputs to differentiate, from an OrtModuleGraphBuilderConfiguration."""

    def __init__(self, config: Any) -> None:
        self._config = config
        expected = {"build_gradient_graph": True, "enable_caching": False, "use_memory_efficient_gradient": False}
        for name, value in expected.items() if config is not None else ():
            if getattr(config, name) != value:
                raise ValueError(
                    f"graph_builder_config.{name}={getattr(config, name)!r} has no meaning, because this package "
                    f"builds the gradient graph itself. Leave it {value!r}."
                )

    def weights(self, given: Sequence[str] | None) -> Sequence[str] | None:
        """Return the weights to train."""
        named = list(getattr(self._config, "initializer_names_to_train", ()))
        if given is not None and named and list(given) != named:
            raise ValueError(
                f"weights_to_train={list(given)} contradicts graph_builder_config.initializer_names_to_train={named}."
            )
        return named if given is None and named else given

    def inputs(self, names: Sequence[str]) -> list[str]:
        """Return the float inputs with respect to which gradients are computed."""
        named = list(getattr(self._config, "input_names_require_grad", ()))
        return require_names(named, names, "graph_builder_config.input_names_require_grad") if named else list(names)


Tensors: TypeAlias = "Sequence[np.ndarray | runtime.OrtValue]"


@dataclass(frozen=True)
class GraphInfo:
    """Names and positions in the gradient graph, as onnxruntime-training's graph builder reports them."""

    user_input_names: list[str]
    user_output_names: list[str]
    initializer_names: list[str]
    initializer_names_to_train: list[str]
    user_input_grad_names: dict[str, str]
    initializer_grad_names_to_train: list[str]
    module_output_gradient_name: list[str]
    output_grad_indices_non_differentiable: list[int]


@dataclass
class Pending:
    """A forward pass that awaits its backward pass."""

    state: Any
    shapes: list[list[int]]
    saved: list[runtime.OrtValue]


class OrtGradientForwardBackwardFunction:
    """Base of the classes that :class:`OrtGradientForwardBackward` creates; they run forward and backward passes.

    Each forward pass with ``training=True`` awaits its backward pass. :meth:`backward` runs that of the last one, or of
    the one that ``pending`` selects; passes of several instances are independent.
    """

    _run_options: ClassVar[Any]
    _sess: ClassVar[Any]
    _sess_eval: ClassVar[Any]
    _training_agent: ClassVar[Any]
    _cache: ClassVar[Any]
    _logger: ClassVar[logging.Logger | None]
    _debug: ClassVar[bool]
    _input_names: ClassVar[list[str]]
    _output_names: ClassVar[list[str]]
    _grad_input_names: ClassVar[list[str]]
    _weights_to_train: ClassVar[list[str]]
    _bw_fetches_names: ClassVar[list[str]]
    _fw_outputs_device_info: ClassVar[list[runtime.OrtDevice]]
    _bw_outputs_device_info: ClassVar[list[runtime.OrtDevice]]
    _fw_no_grad_output_device_info: ClassVar[list[runtime.OrtDevice]]
    _graph_info: ClassVar[GraphInfo]
    _trained_onnx: ClassVar[onnx.ModelProto]
    _onx_inp: ClassVar[list[str]]
    _onx_out: ClassVar[list[str]]
    _optimized_pre_grad_model: ClassVar[onnx.ModelProto]
    _graph_builder: ClassVar[Any]
    _device: ClassVar[Device]
    _types: ClassVar[dict[str, np.dtype[np.generic]]]
    _new_state: ClassVar[Callable[[], Any]]

    def __init__(self) -> None:
        self.saved_tensors_: list[runtime.OrtValue] | None = None
        self._pending: list[Pending] = []

    @staticmethod
    def device_name(device: runtime.OrtDevice) -> str:
        """Return the name of an OrtDevice: "cpu", "cuda", ..."""
        return runtime.device_name(device)

    @staticmethod
    def input_to_ort(
        tensors: Tensors | runtime.OrtValueVector, devices: Sequence[runtime.OrtDevice], debug: bool
    ) -> runtime.OrtValueVector:
        """Return the tensors as an OrtValueVector.

        Parameters
        ----------
        tensors : list of ndarray, OrtValue, or OrtValueVector
            Arrays are copied to their device; values are used without a copy.
        devices : list of OrtDevice
            Device of each tensor.
        debug : bool
            Whether to check that every value is a dense tensor.

        Returns
        -------
        OrtValueVector
        """
        if len(tensors) != len(devices):
            raise ValueError(f"expected {len(devices)} tensors, one for each device, got {len(tensors)}.")
        values = [_value(tensor, device) for tensor, device in zip(tensors, devices, strict=True)]
        if debug:
            for i, value in enumerate(values):
                if not value.is_tensor():
                    raise TypeError(f"tensor {i} is a {value.data_type()}; only dense tensors have gradients.")
        return tensors if runtime.is_vector(tensors) else runtime.vector(values)

    @property
    def saved_tensors(self) -> list[runtime.OrtValue]:
        """The tensors of the last :meth:`save_for_backward`: the inputs of the last forward pass for training."""
        if self.saved_tensors_ is None:
            raise RuntimeError("No tensors were saved: run forward(inputs, training=True) first.")
        return self.saved_tensors_

    def save_for_backward(self, inputs: Sequence[runtime.OrtValue]) -> None:
        """Save a shallow copy of the list of inputs; :meth:`forward` calls this in training mode."""
        self.saved_tensors_ = list(inputs)

    def forward(
        self,
        inputs: Tensors | runtime.OrtValueVector,
        training: bool = False,
        forward_outputs_cache: runtime.OrtValueVector | None = None,
    ) -> runtime.OrtValueVector:
        """Run the graph.

        Parameters
        ----------
        inputs : list of ndarray or OrtValue, or OrtValueVector
            The inputs of the graph in the order of ``_input_names``, then the weights in that of ``_weights_to_train``.
            The memory of values is used until the backward pass; arrays are copied.
        training : bool, default=False
            Whether a backward pass will follow.
        forward_outputs_cache : OrtValueVector, default=None
            Vector for the outputs: empty, or the outputs of an earlier pass, whose memory is overwritten.

        Returns
        -------
        OrtValueVector
            The outputs, in the order of ``_output_names``.
        """
        cls = type(self)
        names = cls._grad_input_names
        require_in_memory(inputs, "inputs")
        if len(inputs) != len(names):
            raise ValueError(f"forward expects {len(names)} tensors ({', '.join(names)}), got {len(inputs)}.")
        given = [_of_type(x, cls._types[name], name) for name, x in zip(names, inputs, strict=True)]
        devices = [runtime.ort_device(cls._device)] * len(given)
        feeds = self.input_to_ort(inputs if runtime.is_vector(inputs) else given, devices, cls._debug)
        outputs = _fetches(forward_outputs_cache, len(cls._output_names), "forward_outputs_cache")
        if training:
            state = cls._new_state()
            with refusing("The forward pass failed"):
                cls._training_agent.run_forward(feeds, outputs, state, cls._cache)
            self.save_for_backward(feeds)
            self._pending.append(Pending(state, [list(v.shape()) for v in outputs], self.saved_tensors))
        else:
            known = {v.name for v in cls._sess_eval.get_inputs()}
            read = {name: value for name, value in zip(names, feeds, strict=True) if name in known}
            options, memory = cls._run_options, cls._device.memory
            found = runtime.run(cls._sess_eval, read, cls._output_names, list(outputs), options, memory=memory)
            runtime.fill(outputs, found)
        self._log("forward", outputs)
        return outputs

    def backward(
        self,
        grad_outputs: Tensors | runtime.OrtValueVector | np.ndarray | runtime.OrtValue,
        backward_outputs_cache: runtime.OrtValueVector | None = None,
        *,
        pending: int = -1,
    ) -> runtime.OrtValueVector:
        """Run the backward pass of a forward pass for training.

        Parameters
        ----------
        grad_outputs : list of ndarray or OrtValue, OrtValueVector, or a single ndarray or OrtValue
            The gradient of each float output, in the order of ``_output_names``. It is reshaped to the output if it has
            as many elements.
        backward_outputs_cache : OrtValueVector, default=None
            Vector for the gradients: empty, or the gradients of an earlier pass, whose memory is overwritten.
        pending : int, default=-1
            Index among the forward passes that await their backward pass; -1: the last.

        Returns
        -------
        OrtValueVector
            The gradients of the float inputs, then of the weights: ``_bw_fetches_names``.
        """
        cls = type(self)
        if not -len(self._pending) <= pending < len(self._pending):
            raise RuntimeError(
                f"{len(self._pending)} forward passes await their backward pass, so pending={pending} does not exist. "
                f"Run forward(inputs, training=True) first; each forward pass has one backward pass."
            )
        waiting = self._pending[pending]
        require_in_memory(grad_outputs, "grad_outputs")
        # The gradients, in the type and shape of the outputs; integers have none.
        single = isinstance(grad_outputs, np.ndarray) or runtime.unwrapped_value(grad_outputs) is not None
        given: list[Any] = [grad_outputs] if single else list(grad_outputs)
        exact = cls._graph_info.output_grad_indices_non_differentiable
        shapes = zip(cls._output_names, waiting.shapes, strict=True)
        wanted = [(name, shape) for i, (name, shape) in enumerate(shapes) if i not in exact]
        if len(given) != len(wanted):
            names = ", ".join(name for name, _ in wanted)
            raise ValueError(f"backward expects {len(wanted)} gradients, of {names}; got {len(given)}.")
        device = runtime.ort_device(cls._device)
        for i, (name, shape) in enumerate(wanted):
            given[i] = _of_shape(_of_type(given[i], cls._types[name], name), shape, name, device)
        grads = self.input_to_ort(given, [device] * len(given), cls._debug)
        results = _fetches(backward_outputs_cache, len(cls._bw_fetches_names), "backward_outputs_cache")
        # The arguments are valid: from here on the pass counts as done, also if it fails.
        self.saved_tensors_ = waiting.saved
        del self._pending[pending]
        with refusing("The backward pass failed"):
            cls._training_agent.run_backward(grads, results, waiting.state)
        self._log("backward", results)
        return results

    @classmethod
    def save_onnx_graph(
        cls, folder: str | os.PathLike[str] | type[bytes], prefix: str | None = None, suffix: str | None = None
    ) -> dict[str, Any]:
        """Save the graph with gradients and the graph with the weights as inputs.

        Parameters
        ----------
        folder : str, path, or the type ``bytes``
            An existing folder; ``bytes`` returns the graphs instead.
        prefix, suffix : str, default=None
            Prefix and suffix of the file names.

        Returns
        -------
        dict of str to str or bytes
            Path or content of the graphs ``_trained_onnx`` and ``_optimized_pre_grad_model``, by name.
        """
        graphs = {name: getattr(cls, name) for name in ("_trained_onnx", "_optimized_pre_grad_model")}
        contents = {name: graph.SerializeToString() for name, graph in graphs.items()}
        if folder is bytes:
            return contents
        if isinstance(folder, type) or not os.path.isdir(folder):
            raise FileNotFoundError(f"Folder {folder!r} does not exist. Give an existing one, or bytes.")
        paths = {n: os.path.join(folder, f"{prefix or ''}{cls.__name__}{n}{suffix or ''}.onnx") for n in contents}
        for name, path in paths.items():
            with open(path, "wb") as file:
                file.write(contents[name])
        return paths

    def _log(self, step: str, values: runtime.OrtValueVector) -> None:
        """Log a pass and check that its values are finite, if the class was created with these options."""
        cls = type(self)
        names = cls._output_names if step == "forward" else cls._bw_fetches_names
        if cls._logger is not None:
            cls._logger.info(
                "[%s] %s: %s", cls.__name__, step, {n: v.shape() for n, v in zip(names, values, strict=True)}
            )
        if cls._debug:
            for name, value in zip(names, values, strict=True):
                array = runtime.copied_array(value)
                if array.dtype.kind == "f" and not np.isfinite(array).all():
                    raise FloatingPointError(f"{name!r} holds NaN or infinite numbers after the {step} pass.")


def _value(tensor: Any, device: runtime.OrtDevice) -> runtime.OrtValue:
    value = runtime.unwrapped_value(tensor)
    if value is not None:
        return value
    if not isinstance(tensor, np.ndarray):
        raise TypeError(f"expected an array or an OrtValue, got {type(tensor).__name__}.")
    return runtime.value_of(tensor, device)


def _of_type(tensor: Any, dtype: np.dtype[np.generic], name: str) -> Any:
    """Return the tensor, float arrays cast to the float type of the graph; raise for other types."""
    value = runtime.unwrapped_value(tensor)
    if value is None:
        require_in_memory(tensor, name)
    found = runtime.dtype_of(value.data_type()) if value is not None else np.asarray(tensor).dtype
    if found == dtype:
        return tensor
    if value is None and dtype.kind == found.kind == "f":
        return np.asarray(tensor).astype(dtype)
    raise TypeError(f"{name!r} expects {dtype}, got {found}. Convert it first.")


def _of_shape(tensor: Any, shape: Sequence[int], name: str, device: runtime.OrtDevice) -> Any:
    """Return the gradient of an output in the shape of the output."""
    value = runtime.unwrapped_value(tensor)
    found = list(np.shape(tensor) if value is None else value.shape())
    if found == list(shape):
        return tensor
    if int(np.prod(found)) != int(np.prod(shape)):
        raise ValueError(f"The gradient of {name!r} has shape {found}, but the output has shape {list(shape)}.")
    array = np.asarray(tensor) if value is None else runtime.copied_array(value)
    return runtime.value_of(array.reshape(shape), device)


def _fetches(cache: Any, count: int, role: str) -> runtime.OrtValueVector:
    """Return the vector for the results."""
    if cache is None:
        return runtime.vector()
    if not runtime.is_vector(cache):
        raise TypeError(f"{role} must be an OrtValueVector, got {type(cache).__name__}.")
    if len(cache) not in (0, count):
        raise ValueError(f"{role} must be empty or hold {count} values, got {len(cache)}.")
    return cache


# An agent for an onnxruntime without one: a session for the forward pass and one for the backward pass.
#
# The forward session returns the outputs and the activations that the backward pass reads. A state object for each
# pass keeps these and the inputs, so that backward passes may run in any order.


@dataclass
class PassState:
    """The values that a backward pass reads, by name: the forward pass stores them, the backward pass clears them."""

    values: dict[str, runtime.OrtValue] = field(default_factory=dict)


class TwoSessions:
    """Run the graph of :func:`~.grad_helper.vjp_graph` as onnxruntime-training's agent does.

    Parameters
    ----------
    model : onnx_ir.Model
    inputs, outputs, gradients : list of str
        Names, in the order in which values are given and returned.
    device : Device
    options : onnxruntime.SessionOptions or None
    run_options : onnxruntime.RunOptions or None
    """

    def __init__(
        self,
        model: ir.Model,
        inputs: Sequence[str],
        outputs: Sequence[str],
        gradients: Sequence[str],
        device: Device,
        options: object,
        run_options: object,
    ) -> None:
        forward, backward, activations = split(model, outputs)
        self._inputs = list(inputs)
        self._gradients = list(gradients)
        self._count = len(outputs)
        self._seeds = [f"{name}_grad" for name in outputs if f"{name}_grad" in {v.name for v in model.graph.inputs}]
        self._forward_outputs = list(dict.fromkeys([*outputs, *activations]))
        self._read = {v.name for v in forward.graph.inputs}, {v.name for v in backward.graph.inputs}
        self._memory, self._run_options = device.memory, run_options
        self._forward, self._backward = (
            runtime.session(to_proto(part).SerializeToString(), device, options) for part in (forward, backward)
        )

    def run_forward(
        self, feeds: runtime.OrtValueVector, fetches: runtime.OrtValueVector, state: PassState, cache: object = None
    ) -> None:
        """Store the outputs in ``fetches`` and the values that the backward pass needs in ``state``."""
        given = dict(zip(self._inputs, feeds, strict=True))
        found = self._run(self._forward, self._read[0], given, self._forward_outputs, fetches)
        runtime.fill(fetches, found[: self._count])
        state.values = {**given, **dict(zip(self._forward_outputs, found, strict=True))}

    def run_backward(self, grads: runtime.OrtValueVector, fetches: runtime.OrtValueVector, state: PassState) -> None:
        """Store the gradients in ``fetches`` and clear the state."""
        given = {**state.values, **dict(zip(self._seeds, grads, strict=True))}
        runtime.fill(fetches, self._run(self._backward, self._read[1], given, self._gradients, fetches))
        state.values = {}

    def _run(
        self,
        session: Any,
        read: Collection[str | None],
        given: Mapping[str, runtime.OrtValue],
        outputs: Sequence[str],
        held: runtime.OrtValueVector,
    ) -> list[runtime.OrtValue]:
        feeds = {name: value for name, value in given.items() if name in read}
        return runtime.run(session, feeds, outputs, list(held), self._run_options, memory=self._memory)
