"""The configuration of a training: the parameters of an estimator, checked and resolved once.

The loop and the steps read the configuration, not the parameters. Parameters about data, decodings and scores, such as
``validation_split`` or ``scoring``, are read where they are used.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from numbers import Real
from typing import Any

import numpy as np
from sklearn.base import is_classifier, is_outlier_detector, is_regressor

from .._fitted.fitted_model import is_estimator
from .._gradient.engine import checked_engine
from .._inference.graph import Decoding
from .._model.links import Task
from .._model.own_loss import OWN_LOSS
from .._model.trainable import TrainableModel
from .._ort.devices import Device, resolve_device
from .._ort.sessions import remember_libraries
from .._pretrained.comparison import is_foreign
from .._training.parameters import NO_FACTORS, Factors, Trainable, matches
from .._training.programs import COMPILED, require_compiler
from .._training.step_parts import StepSettings, TotalLoss, TrainedPositions
from .._training.trainer import TrainerSettings
from .._utils.cache import with_attributes
from .._utils.params import FACTORS, check_parameters
from ..callbacks.base import has_hooks
from ..callbacks.monitoring import TimeLimit
from ..exceptions import InvalidParameterError, ModelError, nearest, warn
from ..finetuning import FineTuner
from ..losses import LOSSES, LogLoss, Loss, SquaredError, resolve_loss
from ..models import MLP, GraphModel, resolve_builder
from ..models.given import bare_model, resolve_graph_model
from ..optimizers import OPTIMIZERS, BaseOptimizer, resolve_optimizer
from ..optimizers.base import rule_of
from ..runtime import Runtime, resolve_runtime
from ..schedules import resolve_schedule
from .parameters import Parameters

AUTO_BATCH = 200
"""Rows of a minibatch with ``batch_size="auto"``, as in scikit-learn's MLP."""

ALL_ROWS = sys.maxsize
"""Rows of a minibatch with ``batch_size=None``: more than there are."""

LBFGS_PIECE = 4096
"""Rows of a piece of the full batch; L-BFGS adds up the gradients of the pieces."""


