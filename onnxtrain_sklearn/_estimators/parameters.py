"""The parameters of the estimators: valid values and documentation, declared once.

Names of losses, engines and devices are checked where they are looked up.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import wraps
from numbers import Integral, Real
from textwrap import fill
from typing import Any, ClassVar, TypeVar

import numpy as np
from sklearn.base import BaseEstimator

from .._data.held_out import ValidationSplit
from .._training.parameters import Trainable
from .._utils.params import (
    COUNT,
    FRACTION,
    NOT_NEGATIVE,
    Callbacks,
    Declaration,
    Instance,
    OneOf,
    Parametrized,
    Range,
    RowChoice,
    check_parameters,
    rules_of,
    switch,
)
from ..adapters import LoRA
from ..callbacks.base import HOOKS
from ..exceptions import InvalidParameterError, instead_of
from ..finetuning import FineTuner
from ..losses import Loss, LossBlock, resolve_loss
from ..models import MODELS, GraphModel, ModelLike, resolve_builder
from ..optimizers import OPTIMIZERS, BaseOptimizer, resolve_optimizer
from ..runtime import Runtime
from ..schedules import SCHEDULES, Schedule, resolve_schedule
from . import html


def _listed(registry: Mapping[str, object]) -> str:
    return fill(", ".join(f'"{name}"' for name in registry), 110) + "."


SHARED: Mapping[str, Declaration] = {
    "model": Declaration("ModelProto, bytes, path, ONNXProgram, fitted estimator, builder, str, GraphModel or None", """
The graph to train. Training starts from its weights, and the model itself is not changed; :meth:`describe`
lists the weights. It may be

- an ONNX file: its path, its bytes, a ``ModelProto``, or the ``ONNXProgram`` that ``torch.onnx.export``
  returns. float16 and bfloat16 weights are trained in float32 and exported in their own type. A final softmax or
  sigmoid is recognized, also before operators that change only the shape: the loss is computed from the scores
  before it, and ``predict_proba`` returns the output of the graph. Opsets 11 to 26 are trained if the installed
  onnxruntime runs them, others if ONNX can convert them.
- a fitted scikit-learn model or pipeline (a classifier for a classifier, a regressor for a regressor), converted by
  skl2onnx. Its features, its labels and the text columns that it encodes are kept. Outlier detectors count as
  classifiers with the labels -1 and 1.
- a graph builder, such as ``MLP((64, 32))`` or ``Linear()``, which makes a graph sized to the data; or the name of
  a builder. The builder's parameters are nested (``model__hidden_layer_sizes``). None: ``MLP()``.
- a :class:`~onnxtrain_sklearn.GraphModel`: an ONNX file, with the output to train, the content of this output,
  the mode of its nodes, the axis of the classes or of the rows, or the inputs that are the same in every call.

Names of builders:
""" + _listed(MODELS), tunes=True, steers=False),
    "loss": Declaration("str, Loss or block", """
The loss to minimize: a name in :data:`onnxtrain_sklearn.losses.LOSSES`, an object, or a block of
:mod:`onnxtrain_sklearn.classic.onnxblock` that computes a loss. Its mean over the rows of a minibatch is
weighted by ``sample_weight``. For a fitted scikit-learn model, the default is the loss that this model
minimizes, with its settings (quantile, margin), or the nearest one: the page on the
losses of fitted models lists them. ``loss=SquaredError()`` or ``LogLoss()`` sets the default of other
models.

Any other name is an output of an ONNX graph that computes its loss itself, for ``OrtGradientRegressor``; "output" finds
it: the output ``loss``, or the only one besides that of ``GraphModel(output=...)``. Inputs that only the loss reads are
its targets, which ``y`` holds as a dict. An output (N, ...) holds losses of rows. A single number is the loss of a
minibatch; ``sample_weight`` is then refused.""", tunes=True),
    "optimizer": Declaration("str or Optimizer", """
A name or an object; its parameters are nested (``optimizer__momentum``). All but "lbfgs" also take the options
of a step: ``max_grad_norm``, ``accumulate``, ``ema_decay``, ``lazy_rows``, factors of learning rate and weight
decay for single parameters, and a schedule of the weight decay
(:class:`~onnxtrain_sklearn.optimizers.Optimizer`). In each step, "adamw" decays all weights by 0.01 times the
learning rate, as in PyTorch. Names:
""" + _listed(OPTIMIZERS)),
    "learning_rate_init": Declaration("float", """
