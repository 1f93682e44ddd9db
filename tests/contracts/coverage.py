"""The table of operators in ``docs/api/coverage.md``: what the cases of the gradient contracts prove, by engine.

An operator counts as right if a case of it is differentiated: the contract that holds the case fails where the gradient
is wrong. What an engine refuses is asked of the engine. The outcomes are kept in ``docs/api/coverage.json``, and a run
writes those of the engines that the installed onnxruntime can prove; the page is made from that file alone.
``python -m tests.contracts.coverage`` writes both.
"""

from __future__ import annotations

import functools
import json
import logging
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
from onnx import helper
from onnxruntime.capi import _pybind_state

from onnxtrain_sklearn import gradient_graph
from onnxtrain_sklearn._gradient import ort_training as ort
from onnxtrain_sklearn._gradient.path import path
from onnxtrain_sklearn._ir.opsets import MAX_OPSET
from onnxtrain_sklearn.exceptions import ModelError
from tests.contracts import lowered_cases, ort_training_cases, portable_cases
from tests.contracts.gradient_cases import Case, extra_opset, model_of
from tests.contracts.portable_forms import lacks_double, opsets
from tests.helpers.environment import ENGINES, RUNTIME_VERSION, available_engines
from tests.helpers.sessions import session

API = Path(__file__).parents[2] / "docs" / "api"
DATA, PAGE = API / "coverage.json", API / "coverage.md"
COMMAND = "make coverage"

RIGHT, REFUSED, ABSENT, NO_KERNEL, UNPROVEN = "right", "refused", "not applicable", "no kernel", "unproven"
ORDER = (UNPROVEN, NO_KERNEL, ABSENT, REFUSED, RIGHT)
"""From the worst to the best; what an environment proves may not be worse than what is written."""

NEWEST = {"ort-training": ort.OPSETS[-1], "portable": MAX_OPSET}
"""The newest opset that an engine takes."""

LEFT_OUT = {
    "Bernoulli": "random, not a function of its input that has a derivative",
    "BitCast": "reinterprets bits",
    "EyeLike": "reads the shape of its input only",
    "MelWeightMatrix": "a step function of its float inputs",
    "RandomNormalLike": "reads the shape of its input only",
    "RandomUniformLike": "reads the shape of its input only",
}
"""Operators without a derivative to speak of, and why; steps such as Floor, which stand in trained graphs, are kept."""

FLOATS = {kind.format("tensor(float)") for kind in ("{}", "seq({})", "optional({})", "optional(seq({}))")}


@functools.cache
def operators_by_page() -> dict[str, onnx.defs.OpSchema]:
    """Return ONNX's own operators that take and return floats, in the newest opset.

    ``If`` is one of them: it reads from around it.
    """
    newest = {s.name: s for s in onnx.defs.get_all_schemas() if not (s.domain or s.deprecated)}
    return {name: s for name, s in sorted(newest.items()) if (takes_floats(s) or name == "If") and returns_floats(s)}


def takes_floats(schema: onnx.defs.OpSchema) -> bool:
    return any(FLOATS & set(x.types) for x in schema.inputs)


def returns_floats(schema: onnx.defs.OpSchema) -> bool:
    return any(FLOATS & set(y.types) for y in schema.outputs)


@functools.cache
def first_opsets() -> dict[str, int]:
    """Return the opset in which each operator came."""
    found: dict[str, int] = {}
    for schema in (s for s in onnx.defs.get_all_schemas_with_history() if not s.domain):
        found[schema.name] = min(schema.since_version, found.get(schema.name, schema.since_version))
    return found


# what is proven.


@dataclass(frozen=True)
class Trial:
    """What an engine does with one form of one case; ``reason`` says why it is not right."""

    operator: str
    form: str
    outcome: str
    reason: str = ""


@dataclass(frozen=True)
class Held:
    """A case, and how its contract holds it; a runtime may lack what is ``expanded`` and run what it becomes."""

    case: Case
    opsets: tuple[int, ...]
    dynamic: int | None  # the opset of the form with a symbolic dimension
    expanded: bool = False

    def forms(self) -> Iterator[tuple[str, int]]:
        yield from (("inputs", opset) for opset in self.opsets)
        if self.dynamic is not None and self.case.arrays["x"].ndim:
            yield "dynamic", self.dynamic


