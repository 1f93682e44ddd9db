"""States of training sessions: saved, loaded in a new process, copied."""

from __future__ import annotations

import numpy as np
import pytest

from onnxtrain_sklearn.classic.training_session import TrainingSession
from tests.helpers.processes import run_in_new_process
from tests.helpers.training_sessions import WEIGHTS, feed, parameters, train, with_loss


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["SGDOptimizer", "AdamOptimizer", "AdamWOptimizer", "LambOptimizer"])
def test_a_state_goes_on_in_a_new_process(tmp_path, kind):
    session = TrainingSession(with_loss(), parameters(kind))
    train(session, 3)
    np.savez(tmp_path / "state.npz", **session.get_state())
    (tmp_path / "net.onnx").write_bytes(with_loss())
    np.savez(tmp_path / "data.npz", **feed(0.01))
    program = f"""
import numpy as np
from onnxtrain_sklearn.classic.training_session import TrainingParameters, TrainingSession
parameters = TrainingParameters()
parameters.loss_output_name, parameters.training_optimizer_name = "loss", {kind!r}
session = TrainingSession({str(tmp_path / "net.onnx")!r}, parameters)
session.load_state(dict(np.load({str(tmp_path / "state.npz")!r})), strict=True)
for _ in range(4):
    session.run(["loss"], dict(np.load({str(tmp_path / "data.npz")!r})))
np.savez({str(tmp_path / "after.npz")!r}, **session.get_state())"""
    run_in_new_process(program)
    train(session, 4)
    after = np.load(tmp_path / "after.npz")
    assert set(after) == set(session.get_state())
    for name, array in session.get_state().items():
        np.testing.assert_array_equal(after[name], array)


def test_states():
    session = TrainingSession(with_loss(), parameters("AdamOptimizer"))
    train(session, 2)
    state = session.get_state()
    assert set(state) == {f"{p}{w}" for w in WEIGHTS for p in ("", "Moment_1_", "Moment_2_", "Update_Count_")}
    assert state["Update_Count_W"].tolist() == [2]
    optimizer = session.get_optimizer_state()
    np.testing.assert_array_equal(optimizer["W"]["Moment_1"], state["Moment_1_W"])
    np.testing.assert_array_equal(session.get_model_state()["full_precision"]["W"], state["W"])
    assert session.get_partition_info_map() == {}
    fresh = parameters("AdamOptimizer")
    fresh.set_optimizer_initial_state(optimizer)
    weights = {name: state[name] for name in WEIGHTS}
    second = TrainingSession(with_loss(weights=weights), fresh)
    assert train(session, 3) == train(second, 3)
    session.load_state({"W": state["W"], "other": np.ones(1)})
    np.testing.assert_array_equal(session.get_state()["W"], state["W"])
    for wrong, match in (
        ({"W": state["W"]}, "missing"),
        ({**state, "other": np.ones(1)}, r"unknown \['other'\]"),
        ({**state, "W": np.ones((3, 4))}, r"'W' as float64\[3, 4\], expected float32"),
    ):
        with pytest.raises(ValueError, match=match):
            session.load_state(wrong, strict=True)
    bad = parameters("AdamOptimizer")
    bad.set_optimizer_initial_state({"W": {"Moment_3": np.ones(1)}})
    with pytest.raises(ValueError, match="no state 'Moment_3' of 'W'"):
        TrainingSession(with_loss(), bad)
    with pytest.raises(ValueError, match="no weights of mixed precision"):
        session.get_model_state(include_mixed_precision_weights=True)


def test_gradient_descent_has_no_state_but_the_weights():
    session = TrainingSession(with_loss(), parameters("SGDOptimizer"))
    train(session, 2)
    assert set(session.get_state()) == set(WEIGHTS)
    assert session.get_optimizer_state() == {}
    second = TrainingSession(with_loss(), parameters("SGDOptimizer"))
    second.load_state(session.get_state(), strict=True)
    assert train(session, 3) == train(second, 3)


def test_states_are_copies():
    session = TrainingSession(with_loss(), parameters())
    before = session.get_state()["W"].copy()
    session.get_state()["W"][...] = 7
    np.testing.assert_array_equal(session.get_state()["W"], before)