Learning rate. The schedule ``learning_rate`` multiplies it by a factor in each step. With 0, the weights do not
change.""", (NOT_NEGATIVE,)),
    "learning_rate": Declaration("str or Schedule", """
Schedule of the learning rate, a name or an object. Names:
""" + _listed(SCHEDULES)),
    "batch_size": Declaration('int, "auto" or None', """
Rows of a minibatch. "auto": 200, or all rows if there are fewer. None: all rows; the data of a given graph are then one
thing, such as a network of nodes and edges, whose inputs may differ in length. For a list of examples, the number of
examples. L-BFGS always takes all rows.""",
        (OneOf(("auto",)), COUNT, None)),
    "max_iter": Declaration("int", "Largest number of epochs.", (COUNT,)),
    "shuffle": switch("Whether to shuffle the rows before every epoch."),
    "drop_last": switch("""
Whether to leave out the last rows of an epoch if they do not fill a minibatch. With ``shuffle=False`` these are
the same rows in each epoch. ``loss_`` and ``t_`` count only the rows that were trained on. If there are fewer
rows than ``batch_size``, they are one minibatch. Each call of ``partial_fit`` is an epoch of its own rows."""),
    "alpha": Declaration('float or "auto"', """
Strength of the penalty on weights, not biases (parameters of rank 2 and more), as in scikit-learn's MLP:
``alpha (l1_ratio |w|_1 + (1 - l1_ratio) / 2 |w|²)``, divided by the sum of the sample weights of the minibatch.
"auto": in ``fit``, for an :class:`~onnxtrain_sklearn.MLP` with hidden layers and the default loss, 2 for labels
and 10 for scaled numbers, times the share of the rows of a step in all rows. An epoch then has the penalty of
``LogisticRegression(C=0.5)``, which matters on up to some thousand rows. Numbers in memory with a heavy tail, such as
counts, have up to four times as much: times their skewness, if it is above 1. Weights that are whole numbers count
rows: a row of weight two is two rows. Of other weights only the ratios matter. It is 0 for all other models and
losses, as for given and fitted models, whose weights are not to move towards zero, in ``partial_fit``, which does
not know the total number of rows, and in exported training graphs.""",
        (NOT_NEGATIVE, OneOf(("auto",)))),
    "l1_ratio": Declaration("float", "Share of the L1 norm in the penalty: 0 is L2, 1 is L1.", (FRACTION,)),
    "dropout_schedule": Declaration("str or Schedule", """
Schedule that multiplies all dropout ratios in the graph, step by step; it takes the same names as
``learning_rate``."""),
    "trainable": Declaration('"all", str, list of str, or callable', """
The parameters to train: names, glob patterns such as "layers.1.*", or a function ``(name, array) -> bool``. All
other parameters are frozen: their bits do not change. The parameters of a fitted scikit-learn model are named by
step and attribute: "logisticregression.coef", "*.coef", "pca.*". A BatchNormalization whose scale and shift are
both frozen normalizes by its running statistics and does not update them.""", tunes=True),
    "adapters": Declaration("LoRA or None", """
Low-rank factors (:class:`~onnxtrain_sklearn.LoRA`) to train beside the matrices of a given model, which do not
change. With ``trainable="all"`` only these factors are trained; other values of ``trainable`` add parameters
that are not adapted. Predictions, ``weights_`` and ``to_onnx()`` have the factors merged into the matrices; beside
a matrix of few bits (MatMulNBits) they stay apart.
``adapters_`` holds the factors by name, and :meth:`save_adapter` writes them to a file. None: no adapters.""",
        (Instance(LoRA, "a LoRA"), None)),
    "finetune": Declaration('"auto", FineTuner or None', """
How ``fit`` trains a model that was trained before. "auto": a fitted scikit-learn model, also one in an ONNX
file, is adapted to few new rows by :class:`~onnxtrain_sklearn.FineTuner`, unless you change a parameter of plain
training (``optimizer``, ``learning_rate_init``, ``max_iter``, ``early_stopping``, ``warm_start``, ...). A
FineTuner: fine-tune any given graph with these settings. None: plain training by ``optimizer``. Builders and
``partial_fit`` always use plain training.""",
        (Instance(FineTuner, "a FineTuner"), OneOf(("auto",)), None), tunes=True),
    "tol": Declaration("float", """
