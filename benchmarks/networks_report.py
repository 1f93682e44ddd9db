"""The page of the networks, from the results of ``networks.py``: benchmarks/networks.md.

python benchmarks/networks_report.py [--results FILE] [--page FILE]
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parent / "networks.md"
RESULTS = Path(__file__).parent / "networks_results.jsonl"
BEGIN, END = "<!-- results: written by benchmarks/networks_report.py -->", "<!-- end of results -->"
AIM = 10.0
"""How many times PyTorch's own error ours may be; what is above is named."""

HEADER = (
    "| network | file | parameters | gradient error | times PyTorch's | weight error | times PyTorch's "
    "| step by PyTorch's | build, s | nodes |"
)
STATISTICS_HEADER = (
    "| network | file | gradient error | times PyTorch's | weight error | times PyTorch's | statistics error "
    "| times PyTorch's | step by PyTorch's |"
)
STARTS_HEADER = "| network | file | weight error | PyTorch's | PyTorch's from other starts: least | median | largest |"
BRANCHES_HEADER = (
    "| network | gradient error | PyTorch's | units on the other side of zero | PyTorch's | of | at most from zero "
    "| gradient error with the same branches | PyTorch's |"
)
REAL_HEADER = (
    "| network | parameters | gradient error | times PyTorch's | step by PyTorch's | memory, MiB | PyTorch's "
    "| build, s | nodes |"
)
DEFAULT_HEADER = (
    "| network | held as they are | gradient error | times PyTorch's | error of the losses | times PyTorch's |"
)
EARLIER = "*"
"""Behind the names of networks whose rows were measured before the date was recorded."""

BEFORE = "†"
"""Behind the step times of forms that are not today's: convolutions of 3x3 without Winograd's algorithm."""

ROUNDING = 1e-7
"""Errors below are float32's rounding: a ratio to an error of PyTorch's that happens to be smaller says nothing."""

Result = Mapping[str, Any]


def last_results(lines: Iterable[str]) -> list[Result]:
    """Return the last result of each file, in the order in which the files came first."""
    found = [json.loads(line) for line in lines]
    return list({(r["network"], r["exporter"], r["mode"]): r for r in found}.values())


def times(result: Result, kind: str) -> float:
    """Return how many times PyTorch's own error ours is; kind: "gradient", "weights" or "loss"."""
    return max(result[kind], ROUNDING) / max(result[f"{kind}_torch"], ROUNDING)


def step_ratio(result: Result) -> float:
    return result["step"] / result["step_torch"]


def step_cell(result: Result) -> str:
    return f"{step_ratio(result):.2f}{'' if result.get('winograd', True) else BEFORE}"


def row(result: Result) -> str:
    file = f"{result['exporter']}, {result['mode']}"
    cells = [
        name(result),
        file,
        f"{result['parameters']:,}",
        f"{result['gradient']:.0e}",
        f"{times(result, 'gradient'):.1f}",
        f"{result['weights']:.0e}",
        f"{times(result, 'weights'):.1f}",
        step_cell(result),
        f"{result['build']:.1f}",
        f"{result['nodes']:,}",
    ]
    return f"| {' | '.join(cells)} |"


def name(result: Result) -> str:
    return f"{result['network']}{'' if 'measured' in result else EARLIER}"


def statistics_row(result: Result) -> str:
    cells = [name(result), f"{result['exporter']}, {result['mode']}"]
    for kind in ("gradient", "weights", "statistics"):
        cells += [f"{result[kind]:.0e}", f"{times(result, kind):.1f}"]
    return f"| {' | '.join(cells)} | {step_cell(result)} |"


def starts_row(result: Result) -> str:
    starts = result["starts"]
    found = (result["weights"], result["weights_torch"], min(starts), statistics.median(starts), max(starts))
    cells = (result["network"], f"{result['exporter']}, {result['mode']}", *(f"{error:.0e}" for error in found))
    return f"| {' | '.join(cells)} |"


def branches_row(result: Result) -> str:
    b = result["branches"]
    cells = [result["network"], *(f"{result[kind]:.0e}" for kind in ("gradient", "gradient_torch"))]
    cells += [str(b["switched"]), str(b["switched_torch"]), f"{b['units']:,}", f"{b['distance']:.0e}"]
    return f"| {' | '.join([*cells, *(f'{b[kind]:.1e}' for kind in ('gradient', 'gradient_torch'))])} |"


def real_row(result: Result) -> str:
    cells = [result["network"], f"{result['parameters']:,}", f"{result['gradient']:.0e}"]
    cells += [f"{times(result, 'gradient'):.1f}", step_cell(result)]
    cells += [f"{result[kind]:,.0f}" for kind in ("memory", "memory_torch")]
    return f"| {' | '.join(cells)} | {result['build']:.1f} | {result['nodes']:,} |"


