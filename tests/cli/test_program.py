"""The program: exit statuses, errors in a sentence, JSON, and how it is started."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from onnxtrain_sklearn._cli import program
from onnxtrain_sklearn._cli.console import Command, Outcome, parsed_settings
from onnxtrain_sklearn._ort.packages import installed_distributions
from tests.cli.tables import program_json, write_iris
from tests.helpers.processes import run_in_new_process
from tests.helpers.selection import one_case

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def iris(tmp_path_factory):
    return write_iris(tmp_path_factory.mktemp("iris"))


def with_command(monkeypatch, run):
    class Tried(program.ListedCommand):
        def load(self):
            return Command(lambda parser: None, run)

    monkeypatch.setattr(program, "COMMANDS", (Tried("try", "", "try it"),))


WRONG = {
    "no file": (["no.csv", "--target", "species"], 2, "There is no file 'no.csv'."),
    "no column": (["{iris}", "--target", "specis"], 2, "Did you mean 'species'?"),
    "no model": (["{iris}", "--target", "species", "--model", "mpl"], 2, "Did you mean 'mlp'?"),
    "no model file": (["{iris}", "--target", "species", "--model", "m.onnx"], 2, "There is no file 'm.onnx'."),
    "no parameter": (["{iris}", "--target", "species", "--set", "max_itr=1"], 2, "Did you mean 'max_iter'"),
    "no setting": (["{iris}", "--target", "species", "--set", "max_iter"], 2, "--set takes NAME=VALUE"),
    "a wrong value": (["{iris}", "--target", "species", "--set", "max_iter=0"], 2, "must be an int"),
    "no optimizer": (["{iris}", "--target", "species", "--model", "mlp", "--set", "optimizer=LAMB"], 2, "mean 'lamb'?"),
    "no loss": (
        ["{iris}", "--target", "species", "--model", "mlp", "--set", "loss=logloss"],
        2,
        "Did you mean 'log_loss'",
    ),
    "no engine": (
        ["{iris}", "--target", "species", "--model", "mlp", "--set", "engine=portabel"],
        2,
        "mean 'portable'",
    ),
    "no device": (["{iris}", "--target", "species", "--model", "mlp", "--set", "device=cdua"], 2, "mean 'cuda'"),
    "no weight": (
        ["{iris}", "--target", "species", "--model", "mlp", "--set", "trainable=x"],
        2,
        "matches no parameter",
    ),
    "of the optimizer": (
        ["{iris}", "--target", "species", "--model", "mlp", "--set", "max_grad_norm=1"],
        2,
        "It is a parameter of optimizer: --set optimizer__max_grad_norm=VALUE.",
    ),
    "of another optimizer": (
        ["{iris}", "--target", "species", "--model", "mlp", "--set", "momentum=0.9"],
        2,
        "It is a parameter of optimizer 'muon' or 'rmsprop' or 'sgd': --set optimizer=NAME optimizer__momentum=VALUE.",
    ),
    "of the runtime": (
        ["{iris}", "--target", "species", "--model", "mlp", "--set", "providers=[]"],
        2,
        "It is a parameter of runtime: --set runtime__providers=VALUE.",
    ),
    "of the network": (
        ["{iris}", "--target", "species", "--model", "mlp", "--set", "hidden_layer_sizes=(8,)"],
        2,
        "Did you mean 'model__hidden_layer_sizes'?",
    ),
    "a wrong option of the optimizer": (
        ["{iris}", "--target", "species", "--model", "mlp", "--set", "optimizer__max_grad_norm=-1"],
        2,
        "must be a float in the range (0.0, inf)",
    ),
    "settings that exclude each other": (
        [
            "{iris}",
            "--target",
            "species",
            "--model",
            "mlp",
            "--set",
            "optimizer=lbfgs",
            "dropout_schedule=linear",
        ],
        2,
        "dropout_schedule has no effect with LBFGS",
    ),
    "a report of another kind": (["{iris}", "--target", "species", "--report", "r.pdf"], 2, "--report writes"),
    "text to regress on": (["{iris}", "--target", "species", "--task", "regression"], 2, "which is no number"),
    "no rows": (["{empty}", "--target", "a"], 1, "has no rows"),
    "no table": (["{binary}", "--target", "a"], 1, "holds zero bytes, so it is no CSV file"),
    "no parquet": (["{parquet}", "--target", "a"], 1, "Parquet"),
    "another separator": (["{semicolons}", "--sep", ",", "--target", "a"], 2, "--sep ';'"),
    "a missing target": (["{gaps}", "--target", "b"], 1, "missing in 1 of 2 rows"),
    "an empty column": (["{gaps}", "--target", "a", "--model", "mlp", "--holdout", "0"], 1, "--drop 'c'"),
    "a pickle of nothing": (["{iris}", "--target", "species", "--model", "{pickle}"], 1, "cannot be loaded by joblib"),
    "no ONNX": (["{iris}", "--target", "species", "--model", "{iris}"], 1, "There is no ONNX model"),
}


@pytest.fixture(scope="module")
def files(tmp_path_factory, iris):
    folder = tmp_path_factory.mktemp("files")
    contents = {
        "empty": b"a,b\n", "binary": b"\x00\xff\xfe\x00\x01,\xff\n\xff", "parquet": b"PAR1",
        "semicolons": b"a;b\n1;2\n", "gaps": b"a,b,c\n1.5,2,\n2.5,,\n", "pickle": b"no pickle",
    }  # fmt: skip
    endings = {"parquet": ".parquet", "pickle": ".pkl"}
    paths = {name: folder / f"{name}{endings.get(name, '.csv')}" for name in contents}
    for name, content in contents.items():
        paths[name].write_bytes(content)
    return {name: str(path) for name, path in (paths | {"iris": iris}).items()}


@pytest.mark.parametrize("case", WRONG)
def test_errors_are_a_sentence(files, case, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    arguments, status, words = WRONG[case]
    given = [argument.format(**files) for argument in arguments]
    assert program.main(["train", *given, "-q"]) == status
    printed = capsys.readouterr()
    assert printed.out == ""
    first, *more = printed.err.splitlines()
    assert first.startswith("error: ")
    assert words in first
    assert more == (["See onnxtrain-sklearn train --help."] if status == 2 else [])
    assert not (tmp_path / "model.onnx").exists()


def test_errors_are_json(capsys):
    status, told = program_json(capsys, "predict", "no.onnx", "no.csv")
    assert status == 2
    error = {"type": "UsageError", "message": "There is no file 'no.csv'."}
    assert told == {"command": "predict", "succeeded": False, "error": error}


def test_unexpected_errors_name_their_class(monkeypatch, capsys):
    def run(options, console):
        raise KeyError("x")

    with_command(monkeypatch, run)
    assert program.main(["try"]) == 1
    assert capsys.readouterr().err == "error: KeyError: 'x'\n"
    with pytest.raises(KeyError):
        program.main(["try", "--traceback"])


def test_interrupt_has_own_exit_status(monkeypatch, capsys):
    def run(options, console):
        raise KeyboardInterrupt

    with_command(monkeypatch, run)
    assert program.main(["try"]) == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_results_are_json_on_stdout_and_the_rest_on_stderr(monkeypatch, capsys):
    def run(options, console):
        console.progress("going on")
        console.say("a part")
        record = {"number": np.float32(0.5), "none": float("nan"), "array": np.arange(2), "path": Path("p"), 3: (True,)}
        return Outcome(record, ["text"], succeeded=False)

    with_command(monkeypatch, run)
    assert program.main(["try", "--json"]) == 1
    printed = capsys.readouterr()
    expected = {"number": 0.5, "none": None, "array": [0, 1], "path": "p", "3": [True]}
    assert json.loads(printed.out) == {"command": "try", "succeeded": False, **expected}
    assert printed.err == "going on\na part\n"
    assert program.main(["try", "--quiet"]) == 1
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("a part\ntext\n", "")


def test_wrong_usage_exits_with_status_2(capsys):
    with pytest.raises(SystemExit, match="2"):
        program.main(["train"])
    assert "--target" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        program.main(["trian"])
    with pytest.raises(SystemExit, match="2"):
        program.main(["train", "t.csv", "--target", "y", "--holdout", "1"])
    assert "a share of the rows" in capsys.readouterr().err


def test_help_warns_of_pickles(capsys):
    for command in ("train", "inspect"):
        with pytest.raises(SystemExit, match="0"):
            program.main([command, "--help"])
        assert "joblib or pickle file can run any code" in capsys.readouterr().out


@pytest.mark.parametrize("listed", program.COMMANDS, ids=lambda listed: listed.name)
def test_every_command_explains_its_arguments(listed, capsys):
    with pytest.raises(SystemExit, match="0"):
        program.main([listed.name, "--help"])
    told = " ".join(capsys.readouterr().out.split())
    assert f"usage: onnxtrain-sklearn {listed.name}" in told
    assert f"{listed.summary[1:]}." in told
    assert "--traceback" in told


@pytest.mark.long
def test_help_lists_the_commands_and_imports_none():
    run_in_new_process("""