@functools.cache
def covered_cases(engine: str) -> list[Held]:
    if engine == "ort-training":
        return [Held(one, one.opsets, extra_opset(one)) for one in ort_training_cases.CASES]
    return [Held(one, opsets(one), extra_opset(one)) for one in portable_cases.CASES] + [
        Held(one, one.opsets, one.opsets[-1], expanded=lacks_double(one)) for one in lowered_cases.CASES
    ]


def trials(engine: str, name: str) -> Iterator[Trial]:
    """Try the cases of an operator in each form that the contracts hold them in; those of no operator name it."""
    own = [held for held in covered_cases(engine) if name == (held.case.operator or name) and name in held.case.body]
    for held in own or [held for held in covered_cases(engine) if passes(held.case, name)]:
        named = replace(held, case=replace(held.case, operator=held.case.operator and name))
        made = (trial(engine, named, opset, form) for form, opset in named.forms())
        yield from (t for t in made if t.operator == name)


def passes(one: Case, name: str) -> bool:
    """Whether the gradient passes a node of the operator in the body of another's case."""
    if not re.search(rf"\b{name}\s*[(<]", one.body):
        return False
    graph = ir.from_proto(model_of(one, one.opsets[-1], one.arrays, np.ones((), np.float32), "inputs")).graph
    return any(passage.node.op_type == name for passage in path(graph, one.names, graph.outputs[0]))


def trial(engine: str, held: Held, opset: int, form: str) -> Trial:
    one = held.case
    model = model_of(one, opset, one.arrays, np.ones((), np.float32), form)
    try:
        graph = gradient_graph(model, wrt=one.names, engine=engine)
    except ModelError as error:
        return Trial(one.operator or refused_operator(error), form, REFUSED, reason_of(error))
    try:
        for needed in (graph,) if held.expanded else (model, graph):
            session(needed)
    except Exception:
        return Trial(one.operator, form, NO_KERNEL)
    return Trial(one.operator, form, RIGHT)


def refused_operator(error: Exception) -> str:
    found = re.search(r"\((\w+)\) cannot be differentiated", str(error))
    return found[1] if found else ""


def reason_of(error: Exception) -> str:
    """Return the reason alone, without node, remedy and the names of one graph."""
    text = re.sub(r"^.*?cannot be differentiated: |\. Freeze the parameters.*$", "", str(error))
    text = re.sub(r"the dimensions \S+ and \S+ may", "two dimensions may", text)
    return "this opset" if "is of opset" in text else text.split(": give them")[0]


def prove(engine: str) -> dict[str, dict]:
    """Return the outcome for each operator: with fixed sizes, with a symbolic batch, and the reasons of refusals."""
    return {name: coverage_summary(engine, name, list(trials(engine, name))) for name in operators_by_page()}


def prove_quickly(engine: str, name: str) -> dict:
    """Return the outcome for an operator, without the reasons: what is right in both forms needs no further trials."""
    made: list[Trial] = []
    for one in trials(engine, name):
        made.append(one)
        if {t.form for t in made if t.outcome == RIGHT} == {"inputs", "dynamic"}:
            break
    return coverage_summary(engine, name, made)


def coverage_summary(engine: str, name: str, made: list[Trial]) -> dict[str, str | list[str]]:
    if first_opsets()[name] > NEWEST[engine]:
        return {"fixed": ABSENT, "dynamic": ABSENT}
    made = made or probe(engine, name)
    fixed, dynamic = ([t for t in made if t.form == form] for form in ("inputs", "dynamic"))
    reasons = {t.reason for t in fixed if t.reason} - {"this opset"}
    further = {t.reason for t in dynamic if t.reason} - reasons - {"this opset"}
    unsized = not any(held.case.arrays["x"].ndim for held in covered_cases(engine) if held.case.operator == name)
    found = {"fixed": best(fixed), "dynamic": best(dynamic or (fixed if unsized else []))}
    notes = {"refused": sorted(reasons), "refused, dynamic": sorted(further)}
    return found | {key: listed for key, listed in notes.items() if listed}


