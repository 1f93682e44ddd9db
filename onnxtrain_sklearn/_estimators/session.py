"""The preparation of a call of ``fit`` or ``partial_fit``, in steps: model, examples, run, loop.

Nothing is trained here. The training step comes last: nothing before it changes objects shared with an earlier run.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from sklearn.utils import check_random_state

from .._data.rounding import warn_of_rounding
from .._data.target_range import TargetRange, target_range
from .._data.target_scale import TargetScale, require_in_range, target_scale
from .._data.validation import split_rows
from .._fitted.equivalence import require_equal, sample_rows
from .._fitted.model import FittedModel
from .._given.comparison import require_own_start
from .._given.ml_files import FittedFile
from .._given.ml_start import started
from .._graph.trainable import TrainableModel
from .._optimizers.lbfgs import LBFGS
from .._training.choice import new_trainer
from .._training.loop import Trainer, TrainerSettings
from .._training.loss_graph import Scheduled, StepSettings
from ..exceptions import ModelError
from ..finetuning import FineTuner
from ..losses import Loss, resolve_loss
from ..models import resolve_builder
from .built_source import built_source, needs_rows
from .examples import Call, Examples, batches_for, scaled, training_examples
from .factors import factors_of, require_schedulable, require_steps
from .fine_tuning import TUNED_PIECE, old_examples, transformer_names, tuned_names, tuner_of, tuning_trainer
from .graph_inputs import graph_inputs, predictions_on, require_numbers, take_features
from .head_choice import choose_head
from .model_source import known_source
from .new_head import Body, body_of, gets_new_head, headed
from .run import Run, sparse_inputs
from .run_setup import new_run, resume_run
from .settings import batch_limit, trainer_settings
from .start import Start
from .step_choice import prepare_step
from .validation import validation_score


class Session:
    """The steps that prepare a run and its trainer for a call.

    Parameters
    ----------
    estimator : BaseOrtGradient
        Its parameters are read, and its feature attributes are set.
    call : Call
    """

    def __init__(self, estimator: Any, call: Call) -> None:
        self.estimator, self.call = estimator, call
        self.old: Run | None = getattr(estimator, "_run", None) if call.resume else None
        self.scale: TargetScale | None = None if self.old is None else self.old.head.target_scale
        self.split: tuple[np.ndarray, np.ndarray | None] | None = None
        self.tuner: FineTuner | None = None
        self.body: Body | None = None
        self.head_names: tuple[str, ...] = ()

    def prepared(self) -> tuple[Run, Trainer]:
        """Validate everything; return the run and the loop that will train it."""
        estimator, call, old = self.estimator, self.call, self.old
        if call.y is None:
            raise ValueError(f"{type(estimator).__name__} requires y to be passed, but the target y is None.")
        loop = trainer_settings(estimator)
        self.rng = check_random_state(estimator.random_state) if old is None else old.rng
        self.body = body_of(estimator) if gets_new_head(estimator, old) else None
        source, fitted = known_source(estimator, old, call.X) if self.body is None else (self.body.source, None)
        if old is None and fitted is not None:
            take_features(estimator, fitted)
        examples = training_examples(estimator, call, source, fitted, old)
        self.tuner = None if call.one_pass else tuner_of(estimator, fitted)
        if self.body is not None:
            source, self.head_names = headed(self.body, examples)
        if source is None:
            self.scale = self._target_scale(examples)
            source, examples = self._built(examples)
        run, settings = self._run(source, fitted, examples, loop.scheduled)
        self._require_equal_start(run, examples)
        self._require_fit(run, examples)
        run.head = replace(run.head, target_range=self._target_range(examples))  # fitted models were compared unclipped
        run.predictors.clear()  # they hold the current weights
        return run, self._trainer(loop, run, settings, examples)

    def _built(self, examples: Examples) -> tuple[TrainableModel, Examples]:
        """Return the graph that the builder builds for the data, and the data as its input."""
        estimator = self.estimator
        builder = resolve_builder(estimator.model)
        assert builder is not None
        rows = self._split(examples)[0] if needs_rows(builder) else None
        source = built_source(builder, scaled(examples, self.scale), rows, self.rng)
        (column,) = examples.columns.values()
        if column.matches(source.inputs[0]):
            return source, replace(examples, columns={source.inputs[0].name: column})
        columns = graph_inputs(estimator, self.call.X, source.inputs, None, reset=False)
        return source, replace(examples, columns=columns)

    def _target_scale(self, examples: Examples) -> TargetScale | None:
        """Return the scale in which a graph that is built for these targets is trained."""
        estimator, builder = self.estimator, resolve_builder(self.estimator.model)
        if getattr(estimator, "target_scaling", None) is None or not getattr(builder, "scales_targets", False):
            return None
        loss = resolve_loss(estimator.loss)
        loss.check_targets(examples.targets.values)
        rows, centered = self._split(examples)[0], getattr(builder, "fit_intercept", True)
        return target_scale(loss.target_scaling, examples.targets, rows, examples.weights, centered=centered)

    def _target_range(self, examples: Examples) -> TargetRange | None:
        """Return the range of a regressor's targets that it has been trained on, with those of this call."""
        if examples.targets.task != "regression":
            return None
        earlier = None if self.old is None else self.old.head.target_range
        values = examples.targets.values[self._split(examples)[0]]
        return target_range(earlier, values, clips=bool(self.estimator.clip_predictions))

    def _require_same_units(self, loss: Loss) -> None:
        """Raise if an earlier call scaled the targets in a way that the current loss does not support."""
        if self.scale is not None and loss.target_scaling != self.scale.method:
            raise ModelError(
                f"The targets were scaled for another loss when training began, and {type(loss).__name__} cannot take "
                f"them so. Call fit with warm_start=False, or begin with target_scaling=None."
            )

    def _run(
        self, source: TrainableModel, fitted: FittedModel | None, examples: Examples, scheduled: Scheduled
    ) -> tuple[Run, StepSettings]:
        """Return a new run, or the old one updated to the current parameters."""
        estimator, columns = self.estimator, examples.columns
        chosen = choose_head(estimator, self.old, source, fitted, examples, self.rng, is_new=self.body is not None)
        seen = chosen.seen
        factors = factors_of(estimator, seen, chosen.settings.optimizer)
        require_schedulable(scheduled, chosen.settings.optimizer)
        require_steps(estimator, chosen.settings.optimizer)
        settings = replace(chosen.settings, factors=factors, scheduled=scheduled)
        trainable = estimator.trainable
        if self.tuner is not None:
            settings = replace(settings, optimizer=LBFGS())  # the gradients of all rows, without an update graph
            trainable = tuned_names(estimator, self.tuner, seen, fitted if self.body is None else self.body.fitted)
        self._require_same_units(settings.loss)
        head = replace(chosen.head, target_scale=self.scale)
        if self.old is not None:
            return resume_run(self.old, seen, head, settings, trainable, columns), settings
        run = new_run(chosen.source, seen, head, settings, trainable, columns, self.rng, fitted)
        run.began = Start.by(estimator)
        if chosen.own is not None:
            require_own_start(chosen.own, seen, head, run.plain_predictor(), columns, settings.device)
        return run, settings

    def _require_equal_start(self, run: Run, examples: Examples) -> None:
        """Raise if the graph of a fitted model does not reproduce its predictions."""
        fitted = run.fitted
        if self.old is not None or fitted is None:
            return
        if isinstance(fitted, FittedFile):
            run.fitted = started(fitted, examples.columns, run.predictions)
            return
        X, splits_words = self.call.X, fitted.table is not None and fitted.table.splits_words
        rows = X if splits_words else sample_rows(X)  # words may differ in every row
        what = "It is refused, as training would begin from another model: its ONNX form"
        found = predictions_on(self.estimator, run, rows)
        require_equal(self.estimator.model, rows, found, what=what, tolerance=1e-4)
        run.sample = sample_rows(X)

    def _require_fit(self, run: Run, examples: Examples) -> None:
        """Raise if the data contain values that the model cannot take; warn if its type rounds them."""
        require_numbers(self.estimator, run, examples.columns)
        if examples.targets.task == "regression":
            warn_of_rounding(self.call.y, run.model.dtype, "y")
            if self.scale is not None:
                require_in_range(self.scale, examples.targets.values, run.model.dtype)

    def _trainer(self, loop: TrainerSettings, run: Run, settings: StepSettings, examples: Examples) -> Trainer:
        """Return the loop over the training rows, with the score of the validation rows."""
        estimator, one_pass = self.estimator, self.call.one_pass
        rows, held_out = self._split(examples)
        old = old_examples(estimator, run, self.call, self.tuner)
        rows = self.rng.permutation(rows) if self.tuner else rows  # the first rows stand for all
        limit = TUNED_PIECE if self.tuner else batch_limit(estimator.batch_size, settings.optimizer)
        shuffle = bool(estimator.shuffle) and not isinstance(settings.optimizer, LBFGS)
        batches = batches_for(run, examples, rows, min(len(rows), limit), shuffle=shuffle)
        validate = validation_score(estimator, run, examples, held_out, self.call)
        # calls of partial_fit may bring more or fewer rows
        room, most = (min(len(rows), limit), limit) if one_pass else (batches.size, batches.size)
        step = prepare_step(run, settings, room, most, sparse_inputs(examples.columns))
        if self.tuner is not None:
            scalers = transformer_names(estimator, run.source, run.fitted)
            return tuning_trainer(
                self.tuner, run, examples, old, rows, loop, step, batches, validate, self.head_names, scalers
            )
        return new_trainer(loop, step, batches, run.history, validate)

    def _split(self, examples: Examples) -> tuple[np.ndarray, np.ndarray | None]:
        """Return the training rows and the rows held out for early stopping; the first call draws them."""
        if self.split is None:
            self.split = self._new_split(examples)
        return self.split

    def _new_split(self, examples: Examples) -> tuple[np.ndarray, np.ndarray | None]:
        """Draw both parts; rows of weight zero are in neither."""
        weights, estimator = examples.weights, self.estimator
        rows = np.arange(len(examples)) if weights is None else np.flatnonzero(weights)
        if not estimator.early_stopping or self.call.validation is not None or self.call.one_pass:
            return rows, None
        return split_rows(rows, examples.targets, float(estimator.validation_fraction), self.rng)