import contextlib, io
from onnxtrain_sklearn._cli import program
with contextlib.redirect_stdout(io.StringIO()) as told, contextlib.suppress(SystemExit):
    program.main(["--help"])
commands = tuple(f"_cli.{listed.module}" for listed in program.COMMANDS)
assert not [name for name in sys.modules if name.endswith(commands)]
assert all(listed.summary in " ".join(told.getvalue().split()) for listed in program.COMMANDS)
""")


def test_settings_are_literals_or_text():
    given = ["a=1", "b=0.5", "c=adam", "d=(64, 32)", "e=true", "f=None", "g=x=y", "h="]
    expected = {"a": 1, "b": 0.5, "c": "adam", "d": (64, 32), "e": True, "f": None, "g": "x=y", "h": ""}
    assert parsed_settings(given) == expected


@one_case
@pytest.mark.parametrize("model", ["linear", "realmlp"])
def test_texts_that_identify_rows_are_warned_of(tmp_path, capsys, model):
    frame = pd.DataFrame({"name": [f"row {i}" for i in range(120)], "x": np.arange(120) / 7.0, "y": [0, 1] * 60})
    frame.to_csv(tmp_path / "t.csv", index=False)
    options = ["--target", "y", "--model", model, "--set", "max_iter=1", "--output", str(tmp_path / "m.onnx")]
    assert program.main(["train", str(tmp_path / "t.csv"), *options]) == 0
    told = capsys.readouterr().err
    assert "--drop 'name'" in told
    assert told.count("different texts") == 1
    assert program.main(["train", str(tmp_path / "t.csv"), *options, "--drop", "name"]) == 0
    assert "--drop" not in capsys.readouterr().err


def test_without_pandas_tables_are_refused_in_a_sentence(iris, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    assert program.main(["train", str(iris), "--target", "species"]) == 1
    assert capsys.readouterr().err == "error: Tables are read by pandas: pip install pandas.\n"


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 has no tomllib")
def test_console_script_is_the_program():
    tomllib = importlib.import_module("tomllib")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    module, _, function = project["scripts"]["onnxtrain-sklearn"].partition(":")
    assert getattr(importlib.import_module(module), function) is program.main


WITHOUT_ONNXRUNTIME = """
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "onnxruntime":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Block())
from onnxtrain_sklearn.__main__ import main
sys.exit(main())
"""
WITHOUT_TWO = """
import sys
sys.modules["sklearn"] = sys.modules["onnx_ir"] = None
sys.argv = [{argument!r}, "doctor"]
from onnxtrain_sklearn._cli.program import main
sys.exit(main())
"""


@pytest.mark.parametrize("script", ["onnxtrain-sklearn", "onnxtrain-sklearn.exe"])
def test_program_without_dependencies_names_all_of_them_in_a_sentence(script):
    code = WITHOUT_TWO.format(argument=str(Path("bin", script)))
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ran.returncode == 1
    assert ran.stderr.startswith("error: onnxtrain_sklearn needs packages that ")
    assert ran.stderr.endswith(" does not find: pip install onnx-ir scikit-learn\n")
    assert ran.stderr.count("\n") == 1
    assert not ran.stdout


def test_module_run_without_dependencies_names_them_in_a_sentence():
    # -S hides the installed packages; the working directory leads to this one
    ran = subprocess.run(
        [sys.executable, "-S", "-m", "onnxtrain_sklearn", "--version"], capture_output=True, text=True, cwd=ROOT
    )
    assert ran.returncode == 1
    assert ran.stderr.endswith(": pip install numpy onnx onnx-ir scipy scikit-learn\n")
    assert ran.stderr.count("\n") == 1


def test_import_names_missing_dependencies():
    code = WITHOUT_TWO.format(argument="other.py")
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ran.returncode == 1
    assert "Traceback" in ran.stderr
    error = ran.stderr.splitlines()[-1]
    assert error.startswith("ModuleNotFoundError: onnxtrain_sklearn needs packages that ")
    assert error.endswith("pip install onnx-ir scikit-learn")


@pytest.mark.slow
@pytest.mark.parametrize("command", [["doctor"], ["doctor", "--json"], ["demo"]], ids=" ".join)
def test_commands_without_onnxruntime_name_the_extras(command):
    ran = subprocess.run([sys.executable, "-c", WITHOUT_ONNXRUNTIME, *command], capture_output=True, text=True)
    assert ran.returncode == 1
    assert ran.stderr.startswith("error: onnxtrain_sklearn needs onnxruntime and could not import it (No module named")
    assert "onnxtrain-sklearn[portable]" in ran.stderr
    assert ran.stderr.count("\n") == 1
    installed = installed_distributions()
    if "--json" in command:
        told = json.loads(ran.stdout)
        assert told["onnxruntime"] == {"version": None, "distributions": installed, "mixed": len(installed) > 1}
        assert told["error"]["type"] == "RuntimeNotFoundError"
        assert not told["succeeded"]
    elif command == ["doctor"]:
        assert all(f"{name} {version}" in ran.stdout for name, version in installed.items())
