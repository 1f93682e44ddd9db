"""The preparation of a call that trains several outputs, in the steps of :mod:`.preparation`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .._data.rounding import warn_of_rounding
from .._estimators.drawn_seed import generator_for
from .._estimators.examples import Call
from .._estimators.model_source import source_of
from .._estimators.parameters import Parameters
from .._estimators.plan import Plan
from .._estimators.run import Run
from .._estimators.run_setup import run_for
from .._estimators.settings import trainer_settings
from .._estimators.trained_start import compare_training
from .._estimators.trainer_setup import trainer_for
from .._estimators.training_rows import TrainingRows
from .._fitted.model import is_estimator
from .._graph.trainable import TrainableModel
from .._training.loop import Trainer
from ..exceptions import ModelError
from ..models import resolve_builder
from .examples import Singles, balanced_outputs, several_examples, with_factors
from .heads import choose_heads, require_own_starts
from .single_estimators import by_output, output_estimators
from .validation import score_of_outputs, validation_rows_of_outputs


def prepared_outputs(estimator: Parameters, call: Call) -> tuple[Run, Trainer]:
    """Validate everything; return the run and the loop that will train it."""
    if call.y is None:
        raise ValueError(f"{type(estimator).__name__} requires y to be passed, but the target y is None.")
    loop, singles = trainer_settings(estimator), output_estimators(estimator)
    old: Run | None = getattr(estimator, "_run", None) if call.resume else None
    source = _known_outputs(estimator, old, singles)
    examples = several_examples(estimator, singles, call, source, old)
    rng = generator_for(estimator, call, examples) if old is None else old.rng
    rows = TrainingRows(estimator, call, old, rng)
    examples = with_factors(examples, rows.split(examples)[0])
    plan = Plan(estimator, call, loop, old, rng, rows, None, None, None, ())
    chosen, owns = choose_heads(estimator, singles, old, source, examples, rng)
    run, settings = run_for(plan, chosen, examples)
    run.balanced_outputs = balanced_outputs(singles, call, examples)
    scores = require_own_starts(run, owns, examples.columns)
    _warn_of_rounding(run, by_output(call.y, singles, "y"))
    run.predictors.clear()  # they hold the current weights
    scored = validation_rows_of_outputs(plan, run, singles, examples)
    validate = score_of_outputs(estimator, singles, run, scored, call)
    trainer = trainer_for(plan, run, settings, examples, scored, validate)
    compare_training(run, settings, examples, owns, scores, trainer)
    return run, trainer


def _known_outputs(estimator: Parameters, old: Run | None, singles: Singles) -> TrainableModel:
    """Return the given graph with the outputs that have a loss, or that of an earlier call."""
    names = tuple(singles)
    if old is not None:
        assert old.began is not None
        old.began.require_same(estimator)
        earlier = tuple(form.output for form in old.source.forms)
        if earlier != names:
            raise ModelError(
                f"loss was changed from the outputs {list(earlier)} to {list(names)}, but warm_start and partial_fit "
                f"go on training those of the first call. Give a loss for each of them, in that order."
            )
        return old.given
    model = estimator.model
    if is_estimator(model) or resolve_builder(model) is not None:
        what = "None" if model is None else repr(model) if isinstance(model, str) else type(model).__name__
        raise ValueError(
            f"model must be an ONNX graph with the outputs {list(names)}: a ModelProto, bytes, a path or an "
            f"ONNXProgram. Builders and fitted models have one output; got {what}."
        )
    return source_of(model, None, training_mode=estimator.training_mode, several=names)[0]


def _warn_of_rounding(run: Run, y: Mapping[str, Any]) -> None:
    for head, (name, own) in zip(run.head.parts, y.items(), strict=True):
        if head.task == "regression":
            warn_of_rounding(own, run.model.dtype, f"y[{name!r}]")
