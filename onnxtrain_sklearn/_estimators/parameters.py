"""The parameters of the estimators: valid values and documentation, declared once.

Names of losses, engines and devices are checked where they are looked up.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from numbers import Integral, Real
from textwrap import fill
from typing import Any, ClassVar, TypeVar

import numpy as np
from sklearn.base import BaseEstimator

from .._training.parameters import Trainable
from .._utils.params import (
    COUNT,
    FRACTION,
    NOT_NEGATIVE,
    Callbacks,
    Instance,
    OneOf,
    Parameter,
    Parametrized,
    Range,
    check_parameters,
    rules_of,
    switch,
)
from ..adapters import LoRA
from ..callbacks.base import HOOKS
from ..exceptions import instead_of
from ..finetuning import FineTuner
from ..losses import Loss, LossSource, resolve_loss
from ..models import MODELS, GraphModel, ModelSource, resolve_builder
from ..optimizers import OPTIMIZERS, BaseOptimizer, resolve_optimizer
from ..runtime import Runtime
from ..schedules import SCHEDULES, Schedule, resolve_schedule
from . import html


def _listed(registry: Mapping[str, object]) -> str:
    return fill(", ".join(f'"{name}"' for name in registry), 110) + "."


SHARED: Mapping[str, Parameter] = {
    "model": Parameter("ModelProto, bytes, path, ONNXProgram, fitted estimator, builder, str, GraphModel or None", """
The graph to train: float32 or float64; float16 and bfloat16 are trained in float32 and exported in their own type.
Training starts from the weights in it; the model itself is not changed. :meth:`describe` lists the weights. Opsets 11
to 26 are trained as far as the installed onnxruntime takes them; ONNX converts others where it can. A final activation
is recognized, also behind operators that change only the shape: the loss is taken on the scores before it, and
``predict_proba`` returns what the graph gives.
The ``ONNXProgram`` that ``torch.onnx.export`` returns is taken as well; copies of the estimator hold its protobuf.
A fitted scikit-learn model or pipeline of the same kind is converted by skl2onnx and trained from its own numbers. Its
features and labels are kept, columns of text that it encodes too. Outlier detectors count as classifiers, with the
labels -1 and 1.
A graph builder, such as ``MLP((64, 32))`` or ``Linear()``, makes a graph sized to the data. A name stands for a builder
with its defaults, nested parameters (``model__hidden_layer_sizes``) included; None: ``MLP()``. Names:
""" + _listed(MODELS) + """
:class:`~onnxtrain_sklearn.GraphModel` adds to a model how its graph is read: which output is trained and what it holds,
whether its nodes are switched over to training, where the axis of the classes is."""),
    "loss": Parameter("str, Loss or block", """
What is minimized: a name in :data:`onnxtrain_sklearn.losses.LOSSES`, an object, or a block of
:mod:`onnxtrain_sklearn.classic.onnxblock` that computes a loss. The mean over the rows of a minibatch, weighted by
``sample_weight``. For a fitted scikit-learn model the default stands for the loss that the model minimizes: the hinge
loss for classifiers that give scores without probabilities, the Poisson, gamma, Huber or quantile loss for regressors
that minimize it."""),
    "optimizer": Parameter("str or Optimizer", """
A name or an object; its parameters are nested (``optimizer__momentum``). Besides those of its rule, each but "lbfgs"
has the options of a step: a limit of the gradient, accumulated minibatches, an average of the weights, factors and a
schedule (:class:`~onnxtrain_sklearn.optimizers.Optimizer`). "adamw" decays all weights by 0.01 times the learning rate
a step, as in PyTorch. Names:
""" + _listed(OPTIMIZERS)),
    "learning_rate_init": Parameter("float", """
Learning rate that the schedule starts from; 0 leaves the weights as they are.""", (NOT_NEGATIVE,)),
    "learning_rate": Parameter("str or Schedule", """
The schedule that the rate follows, a name or an object. Names:
""" + _listed(SCHEDULES)),
    "batch_size": Parameter('int or "auto"', """
Rows of a minibatch; "auto": min(200, n_samples). L-BFGS always takes all rows.""", (OneOf(("auto",)), COUNT)),
    "max_iter": Parameter("int", "Largest number of epochs.", (COUNT,)),
    "shuffle": switch("Whether the rows are put into a new order before every epoch."),
    "drop_last": switch("""
Whether an epoch leaves out the rows at the end of its order that do not fill a minibatch of ``batch_size`` rows: other
ones in each epoch, with ``shuffle=False`` always the same. ``loss_`` and ``t_`` count the rows that were trained on.
Fewer rows than ``batch_size`` are one minibatch. A call of ``partial_fit`` is an epoch of its rows."""),
    "alpha": Parameter("float", """
