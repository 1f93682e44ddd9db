"""Loads what was trained elsewhere into a run: weights by name, or the vectors of training graphs."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from sklearn.utils.validation import check_is_fitted

from .._export.folder import read_folder, read_state_file
from .._export.source import AVERAGE, PARAMETERS, STATISTICS, STEP
from .._optimizers.lbfgs import BaseOptimizer
from .._runtime.adapter_files import read_adapter
from .._support.state_arrays import StateArrays
from .._training.parameters import FlatParameters
from .._training.step import OptimizerState
from ..exceptions import ModelError, instead_of, nearest
from ..optimizers import Optimizer, resolve_optimizer
from ..schedules import Progress
from .built_in import require_same_constants
from .run import Run

if TYPE_CHECKING:
    from typing_extensions import Self

Arrays = Mapping[str, np.ndarray]


class LoadsState:
    """An estimator that takes what was trained elsewhere."""

    _run: Run
    optimizer: str | BaseOptimizer

    def load_state(self, state: str | os.PathLike[str] | dict[str, np.ndarray]) -> Self:
        """Load weights that were trained elsewhere, and the optimizer's state where it is there too.

        Parameters
        ----------
        state : str, path or dict of str to ndarray
            A folder of :meth:`export_training`, a file in the format of safetensors that a loop over its graphs wrote,
            a file of :meth:`save_adapter`, or arrays by name: those of the graph, as in ``weights_``, or the vectors of
            the training graphs.

        Returns
        -------
        self

        Raises
        ------
        ModelError
            A name, a shape or a number does not fit, or the state was trained in a graph with other constants, such as
            another scale of the inputs, or with other labels of classes; the estimator is unchanged.

        Notes
        -----
        What the graph has beside its weights is compared where the state says it: folders, files of training graphs,
        and ``weights_`` as it is. A dict that was put together by hand, and a file of a loop that leaves out the
        metadata, are compared by names and shapes alone.

        Arrays by the names of the graph hold no state of the optimizer: it starts anew. Where the estimator has
        low-rank adapters, such arrays are matrices with the change merged into them: the change is zero then. With the
        vectors of training graphs :meth:`partial_fit` goes on exactly: schedules too are where they would be after
        the steps of the state. Only the masks of dropout are others, as their numbers are drawn by the estimator.

        Examples
        --------
        >>> from sklearn.datasets import load_iris
        >>> from onnxtrain_sklearn import MLP, OrtGradientClassifier
        >>> X, y = load_iris(return_X_y=True)
        >>> one, other = (OrtGradientClassifier(MLP((8,)), random_state=i) for i in (0, 1))
        >>> one, other = (net.partial_fit(X, y, classes=[0, 1, 2]) for net in (one, other))
        >>> bool((other.load_state(one.weights_).predict_proba(X) == one.predict_proba(X)).all())
        True
        """
        check_is_fitted(self)
        arrays = read_arrays(state, self._run)
        if isinstance(arrays, StateArrays) and arrays.constants is not None:
            require_same_constants(self._run, arrays.constants)
        load_arrays(self._run, arrays, resolve_optimizer(self.optimizer))
        return self


def read_arrays(source: object, run: Run) -> dict[str, np.ndarray]:
    """Return the arrays of a mapping, a folder of training graphs, a file of safetensors, or an adapter file."""
    if isinstance(source, StateArrays):
        return source
    if isinstance(source, Mapping):
        return {str(name): np.asarray(array) for name, array in source.items()}
    if not isinstance(source, str | os.PathLike):
        raise TypeError(f"The state must be a path or a dict of arrays by name, {instead_of(source)}.")
    path = Path(source)
    if path.is_dir():
        folder = read_folder(path)
        return StateArrays(folder.state, folder.manifest.get("constants"))
    if not path.is_file():
        raise FileNotFoundError(f"There is no file or folder {path}.")
    if path.suffix == ".onnx_adapter":
        return _unscaled(read_adapter(path), run)
    return read_state_file(path)


def _unscaled(arrays: dict[str, np.ndarray], run: Run) -> dict[str, np.ndarray]:
    """Return the arrays of an adapter file without the scale in the factors."""
    for one in run.source.low_rank:
        last = one.factors[1]
        if last in arrays:
            arrays[last] = (arrays[last].astype(np.float64) / one.scale).astype(arrays[last].dtype)
    return arrays


def load_arrays(run: Run, arrays: Arrays, optimizer: BaseOptimizer) -> None:
    """Set the weights, and the optimizer's state where it is among the arrays; an error leaves the run unchanged."""
    slots = optimizer.state() if isinstance(optimizer, Optimizer) else {}
    if not arrays:
        raise ModelError("The state is empty: give the trained arrays by name.")
    arrays = _as_vectors(run, arrays)
    vectors = PARAMETERS in arrays and PARAMETERS not in run.trained_weights()
    parameters, frozen, state = _of_vectors(run, arrays, slots) if vectors else _of_names(run, arrays)
    if vectors and STEP in arrays:
        run.history.change(progress=_progress_at(run.history.progress, state.t - run.state.t))
    changed = {
        "parameters": parameters,
        "frozen": frozen,
        "state": state,
        "step": None,
        "snapshots": (),
        "predictors": {},
    }
    run.history.last_finite = None
    vars(run).update(changed)


