"""Forward and backward passes of an ONNX graph under the caller's control, as in onnxcustom.

:class:`OrtGradientForwardBackward` prepares a graph once and creates a class for it; an instance of that class runs the
graph forward on inputs and weights, and backward from gradients of its outputs. With the training build of onnxruntime
both passes are halves of one session (its TrainingAgent), else there are two sessions. The gradients are those of
:func:`onnxtrain_sklearn.gradient_graph`: an operator without a proven gradient is refused.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from .._gradient.engine import choose_engine
from .._importers.load import checked, load
from .._ir.edits import initializers_to_inputs, keep_outputs
from .._ir.protobuf import to_proto
from .._ort import objects as runtime
from .._ort.devices import OWN_MEMORY
from ..exceptions import ModelError, nearest
from .forward_backward import GraphInfo, OrtGradientForwardBackwardFunction, PassState, TwoSessions
from .grad_helper import float_names, require_names, vjp_graph, with_yield

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
        Its ``initializer_names_to_train`` and ``input_names_require_grad`` are used; a setting that does not apply
        raises ValueError.
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
        self.engine = choose_engine(engine)
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
        weights, names = self.weights_to_train, [*self.input_names, *self.weights_to_train]
        model = load(self.onnx_model)
        evaluated = self._with_weights_as_inputs(model)
        floats = [n for n in float_names(model.graph.inputs) if n in self.inputs_with_gradient]
        wrt = [*(n for n in self.input_names if n in floats), *weights]
        if not wrt:
            raise ModelError("The graph has neither float inputs nor float initializers, so nothing has a gradient.")
        trained = vjp_graph(model, self.output_names, wrt, self.engine)
        initializers_to_inputs(trained.graph, weights)
        sess_eval = runtime.session(to_proto(evaluated).SerializeToString(), self._device, self.sess_options)
        seeds = [n for n in self.output_names if f"{n}_grad" in {v.name for v in trained.graph.inputs}]
        attributes = {
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
            "_bw_fetches_names": [f"{name}_grad" for name in wrt],
            "_onx_inp": names,
            "_onx_out": [f"{name}_grad" for name in wrt],
            "_graph_info": self._graph_info(wrt, seeds),
            "_optimized_pre_grad_model": to_proto(evaluated),
            "_graph_builder": None,
            "_device": self._device,
            "_types": {v.name: runtime.dtype_of(v.type) for v in [*sess_eval.get_inputs(), *sess_eval.get_outputs()]},
            **self._agent(trained, names, [f"{name}_grad" for name in wrt]),
        }
        if self._logger is not None:
            self._logger.info("[%s] %s", self.class_name, self._repr_helper_(attributes, 2))
        return type(self.class_name, (OrtGradientForwardBackwardFunction,), attributes)

    def _with_weights_as_inputs(self, model: ir.Model) -> ir.Model:
        """Return the forward graph with the weights as inputs."""
        result = model.clone()
        initializers_to_inputs(result.graph, self.weights_to_train)
        by_name = {v.name: v for v in result.graph.outputs}
        keep_outputs(result, [by_name[name] for name in self.output_names])
        return result

    def _agent(self, trained: ir.Model, names: list[str], gradients: list[str]) -> dict[str, Any]:
        """Return the agent that runs the passes: onnxruntime-training's, or two sessions."""
        device = runtime.ort_device(self._device)
        devices: dict[str, Any] = {
            "_fw_outputs_device_info": [device] * len(self.output_names),
            "_fw_no_grad_output_device_info": [device] * len(self.output_names),
            "_bw_outputs_device_info": [device] * len(gradients),
        }
        if self.engine == "portable" or not runtime.has_training_agent():
            given = (self._device, self.sess_options, self.run_options)
            agent = TwoSessions(trained, names, self.output_names, gradients, *given)
            found = {"_training_agent": agent, "_trained_onnx": to_proto(trained), "_cache": None}
            return {**devices, **found, "_new_state": staticmethod(PassState)}
        proto = to_proto(with_yield(trained, self.output_names))
        options = runtime.quiet_options() if self.sess_options is None else self.sess_options
        with runtime.keeping_activations(options):
            session = runtime.session(proto.SerializeToString(), self._device, options)
        agent = runtime.training_agent(
            session, names, devices["_fw_outputs_device_info"], gradients, devices["_bw_outputs_device_info"]
        )
        found = {"_training_agent": agent, "_training_session": session, "_trained_onnx": proto}
        return {**devices, **found, "_cache": runtime.value_cache(), "_new_state": staticmethod(runtime.pass_state)}

    def _graph_info(self, wrt: Sequence[str], seeds: Sequence[str]) -> GraphInfo:
        weights = self.weights_to_train
        return GraphInfo(
            user_input_names=list(self.input_names),
            user_output_names=list(self.output_names),
            initializer_names=[tensor.name for tensor in self.onnx_model.graph.initializer],
            initializer_names_to_train=list(weights),
            user_input_grad_names={name: f"{name}_grad" for name in wrt if name not in weights},
            initializer_grad_names_to_train=[f"{name}_grad" for name in weights],
            module_output_gradient_name=[f"{name}_grad" for name in seeds],
            output_grad_indices_non_differentiable=[i for i, n in enumerate(self.output_names) if n not in seeds],
        )


class _ConfigNames:
    """The names with respect to which gradients are computed, from an OrtModuleGraphBuilderConfiguration."""

    def __init__(self, config: Any) -> None:
        self._config = config
        expected = {"build_gradient_graph": True, "enable_caching": False, "use_memory_efficient_gradient": False}
        for name, value in expected.items() if config is not None else ():
            if getattr(config, name) != value:
                raise ValueError(
                    f"graph_builder_config.{name}={getattr(config, name)!r} has no meaning here, where the gradient "
                    f"graph is built by this package: leave it {value!r}."
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