Strength of the penalty on parameters of rank >= 2: ``alpha (l1_ratio |w|_1 + (1 - l1_ratio) / 2 |w|²)``, divided by
the sum of the sample weights of the minibatch, as in scikit-learn's MLP.""", (NOT_NEGATIVE,)),
    "l1_ratio": Parameter("float", "Share of the L1 norm in the penalty, in [0, 1].", (FRACTION,)),
    "dropout_schedule": Parameter("str or Schedule", """
The schedule that all ratios of Dropout in the graph follow, step by step; the names of ``learning_rate``."""),
    "trainable": Parameter('"all", str, list of str, or callable', """
Which parameters are trained: names or glob patterns ("layers.1.*"), or a function ``(name, array) -> bool``. The others
keep their values to the bit. A BatchNormalization whose scale and shift are both frozen normalizes by its running
statistics, which stay. Those of a fitted scikit-learn model are named by step and attribute:
"logisticregression.coef", "*.coef", "pca.*"."""),
    "adapters": Parameter("LoRA or None", """
Low-rank factors that are trained beside matrices of a given model, which stay as they are:
:class:`~onnxtrain_sklearn.LoRA`. With ``trainable="all"`` they alone are trained, else what ``trainable`` selects of
the other parameters too. Predictions, ``weights_`` and ``to_onnx()`` have them merged into the matrices; ``adapters_``
holds them by name, :meth:`save_adapter` writes them to a file. None: the parameters themselves are trained.""",
        (Instance(LoRA, "a LoRA"), None)),
    "finetune": Parameter('"auto", FineTuner or None', """
How ``fit`` trains a model that has been trained before. "auto": a fitted scikit-learn model, also in an ONNX file, is
fine-tuned by :class:`~onnxtrain_sklearn.FineTuner`, which adapts it to few new rows, unless a parameter of plain
training (``optimizer``, ``learning_rate_init``, ``max_iter``, ``early_stopping``, ``warm_start``, ...) differs from its
default. A FineTuner: given graphs of any kind are fine-tuned, with its settings. None, and always for builders and
``partial_fit``: plain training by ``optimizer``.""",
        (Instance(FineTuner, "a FineTuner"), OneOf(("auto",)), None)),
    "tol": Parameter("float", """
Least improvement of the loss, or of what ``early_stopping`` watches, that counts as one.""",
        (Range(Real, -np.inf, np.inf, closed="both"),)),
    "n_iter_no_change": Parameter("int or np.inf", """
Training ends after more epochs than this in a row without improvement; np.inf: never for that reason.""",
        (COUNT, OneOf((np.inf,)))),
    "early_stopping": Parameter('bool or "best_epoch"', """
Whether to watch validation data instead of the training loss, and to end with the weights that were best on them,
whatever ``tol`` is. Classifiers watch the loss on them, since the accuracy on few rows stands still for many epochs
while the network learns; regressors and several outputs watch the score, and ``scoring`` names a score to watch
instead. "best_epoch": the same, but training takes all ``max_iter`` epochs, and of equal ones the latest is the best;
else it is the first.""", (bool, OneOf(("best_epoch",)))),
    "scoring": Parameter("str, callable or None", """
Score on the validation data, higher is better, in place of the accuracy or R²; early stopping watches it as it is:
the name of a scorer of scikit-learn (``"accuracy"``, ``"neg_log_loss"``, ``"roc_auc"``,
``"neg_mean_absolute_error"``) or a function ``(estimator, X, y) -> float``, which takes
``sample_weight`` too where rows are weighted. ``"neg_log_loss"`` and ``"neg_brier_score"`` of several labels a row are
means over the labels, where scikit-learn's take the row for one label. It is called after each epoch with an estimator
that predicts the validation data ``X`` by the weights of that epoch. It needs validation data:
``early_stopping=True``, or ``X_val`` and ``y_val``."""),
    "validation_fraction": Parameter("float", """
Share of the data that early stopping holds out where ``fit`` is given no ``X_val``.""",
        (Range(Real, 0, 1, closed="neither"),)),
    "callbacks": Parameter("list of callbacks or None", """
Callbacks of :mod:`onnxtrain_sklearn.callbacks`, such as ``EarlyStopping()`` and ``Checkpoint("folder")``, those of
``sklearn.callback`` (``ProgressBar``, ``ScoringMonitor``), other objects in that form, and functions. They belong to
this estimator alone; ``set_callbacks`` (scikit-learn 1.9) sets those that take part in the levels of a pipeline or a
search. A function is called after each epoch, of ``fit`` and of ``partial_fit``, with an object that has ``number``,
``loss``, ``validation_score`` and ``learning_rate`` of the epoch. Training ends where a callback returns True.""",
        (Callbacks(HOOKS), None)),
    "warm_start": switch("""
Whether ``fit`` goes on from where the last one ended, with its weights and its optimizer, for ``max_iter`` more epochs.
``model`` must be what it was at the first."""),
    "random_state": Parameter("int, RandomState or None", """
Seeds the initial weights of builders, the order of the rows, the validation split and dropout."""),
    "verbose": Parameter("bool or int", """
Whether to print what is trained, and its progress. True: a line with a bar and the time left where it can be written
over, in a terminal and in a notebook, else a table of epochs. 2: always the table.""", (bool, Range(Integral, 0))),
    "engine": Parameter('{"auto", "ort-training", "portable", "compiled"}', """
What differentiates the graph. "auto": of the first two that are installed and proven right for every operator between
the parameters and the loss the faster one, by a measured table of operators; or "compiled", where a fit of a small
network plans enough steps to earn the time that compiling takes. "compiled": the gradients of "portable", as machine
code for one thread of the processor. It needs llvmlite, and graphs of products, elementwise functions, reductions,
normalizations and tables whose rows are selected. ``engine_`` says which one was used."""),
    "device": Parameter("str", """
"cpu", "cuda" or "cuda:1". A device that is not available is an error."""),
    "runtime": Parameter("Runtime or None", """
Execution providers and session options of onnxruntime, and whether activations are recomputed to save memory:
:class:`~onnxtrain_sklearn.Runtime`. None: its defaults."""),
}  # fmt: skip
"""The parameters that the classifier, the regressor and the estimator of several outputs share."""