@dataclass(frozen=True, eq=False)
class TrainingConfig:
    """The parameters of an estimator, checked and resolved once for a call.

    Attributes
    ----------
    loop : TrainerSettings
        Epochs, learning rates, stopping.
    optimizer : BaseOptimizer
        The optimizer with the options of its steps.
    runtime : Runtime
    builder : Builder or None
        The builder of the graph. Its factors of learning rate and weight decay count unless the optimizer sets others.
    trainable : str, list of str or callable
    alpha : float or None
        None: "auto" (:func:`default_alpha`), which depends on the data.
    l1_ratio : float
    batch_size : int
        Rows of a minibatch; the data may have fewer.
    shuffle, drop_last : bool
    given_engine, given_device : str
        The parameters ``engine`` and ``device`` of the estimator, such as "auto".
    """

    loop: TrainerSettings
    optimizer: BaseOptimizer
    runtime: Runtime
    builder: Any
    trainable: Trainable
    alpha: float | None
    l1_ratio: float
    batch_size: int
    shuffle: bool
    drop_last: bool
    given_engine: str
    given_device: str

    @classmethod
    def of(cls, estimator: Parameters) -> TrainingConfig:
        """Return the configuration of an estimator; TypeError or ValueError names an invalid parameter."""
        check_estimator_parameters(estimator)
        optimizer = resolve_optimizer(estimator.optimizer)
        runtime = resolve_runtime(estimator.runtime)
        remember_libraries(runtime.session_options)  # before the graph is read, which creates sessions
        loop = TrainerSettings(
            learning_rate_init=float(estimator.learning_rate_init),
            schedule=resolve_schedule(estimator.learning_rate),
            max_iter=int(estimator.max_iter),
            tol=float(estimator.tol),
            n_iter_no_change=float(estimator.n_iter_no_change),
            early_stopping=bool(estimator.early_stopping),
            accumulate=int(optimizer.accumulate),
            planned_fits=planned_fits(estimator),
            all_epochs=isinstance(estimator.early_stopping, str),
            verbose=int(estimator.verbose),
            callbacks=[one for one in estimator.callbacks or () if callable(one) and not has_hooks(one)],
            decay_schedule=resolve_schedule(optimizer.weight_decay_schedule, "weight_decay_schedule"),
            dropout_schedule=resolve_schedule(estimator.dropout_schedule, "dropout_schedule"),
        )
        batch_size = AUTO_BATCH if isinstance(estimator.batch_size, str) else int(estimator.batch_size or ALL_ROWS)
        by_minibatch = optimizer.takes_minibatches
        return cls(
            loop,
            optimizer,
            runtime,
            resolve_builder(estimator.model),
            estimator.trainable,
            alpha=None if isinstance(estimator.alpha, str) else float(estimator.alpha),
            l1_ratio=float(estimator.l1_ratio),
            batch_size=batch_size if by_minibatch else LBFGS_PIECE,
            shuffle=bool(estimator.shuffle) and by_minibatch,
            drop_last=bool(estimator.drop_last),
            given_engine=estimator.engine,
            given_device=estimator.device,
        )

    @cached_property
    def device(self) -> Device:
        """The device, or the execution providers that replace it.

        It is looked up on first use, because a training graph can be exported on a machine without the device.
        """
        return resolve_device(self.given_device, self.runtime.providers, self.runtime.provider_options)

    @cached_property
    def engine(self) -> str:
        """The name of the gradient engine; raise if it cannot recompute activations as ``runtime`` asks."""
        compiled = self.given_engine == COMPILED
        if compiled:
            require_compiler(self.device)
        chosen = COMPILED if compiled else checked_engine(self.given_engine, [COMPILED])
        if not self.runtime.checkpoint_activations:
            return chosen
        if chosen in (COMPILED, "ort-training"):
            raise InvalidParameterError(
                f"checkpoint_activations=True needs the portable engine, and engine={self.given_engine!r} keeps all "
                "activations. Set engine='auto' or 'portable'."
            )
        return "portable"

    # The settings of a step are made in two parts: ``with_decoding`` makes most of them, and ``with_graph`` adds those
    # that belong to single parameters of the graph.

    def with_decoding(
        self, loss: Loss | TotalLoss, decoding: Decoding, seed: int, positions: TrainedPositions | None = None
    ) -> StepSettings:
        """Return the settings that need no graph. ``positions`` is None unless rows have a label for each position."""
        return self._step(loss, decoding, seed, positions, device=self.device, engine=self.engine)

    def for_export(
        self, loss: Loss | TotalLoss, decoding: Decoding, seed: int, positions: TrainedPositions | None, device: Device
    ) -> StepSettings:
        """Return the settings of an exported step: portable gradients, and no accumulation over minibatches."""
        step = self._step(loss, decoding, seed, positions, device=device, engine="portable")
        return replace(step, session_options=None, accumulate=1)

    def _step(
        self,
        loss: Loss | TotalLoss,
        decoding: Decoding,
        seed: int,
        positions: TrainedPositions | None,
        *,
        device: Device,
        engine: str,
    ) -> StepSettings:
        optimizer = self.optimizer
        if optimizer.lazy_rows and device.memory is not None:  # devices update all rows of a matrix
            raise InvalidParameterError(
                f"lazy_rows=True updates single rows in the host's memory, but training runs on {device.name!r}. Set "
                f"optimizer__lazy_rows=False, or device='cpu'."
            )
        return StepSettings(
            loss=loss,
            task=decoding.task,
            link=decoding.link,
            n_scores=decoding.n_scores,
            groups=decoding.groups,
            soft=decoding.soft,
            n_targets=decoding.n_targets,
            declared=decoding.declared,
            positions=positions,
            optimizer=rule_of(optimizer),
            alpha=self.alpha or 0.0,
            l1_ratio=self.l1_ratio,
            max_grad_norm=None if optimizer.max_grad_norm is None else float(optimizer.max_grad_norm),
            engine=engine,
            device=device,
            accumulate=int(optimizer.accumulate),
            ema_decay=None if optimizer.ema_decay is None else float(optimizer.ema_decay),
            session_options=self.runtime.session_options,
            seed=seed,
            checkpoint_activations=bool(self.runtime.checkpoint_activations),
            lazy_rows=bool(optimizer.lazy_rows),
        )

    def with_graph(self, settings: StepSettings, graph: TrainableModel) -> StepSettings:
        """Add factors and schedules for the graph's parameters to the settings; raise if a parameter has no effect."""
        factors = factors_of(self.optimizer, self.builder, self.trainable, graph)
        scheduled = self.loop.scheduled
        kind = type(settings.optimizer).__name__
        if scheduled.dropout and not settings.optimizer.takes_minibatches:
            raise InvalidParameterError(
                f"dropout_schedule has no effect with {kind}, which takes no minibatch steps. Set it to 'constant'."
            )
        if self.drop_last and not settings.optimizer.takes_minibatches:
            raise ValueError(f"drop_last has no effect with {kind}, which takes no minibatch steps. Set it to False.")
        if scheduled.decay and not hasattr(settings.optimizer, "weight_decay"):
            raise InvalidParameterError(
                f"weight_decay_schedule multiplies the parameter weight_decay of the optimizer, which {kind} lacks. "
                f"Set it to 'constant', or take another optimizer, such as AdamW()."
            )
        # A warning, because searches over weight_decay include 0.
        multiplying = {"weight_decay_schedule": scheduled.decay, DECAY: self.optimizer.weight_decay_factors}
        for name in (name for name, multiplies in multiplying.items() if multiplies):
            if not getattr(self.optimizer, "weight_decay", 0):
                warn(
                    f"{name} has no effect, because {kind} has weight_decay=0: set a weight_decay, such as "
                    f"AdamW(weight_decay=0.01), or leave {name} at its default."
                )
        return with_attributes(settings, factors=factors, scheduled=scheduled)


