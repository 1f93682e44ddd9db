"""Commands on files whose names, labels and cells are hostile: no control character reaches the terminal.

The command runs at the end of a pseudo terminal, so that what onnxruntime itself writes is seen too.
"""

from __future__ import annotations

import os
import pty
import random
import sys
import threading
import tty
import unicodedata
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.helper
import pandas as pd

from onnxtrain_sklearn.__main__ import main
from tests.fuzz import messages, mutations
from tests.fuzz.seeds import SEEDS, Seed, seed

HOSTILE = [
    *("\x1b[2J", "\x1b]0;owned\x07", "\x1b]8;;http://x\x1b\\x", "\x9b31m", "\x90q\x9c", "\u202e", "\u2066x", "\u200f"),
    *("\r\nerror: all is lost", "\n\n", "\x00", "\x08\x08", "\x7f", "\x85", "\u2028", "\u2029", "\U000e0041", "\x0e"),
    *("\t", "n" * 3000, "%s%n", "{0.__class__}", "=cmd|' /C calc'!A0", "[bold]", "\\x1b[2J", "é", "🙂", "\ufeff", ""),
]
COMMANDS = ["inspect"] * 3 + ["gradient"] * 3 + ["predict"] * 2 + ["train"]
JOINERS = "\u200c\u200d"
"""Parts of words and pictures, which :func:`onnxtrain_sklearn._utils.untrusted_text.printable` leaves too."""


def hostile(rng: random.Random) -> str:
    parts = [rng.choice(HOSTILE) for _ in range(rng.choice([1, 1, 2, 4]))]
    return "".join([*parts, rng.choice(["", "X", "W"]), str(rng.randrange(100))])


def controls(text: str) -> set[str]:
    """Return the characters of a text that a terminal obeys, line ends aside."""
    known = {"Cc", "Cf", "Cs", "Zl", "Zp"}
    return {one for one in text if unicodedata.category(one) in known and one != "\n" and one not in JOINERS}


def case(rng: random.Random, folder: Path) -> Callable[[], object]:
    """Write files with such names, and return what runs a command on them."""
    command = rng.choice(COMMANDS)
    chosen = [name for name in SEEDS if isinstance(seed(name).model, onnx.ModelProto)]
    one = seed(rng.choice(chosen))
    path = folder / _file_name(rng)
    try:
        path.write_bytes(_renamed(rng, one.model).SerializeToString())
    except (OSError, ValueError):  # no name of a file
        path = folder / "x.onnx"
        path.write_bytes(_renamed(rng, one.model).SerializeToString())
    arguments = [command, str(path)]
    if command == "gradient":
        arguments += rng.choice([[], ["--sum"], ["--sum"], ["--wrt", hostile(rng)], ["--of", hostile(rng)]])
    elif command in ("predict", "train"):
        table, target = _table(rng, one, folder)
        if command == "predict":
            arguments += [str(table), *(["--drop", target] if rng.random() < 0.7 else [])]
            arguments += rng.choice([[], [], [], ["--keep", hostile(rng)], ["--columns", hostile(rng)]])
        else:
            arguments = [
                "train",
                str(table),
                "--target",
                target,
                "--set",
                "max_iter=1",
                "--output",
                str(folder / "o.onnx"),
            ]
            arguments += ["--model", *rng.choice([["mlp"], ["linear"], [str(path)], [hostile(rng)]])]
    arguments += ["--json"] if rng.random() < 0.3 else []
    arguments = [argument.replace("\0", "") for argument in arguments]  # which no process can be given

    def run() -> str:
        with terminal() as shown, suppress(SystemExit):  # of argparse
            main(arguments)
        text = shown.getvalue()
        found = controls(text)
        assert not found, f"{sorted(map(hex, map(ord, found)))} from {command}: {text[-1500:]!r}"
        assert not any(line.startswith("error: all is lost") for line in text.splitlines()), (
            f"{command}: {text[-1500:]!r}"
        )
        return text

    return run


def _file_name(rng: random.Random) -> str:
    return f"{hostile(rng).replace('/', '')[:60]}.onnx" if rng.random() < 0.2 else "x.onnx"