REGRESSOR: Mapping[str, Parameter] = {
    **SHARED,
    "target_scaling": Parameter('"auto" or None', """
Units that the targets are trained in. "auto": a graph that is built for the data is trained on targets of mean 0 and
standard deviation 1, for the losses with a log link (poisson, gamma, tweedie) on targets of mean 1, so that the unit of
``y`` does not matter. Mean and deviation are those of the rows that the first call trains on, weighted. ``MLP``,
``Linear`` (without a penalty ``alpha``) and ``ConvNet`` then scale columns of large numbers too, as those of
classifiers always do. Predictions, ``to_onnx()``, ``coef_`` and validation scores are in the units of ``X`` and ``y``;
``loss_``, ``weights_`` and parameters of the loss, such as the delta of :class:`~onnxtrain_sklearn.losses.Huber`, are
in those that are trained. Given graphs and fitted models keep their own units. Builders and losses of your own keep
them too, unless their attributes ``scales_targets`` and ``target_scaling`` say otherwise. None: the units of ``X``
and ``y``.""",
        (OneOf(("auto",)), None)),
    "clip_predictions": switch("""
Whether predictions are clipped to the range of the targets, from the smallest to the largest of each output: of the
rows that were trained on in all calls, without those that were held out. ``predict``, ``to_onnx()`` and validation
scores are clipped; the loss is not. The bounds are rounded to the type of the graph."""),
}  # fmt: skip

CLASSIFIER: Mapping[str, Parameter] = {
    **SHARED,
    "ignore_label": Parameter("int, float, str or None", """
Label that does not count: at a position of a row, such as that of the padding of short rows; as one of several labels
of a row; as that of a whole row. It has no part in loss, scores, weights and ``classes_``, and the loss is the mean
over all labels that count. NaN: those that are missing, None too. None: all labels count.""",
        (Instance(Real, "a number"), Instance(str, "a text"), None)),
    "class_weight": Parameter('dict, list of dicts, "balanced" or None', """
Weight of the rows of each class by label, multiplied with ``sample_weight``, for training and for validation scores;
"balanced": in inverse proportion to their weight in ``y``, not for ``partial_fit``. Several labels a row: as for
:func:`sklearn.utils.class_weight.compute_sample_weight`.""",
        (Instance(Mapping, "a dict from labels to weights"), Instance(list, "a list of such dicts"),
         OneOf(("balanced",)), None)),
}  # fmt: skip


