"""Options of onnxruntime that few users change: execution providers, session options, recomputed activations.

Estimators take a :class:`Runtime` as ``runtime``. The more common options, ``engine`` and ``device``, are parameters of
the estimators.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from ._utils.params import Component, Instance, Rules
from .exceptions import InvalidParameterError, instead_of

__all__ = ["Runtime"]


class Runtime(Component):
    """Options of onnxruntime, for training and for predictions.

    Parameters
    ----------
    providers : list of str or None, default=None
        Execution providers to use instead of those of ``device``, in order of preference.
    provider_options : list of dict or None, default=None
        A dict of options for each provider.
    session_options : dict or None, default=None
        Options of sessions by name (``{"intra_op_num_threads": 2}``); names with a dot are configuration entries. By
        default, small graphs get one thread, large ones all cores. ``{"register_custom_ops_library": path}``, or a list
        of paths, loads libraries of custom operators; from then on, every session in the process can use them.
        Gradients do not pass through such operators, so only the part of a graph downstream of them is trained.
    checkpoint_activations : bool, default=False
        Whether the backward pass recomputes activations instead of keeping all of them, which saves memory and takes
        more time. It is useful for deep graphs and large minibatches, and needs the portable engine. Results may differ
        by rounding, because onnxruntime may fuse other operators.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from onnxtrain_sklearn import OrtGradientClassifier, Runtime
    >>> X, y = load_iris(return_X_y=True)
    >>> runtime = Runtime(session_options={"intra_op_num_threads": 2})
    >>> classifier = OrtGradientClassifier(runtime=runtime, learning_rate_init=0.05, tol=1e-3, random_state=0).fit(X, y)
    >>> classifier.score(X, y) > 0.9
    True
    """

    valid: ClassVar[Rules] = {
        "session_options": (Instance(Mapping, "a dict"), None),
        "checkpoint_activations": (bool,),
    }  # the device checks the providers

    def __init__(
        self,
        providers: Sequence[str] | None = None,
        provider_options: Sequence[Mapping[str, object]] | None = None,
        session_options: Mapping[str, object] | None = None,
        *,
        checkpoint_activations: bool = False,
    ) -> None:
        self.providers = providers
        self.provider_options = provider_options
        self.session_options = session_options
        self.checkpoint_activations = checkpoint_activations


def resolve_runtime(runtime: Runtime | None) -> Runtime:
    """Return a validated Runtime; None gives the defaults."""
    if runtime is None:
        return Runtime()
    if not isinstance(runtime, Runtime):
        raise InvalidParameterError(f"runtime must be a Runtime or None, {instead_of(runtime)}.")
    runtime.validate()
    return runtime
