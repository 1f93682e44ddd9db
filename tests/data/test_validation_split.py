"""Rows that ``validation_split`` names: indices, masks, splitters of scikit-learn, and their groups."""

from __future__ import annotations

import numpy as np
import pytest
import sklearn
from sklearn.base import clone
from sklearn.model_selection import (
    GridSearchCV,
    GroupKFold,
    GroupShuffleSplit,
    KFold,
    PredefinedSplit,
    ShuffleSplit,
    TimeSeriesSplit,
)
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from onnxtrain_sklearn import (
    MLP,
    Linear,
    OrtGradientClassifier,
    OrtGradientMultiOutput,
    OrtGradientRegressor,
    RealMLPClassifier,
    RealMLPRegressor,
    RowBlocks,
    TabMRegressor,
    load_training,
)
from tests.helpers import several_outputs as heads

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

N = 60
rng = np.random.RandomState(0)
X = rng.normal(size=(N, 4)).astype(np.float32)
Y = X.sum(axis=1)
LABELS = np.where(Y > 0, "yes", "no")
GROUPS = np.arange(N) // 6
HELD = np.array([3, 58, 7, 20, 21, 41])
MASK = np.isin(np.arange(N), HELD)


def groups_for(choice: object) -> dict[str, object]:
    return {"groups": GROUPS} if isinstance(choice, GroupShuffleSplit) else {}


def parts(splitter: object) -> tuple[np.ndarray, np.ndarray]:
    """Return the last split, as scikit-learn itself gives it."""
    return list(splitter.split(X, Y, **groups_for(splitter)))[-1]


REST = np.setdiff1d(np.arange(N), HELD)
SPLITS = {
    "indices": (HELD, (REST, np.sort(HELD))),
    "list": (HELD.tolist(), (REST, np.sort(HELD))),
    "mask": (MASK, (REST, np.sort(HELD))),
    "time": (TimeSeriesSplit(4, gap=2), parts(TimeSeriesSplit(4, gap=2))),
    "folds": (KFold(5), parts(KFold(5))),
    "predefined": (PredefinedSplit(np.where(MASK, 0, -1)), (REST, np.sort(HELD))),
    "groups": (GroupShuffleSplit(3, random_state=5), parts(GroupShuffleSplit(3, random_state=5))),
}


def regressor(**parameters: object) -> OrtGradientRegressor:
    settings = {"max_iter": 4, "random_state": 0, "early_stopping": "best_epoch", "alpha": 0.0, "batch_size": 16}
    return OrtGradientRegressor(MLP((3,)), **settings | parameters)