def _as_vectors(run: Run, arrays: Arrays) -> Arrays:
    """Return a state of ``to_training_onnx``, with weights by name beside the vectors of the optimizer, as vectors."""
    known = {*run.parameters.names, *run.parameters.running_statistics}
    named = {name: array for name, array in arrays.items() if name in known}
    rest = {name: array for name, array in arrays.items() if name not in known}
    if STEP not in rest or named.keys() != known:
        return arrays
    parameters = run.parameters.with_averages(False)
    for name, array in named.items():
        _require_fitting_array(name, array, parameters.view(name).shape, parameters.buffer.dtype)
        parameters.view(name)[...] = array
    weights = AVERAGE if PARAMETERS in rest else PARAMETERS  # predictions are made by the average
    statistics = {STATISTICS: parameters.statistics} if parameters.statistics.size else {}
    return {**rest, **statistics, weights: parameters.vector}


def _progress_at(progress: Progress, steps: int) -> Progress:
    """Return the progress so many steps later, of as many rows each: learning rates go on from there."""
    step = max(0, progress.step + steps)
    return replace(progress, step=step, samples=round(progress.samples * step / max(1, progress.step)))


def _of_names(run: Run, arrays: Arrays) -> tuple[FlatParameters, dict[str, np.ndarray], OptimizerState]:
    """Return the parameters with the values of arrays by name; the optimizer starts anew."""
    current = run.trained_weights()
    arrays = _with_unchanged_factors(arrays, run)
    for name, array in arrays.items():
        if name not in current:
            raise ModelError(f"The state holds {name!r}, which the graph lacks.{nearest(name, current)}")
        _require_fitting_array(name, array, current[name].shape, run.parameters.buffer.dtype)
    if missing := [name for name in run.parameters.names if name not in arrays]:
        raise ModelError(f"The state lacks {missing[0]!r}, which is trained: it belongs to another model.")
    parameters = run.parameters.with_averages(run.parameters.averages)
    frozen = dict(run.frozen)
    for name, array in arrays.items():
        if name in parameters.views():
            parameters.view(name)[...] = array
        else:
            frozen[name] = array.astype(frozen[name].dtype)
    parameters = parameters.with_averages(parameters.averages)  # the average begins from these weights
    return parameters, frozen, OptimizerState(draws=run.state.draws)


def _with_unchanged_factors(arrays: Arrays, run: Run) -> Arrays:
    """Return arrays with the low-rank factors that merged matrices lack: their change is zero."""
    changes, held = run.source.low_rank, run.parameters.views()
    if not changes or any(name in arrays for one in changes for name in one.factors):
        return arrays
    if missing := [one.matrix for one in changes if one.matrix not in arrays]:
        raise ModelError(f"The state lacks {missing[0]!r}, which low-rank factors change: it belongs to another model.")
    return {**arrays, **{f: held[f] * (f == one.first) for one in changes for f in one.factors}}


def _of_vectors(
    run: Run, arrays: Arrays, slots: Collection[str]
) -> tuple[FlatParameters, dict[str, np.ndarray], OptimizerState]:
    """Return the parameters and the optimizer's state with the values of the vectors of training graphs."""
    old, size = run.parameters, run.parameters.vector.shape
    known = {PARAMETERS: size, AVERAGE: size, STATISTICS: (old.statistics.size,), STEP: ()}
    moments = {name: array for name, array in arrays.items() if name not in known}
    for name, array in arrays.items():
        _require_fitting_array(name, array, known.get(name, size), old.vector.dtype)
    t = _steps_of_state(arrays.get(STEP, np.array(0)))
    if moments.keys() != set(slots) and (moments or t):
        raise ModelError(
            f"The state holds the vectors {sorted(moments)} of an optimizer, and that of the estimator has "
            f"{sorted(slots)}: set the optimizer that the state was trained with, or leave its vectors and "
            f"the step out."
        )
    if old.statistics.size and STATISTICS not in arrays:
        raise ModelError(f"The state lacks {STATISTICS!r}, the running statistics of the graph.")
    parameters = old.with_averages(AVERAGE in arrays)
    parameters.vector[...] = arrays[PARAMETERS]
    if old.statistics.size:
        parameters.statistics[...] = arrays[STATISTICS]
    if parameters.average is not None:
        parameters.average[...] = arrays[AVERAGE]
    typed = {name: array.astype(old.vector.dtype) for name, array in moments.items()}
    averaged = run.state.averaged + t - run.state.t if AVERAGE in arrays else 0
    state = replace(run.state, t=t, slots=typed, averaged=max(0, averaged))
    return parameters, run.frozen, state


def _steps_of_state(array: np.ndarray) -> int:
    """Return the number of steps that a state holds."""
    if not 0 <= array < 2**63 or array != np.floor(array):
        raise ModelError(f"The state holds {STEP!r} = {array}, which must be a number of steps: an integer >= 0.")
    return int(array)


def _require_fitting_array(name: str, array: np.ndarray, shape: tuple[int, ...], dtype: np.dtype) -> None:
    if array.dtype.kind not in "fiu":
        raise ModelError(f"The state holds {name!r} of type {array.dtype}; weights are numbers.")
    if array.shape != shape:
        raise ModelError(
            f"The state holds {name!r} of shape {list(array.shape)}, and the estimator has {list(shape)}: it belongs "
            f"to another model."
        )
    if not np.isfinite(array).all():
        raise ModelError(f"The state holds {name!r} with values that are NaN or infinite: that training diverged.")
    if np.abs(array).max(initial=0) > np.finfo(dtype).max:
        raise ModelError(
            f"The state holds {name!r} with values that are too large for {dtype}, in which it is trained."
        )
