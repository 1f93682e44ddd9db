"""The boundary to onnxruntime: session options, threads, bound memory, and installations that cannot work."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest

from onnxtrain_sklearn import MLP, AdamW, OrtGradientRegressor, Runtime, clear_cache
from onnxtrain_sklearn._ort import devices, sessions
from onnxtrain_sklearn._ort.binding import Binding
from onnxtrain_sklearn._ort.devices import resolve_device
from onnxtrain_sklearn._ort.sessions import create_session
from onnxtrain_sklearn._training import passes
from onnxtrain_sklearn.exceptions import OnnxTrainWarning
from tests.helpers.tuning import tune

CPU = "CPUExecutionProvider"
DOUBLED = onnx.parser.parse_model("""
    <ir_version: 8, opset_import: ["": 18]> g (float[N] X) => (float[N] Y) { Y = Add(X, X) }""").SerializeToString()


# Versions


KNOWN = {"1.19.2": (21, 5, 10), "1.31.1": (26, 5, 13)}


def loads(domain, opset, ir_version):
    proto = onnx.load_model_from_string(DOUBLED)
    proto.ir_version = ir_version
    del proto.opset_import[:]
    for name, version in {"": 18, domain: opset}.items():
        proto.opset_import.add(domain=name, version=version)
    try:
        create_session(proto.SerializeToString(), resolve_device())
    except Exception:
        return False
    return True


def test_newest_versions_are_those_that_load():
    limits = sessions.supported_versions()
    newest = limits.opset, limits.ml_opset, limits.ir_version
    assert limits.runtime == f"onnxruntime {onnxruntime.__version__}"
    assert newest == KNOWN.get(onnxruntime.__version__, newest)
    for more in (0, 1):
        assert loads("", limits.opset + more, 8) is not bool(more)
        assert loads("ai.onnx.ml", limits.ml_opset + more, 8) is not bool(more)
        assert loads("", 18, limits.ir_version + more) is not bool(more)


def test_versions_are_asked_for_once(monkeypatch):
    limits = sessions.supported_versions()
    monkeypatch.setattr(sessions, "create_session", None)
    assert sessions.supported_versions() is limits


@pytest.mark.parametrize("version", sessions.OLDEST)
def test_newest_versions_are_probed_for_newer_graphs(version, monkeypatch):
    newest = sessions.supported_versions()
    monkeypatch.setattr(sessions, "supported_versions", lambda: newest)
    accepted = sessions.OLDEST[version]
    assert sessions.versions_for(**{version: accepted + 1}) is newest
    known = sessions.versions_for(**{version: accepted})
    assert known.runtime == newest.runtime
    assert getattr(known, version) == accepted <= getattr(newest, version)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_first_fit_does_not_query_versions(monkeypatch):
    clear_cache()
    monkeypatch.setattr(sessions, "supported_versions", None)
    OrtGradientRegressor(MLP((2,)), max_iter=1).fit([[0.0], [1.0]], [0.0, 1.0])


# Session options


def options_of(**options):
    return create_session(DOUBLED, resolve_device(), options=options).get_session_options()


def test_defaults():
    options = options_of()
    assert (options.intra_op_num_threads, options.inter_op_num_threads, options.log_severity_level) == (1, 1, 4)
    assert create_session(DOUBLED, resolve_device(), threads=2).get_session_options().intra_op_num_threads == 2


def test_threads_without_work_sleep_soon():
    entry = "session.intra_op.spin_duration_us"
    assert options_of().get_session_config_entry(entry) == "50"
    assert options_of(**{entry: 1000}).get_session_config_entry(entry) == "1000"


def test_options_by_name_override_the_defaults():
    options = options_of(intra_op_num_threads=2, enable_mem_pattern=False, graph_optimization_level="ORT_DISABLE_ALL")
    assert (options.intra_op_num_threads, options.enable_mem_pattern) == (2, False)
    assert options.graph_optimization_level == onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    assert options_of(graph_optimization_level=level).graph_optimization_level == level


def test_configuration_entries_have_a_dot_in_their_names():
    options = options_of(**{"session.intra_op.allow_spinning": 0})
    assert options.get_session_config_entry("session.intra_op.allow_spinning") == "0"


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"intra_op_threads": 2}, ValueError, r"Unknown session option 'intra_op_threads'\. Did you mean 'intra_op"),
        ({"add_session_config_entry": 1}, ValueError, "Unknown session option"),
        ({"graph_optimization_level": "ALL"}, ValueError, "has no value 'ALL'.*'ORT_ENABLE_ALL'"),
        ({"intra_op_num_threads": "2"}, TypeError, "'intra_op_num_threads' expects int, got '2' of type str"),
    ],
)
def test_wrong_options(options, error, message):
    with pytest.raises(error, match=message):
        options_of(**options)


@pytest.mark.parametrize("name", ["intra_op_num_threads", "inter_op_num_threads"])
def test_thousands_of_threads_are_cut_to_the_cores(name, monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: 3)
    assert getattr(options_of(**{name: 64}), name) == 64
    with pytest.warns(OnnxTrainWarning, match=f"{name}=5000 is more than the 64 threads .* it gets 3, one for each"):
        options = options_of(**{name: 5000})
    assert getattr(options, name) == 3
    monkeypatch.setattr("os.cpu_count", lambda: 100)
    assert getattr(options_of(**{name: 100}), name) == 100


def test_options_reach_every_session(monkeypatch):
    seen = spy(monkeypatch)
    tune(monkeypatch, least_elements=10**6)  # NumPy needs no session
    options = {"session.intra_op.allow_spinning": "0", "enable_mem_pattern": False}
    regressor = OrtGradientRegressor(
        alpha=0.1,
        l1_ratio=0.5,  # the penalty of squares alone needs no session
        optimizer=AdamW(max_grad_norm=1.0),
        max_iter=1,
        runtime=Runtime(session_options=options),
    )
    fitted_with_runtime(regressor, rows=8).predict(np.eye(4))
    assert len(seen) >= 5
    for session, _ in seen:
        assert not session.get_session_options().enable_mem_pattern
        assert session.get_session_options().get_session_config_entry("session.intra_op.allow_spinning") == "0"


def test_errors_are_raised_and_not_printed(capfd):
    gather = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["": 18]>
        g (float[N] X) => (float[M] Y) <int64[1] i = {9}> { Y = Gather(X, i) }""")
    session = create_session(gather.SerializeToString(), resolve_device())
    with pytest.raises(Exception, match="out of data bounds"):
        session.run(None, {"X": np.ones(2, np.float32)})
    assert capfd.readouterr() == ("", "")