class DeclaredEstimator(Parametrized):
    """An estimator with declared parameters: the constructor stores them, training first validates them."""

    declared: ClassVar[Mapping[str, Parameter]] = {}

    def _store(self, arguments: Mapping[str, object]) -> None:
        """Store the arguments of the constructor unchanged; ``vars()`` there includes ``self``."""
        vars(self).update({name: value for name, value in arguments.items() if name != "self"})

    def check_declared(self) -> None:
        """Raise InvalidParameterError if a parameter violates its declared rules."""
        kind: Any = type(self)
        check_parameters(self, rules_of(kind))

    _doc_link_module = html.PACKAGE

    def _get_doc_link(self) -> str:
        return html.page_of(type(self))

    def _repr_html_inner(self) -> str:
        base: Any = super()
        return f"{base._repr_html_inner()}{html.meanings(self)}{html.pictures(self)}"

    def _repr_mimebundle_(self, **kwargs: object) -> dict[str, str]:
        base: Any = super()
        bundle: dict[str, str] = base._repr_mimebundle_(**kwargs)
        if "text/html" in bundle:
            bundle["text/html"] += f"{html.meanings(self)}{html.pictures(self)}"
        return bundle


class Parameters(DeclaredEstimator):
    """The parameters of the estimators, with their types."""

    _output_kinds: ClassVar[tuple[str, ...]]
    """The values of ``output_kind`` of a :class:`GraphModel` that the estimator takes for all outputs."""

    model: ModelSource
    loss: str | Loss | LossSource
    optimizer: str | BaseOptimizer
    learning_rate_init: float
    learning_rate: str | Schedule
    batch_size: int | str
    max_iter: int
    shuffle: bool
    drop_last: bool
    alpha: float
    l1_ratio: float
    dropout_schedule: str | Schedule
    trainable: Trainable
    adapters: LoRA | None
    finetune: str | FineTuner | None
    tol: float
    n_iter_no_change: float
    early_stopping: bool | str
    scoring: str | Callable[..., float] | None
    validation_fraction: float
    callbacks: Sequence[object] | None
    warm_start: bool
    random_state: int | np.random.RandomState | None
    verbose: bool | int
    engine: str
    device: str
    runtime: Runtime | None


# The docstring section on the attributes of the estimators.


def attributes(*, score: str, classes: str = "") -> str:
    """Return the section on attributes.

    Parameters
    ----------
    score : str
        Description of the validation scores.
    classes : str
        The entry of ``classes_``, for a classifier.
    """
    return ATTRIBUTE_SECTION.replace("{classes}\n", classes).replace("{score}", score)


def output_attributes() -> str:
    """Return the section of the estimator of several outputs."""
    text = attributes(score="Mean of the scores of the outputs", classes=OUTPUT_ENTRIES)
    kept = text.replace("n_outputs_ : int\n    Scores a row.", "n_outputs_ : int\n    Number of outputs.")
    entries = re.split(r"\n(?=\S)", kept)
    return "\n".join(entry for entry in entries if not entry.startswith(_OF_ONE_OUTPUT))


_OF_ONE_OUTPUT = ("fine_tuning_ ", "coef_, ")

OUTPUT_ENTRIES = """\
classes_ : dict of str to ndarray, or to a list of them
    Sorted labels of each output with labels.
output_names_ : list of str
    The outputs.
"""

ATTRIBUTE_SECTION = """\
Attributes
----------
{classes}
n_features_in_ : int
    Columns of ``X`` (not for a dict of inputs).
feature_names_in_ : ndarray of str
    Names of the columns, where ``X`` has them.
n_outputs_ : int
    Scores a row.
n_iter_ : int
    Epochs trained, over all calls with ``warm_start`` and ``partial_fit``; an interrupted epoch does not count.
t_ : int
    Rows seen in them.
loss_ : float
    Mean loss of the last epoch, the penalty included.
loss_curve_ : list of float
    Mean loss of each epoch, of the latest 100,000.
history_ : list of dict
    A dict for each epoch: ``epoch``, ``step``, ``loss``, ``learning_rate``, ``seconds``, with validation data
    ``validation_score``, ``validation_loss`` where early stopping watches it, and what callbacks add.
    ``history_.to_frame()`` returns a pandas DataFrame. Of epochs before the latest 10,000 only ``epoch`` and ``loss``
    are kept.
callbacks_ : dict of str to dict
    What callbacks remember, by class.
best_loss_ : float or None
    Least loss of an epoch; None with early stopping.
validation_scores_ : list of float or None
    {score}, or the score that ``scoring`` names, on the validation data after each epoch, of the latest 100,000.
best_validation_score_ : float or None
    Best of these scores; with early stopping that of the best epoch, whose weights are kept.
fine_tuning_ : dict of str to ndarray
    The candidates of fine-tuning, in columns: ``candidate`` names the search ("old", "shifted", "rescaled", "zero",
    "old rows"), ``strength`` that of its pull, infinite for its start, or the weight of the old rows, ``loss`` is that
    of held-out rows, ``gain`` and ``standard_error`` say how far it is below that of the old model, ``share`` is the
    share in the result. With ``X_val``, ``score`` replaces the losses. Plain training has no such attribute.
engine_, device_ : str
    The gradient engine and the device that were used.
model_ : onnx.ModelProto
    The trained inference graph.
coef_, intercept_ : ndarray, or a number
    Of graphs that are one linear layer of ``X``, a fitted linear model among them; others have none. Shapes are
    those of scikit-learn's linear models.
adapters_ : dict of str to ndarray
    The low-rank factors by name, of estimators with ``adapters``.
weights_ : dict of str to ndarray
    Every float parameter by its name in the graph, trained or frozen, and running statistics."""


