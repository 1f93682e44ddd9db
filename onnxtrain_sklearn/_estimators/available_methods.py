"""Methods that exist, and calls that are valid, depending on the parameters and the fitted state."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ..losses import LOSSES, Loss
from ..optimizers import LBFGS
from .fitted_state import FittedState
from .parameters import Parameters


def trains_in_minibatches(estimator: Parameters) -> bool:
    if isinstance(estimator.optimizer, LBFGS) or estimator.optimizer == "lbfgs":
        raise AttributeError("partial_fit trains on minibatches; optimizer='lbfgs' takes all data at once.")
    return True


def check_one_pass(estimator: Parameters) -> None:
    stopping = estimator.early_stopping
    if is_on(stopping) or isinstance(stopping, str):
        raise ValueError(
            f"partial_fit does not support early_stopping={stopping!r}; it makes one pass and cannot stop earlier."
        )
    given = getattr(estimator, "class_weight", None)
    balances = given.values() if isinstance(given, Mapping) else [given]  # by output, where there are several
    if any(isinstance(one, str) and one == "balanced" for one in balances):
        raise ValueError(
            "class_weight='balanced' needs all data at once, partial_fit sees a part of them: give a dict, such as "
            "sklearn.utils.class_weight.compute_class_weight makes."
        )


def is_on(switch: object) -> bool:
    """Return True if a boolean parameter is true; invalid values are refused when all parameters are validated."""
    return isinstance(switch, bool | np.bool_) and bool(switch)


def gives_probabilities(estimator: Parameters) -> bool:
    state: FittedState | None = getattr(estimator, "_state", None)
    loss = estimator.loss
    if not (links_classes(loss) if state is None else state.head.has_probabilities):
        raise AttributeError(f"predict_proba is not available: loss={loss!r} gives scores without probabilities.")
    return True


def links_classes(loss: object) -> bool:
    """Return True if ``loss`` gives probabilities; for an invalid loss ``fit`` raises the error."""
    known = LOSSES[loss]() if isinstance(loss, str) and loss in LOSSES else loss
    return not isinstance(known, Loss) or known.link("binary") != "identity"


def takes_negative_numbers(loss: object) -> bool:
    known = LOSSES[loss]() if isinstance(loss, str) and loss in LOSSES else loss
    try:
        if isinstance(known, Loss):
            known.check_targets(np.array([[-1.0]]))
    except ValueError:
        return False
    return True
