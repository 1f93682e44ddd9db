"""Which fitted scikit-learn models are trained, found by training them: docs/api/fitted.md and its data.

    python -m tests.contracts.fitted
    python -m tests.contracts.fitted KMeans "SVR("    # only the settings in which one of the texts occurs

An outcome is only an outcome if everything holds that was promised with it: :func:`outcome` raises where a model is
trained wrongly. So no page can be written while one is.
"""

from __future__ import annotations

import copy
import itertools
import json
import pickle
import re
import sys
import warnings
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import joblib
import numpy as np
from sklearn.exceptions import ConvergenceWarning

from onnxtrain_sklearn import OrtGradientClassifier, OrtGradientRegressor
from onnxtrain_sklearn._fitted.equivalence import margins, margins_of_labels, values
from onnxtrain_sklearn._fitted.fitted_model import walk
from onnxtrain_sklearn._fitted.model_record import record_of
from onnxtrain_sklearn.exceptions import ModelError, OnnxTrainError
from tests.contracts.fitted_settings import FITTED_ON, SETTINGS, Setting
from tests.helpers.environment import RUNTIME_VERSION

COMMAND = "python -m tests.contracts.fitted"
API = Path(__file__).parents[2] / "docs" / "api"
PAGE, FILE = API / "fitted.md", API / "fitted.json"

BACK, TRAINED, REFUSED = "trained and written back", "trained", "refused"
ORDER = [REFUSED, TRAINED, BACK]

ROWS = slice(FITTED_ON, None)
RATES = (1e-3, 1e-4, 1e-5)
STEPS = (3e-2, 3e-3, 1e-1, 1e-2, 1e-3, 1e-4)
READABLE = re.compile(r"[a-z0-9_]+(\.(?!\w*cst)[A-Za-z0-9_-]+)+")


@dataclass(frozen=True)
class Outcome:
    """What became of a setting, why no more, and the names of what was trained."""

    kind: str
    reason: str = ""
    parameters: tuple[str, ...] = ()


def outcome(setting: Setting) -> Outcome:
    """Train a setting and return its outcome; raise AssertionError where what was promised does not hold."""
    model = setting.fitted()
    before = state(model)
    X, y = setting.rows(ROWS)
    tuned = start(model, X, y)
    if isinstance(tuned, Exception):
        assert state(model) == before, "the given model was changed"
        return Outcome(REFUSED, reason(tuned))
    check_names(tuned)
    check_predictions(tuned, model, setting.rows(slice(None))[0], 1e-4)
    check_gradients(tuned)
    tuned = trained(tuned, X, y)
    names = tuple(tuned.weights_)
    try:
        back = tuned.to_sklearn()
    except ModelError as error:
        return Outcome(TRAINED, reason(error), names)
    finally:
        assert state(model) == before, "the given model was changed"
    check_predictions(tuned, back, setting.rows(slice(None))[0], 1e-5)
    return Outcome(BACK, "", names)


def state(model: Any) -> str | bytes:
    """Return what equals itself as long as a model is not changed; trees of neighbors count their queries."""
    if any(getattr(part, "_tree", None) is not None for _, part in walk(model)):
        model = copy.deepcopy(model)
        for _, part in walk(model):
            if getattr(part, "_tree", None) is not None:
                part._tree = [np.asarray(array) for array in part._tree.get_arrays()]
    try:
        return joblib.hash(model)
    except ValueError:  # masked arrays
        return pickle.dumps(model)


def start(model: Any, X: Any, y: np.ndarray) -> Any:
    """Return the estimator that has not moved from the fitted model yet, or the error that refuses it."""
    kind = OrtGradientClassifier if record_of(model).gives_labels else OrtGradientRegressor
    tuned = kind(model, learning_rate_init=0.0, max_iter=1, optimizer="adam", shuffle=False, batch_size=len(y))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        try:
            return tuned.fit(X, y)
        except (OnnxTrainError, ValueError, TypeError) as error:
            return error


def trained(tuned: Any, X: Any, y: np.ndarray) -> Any:
    """Return the estimator after some epochs in which its loss fell, at the largest rate that lets it."""
    start = tuned.loss_
    for rate in RATES:
        tuned.set_params(learning_rate_init=rate, max_iter=5, warm_start=rate == RATES[0])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            tuned.fit(X, y)
        if tuned.loss_ < start:
            assert tuned.loss_ <= start * (1 - 1e-5), "the loss hardly fell"
            return tuned
    raise AssertionError(f"the loss did not fall: {start} became {tuned.loss_}")