def best(made: list[Trial]) -> str:
    return max((t.outcome for t in made), key=ORDER.index, default=UNPROVEN)


def probe(engine: str, name: str) -> list[Trial]:
    """Ask the engine for an operator that has no case."""
    schema = operators_by_page()[name]
    names = [f"x{i}" for i in range(max(1, schema.min_input))]
    node = helper.make_node(name, names, ["y"])
    values = [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, []) for n in [*names, "y"]]
    opset = min(schema.since_version, NEWEST[engine])
    graph = helper.make_graph([node], "probe", values[:-1], values[-1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", max(opset, 18))], ir_version=10)
    disabled, _ = logging.root.manager.disable, logging.disable(logging.WARNING)  # shapes cannot be inferred here
    try:
        gradient_graph(model, wrt=names, engine=engine)
    except ModelError as error:
        return [Trial(name, form, REFUSED, reason_of(error)) for form in ("inputs", "dynamic")]
    except Exception:
        pass
    finally:
        logging.disable(disabled)
    return [Trial(name, form, UNPROVEN) for form in ("inputs", "dynamic")]


# what is written.


def runtime(engine: str) -> str:
    return f"onnxruntime{'-training' if engine == 'ort-training' else ''} {RUNTIME_VERSION}"


def release(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text)[:3])


def read_coverage() -> dict:
    return json.loads(DATA.read_text(encoding="utf-8")) if DATA.exists() else {"engines": {}}


def provable(data: dict) -> list[str]:
    """Return the engines that this environment can prove at least as well as what is written was proven."""
    known = {name: entry["runtime"] for name, entry in data["engines"].items()}
    return [name for name in available_engines() if release(runtime(name)) >= release(known.get(name, ""))]


def without_kernel() -> list[str] | None:
    """Return the operators that the installed onnxruntime cannot run at all, None where it does not tell."""
    if not hasattr(_pybind_state, "get_all_opkernel_def"):
        return None
    kernels = {k.op_name for k in _pybind_state.get_all_opkernel_def() if not k.domain and "CPU" in k.provider}
    return [n for n, s in operators_by_page().items() if n not in kernels and not expands(s)]


def expands(schema: onnx.defs.OpSchema) -> bool:
    return schema.has_function or schema.has_context_dependent_function


def update(data: dict) -> dict:
    """Return the outcomes with those of this environment's engines in place of theirs."""
    proven = {name: {"runtime": runtime(name), "operators": prove(name)} for name in provable(data)}
    engines = {name: entry for name in ENGINES for entry in [proven.get(name, data["engines"].get(name))] if entry}
    missing = without_kernel() if "portable" in proven else None
    kernels = {"without kernel": data.get("without kernel", []) if missing is None else missing}
    return {"opset": onnx.defs.onnx_opset_version(), **kernels, "engines": engines}


def write_coverage() -> None:
    data = update(read_coverage())
    DATA.write_text(json.dumps(data, indent=1, sort_keys=False) + "\n", encoding="utf-8")
    PAGE.write_text(coverage_page(data), encoding="utf-8")


WORDS = {
    (RIGHT, RIGHT): "right",
    (RIGHT, REFUSED): "fixed batch only",
    (RIGHT, UNPROVEN): "fixed batch only",
    (ABSENT, ABSENT): "no such operator",
}


def word(entry: dict) -> str:
    pair = entry["fixed"], entry["dynamic"]
    return WORDS.get(pair, pair[0] if pair[0] != UNPROVEN else "not proven")


def coverage_page(data: dict) -> str:
    """Return the page that shows the outcomes."""
    names = list(next(iter(data["engines"].values()))["operators"])
    rows = [coverage_row(data, name) for name in names]
    engines = list(data["engines"])
    head = f"| operator | {' | '.join(f'`{engine}`' for engine in engines)} | refused settings |\n"
    return HEAD.format(
        opset=data["opset"],
        command=COMMAND,
        newest=", ".join(f"`{engine}`: {opset}" for engine, opset in NEWEST.items()),
        rows=len(names),
        counts="\n".join(outcome_counts(data, names)),
        left_out="\n".join(f"- `{name}`: {reason}." for name, reason in LEFT_OUT.items() if name in names),
        kernels=", ".join(f"`{name}`" for name in data["without kernel"] if name not in LEFT_OUT) or "none",
        runtimes=", ".join(f"`{name}` with {entry['runtime']}" for name, entry in data["engines"].items()),
        table=head + "|---" * (len(engines) + 2) + "|\n" + "\n".join(rows),
    )


def outcome_counts(data: dict, names: list[str]) -> Iterator[str]:
    """Yield the rows of the table of counts: each engine, then either of them."""
    counted = [n for n in names if n not in LEFT_OUT and n not in data["without kernel"]]
    yield f"| | right, dynamic batch | right, fixed batch | of all {len(names)}, dynamic batch |"
    yield "|---|---|---|---|"
    for title, engines in [*((f"`{e}`", [e]) for e in data["engines"]), ("one of them", list(data["engines"]))]:
        entries = {n: [data["engines"][e]["operators"][n] for e in engines] for n in names}
        right = {
            form: [n for n in names if any(entry[form] == RIGHT for entry in entries[n])]
            for form in ("dynamic", "fixed")
        }
        cells = [share(set(right[form]) & set(counted), counted) for form in ("dynamic", "fixed")]
        yield f"| {title} | {' | '.join(cells)} | {share(set(right['dynamic']), names)} |"


def share(some: set[str], of: list[str]) -> str:
    return f"{len(some)} of {len(of)} ({100 * len(some) / len(of):.0f} %)"


def coverage_row(data: dict, name: str) -> str:
    entries = {engine: entry["operators"][name] for engine, entry in data["engines"].items()}
    notes = [note for engine, entry in entries.items() for note in remarks(engine, entry)]
    if name in LEFT_OUT:
        notes = ["left out of the counts"]
    elif name in data["without kernel"]:
        notes.append("onnxruntime has no kernel")
    return f"| `{name}` | {' | '.join(word(entry) for entry in entries.values())} | {'; '.join(notes)} |"


def remarks(engine: str, entry: dict) -> Iterator[str]:
    """Yield the refusals of an operator that is right otherwise; for the others the cell says it all."""
    if entry["fixed"] != RIGHT:
        return
    for key, condition in (("refused", ""), ("refused, dynamic", " with a dynamic batch")):
        if key in entry:
            yield f"`{engine}`{condition}: {', '.join(entry[key])}".replace("|", "\\|")


HEAD = """# Operators

Which operators of the ONNX standard (opset {opset}, its default domain, not deprecated) have a gradient. The table has
every operator that takes a float tensor and returns one, in a sequence or an optional too: {rows}. It is made by
`{command}` from the cases of the tests, which hold each gradient to central differences in float64.

- **right**: gradients of the tested settings are right, with a dynamic batch too (a symbolic first dimension, where the
  operator takes more than scalars).
- **fixed batch only**: right if the sizes are fixed. Estimators train with a fixed batch.
- **refused**: `UnsupportedOperatorError`, whatever the settings.
- **no such operator**: the newest opset that the engine takes ({newest}) does not have it.
- **not proven**: there is no case for it. **no kernel**: there is, and the runtime cannot run it.

The last column lists the settings of such operators that an engine refuses. A gradient that is returned is right: an
engine never guesses. Pairs of QuantizeLinear and DequantizeLinear, with integers between them, are trained as
[your own graph](../guide/graphs.md#quantized-graphs) says.

{counts}

Proven by {runtimes}. The first two columns leave out operators without a derivative:

{left_out}

They also leave out operators for which onnxruntime has no CPU kernel and the standard no definition by others:
{kernels}.
Steps such as `Floor`, whose gradient is zero, are counted.

{table}
"""


if __name__ == "__main__":
    write_coverage()