Smallest improvement that counts, of the loss or of the score or loss that ``early_stopping`` watches.""",
        (Range(Real, -np.inf, np.inf, closed="both"),)),
    "n_iter_no_change": Declaration("int or np.inf", """
Stop training after more than this number of consecutive epochs without improvement. np.inf: never stop for this
reason.""",
        (COUNT, OneOf((np.inf,)))),
    "early_stopping": Declaration('bool or "best_epoch"', """
Whether to watch validation data instead of the training loss, and to keep the weights that were best on these
data. Classifiers watch the validation loss, because on few rows the accuracy stands still for many epochs while
the network learns. Regressors watch R² if the loss is the squared error, else the validation loss
(``judged_by`` of :class:`~onnxtrain_sklearn.losses.Loss`). Estimators of several outputs watch the mean of
their scores, or the sum of all losses if an output of numbers has a loss other than the squared error.
``scoring`` names a score to watch instead.
"best_epoch": train all ``max_iter`` epochs, then take the weights of the best one. Any improvement makes an epoch
the best one, whatever ``tol`` is. Of equally good epochs True takes the first,
"best_epoch" the last.""", (bool, OneOf(("best_epoch",)))),
    "scoring": Declaration("str, callable or None", """
Score on the validation data, in place of accuracy or R²: the name of a scorer of scikit-learn (``"accuracy"``,
``"neg_log_loss"``, ``"roc_auc"``, ``"neg_mean_absolute_error"``), or a function ``(estimator, X, y) -> float``,
which also takes ``sample_weight`` if rows are weighted. Higher is better. Early stopping watches this score, and
fine-tuning with ``X_val`` chooses by it. It is computed after each epoch; the estimator that a function receives
can predict only the validation data ``X``, with the weights of that epoch. If a row has several labels,
``"neg_log_loss"`` and ``"neg_brier_score"`` are means over the labels, because scikit-learn's scorers would read
the row as one label. It needs validation data:
``early_stopping=True``, or ``X_val`` and ``y_val``.""", tunes=True),
    "validation_split": Declaration("float, array-like or splitter", """
The rows that early stopping holds out if ``fit`` gets no ``X_val``. A float: this share of the rows, at random, of each
class its share. Indices of rows, or a mask of all rows that is True for those held out. A splitter of scikit-learn,
such as ``GroupShuffleSplit()``, which reads the ``groups`` of ``fit``, or ``TimeSeriesSplit()``: the last of its splits
counts, and rows in neither part of it are left out. A splitter without a ``random_state`` draws by that of the
estimator. A table of more than ``buffer_rows`` rows needs a float, because whole blocks of it are held out.""",
        (Range(Real, 0, 1, closed="neither"), RowChoice())),
    "callbacks": Declaration("list of callbacks or None", """
Functions, and callbacks of :mod:`onnxtrain_sklearn.callbacks` (``EarlyStopping()``, ``Checkpoint("folder")``),
of ``sklearn.callback`` (``ProgressBar``, ``ScoringMonitor``), or of the same form. A function is called after
each epoch with an object that has the ``number``, ``loss``, ``validation_score`` and ``learning_rate`` of the
epoch. A callback that returns True ends training. These callbacks belong to this estimator alone;
``set_callbacks`` (scikit-learn 1.9) sets callbacks that a pipeline or search shares with its steps.""",
        (Callbacks(HOOKS), None), tunes=True, steers=False),
    "warm_start": switch("""
Whether ``fit`` continues from the weights and the optimizer state of the last call, for ``max_iter`` more
epochs. ``model`` must be that of the first call.""", tunes=True),
    "random_state": Declaration("int, RandomState or None", """
Seeds the initial weights of builders, the order of the rows, the validation split and dropout.""", tunes=True),
    "verbose": Declaration("bool or int", """
Whether to print what is trained and the progress. True: a progress bar with the time left in terminals and
notebooks, a table of epochs elsewhere. 2: always the table.""", (bool, Range(Integral, 0)), tunes=True, steers=False),
    "engine": Declaration('{"auto", "ort-training", "portable", "compiled"}', """