# The default penalty on weights.

STRENGTH: Mapping[Task, float] = {"regression": 10.0, "binary": 2.0, "multiclass": 2.0, "multilabel": 2.0}
"""The penalty of ``alpha="auto"`` on all rows together; that of scikit-learn's ``LogisticRegression(C=1 / strength)``.

Without a penalty, 200 epochs on some hundred rows end in overconfidence: probabilities near 0 and 1 where labels are
noisy, and numbers that follow the noise. Early stopping would need held-out rows, whose loss costs more than it gains.
The strengths were chosen on small tables (benchmarks/defaults.py)."""

MOST_FOR_TAILS = 4.0
"""Largest factor of the strength for numbers with a heavy tail."""


def factor_for_tails(values: np.ndarray, weights: np.ndarray) -> float:
    """Return the factor of the strength for the tails of numbers: their skewness, of either sign, within [1, 4].

    A few large numbers, as of counts and wages, make up most of the variance, by which targets are scaled: a network
    follows single rows. On 15 tables the mean R² rises from 0.308 to 0.333, and falls by at most 0.01 on one.

    Parameters
    ----------
    values : ndarray of shape (n_samples,) or (n_samples, n_outputs)
        Missing numbers are left out. Of several numbers, the mean of their factors counts.
    weights : ndarray of shape (n_samples,)
    """
    values = values.reshape(len(values), -1).astype(np.float64)
    known = np.isfinite(values)
    share = known * weights[:, None]
    share /= np.maximum(share.sum(axis=0), np.finfo(float).tiny)
    distance = np.where(known, values, 0.0)
    distance = np.where(known, values - (share * distance).sum(axis=0), 0.0)
    peak = np.abs(distance).max(axis=0, initial=0.0)
    distance /= np.where(peak > 0, peak, 1.0)  # squares of large numbers overflow
    deviation = np.sqrt((share * distance**2).sum(axis=0))
    scaled = distance / np.where(deviation > 0, deviation, 1.0)
    return float(np.clip(np.abs((share * scaled**3).sum(axis=0)), 1.0, MOST_FOR_TAILS).mean())


def default_alpha(estimator: Any, config: TrainingConfig, task: Task, n_rows: int) -> float:
    """Return the value of ``alpha="auto"`` for ``n_rows`` rows, including held-out rows.

    The penalty of a step is divided by its rows. With this value, the mean loss of each step has the penalty STRENGTH
    divided by all rows: it acts like a prior, which matters less the more rows there are.
    """
    builder = config.builder
    hidden = type(builder) is MLP and np.size(builder.hidden_layer_sizes)
    in_units = task == "regression" and estimator.target_scaling is None  # any strength may be too large
    loss = resolve_loss(estimator.loss) if hidden and isinstance(estimator.loss, str) else estimator.loss
    if not hidden or in_units or not isinstance(loss, LogLoss | SquaredError):
        return 0.0
    rows = config.batch_size * config.loop.accumulate if config.optimizer.takes_minibatches else n_rows
    return STRENGTH.get(task, 0.0) * min(1.0, rows / n_rows)


# Checks of parameters that need no data.