# Threads


def spy(monkeypatch):
    """A list that fills with every session that is created, and its number of threads."""
    clear_cache()
    seen, create = [], create_session

    def record(*args, threads=1, **kwargs):
        session = create(*args, threads=threads, **kwargs)
        seen.append((session, threads))
        return session

    monkeypatch.setattr(sessions, "create_session", record)
    return seen


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def fitted_with_runtime(regressor, rows, features=4):
    rng = np.random.default_rng(0)
    regressor.partial_fit(rng.normal(size=(rows, features)), rng.normal(size=rows))
    return regressor


def test_small_graphs_get_one_thread(monkeypatch):
    monkeypatch.setattr(devices, "available_threads", lambda: 2)
    seen = spy(monkeypatch)
    fitted_with_runtime(OrtGradientRegressor(MLP((64,))), rows=200).predict(np.eye(4))
    assert {threads for _, threads in seen} == {1}


def test_large_graphs_get_all_for_the_gradient_and_one_for_the_update(monkeypatch):
    monkeypatch.setattr(devices, "available_threads", lambda: 2)
    seen = spy(monkeypatch)
    tune(monkeypatch, least_elements=10**6)
    monkeypatch.setattr(passes, "PARALLEL_WORK", 200 * (4 * 60 + 60))
    fitted_with_runtime(OrtGradientRegressor(MLP((60,))), rows=200)
    updates = [threads for session, threads in seen if "gradients" in {v.name for v in session.get_inputs()}]
    gradients = [threads for session, threads in seen if passes.LOSS in {v.name for v in session.get_outputs()}]
    assert (gradients, updates) == ([2], [1])