Engine that differentiates the graph. "auto": "ort-training" or "portable", whichever is faster by a table of
measurements among those that are installed and proven right for every operator between parameters and loss; or
"compiled" for a small network with so many steps that compiling pays. "compiled": the gradients of "portable"
as machine code for one thread. It needs llvmlite, and a graph of matrix products, elementwise functions,
reductions, normalizations and lookups of rows. ``engine_`` names the engine that was used.""", tunes=True),
    "device": Declaration("str", """
"cpu", "cuda" or "cuda:1". A device that is not available is an error.""", tunes=True),
    "runtime": Declaration("Runtime or None", """
Execution providers and session options of onnxruntime, and whether to recompute activations to save memory
(:class:`~onnxtrain_sklearn.Runtime`). None: the defaults.""", tunes=True),
}  # fmt: skip
"""The parameters that the classifier, the regressor and the estimator of several outputs share."""

REGRESSOR: Mapping[str, Declaration] = {
    **SHARED,
    "target_scaling": Declaration('"auto" or None', """
Units in which the targets are trained. "auto": if the graph is built for the data, its targets are scaled to
mean 0 and standard deviation 1, or, for the losses with a log link (poisson, gamma, tweedie), to mean 1, so
that the unit of ``y`` does not matter. Mean and deviation are those of the rows of the first call, weighted.
``MLP``, ``ConvNet``, and ``Linear`` without a penalty ``alpha`` then also scale columns of large numbers, and
all three always do so in classifiers. Predictions, ``to_onnx()``, ``coef_`` and validation scores are in the units of
``X`` and ``y``; ``loss_``, ``weights_`` and parameters of the loss, such as ``delta`` of
:class:`~onnxtrain_sklearn.losses.Huber`, are in the scaled ones. Given graphs and fitted models are trained in
the units of ``X`` and ``y``. So are builders and losses of your own, unless their attributes ``scales_targets``
and ``target_scaling`` say otherwise. None: always the units of ``X`` and ``y``.""",
        (OneOf(("auto",)), None), tunes=True),
    "clip_predictions": switch("""
Whether to clip predictions to the range of the targets, for each output: from the smallest to the largest
target of all rows trained on so far, without rows that were held out. It applies to ``predict``, ``to_onnx()``,
the quantiles of ``loss="quantiles"``, the location of a distribution, and validation scores, not to the loss. The
bounds are rounded to the type of the graph.""", tunes=True),
}  # fmt: skip

CLASSIFIER: Mapping[str, Declaration] = {
    **SHARED,
    "ignore_label": Declaration("int, float, str or None", """
Label to ignore: the label of a row, one of several labels of a row, or the label of a position, such as the
padding of short rows. It does not enter loss, scores, weights and ``classes_``; the loss is the mean over all
other labels. NaN: ignore missing labels, including None. None: ignore no label.""",
        (Instance(Real, "a number"), Instance(str, "a text"), None)),
    "class_weight": Declaration('dict, list of dicts, "balanced" or None', """