def default_row(result: Result) -> str:
    default = result["default"]
    if "diverged" in default:
        return f"| {result['network']} | | | | diverges | |"
    share = f"{default['compared'] / result['parameters']:.0%}"
    errors = [f"{default[kind]:.0e} | {times(default, kind):.1f}" for kind in ("gradient", "loss")]
    return f"| {result['network']} | {share} | {' | '.join(errors)} |"


def table(results: Sequence[Result], header: str = HEADER, cells: Callable[[Result], str] = row) -> list[str]:
    return [header, "|---" * (header.count("|") - 1) + "|", *(cells(r) for r in results)]


def summary(results: Sequence[Result]) -> list[str]:
    """Return what all results together say."""
    exported = [r for r in results if not r.keys() & {"not_exported", "diverges"}]
    trained = [r for r in exported if "failure" not in r]
    networks = len({r["network"] for r in exported})
    ratios = [step_ratio(r) for r in trained if r.get("winograd", True)]
    far = sorted({r["network"] for r in trained if times(r, "gradient") > AIM})  # the page shows their branches
    near = [r for r in trained if r["network"] not in far]
    worst = max(near, key=lambda r: times(r, "gradient"))
    median = statistics.median
    gradients, weights = (median(times(r, kind) for r in trained) for kind in ("gradient", "weights"))
    but = f", but for {', '.join(far)}, whose float64 parts from float32 at a kink (Branches)" if far else ""
    return [
        f"{len(trained)} of {len(exported)} files of {networks} networks are trained. The error of the gradient is at",
        f"most {times(worst, 'gradient'):.1f} times PyTorch's ({worst['network']}){but}.",
        f"The median is {gradients:.1f} times PyTorch's, that of the weights after ten steps {weights:.1f} times.",
        f"A step takes between {min(ratios):.2f} and {max(ratios):.2f} of PyTorch's CPU time, in the median",
        f"{median(ratios):.2f}, in the {len(ratios)} files without a mark.",
    ]


def further_tables(trained: Sequence[Result]) -> list[list[str]]:
    """Return the tables of batch statistics, branches, other starts, default files and real sizes."""
    tables = {
        "Batch statistics": ("statistics", STATISTICS_HEADER, statistics_row),
        "Branches": ("branches", BRANCHES_HEADER, branches_row),
        "Other starts": ("starts", STARTS_HEADER, starts_row),
        "Files of the default export": ("default", DEFAULT_HEADER, default_row),
        "Real sizes": ("memory", REAL_HEADER, real_row),
    }
    found = {title: [r for r in trained if key in r] for title, (key, _, _) in tables.items()}
    return [[f"### {title}", "", *table(rows, *tables[title][1:])] for title, rows in found.items() if rows]


def failures(results: Sequence[Result]) -> list[str]:
    refused = [r for r in results if "failure" in r]
    lines = [f"- {r['network']} ({r['exporter']}, {r['mode']}): {first_line(r['failure'])}" for r in refused]
    lines = ["Not trained:", "", *lines, ""] if lines else []
    not_exported = [f"{r['network']} ({r['exporter']}, {r['mode']})" for r in results if "not_exported" in r]
    lines += [f"PyTorch does not export: {', '.join(not_exported)}."] if not_exported else []
    diverging = [f"{r['network']} after {r['diverges']} steps" for r in results if "diverges" in r]
    told = f"Not compared, for the loss becomes NaN or infinite in PyTorch: {', '.join(diverging)}."
    return lines + (["", told] if diverging else [])


def first_line(text: str) -> str:
    return text.splitlines()[0][:160]


def report(results: Sequence[Result], sources: Mapping[str, Iterable[str]]) -> str:
    """Return the text of all results; ``sources`` lists the networks of each section."""
    parts = [summary(results)]
    trained = [r for r in results if "build" in r]
    for source, names in sources.items():
        found = [
            r for name in names for r in trained if r["network"] == name and not r.keys() & {"statistics", "memory"}
        ]
        if found:
            parts.append([f"### {source}", "", *table(found)])
    parts += further_tables(trained)
    parts.append(failures(results))
    return "\n\n".join("\n".join(part) for part in parts if part)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--page", type=Path, default=PAGE, help="the page between whose marks the results are put")
    options = parser.parse_args(arguments)
    results = last_results(options.results.read_text(encoding="utf-8").splitlines())
    sources: dict[str, list[str]] = {}
    for result in results:
        names = sources.setdefault(result["source"], [])
        names += [] if result["network"] in names else [result["network"]]
    before, _, rest = options.page.read_text(encoding="utf-8").partition(BEGIN)
    text = f"{before}{BEGIN}\n\n{report(results, sources)}\n\n{END}{rest.partition(END)[2]}"
    options.page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