def test_graphs_just_below_the_bound_get_one_thread(monkeypatch):
    monkeypatch.setattr(devices, "available_threads", lambda: 2)
    monkeypatch.setattr(passes, "PARALLEL_WORK", 200 * (4 * 60 + 60) + 1)
    seen = spy(monkeypatch)
    fitted_with_runtime(OrtGradientRegressor(MLP((60,))), rows=200)
    assert {threads for _, threads in seen} == {1}


@pytest.mark.parametrize(
    ("variable", "expected"), [("1", 1), ("3", 3), ("64", 4), ("", 4), ("0", 4), ("-1", 4), ("2,2", 4), ("many", 4)]
)
def test_worker_gets_its_share_of_cores(variable, expected, monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(4)), raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", variable)
    assert devices.available_threads() == expected


def test_all_cores_without_a_share(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 3}, raising=False)
    assert devices.available_threads() == 2


# Bound memory


def test_binding_reads_and_writes_the_arrays():
    x, y = np.arange(4, dtype=np.float32), np.zeros(4, np.float32)
    binding = Binding(create_session(DOUBLED, resolve_device()), {"X": x}, {"Y": y})
    binding.run()
    assert y.tolist() == [0, 2, 4, 6]
    x[...] = 1
    binding.run()
    assert y.tolist() == [2, 2, 2, 2]


def test_binding_takes_views_into_a_vector():
    vector = np.arange(12, dtype=np.float32)
    Binding(create_session(DOUBLED, resolve_device()), {"X": vector[2:5]}, {"Y": vector[8:11]}).run()
    assert vector.tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 4, 6, 8, 11]


def test_binding_keeps_the_arrays_alive():
    x, y = np.ones(1000, np.float32), np.zeros(1000, np.float32)
    references = weakref.ref(x), weakref.ref(y)
    binding = Binding(create_session(DOUBLED, resolve_device()), {"X": x}, {"Y": y})
    del x, y
    gc.collect(1)  # what is young
    assert all(reference() is not None for reference in references)
    binding.run()
    assert (references[1]() == 2).all()
    del binding
    gc.collect(1)
    assert all(reference() is None for reference in references)


def test_arrays_that_are_not_contiguous_are_bound_by_way_of_copies():
    x, y = np.ones(8, np.float32)[::2], np.zeros(8, np.float32)[::2]
    binding = Binding(create_session(DOUBLED, resolve_device()), {"X": x}, {"Y": y})
    binding.run()
    assert y.base.tolist() == [2, 0, 2, 0, 2, 0, 2, 0]
    x[:] = 3
    binding.run()
    assert y.tolist() == [6, 6, 6, 6]
    binding.run(X=np.ones(4, np.float32), Y=np.zeros(4, np.float32))  # others, in their place
    assert y.tolist() == [6, 6, 6, 6]


def test_read_only_inputs_are_copied_and_follow_their_base():
    base = np.ones(4, np.float32)
    x, y = base.view(), np.zeros(4, np.float32)
    x.flags.writeable = False
    binding = Binding(create_session(DOUBLED, resolve_device()), {"X": x}, {"Y": y})
    assert all(copied is not x for copied in binding._copies.values())
    base[:] = 5
    binding.run()
    assert y.tolist() == [10, 10, 10, 10]


def test_an_output_that_is_read_only_is_refused():
    y = np.zeros(4, np.float32)
    y.flags.writeable = False
    with pytest.raises(ValueError, match="'Y' is read only: an output must be writable to be bound"):
        Binding(create_session(DOUBLED, resolve_device()), {"X": np.ones(4, np.float32)}, {"Y": y})


def test_missing_kernels_differ_from_other_errors():
    erf = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 18]> g (double[N] X) => (double[N] Y) { Y = Erf(X) }'
    )
    with pytest.raises(Exception, match="NOT_IMPLEMENTED") as error:
        create_session(erf.SerializeToString(), resolve_device())
    assert sessions.not_implemented(error.value)
    with pytest.raises(Exception, match="PROTOBUF") as error:
        create_session(b"123", resolve_device())
    assert not sessions.not_implemented(error.value)
    assert not sessions.not_implemented(ValueError("shape"))