Weights of the classes, a dict from labels to weights. They multiply ``sample_weight``, in training and in
validation scores. "balanced": inversely proportional to the weight of the class in ``y``; not for
``partial_fit``. If a row has several labels: as for :func:`sklearn.utils.class_weight.compute_sample_weight`.
None: the weights with which a given scikit-learn model was fitted, else equal weights. {}: equal weights.""",
        (Instance(Mapping, "a dict from labels to weights"), Instance(list, "a list of such dicts"),
         OneOf(("balanced",)), None), tunes=True),
}  # fmt: skip


class DeclaredEstimator(Parametrized):
    """An estimator with declared parameters: the constructor stores them, training first validates them."""

    declared: ClassVar[Mapping[str, Declaration]] = {}

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


@dataclass(kw_only=True, eq=False, repr=False)
class Parameters(DeclaredEstimator):
    """The parameters that the estimators share, with their types and defaults.

    The estimators are dataclasses: their constructors store the arguments unchanged, as scikit-learn requires. A
    subclass adds its own parameters, or other defaults.
    """

    _output_kinds: ClassVar[tuple[str, ...]]
    """The valid values of ``output_kind`` of a :class:`GraphModel` for this estimator."""

    finetune: ClassVar[str | FineTuner | None] = None
    """None is plain training. Estimators of one output redefine it as a parameter."""

    model: ModelLike = field(default=None, kw_only=False)
    loss: str | Loss | LossBlock  # each estimator has its own default
    optimizer: str | BaseOptimizer = "adamw"
    learning_rate_init: float = 0.001
    learning_rate: str | Schedule = "constant"
    batch_size: int | str | None = "auto"
    max_iter: int = 200
    shuffle: bool = True
    drop_last: bool = False
    alpha: float | str = "auto"
    l1_ratio: float = 0.0
    dropout_schedule: str | Schedule = "constant"
    trainable: Trainable = "all"
    adapters: LoRA | None = None
    tol: float = 1e-4
    n_iter_no_change: float = 10
    early_stopping: bool | str = False
    scoring: str | Callable[..., float] | None = None
    validation_split: ValidationSplit = 0.1
    callbacks: Sequence[object] | None = None
    warm_start: bool = False
    random_state: int | np.random.RandomState | None = None
    verbose: bool | int = 0
    engine: str = "auto"
    device: str = "cpu"
    runtime: Runtime | None = None


KindT = TypeVar("KindT", bound=type)


def naming_places(kind: KindT) -> KindT:
    """Let the constructor of an estimator say that a parameter that it lacks is one of :class:`GraphModel`."""
    init = kind.__init__  # type: ignore[misc]

    @wraps(init)
    def explained(self: Any, *args: Any, **kwargs: Any) -> None:
        try:
            init(self, *args, **kwargs)
        except TypeError:
            settings = GraphModel().get_params(deep=False)
            misplaced = [name for name in kwargs if name in settings and name not in vars(kind)["__dataclass_fields__"]]
            if not misplaced:
                raise
            given = ", ".join(f"{name}=..." for name in misplaced)
            raise TypeError(
                f"{misplaced[0]} is not a parameter of {kind.__name__}, but of the model: give "
                f"{kind.__name__}(GraphModel(graph, {given}))."
            ) from None

    kind.__init__ = explained  # type: ignore[misc]
    return kind


# The section on fitted attributes in the docstrings of the estimators.


def attributes(*, score: str, classes: str = "") -> str:
    """Return the "Attributes" section for the docstring of an estimator with one output.

    Parameters
    ----------
    score : str
        Description of the validation scores.
    classes : str
        The entry of ``classes_``, for a classifier.
    """
    return ATTRIBUTE_SECTION.replace("{classes}\n", classes).replace("{score}", score)


def output_attributes() -> str:
    """Return the "Attributes" section for the docstring of the estimator of several outputs."""
    text = attributes(score="Mean of the scores of the outputs", classes=OUTPUT_ENTRIES)
    kept = text.replace("n_outputs_ : int\n    Number of scores of a row.", "n_outputs_ : int\n    Number of outputs.")
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
    Number of columns of ``X`` (not for a dict of inputs).
feature_names_in_ : ndarray of str
    Names of the columns, if ``X`` has them.
n_outputs_ : int
    Number of scores of a row.
n_iter_ : int
    Epochs over all calls, including ``warm_start`` and ``partial_fit``; an interrupted epoch does not count.
t_ : int
    Rows trained on in these epochs.
loss_ : float
    Mean loss of the last epoch, penalty included.
loss_curve_ : list of float
    Mean loss of each of the latest 100,000 epochs.
history_ : list of dict
    A dict for each epoch: ``epoch``, ``step``, ``loss``, ``learning_rate`` and ``seconds``; with validation data also
    ``validation_score``, and ``validation_loss`` if early stopping watches it; and the entries of callbacks.
    ``history_.to_frame()`` returns a pandas DataFrame. Before the latest 10,000 epochs, only ``epoch`` and ``loss`` are
    kept.
callbacks_ : dict of str to dict
    The memory of each callback, by the name of its class.
best_loss_ : float or None
    Lowest loss of an epoch; None with early stopping.
validation_scores_ : list of float or None
    {score}, or the score that ``scoring`` names, on the validation data after each of the latest 100,000 epochs.
best_validation_score_ : float or None
    Best validation score; with early stopping, the score of the epoch whose weights are kept.
fine_tuning_ : dict of str to ndarray
    The candidates of fine-tuning, a column for each property. ``candidate``: the search ("old", "shifted", "rescaled",
    "zero", "old rows"). ``strength``: the strength of its pull, infinite for its start, or the weight of the old rows.
    ``loss``: the loss of held-out rows. ``gain``, ``standard_error``: how far that is below the loss of the old model.
    ``share``: the share of the candidate in the result. With ``X_val``, ``score`` replaces the losses: the score, or
    minus the validation loss if the loss judges. Not available after plain training.
engine_, device_ : str
    The gradient engine and the device that were used.
model_ : onnx.ModelProto
    The trained inference graph.
coef_, intercept_ : ndarray, or a number
    Weights and biases in the shapes of scikit-learn's linear models. Only available if the graph is one linear layer of
    ``X``, as that of a fitted linear model is.
adapters_ : dict of str to ndarray
    The low-rank factors by name. Only available with ``adapters``.
weights_ : dict of str to ndarray
    Every float parameter by its name in the graph, trained or frozen, and running statistics."""