def _require_own_loss(estimator: Any, loss: str, given: GraphModel) -> None:
    """Raise unless an estimator can train a graph by a loss that the graph computes."""
    if not is_foreign(given.graph) or resolve_builder(given.graph) is not None:
        if loss != OWN_LOSS:
            resolve_loss(loss)  # raises
        raise InvalidParameterError(
            "loss='output' is for ONNX graphs that compute their loss themselves: give one as model, or another loss."
        )
    if not is_regressor(estimator):
        raise InvalidParameterError(
            f"loss={loss!r} is no loss of this package. A graph that computes its loss itself, as its output of that "
            f"name, is trained by OrtGradientRegressor.{nearest(loss, LOSSES)}"
        )
    unsuitable = {
        "finetune": (isinstance(estimator.finetune, FineTuner), "it searches by losses of labels or numbers"),
        "batch_size=None": (estimator.batch_size is None, "give a number of rows"),
        "output_kind": (given.output_kind != "auto", "predict() returns the output as it is"),
    }
    for name, (is_set, why) in unsuitable.items():
        if is_set:
            raise InvalidParameterError(f"{name} is not for a loss that the graph computes, loss={loss!r}: {why}.")


def check_estimator_parameters(estimator: Parameters) -> None:
    """Raise TypeError or ValueError, naming the parameter, if one is invalid for any data.

    Names of losses, optimizers, schedules, engines and devices are checked where they are looked up.
    """
    estimator.check_declared()
    given = resolve_graph_model(estimator.model)
    name = type(estimator).__name__
    model, output, kind, axis = given.graph, given.output, given.output_kind, given.class_axis
    by_output = isinstance(estimator.loss, Mapping)

    # The trained output and its content.
    if output is not None and by_output:
        raise InvalidParameterError(
            f"output={output!r} names one output of the graph; the keys of loss name those that {name} trains. Leave "
            f"output=None."
        )
    if output is not None and resolve_builder(model) is not None:
        builder = "None (MLP())" if model is None else repr(model) if isinstance(model, str) else type(model).__name__
        raise InvalidParameterError(
            f"output={output!r} names an output of a given ONNX graph; model is {builder}, whose graph has one output. "
            f"Leave output=None."
        )
    if isinstance(kind, Mapping):
        _require_several_outputs(estimator, "output_kind", kind)
    elif kind not in estimator._output_kinds:
        valid = ", ".join(map(repr, estimator._output_kinds))
        raise InvalidParameterError(f"output_kind={kind!r} is not for {name}, which takes {valid}.")
    if kind != "auto" and not is_foreign(model):
        raise InvalidParameterError(
            f"output_kind={kind!r} is for given ONNX graphs: what a fitted model or a builder of this package gives is "
            f"known. Leave output_kind='auto'."
        )

    # A loss that the graph computes.
    loss = estimator.loss
    if isinstance(loss, str) and loss not in LOSSES:
        _require_own_loss(estimator, loss, given)

    # How the graph is read.
    if given.training_mode and (not is_foreign(model) or resolve_builder(model) is not None):
        raise InvalidParameterError(
            "training_mode=True is for given ONNX graphs: a builder decides in which mode its graph is trained, and "
            "fitted models have none. Leave training_mode=False."
        )
    for setting in ("constant_inputs", "batch_axis"):
        if getattr(given, setting) and (not is_foreign(model) or resolve_builder(model) is not None):
            raise InvalidParameterError(
                f"{setting}={getattr(given, setting)!r} is for given ONNX graphs: those of builders and of fitted "
                f"models take rows of X alone, on the first axis. Leave {setting} at its default."
            )
    if isinstance(axis, Mapping):
        _require_several_outputs(estimator, "class_axis", axis)
    elif axis != "auto" and is_regressor(estimator):
        raise InvalidParameterError(f"class_axis={axis!r} is for classification. Leave class_axis='auto'.")

    # Class weights. With several outputs, the task of each output checks its own.
    weights = None if by_output else getattr(estimator, "class_weight", None)
    dicts = weights if isinstance(weights, list) else [weights]
    numbers = [w for one in dicts if isinstance(one, Mapping) for w in one.values()]
    if wrong := [w for w in numbers if not isinstance(w, Real) or not 0 <= float(w) < math.inf]:
        raise InvalidParameterError(f"class_weight must contain non-negative numbers, got {wrong[0]!r}.")


def _require_several_outputs(estimator: Parameters, name: str, value: object) -> None:
    if not isinstance(estimator.loss, Mapping):
        raise InvalidParameterError(
            f"{name}={value!r} is by output, and {type(estimator).__name__} trains one: give one value."
        )


def require_own_kind(estimator: Parameters) -> None:
    """Raise ModelError if the estimator and its fitted model are of different kinds, e.g. regressor and classifier."""
    model = bare_model(estimator.model)
    name = type(model).__name__
    if is_classifier(model) and not is_classifier(estimator):
        raise ModelError(f"{name} is a classifier: take OrtGradientClassifier to train it.")
    if is_outlier_detector(model) and not is_classifier(estimator):
        raise ModelError(
            f"{name} tells outliers from inliers: take OrtGradientClassifier to train it, with -1 and 1 in y."
        )
    if is_regressor(model) and not is_regressor(estimator):
        raise ModelError(f"{name} is a regressor: take OrtGradientRegressor to train it.")