# Nested parameters: a name such as ``optimizer="sgd"`` becomes an object when parameters within it are set.
#
# ``set_params(optimizer__momentum=0.9)`` needs an object that has a momentum. The constructor keeps the name, as
# scikit-learn requires. The object replaces the name when a parameter within it is set; from then on ``get_params``,
# ``clone`` and a search see the object.


def _with_parameters(model: ModelSource) -> Any:
    """Return the object that has the nested parameters of ``model``: those of a given graph are how it is read."""
    if isinstance(model, type) or hasattr(model, "get_params"):
        return model
    return resolve_builder(model) or GraphModel(model)


_RESOLVERS: dict[str, Callable[[Any], Any]] = {
    "model": _with_parameters,
    "loss": lambda loss: resolve_loss(loss) if isinstance(loss, str) else loss,
    "optimizer": lambda optimizer: resolve_optimizer(optimizer) if isinstance(optimizer, str) else optimizer,
    "adapters": lambda adapters: adapters,
    "finetune": lambda tuner: FineTuner() if tuner == "auto" else tuner,
    "runtime": lambda runtime: Runtime() if runtime is None else runtime,
    **dict.fromkeys(
        ("learning_rate", "dropout_schedule"),
        lambda schedule: resolve_schedule(schedule) if isinstance(schedule, str) else schedule,
    ),
}


def resolved(estimator: BaseEstimator, params: Mapping[str, object]) -> dict[str, Any]:
    """Return ``params`` with objects in place of names for components whose own parameters are set.

    The order of the parameters does not matter: ``optimizer__momentum`` applies to the ``optimizer`` of the same call.
    """
    result = dict(params)
    for name, resolve in _RESOLVERS.items():
        nested = {key: value for key, value in params.items() if key.startswith(f"{name}__")}
        given: Any = params.get(name, getattr(estimator, name))
        component = resolve(given) if nested else given
        if nested and (isinstance(component, type) or not hasattr(component, "set_params")):
            raise ValueError(
                f"{next(iter(nested))} sets a parameter of {name}, which has none; {instead_of(component)}."
            )
        if component is not given:  # set on a new object, so that an invalid name leaves the estimator unchanged
            own = {key.removeprefix(f"{name}__"): value for key, value in nested.items()}
            result = {key: value for key, value in result.items() if key not in nested}
            result[name] = component.set_params(**own)
    return result


# Callbacks of scikit-learn's own protocol, ``set_callbacks``, where scikit-learn has it (1.9).


R = TypeVar("R")

try:
    from sklearn.callback import AutoPropagatedCallback, with_callbacks
    from sklearn.callback import CallbackSupportMixin as CallbackSupportMixin
except ImportError:  # before 1.9: the parameter callbacks takes the same objects

    class CallbackSupportMixin:  # type: ignore[no-redef]
        """An estimator without ``set_callbacks``."""

    class AutoPropagatedCallback:  # type: ignore[no-redef]
        """No callback is one."""

    def with_callbacks(method: Callable[..., Any]) -> Callable[..., Any]:
        """Return ``method``."""
        return method


SET = "_skl_callbacks"
"""The attribute of scikit-learn that holds the callbacks of ``set_callbacks``."""


def set_callbacks_of(estimator: object) -> list[Any]:
    """Return the callbacks that were set by ``set_callbacks``, or that a search or a pipeline passed on."""
    return list(vars(estimator).get(SET, ()))


def is_propagated(callback: object) -> bool:
    """Return True if scikit-learn passes a callback on to nested estimators."""
    return isinstance(callback, AutoPropagatedCallback)


def call_with_teardown(estimator: object, call: Callable[[], R]) -> R:
    """Return what a call returns; afterwards scikit-learn tears down the callbacks that it has set up in it.

    The call is not made by a function of scikit-learn: warnings are to name the line of the user.
    """
    try:
        return call()
    finally:
        with_callbacks(lambda _: None)(estimator)