def check_names(tuned: Any) -> None:
    """Assert that every parameter is named by its estimator and attribute."""
    odd = [name for name in tuned.weights_ if not READABLE.fullmatch(name)]
    assert not odd, f"names that say nothing: {odd}"


def check_predictions(tuned: Any, model: Any, X: Any, tolerance: float) -> None:
    """Assert that both predict the same, numbers within a tolerance and labels where classes are not even."""
    record = record_of(model)
    if not record.gives_labels:
        return check_numbers(tuned.predict(X), np.asarray(model.predict(X)), tolerance)
    method = "predict_proba" if hasattr(model, "predict_proba") else "decision_function"
    found, expected = of_labels(tuned, model, X, method)
    for ours, theirs in zip(found, expected, strict=True):
        check_numbers(ours, theirs, tolerance)
    if record.outputs is None:
        sure = margins(record, X, expected[0])
    else:
        sure = margins_of_labels(record, X, values(record, method, X, (len(X), tuned.n_outputs_)), method)
    clear = sure > 1e-4
    assert clear.mean() > 0.5
    np.testing.assert_array_equal(tuned.predict(X)[clear], model.predict(X)[clear])


def of_labels(tuned: Any, model: Any, X: Any, method: str) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Return the probabilities, or the scores, of each label that a row has, ours and scikit-learn's."""
    ours = getattr(tuned, method)(X)
    if record_of(model).has_output_codes:
        theirs = values(record_of(model), method, X, ours.shape)
    elif hasattr(model, method):
        theirs = getattr(model, method)(X)
    else:  # MultiOutputClassifier has none of its own
        theirs = [getattr(one, method)(X) for one in model.estimators_]
    if isinstance(ours, list):
        return ours, theirs
    if tuned._state.decoding.task != "multilabel":
        return [ours], [np.asarray(theirs)]
    if isinstance(theirs, list):
        theirs = np.stack([one[:, 1] if one.ndim == 2 else one for one in theirs], axis=1)
    return list(ours.T), list(np.asarray(theirs).T)


def check_numbers(found: np.ndarray, expected: np.ndarray, tolerance: float) -> None:
    scale = max(1.0, float(np.abs(expected).max()))
    np.testing.assert_allclose(
        found, expected.reshape(found.shape), rtol=tolerance, atol=tolerance * scale, equal_nan=False
    )


def check_gradients(tuned: Any) -> None:
    """Assert that each parameter's gradient agrees with a central difference of the loss in a random direction.

    The graph computes in float32, so the difference is taken at several widths, of which one must agree: narrow ones
    drown in rounding, wide ones cross kinks.
    """
    run, rng = tuned._state, np.random.default_rng(0)
    vector, step = run.parameters.vector, run.live.step
    n, fitted = step.batch_size, run.parameters.vector.copy()
    origins = {origin.name: origin for origin in run.fitted.origins}
    for span in (run.parameters.span(name) for name, one in origins.items() if one.role.endswith("probabilities")):
        vector[span] = np.clip(vector[span], 0.1, 0.9)  # at 0 and 1 are kinks
    loss, gradient = step.compute_gradients(float(n)), run.parameters.gradient.copy()
    start, told, noise = vector.copy(), 0, 2e-6 * max(abs(loss), 1e-2)
    for name in run.parameters.names:
        span = run.parameters.span(name)
        direction = away_from_kinks(start[span], origins[name].role) * rng.normal(size=start[span].shape)
        found = []
        for width in STEPS:
            sides = []
            for sign in (1, -1):
                vector[span] = start[span] + sign * width * direction
                sides.append((step.compute_gradients(float(n)), vector[span].astype(np.float64)))
            vector[span] = start[span]
            told_by_loss = sides[0][0] - sides[1][0]
            told_by_gradient = float(gradient[span] @ (sides[0][1] - sides[1][1]))
            found.append((abs(told_by_loss - told_by_gradient), abs(told_by_gradient)))
            if found[-1][0] <= 0.02 * found[-1][1] and found[-1][1] > 10 * noise:
                break
        told += max(size for _, size in found) > 10 * noise
        assert any(distance <= 0.02 * size + noise for distance, size in found), f"gradient of {name}: {found}"
    vector[:] = fitted
    assert told, "no parameter had a gradient that differences could tell from none"


