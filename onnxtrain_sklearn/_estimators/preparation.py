"""The preparation of a call of ``fit`` or ``partial_fit``, in steps: model, examples, run, loop.

Nothing is trained here. The training step comes last: nothing before it changes objects shared with an earlier run.
"""

from __future__ import annotations

from .._graph.trainable import TrainableModel
from .._support.frozen import with_attributes
from .._training.loop import Trainer
from .built_source import built_for
from .drawn_seed import generator_for
from .examples import Call, Examples, balanced_weights, training_examples
from .fine_tuning import tuner_of
from .head_choice import choose_head
from .model_source import known_source
from .new_head import body_of, gets_new_head, headed
from .parameters import Parameters
from .plan import Plan
from .run import Run
from .run_setup import run_for
from .settings import trainer_settings
from .start_checks import own_scores, require_equal_start, require_fit
from .trained_start import compare_training
from .trainer_setup import trainer_for
from .training_rows import TrainingRows
from .validation import validation_rows, validation_score


def prepared(estimator: Parameters, call: Call) -> tuple[Run, Trainer]:
    """Validate everything; return the run and the loop that will train it.

    The parameters of the estimator are read, and its feature attributes are set.
    """
    plan, source, examples = _planned(estimator, call)
    is_new = plan.body is not None
    chosen = choose_head(estimator, plan.old, source, plan.fitted, examples, plan.rng, is_new=is_new)
    run, settings = run_for(plan, chosen, examples)
    run.balanced = balanced_weights(estimator, call.sample_weight, examples.targets)
    scores = own_scores(plan, run, chosen, examples)
    require_equal_start(plan, run, examples)
    require_fit(plan, run, examples)
    # Fitted models were compared unclipped.
    run.head = with_attributes(run.head, target_range=plan.rows.target_range(examples))
    run.predictors.clear()  # they hold the current weights
    scored = validation_rows(estimator, run, examples, plan.rows.split(examples)[1], call)
    validate = validation_score(estimator, run, scored, call)
    trainer = trainer_for(plan, run, settings, examples, scored, validate)
    compare_training(run, settings, examples, [chosen.own], scores, trainer)
    return run, trainer


def _planned(estimator: Parameters, call: Call) -> tuple[Plan, TrainableModel, Examples]:
    """Return what the call decides, the graph, which is built for the data if need be, and the data as its inputs."""
    if call.y is None:
        raise ValueError(f"{type(estimator).__name__} requires y to be passed, but the target y is None.")
    loop = trainer_settings(estimator)
    old: Run | None = getattr(estimator, "_run", None) if call.resume else None
    body = body_of(estimator) if gets_new_head(estimator, old) else None
    names: tuple[str, ...] = ()
    source, fitted = known_source(estimator, old, call.X) if body is None else (body.source, None)
    examples = training_examples(estimator, call, source, fitted, old)
    rng = generator_for(estimator, call, examples) if old is None else old.rng
    tuner = None if call.one_pass else tuner_of(estimator, fitted)
    rows = TrainingRows(estimator, call, old, rng)
    if body is not None:
        source, names = headed(body, examples)
    if source is None:
        rows.choose_scale(examples)
        source, examples = built_for(estimator, call, examples, rows, rng)
    return Plan(estimator, call, loop, old, rng, rows, fitted, tuner, body, names), source, examples