def _renamed(rng: random.Random, given: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with hostile names of values, nodes, operators, and of what it tells about itself."""
    model = onnx.ModelProto()
    model.CopyFrom(given)
    graphs = [m for m in messages.messages(model) if isinstance(m, onnx.GraphProto)]
    names = sorted({n for g in graphs for node in g.node for n in (*node.input, *node.output) if n})
    names += [v.name for v in (*model.graph.input, *model.graph.output)]
    new = {name: f"{hostile(rng)}{i}" for i, name in enumerate(names) if rng.random() < 0.5}
    for graph in graphs:
        for value in (*graph.initializer, *graph.input, *graph.output, *graph.value_info):
            value.name = new.get(value.name, value.name)
        for node in graph.node:
            node.input[:] = [new.get(name, name) for name in node.input]
            node.output[:] = [new.get(name, name) for name in node.output]
            if rng.random() < 0.5:
                node.name = hostile(rng)
            if rng.random() < 0.1:
                setattr(node, rng.choice(["op_type", "domain", "doc_string"]), hostile(rng))
    for field in ("producer_name", "producer_version", "domain", "doc_string"):
        if rng.random() < 0.3:
            setattr(model, field, hostile(rng))
    if rng.random() < 0.3:
        model.metadata_props.add(key=hostile(rng), value=hostile(rng))
    for entry in model.metadata_props:
        if rng.random() < 0.3:
            entry.value = hostile(rng)
    for value in (*model.graph.input, *model.graph.output):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param and rng.random() < 0.3:
                dim.dim_param = hostile(rng)
    for node in model.graph.node:  # labels of skl2onnx
        for attribute in node.attribute:
            if attribute.strings and rng.random() < 0.5:
                attribute.strings[:] = [hostile(rng).encode("utf-8", "replace") for _ in attribute.strings]
    if rng.random() < 0.2:
        mutations.mutate(rng, model, 1)
    return model


def _table(rng: random.Random, one: Seed, folder: Path) -> tuple[Path, str]:
    """Write the rows of a seed as a table, and return its file and the name of its target."""
    rows = np.asarray(next(iter(one.X.values())) if isinstance(one.X, dict) else one.X)
    rows = np.repeat(rows.reshape(len(rows), -1), 4, axis=0)
    names = [hostile(rng) if rng.random() < 0.5 else f"c{i}" for i in range(rows.shape[1])]
    table = pd.DataFrame(rows, columns=names)
    target = hostile(rng)
    labels = [hostile(rng), hostile(rng), "fine"]
    table[target] = [labels[int(i) % 3] for i in range(len(table))] if rng.random() < 0.6 else rows[:, 0]
    if rng.random() < 0.4:
        table[hostile(rng)] = [rng.choice([hostile(rng), "b"]) for _ in range(len(table))]
    path = folder / rng.choice(["x.csv", "x.csv", "x.tsv"])
    content = table.to_csv(index=False, sep="\t" if path.suffix == ".tsv" else ",").encode("utf-8", "surrogatepass")
    path.write_bytes(messages.bytes_of(rng, content) if rng.random() < 0.1 else content)
    return path, target


class Shown:
    """What a terminal was given."""

    def __init__(self) -> None:
        self.content = bytearray()

    def getvalue(self) -> str:
        return self.content.decode("utf-8", "surrogateescape")


@contextmanager
def terminal() -> Iterator[Shown]:
    """Let the process write to a terminal, by Python or not, and collect what it is given."""
    shown = Shown()
    ours, its = pty.openpty()
    tty.setraw(its)  # line ends stay as they are

    def collect() -> None:
        try:
            while piece := os.read(ours, 65536):
                shown.content.extend(piece)
        except OSError:  # the last writer is gone
            pass

    reader = threading.Thread(target=collect)
    streams: list[Any] = [sys.stdout, sys.stderr]
    for stream in streams:
        stream.flush()
    kept = [os.dup(1), os.dup(2)]
    os.dup2(its, 1)
    os.dup2(its, 2)
    os.close(its)
    reader.start()
    sys.stdout, sys.stderr = (open(number, "w", encoding="utf-8", closefd=False) for number in (1, 2))  # noqa: SIM115
    try:
        yield shown
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        sys.stdout, sys.stderr = streams
        for number, old in zip((1, 2), kept, strict=True):
            os.dup2(old, number)
            os.close(old)
        reader.join(60)
        os.close(ours)