def away_from_kinks(numbers: np.ndarray, role: str) -> np.ndarray:
    """Return how far each number may move: by its own size, and probabilities, kept from 0 and 1, by theirs."""
    w = np.abs(numbers.astype(np.float64))
    if role.endswith("probabilities"):
        return np.minimum(w, np.abs(1 - w))
    return np.where(w > 0, w, np.sqrt((w**2).mean()) or 1.0)


def reason(error: Exception) -> str:
    """Return an error's message as far as it does not depend on the machine."""
    text = " ".join(str(error).split())
    text = re.sub(r"by up to \S+", "by too much", text).replace(RUNTIME_VERSION, "").replace("  ", " ")
    return text if len(text) < 300 else text[:300] + "..."


# The file and the page


def read() -> dict[str, Outcome]:
    """Return the outcomes that were found when the page was written."""
    entries = json.loads(FILE.read_text(encoding="utf-8"))
    return {key: Outcome(e["outcome"], e["reason"], tuple(e["parameters"])) for key, e in entries.items()}


def write(found: dict[str, Outcome]) -> None:
    """Write the file and the page."""
    entries = {
        key: {"outcome": one.kind, "reason": one.reason, "parameters": list(one.parameters)}
        for key, one in found.items()
    }
    FILE.write_text(json.dumps(entries, indent=1) + "\n", encoding="utf-8")
    PAGE.write_text(page(read()), encoding="utf-8")


INTRODUCTION = f"""# Fitted models

Which fitted scikit-learn models `model=` takes. The tables are made by `{COMMAND}` from what the tests find: each
setting is fitted on some rows and trained on others. A trained model starts from what the fitted one predicts (within
1e-4), its gradients agree with central differences, its loss falls, and `to_sklearn()` gives a model that predicts the
same (within 1e-5). What does not hold all of this is refused.

"""


def page(found: dict[str, Outcome]) -> str:
    """Return the page."""
    groups = list(dict.fromkeys(setting.group for setting in SETTINGS.values()))
    lines = ["| | settings | trained | written back |", "|---|---|---|---|"]
    lines += [summary(group, [one for key, one in found.items() if SETTINGS[key].group == group]) for group in groups]
    text = INTRODUCTION + "\n".join(lines) + "\n"
    for group in groups:
        text += f"\n## {group}\n\n| fitted model | targets | outcome |\n|---|---|---|\n"
        text += "".join(row(SETTINGS[key], one) for key, one in found.items() if SETTINGS[key].group == group)
    return text


def summary(group: str, outcomes: list[Outcome]) -> str:
    counts = Counter(one.kind for one in outcomes)
    return f"| {group} | {len(outcomes)} | {counts[BACK] + counts[TRAINED]} | {counts[BACK]} |"


def row(setting: Setting, one: Outcome) -> str:
    why = one.reason.replace("|", "\\|")
    data = "" if setting.data == "numbers" else f", {setting.data}"
    said = one.kind if one.kind == BACK else f"{one.kind}: {why}" if one.kind == REFUSED else f"trained only: {why}"
    return f"| `{setting.code}` | {setting.targets}{data} | {said} |\n"


def named_classes() -> set[str]:
    """Return the names of the classes that the settings are made of."""
    return set(itertools.chain.from_iterable(re.findall(r"\w+", s.expression()) for s in SETTINGS.values()))


def main(only: list[str]) -> int:
    """Find every outcome, or those of the keys with one of the parts, and write file and page."""
    found, wrong = {}, []
    for key, setting in SETTINGS.items():
        if only and not any(part in key for part in only):
            continue
        try:
            found[key] = outcome(setting)
            print(key, "->", found[key].kind, found[key].reason)
            if only:
                print("   ", *found[key].parameters)
        except Exception as error:
            wrong.append(key)
            print(key, "-> WRONG:", type(error).__name__, " ".join(str(error).split())[:600])
    known = found if not only else read() | found
    missing = [key for key in SETTINGS if key not in known]
    if not wrong and not missing:
        write({key: known[key] for key in SETTINGS})
    elif missing:
        print("Nothing is written, as these have no outcome:", *missing, sep="\n    ")
    print(Counter(one.kind for one in found.values()), f"{len(wrong)} wrong")
    return len(wrong)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]) > 0)