@pytest.mark.parametrize("case", SPLITS)
@pytest.mark.parametrize("weighted", [False, True])
def test_rows_held_out_are_those_that_scikit_learn_names(case, weighted):
    choice, (trained, held) = SPLITS[case]
    weights = np.where(np.arange(N) % 4, 1.0, 0.0) * np.linspace(1, 3, N) if weighted else None
    at = (lambda rows: None) if weights is None else (lambda rows: weights[rows])
    found = regressor(validation_split=choice).fit(X, Y, weights, **groups_for(choice))
    expected = regressor().fit(
        X[trained], Y[trained], at(trained), X_val=X[held], y_val=Y[held], sample_weight_val=at(held)
    )
    assert found.validation_scores_ == pytest.approx(expected.validation_scores_, rel=1e-5)
    assert found.t_ == expected.t_
    np.testing.assert_allclose(found.predict(X), expected.predict(X), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("case", SPLITS)
@pytest.mark.parametrize("kind", [RealMLPRegressor, TabMRegressor])
def test_recipes_hold_out_the_same_rows(case, kind):
    choice, (trained, held) = SPLITS[case]
    settings = {"max_iter": 2, "random_state": 0, "batch_size": 16}
    if kind is RealMLPRegressor:
        settings["variant"] = "td-s"  # not chosen by the number of rows
    found = kind(validation_split=choice, **settings).fit(X, Y, **groups_for(choice))
    expected = kind(**settings).fit(X[trained], Y[trained], X_val=X[held], y_val=Y[held])
    assert len(found.validation_scores_) == 1
    assert found.validation_scores_[0] == pytest.approx(expected.validation_scores_[0], rel=1e-3, abs=1e-5)


def test_validation_rows_of_a_recipe_are_weighted_and_scored():
    trained, held = REST, HELD
    weights = np.linspace(0.5, 2, N)
    fitted = RealMLPClassifier("td-s", max_iter=3, random_state=0, class_weight={"yes": 3.0}).fit(
        X[trained], LABELS[trained], weights[trained],
        X_val=X[held], y_val=LABELS[held], sample_weight_val=weights[held],
    )  # fmt: skip
    own = weights[held] * np.where(LABELS[held] == "yes", 3.0, 1.0)
    reached = max(fitted.validation_scores_[0])
    assert reached == pytest.approx(np.average(fitted.predict(X[held]) == LABELS[held], weights=own))
    with pytest.raises(ValueError, match="X_val has 3 features"):
        clone(fitted).fit(X, LABELS, X_val=X[:, :3], y_val=LABELS)
    with pytest.raises(ValueError, match="belong together"):
        clone(fitted).fit(X, LABELS, X_val=X)


@pytest.mark.long
def test_members_of_an_ensemble_take_the_last_splits_in_turn():
    splitter = GroupKFold(3)
    folds = [held for _, held in splitter.split(X, Y, GROUPS)][::-1]
    found = RealMLPRegressor("td-s", max_iter=1, n_ensembles=4, validation_split=splitter, random_state=0)
    seen: list[int] = []
    found.set_params(scoring=lambda estimator, X, y: seen.append(np.sort(y).tolist()) or 0.0).fit(X, Y, groups=GROUPS)
    expected = [np.sort(Y[folds[i]]).tolist() for i in (0, 1, 2, 0)]
    assert [np.float32(one).tolist() for one in seen] == [np.float32(one).tolist() for one in expected]
    seen.clear()
    found.set_params(validation_split=TimeSeriesSplit(3), n_ensembles=2).fit(X, Y)
    last = np.sort(Y[45:]).tolist()
    assert [np.float32(one).tolist() for one in seen] == [np.float32(last).tolist()] * 2


def test_several_outputs_hold_out_named_rows():
    data, targets = heads.data(N)
    settings = {"max_iter": 2, "random_state": 0, "early_stopping": True}
    names = ["number", "yes"]
    losses = {name: heads.KINDS[name].loss for name in names}
    seen: list[int] = []

    def scoring(estimator: object, X: object, y: object) -> float:
        seen.append(len(y[names[0]]))
        return 0.0

    estimator = OrtGradientMultiOutput(
        heads.graph(names), loss=losses, validation_split=GroupShuffleSplit(), scoring=scoring
    )
    estimator.set_params(**settings).fit(data, {name: targets[name] for name in names}, groups=GROUPS)
    assert seen == [12, 12]  # two of ten groups of six rows


def test_a_splitter_without_a_seed_draws_by_that_of_the_estimator():
    fits = [regressor(validation_split=ShuffleSplit(), random_state=seed).fit(X, Y) for seed in (1, 1, 2)]
    assert fits[0].validation_scores_ == fits[1].validation_scores_ != fits[2].validation_scores_
    assert fits[0].validation_split.random_state is None


FAULTS = {
    "out of range": ([3, 60], "names row 60, and the rows of X are 0 to 59"),
    "negative": ([3, -1], "names row -1"),
    "twice": ([3, 5, 3], "names row 3 more than once"),
    "mask": (MASK[:50], "mask of 50 rows, and X has 60"),
    "none": (np.zeros(N, bool), "no row of positive weight to hold out"),
    "no indices": ([], "no row of positive weight to hold out"),
    "all": (np.ones(N, bool), "no row of positive weight to train on"),
    "one": ([3], "holds out one row of positive weight, and R² needs 2"),
    "no groups": (GroupShuffleSplit(), "'groups' parameter should not be None"),
    "two axes": (MASK[:, None], "'validation_split' parameter .* must be a float in the range"),
    "floats": ([0.5, 2.0], "'validation_split' parameter"),
    "class": (GroupShuffleSplit, "'validation_split' parameter"),
}


class Overlapping:
    def split(self, X, y=None, groups=None):
        yield np.arange(30), np.arange(28, 60)

    def get_n_splits(self, X=None, y=None, groups=None):
        return 1


@pytest.mark.parametrize("case", FAULTS)
def test_a_wrong_split_is_refused_and_changes_nothing(case):
    choice, message = FAULTS[case]
    for estimator in (regressor().fit(X, Y), RealMLPRegressor("td-s", max_iter=1, random_state=0).fit(X, Y)):
        before = estimator.predict(X)
        with pytest.raises((ValueError, TypeError), match=message):
            estimator.set_params(validation_split=choice).fit(X, Y)
        np.testing.assert_array_equal(estimator.predict(X), before)


def test_rows_in_both_parts_are_refused():
    with pytest.raises(ValueError, match="puts 2 rows into both parts, row 28 among them"):
        regressor(validation_split=Overlapping()).fit(X, Y)


class Parts:
    def __init__(self, trained, held):
        self.trained, self.held = trained, held

    def split(self, X, y=None, groups=None):
        yield self.trained, self.held

    def get_n_splits(self, X=None, y=None, groups=None):
        return 1


@pytest.mark.parametrize(
    ("trained", "held", "message"),
    [
        (np.arange(30), [40, 60], "names row 60, and the rows of X are 0 to 59"),
        ([0, 1, -18], [40, 41, 42], "names row -18"),
        (~MASK[:50], MASK[:50], "mask of 50 rows, and X has 60"),
        (np.arange(30), [40, 41, 40], "names row 40 more than once"),
    ],
)
def test_rows_of_a_splitter_are_checked_as_named_rows_are(trained, held, message):
    with pytest.raises(ValueError, match=message):
        regressor(validation_split=Parts(trained, held)).fit(X, Y)


def test_a_class_without_rows_to_train_on_is_refused():
    rare = LABELS.astype(object)
    rare[[3, 58]] = "perhaps"
    for estimator in (
        OrtGradientClassifier(Linear(), early_stopping=True, validation_split=MASK),
        RealMLPClassifier("td-s", validation_split=MASK),
    ):
        with pytest.raises(ValueError, match="no row of class 'perhaps' to train on"):
            estimator.fit(X, rare)


def test_groups_that_nothing_reads_are_refused():
    for estimator in (regressor(), regressor(validation_split=HELD), RealMLPRegressor()):
        with pytest.raises(ValueError, match="groups are read by a splitter"):
            estimator.fit(X, Y, groups=GROUPS)
    with pytest.raises(ValueError, match="no rows are held out"):
        regressor(early_stopping=False, validation_split=GroupShuffleSplit()).fit(X, Y, groups=GROUPS)
    with pytest.raises(ValueError, match="no rows are held out"):
        RealMLPRegressor(validation_split=GroupShuffleSplit()).fit(X, Y, X_val=X, y_val=Y, groups=GROUPS)


def test_initialize_reads_groups():
    split = GroupShuffleSplit(1, random_state=5)
    data, targets = heads.data(N)
    names = ["number", "yes"]
    losses = {name: heads.KINDS[name].loss for name in names}
    several = OrtGradientMultiOutput(heads.graph(names), loss=losses, early_stopping=True, random_state=0)
    of_names = {name: targets[name] for name in names}
    classifier = OrtGradientClassifier(MLP((3,)), early_stopping=True, random_state=0)
    held = np.sort(parts(split)[1])
    for estimator, rows, wanted in ((regressor(), X, Y), (classifier, X, LABELS), (several, data, of_names)):
        estimator.set_params(validation_split=split)
        with pytest.raises(ValueError, match="'groups' parameter should not be None"):
            estimator.initialize(rows, wanted)
        assert not hasattr(estimator, "t_")
        assert clone(estimator).initialize(rows, wanted, groups=GROUPS).t_ == 0
        with pytest.raises(ValueError, match="groups are read by a splitter"):
            clone(estimator).set_params(validation_split=held).initialize(rows, wanted, groups=GROUPS)
    found, expected, other = (
        regressor(validation_split=choice).initialize(X, Y, groups=of_rows).predict(X)
        for choice, of_rows in ((split, GROUPS), (held, None), (HELD, None))
    )
    np.testing.assert_array_equal(found, expected)
    assert np.abs(found - other).max() > 1e-4  # scales come from the rows to train on


def test_exports_of_recipes_read_groups(tmp_path):
    split = GroupShuffleSplit(1, random_state=5)
    recipe = RealMLPRegressor("td-s", hidden_layer_sizes=(4,), random_state=0)
    predicted = {}
    for name, choice, of_rows in (
        ("groups", split, GROUPS),
        ("rows", parts(split)[1], None),
        ("others", HELD, None),
    ):
        clone(recipe).set_params(validation_split=choice).export_training(tmp_path / name, X, Y, groups=of_rows)
        predicted[name] = load_training(tmp_path / name, random_state=0).predict(X)
    np.testing.assert_array_equal(predicted["groups"], predicted["rows"])
    assert np.abs(predicted["groups"] - predicted["others"]).max() > 1e-4
    with pytest.raises(ValueError, match="groups are read by a splitter"):
        recipe.export_training(tmp_path / "more", X, Y, groups=GROUPS)
    with pytest.raises(ValueError, match="'groups' parameter should not be None"):
        clone(recipe).set_params(validation_split=split).export_training(tmp_path / "more", X, Y)
    assert not (tmp_path / "more").exists()


def test_groups_reach_the_splitter_by_metadata_routing():
    net = regressor(validation_split=GroupShuffleSplit(), max_iter=1)
    with sklearn.config_context(enable_metadata_routing=True):
        pipeline = make_pipeline(StandardScaler(), net.set_fit_request(groups=True))
        search = GridSearchCV(pipeline, {"ortgradientregressor__max_iter": [1, 2]}, cv=GroupKFold(2))
        search.fit(X, Y, groups=GROUPS)
    assert len(search.best_estimator_[-1].validation_scores_) == search.best_params_["ortgradientregressor__max_iter"]


def test_blocks_of_a_table_are_held_out_by_share_alone(tmp_path):
    pa = pytest.importorskip("pyarrow")
    table = pa.table({**{f"x{i}": X[:, i] for i in range(4)}, "y": Y})
    for estimator in (regressor(validation_split=HELD), RealMLPRegressor(validation_split=HELD)):
        blocks = RowBlocks(table.to_reader, "y", buffer_rows=24)
        with pytest.raises(ValueError, match=r"Whole blocks are held out .* must be a float, got an array of 6"):
            estimator.fit(blocks)
    in_memory = regressor(validation_split=HELD).fit(RowBlocks(table.to_reader, "y"))
    assert in_memory.validation_scores_ == regressor(validation_split=HELD).fit(X, Y).validation_scores_


@pytest.mark.long
def test_a_network_of_a_table_in_blocks_is_scored_on_given_rows():
    pa = pytest.importorskip("pyarrow")
    table = pa.table({**{f"x{i}": X[REST, i] for i in range(4)}, "y": Y[REST]})
    recipe = RealMLPRegressor("td-s", max_iter=2, random_state=0)
    frame = pa.table({f"x{i}": X[HELD, i] for i in range(4)}).to_pandas()
    fitted = recipe.fit(RowBlocks(table.to_reader, "y", buffer_rows=24), X_val=frame, y_val=Y[HELD])
    assert max(fitted.validation_scores_[0]) == pytest.approx(fitted.score(frame, Y[HELD]), rel=1e-5)