# Check whether the parameters allow ``partial_fit``.


def trains_in_minibatches(estimator: Parameters) -> bool:
    given = estimator.optimizer
    kind = OPTIMIZERS.get(given) if isinstance(given, str) else given  # fit refuses an invalid optimizer
    if not getattr(kind, "takes_minibatches", True):
        raise AttributeError(f"partial_fit trains on minibatches; optimizer={given!r} takes all data at once.")
    return True


def check_partial_fit(estimator: Parameters) -> None:
    stopping = estimator.early_stopping
    if is_on(stopping) or isinstance(stopping, str):
        raise ValueError(
            f"partial_fit does not support early_stopping={stopping!r}; it makes one epoch and cannot stop earlier."
        )
    given = getattr(estimator, "class_weight", None)
    balances = given.values() if isinstance(given, Mapping) else [given]  # by output, where there are several
    if any(isinstance(one, str) and one == "balanced" for one in balances):
        raise ValueError(
            "class_weight='balanced' needs all data at once, partial_fit sees a part of them: give a dict, such as "
            "sklearn.utils.class_weight.compute_class_weight makes."
        )
    if given is None and is_estimator(bare_model(estimator.model)) and hasattr(estimator, "class_weight"):
        task: Any = estimator
        if isinstance(weights := task._output_spec().class_weight, str):
            raise ValueError(
                f"The fitted model weighs its classes by class_weight={weights!r}, which needs all data at once, and "
                f"partial_fit sees a part of them. Set class_weight: a dict, such as "
                f"sklearn.utils.class_weight.compute_class_weight makes, or {{}} for equal weights."
            )


def planned_fits(estimator: Parameters) -> int:
    """Return the number of fits like this one that a long one is announced for: of all networks of a recipe.

    A fit with a time limit is not announced.
    """
    limited = any(isinstance(one, TimeLimit) for one in estimator.callbacks or ())
    return 0 if limited else int(vars(estimator).get("_planned_fits", 1))


def is_on(switch: object) -> bool:
    """Return True if ``switch`` is True. An invalid value counts as off; the check of the parameters refuses it."""
    return isinstance(switch, bool | np.bool_) and bool(switch)


# Factors by parameter: the glob patterns of the builder and of the user, resolved to names.


RATE, DECAY = "learning_rate_factors", "weight_decay_factors"


def factors_of(
    optimizer: BaseOptimizer, builder: Any, trainable: Trainable, graph: TrainableModel
) -> Mapping[str, Factors]:
    """Return the factors of learning rate and weight decay by parameter name, without parameters whose factors are 1.

    A builder may have patterns too, in attributes of the same names. The last matching pattern counts, and those of the
    optimizer come after those of the builder.
    """
    if optimizer.weight_decay_factors and not hasattr(optimizer, "weight_decay"):
        raise InvalidParameterError(
            f"{DECAY} multiplies the parameter weight_decay of the optimizer, which {type(optimizer).__name__} lacks. "
            f"Set it to None, or take another optimizer, such as AdamW()."
        )
    # Constants are parameters too where ``trainable`` names them in full.
    named = {trainable} if isinstance(trainable, str) else set(trainable) if isinstance(trainable, Iterable) else set()
    names = [*graph.parameters, *(name for name in graph.constants if name in named)]

    found: dict[str, dict[str, float]] = {RATE: {}, DECAY: {}}
    owners = [] if builder is None or not optimizer.takes_minibatches else [builder]
    for attribute, factors in found.items():
        for owner in (*owners, optimizer):
            if not getattr(owner, attribute, None):
                continue
            check_parameters(owner, {attribute: (FACTORS, None)})
            for pattern, factor in getattr(owner, attribute).items():
                matched = [name for name in names if matches(name, pattern)]
                if not matched:
                    raise InvalidParameterError(
                        f"{attribute}: {pattern!r} matches no parameter of the graph.{nearest(pattern, names)}"
                    )
                factors |= dict.fromkeys(matched, float(factor))
    if not any(found.values()):
        return NO_FACTORS
    factors_of_all = {name: Factors(found[RATE].get(name, 1.0), found[DECAY].get(name, 1.0)) for name in names}
    return {name: factors for name, factors in factors_of_all.items() if factors != Factors()}