# Nested parameters: a name such as ``optimizer="sgd"`` becomes an object when parameters within it are set.
#
# ``set_params(optimizer__momentum=0.9)`` needs an object that has a momentum. The constructor keeps the name, as
# scikit-learn requires. The object replaces the name when a parameter within it is set; from then on ``get_params``,
# ``clone`` and a search see the object.


def _with_parameters(model: ModelLike) -> Any:
    """Return the object that holds the nested parameters of ``model``: a GraphModel for a given graph."""
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
    """Return ``params``, in which an object replaces the name of each component whose nested parameters are set.

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


def require_own_names(estimator: BaseEstimator, params: Mapping[str, object]) -> None:
    """Raise InvalidParameterError, naming the component, if a name is a parameter of a component of the estimator."""
    own = estimator.get_params(deep=False)
    unknown = [name for name in params if name not in own and "__" not in name]
    for role, resolve in _RESOLVERS.items() if unknown else ():
        component = None
        with suppress(ValueError, TypeError):  # fit raises the error for an invalid component
            component = resolve(params.get(role, own.get(role)))
        for name in unknown:
            if isinstance(component, Parametrized) and name in component.get_params():
                raise InvalidParameterError(
                    f"{name} is not a parameter of {type(estimator).__name__}, but of its {role}: set {role}__{name}, "
                    f"or give {role}={type(component).__name__}({name}=...)."
                )


# Callbacks of scikit-learn's own protocol, ``set_callbacks``, where scikit-learn has it (1.9).


R = TypeVar("R")

try:
    from sklearn.callback import AutoPropagatedCallback, with_callbacks
    from sklearn.callback import CallbackSupportMixin as CallbackSupportMixin
except ImportError:  # before 1.9: the parameter callbacks takes the same objects

    class CallbackSupportMixin:  # type: ignore[no-redef]
        """An estimator without ``set_callbacks``."""

    class AutoPropagatedCallback:  # type: ignore[no-redef]
        """A stand-in that has no instances: before scikit-learn 1.9, no callback is passed on to nested estimators."""

    def with_callbacks(method: Callable[..., Any]) -> Callable[..., Any]:
        """Return ``method`` unchanged, because there are no callbacks to tear down."""
        return method


SET = "_skl_callbacks"
"""The attribute in which scikit-learn stores the callbacks of ``set_callbacks``."""


def set_callbacks_of(estimator: object) -> list[Any]:
    """Return the callbacks that were set by ``set_callbacks``, or that a search or a pipeline passed on."""
    return list(vars(estimator).get(SET, ()))


def is_propagated(callback: object) -> bool:
    """Return True if scikit-learn passes a callback on to nested estimators."""
    return isinstance(callback, AutoPropagatedCallback)


def call_with_teardown(estimator: object, call: Callable[[], R]) -> R:
    """Return the result of ``call``; afterwards, scikit-learn tears down the callbacks that it set up during the call.

    scikit-learn's decorator does not wrap ``call`` itself, so that warnings name the line of the user.
    """
    try:
        return call()
    finally:
        with_callbacks(lambda _: None)(estimator)
