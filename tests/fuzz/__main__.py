"""Run the fuzzer: so many cases, in children with limits, none of which may crash, hang or raise a foreign error.

    python -m tests.fuzz --cases 1000 --jobs 2          cases 0 to 999, each engine that is installed in turn
    python -m tests.fuzz --first 5000 --engine portable
    python -m tests.fuzz --case 4711                    one case in this process, with all that it prints

A case is made from its number alone; a failure is printed with the command that repeats it.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import resource
import selectors
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SECONDS = 20
"""Processor time that a case may take."""

WALL_SECONDS = 300
"""Time that a case may take, waiting included: other programs may keep the processor busy."""

MEMORY = 6 * 2**30
FILE_SIZE = 2**41  # files without content count too: the processor time bounds what is written


def main() -> int:
    """Run what the command line asks for; 1: something failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=1000, help="how many cases")
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--case", type=int, help="run this one case here")
    parser.add_argument("--jobs", type=int, default=1, help="children at a time")
    parser.add_argument("--stored", action="store_true", help="states, adapters, checkpoints and commands, not graphs")
    parser.add_argument("--engine", help="differentiate all cases with this engine")
    parser.add_argument("--log", type=Path, help="append an object of JSON a case to this file")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        return child(given.engine, stored=given.stored)
    if given.case is not None:
        return one_case(given.case, given.engine, stored=given.stored)
    return Parent(given).run()


# a child.


def child(engine: str | None, *, stored: bool) -> int:
    """Run the cases whose numbers come in, a line each; write a line of JSON for each."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what others print must not get in between
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    faulthandler.enable()
    faulthandler.register(signal.SIGPROF, chain=True)  # says where it hangs, and then ends
    for line in sys.stdin:
        number = int(line)
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        outcome, what = attempt(number, engine, stored=stored)
        signal.setitimer(signal.ITIMER_PROF, 0)
        out.write(json.dumps({"case": number, "outcome": outcome, "what": what}) + "\n")
        out.flush()
    return 0


def attempt(number: int, engine: str | None, *, stored: bool) -> tuple[str, str]:
    """Make a case and run it."""
    from tests.fuzz import case, stored_files

    with tempfile.TemporaryDirectory(prefix="fuzz") as folder:
        inner = Path(folder) / "model"
        inner.mkdir()
        if stored:
            print(f"CASE {number}", file=sys.stderr, flush=True)
            return stored_files.run(number, inner)
        one = case.case(number, inner, engine)
        print(f"CASE {one}", file=sys.stderr, flush=True)  # should it be the last
        return case.run_case(one), str(one)


def one_case(number: int, engine: str | None, *, stored: bool) -> int:
    """Run one case here."""
    outcome, what = attempt(number, engine, stored=stored)
    print(f"case {number}: {what}\n{outcome}")
    return int(outcome.partition(" ")[0] not in GOOD)


GOOD = ("trained", "refused")


# the parent.


class Child:
    """A child, and the case that it is at."""

    def __init__(self, engine: str | None, *, stored: bool) -> None:
        self.errors = tempfile.TemporaryFile("w+")  # noqa: SIM115
        command = [sys.executable, "-m", "tests.fuzz", "--child", *(["--engine", engine] if engine else [])]
        command += ["--stored"] if stored else []
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors, text=True
        )

    def run(self, number: int) -> dict[str, Any]:
        """Return what came of a case; the child may be dead then."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{number}\n")
        self.process.stdin.flush()
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            answered = selector.select(WALL_SECONDS)
        if answered and (line := self.process.stdout.readline()):
            return dict(json.loads(line))
        if not answered:
            self.process.send_signal(signal.SIGABRT)  # faulthandler says where
        code = self.process.wait()
        hung = not answered or code == -signal.SIGPROF
        reason = f"hang over {SECONDS} s" if hung else f"crash, exit status {code}"
        self.errors.seek(0)
        said = self.errors.read().rpartition("CASE ")[2]
        return {"case": number, "outcome": f"{reason}\n{said[:8000]}", "what": said.partition("\n")[0]}

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def stop(self) -> None:
        if self.alive:
            self.process.kill()
        self.process.wait()
        self.errors.close()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()


class Parent:
    """Hands out the cases, watches the children and counts."""

    def __init__(self, given: argparse.Namespace) -> None:
        self.given, self.counts, self.failed = given, Counter[str](), 0
        self.numbers: Iterator[int] = iter(range(given.first, given.first + given.cases))
        self.lock = threading.Lock()

    def run(self) -> int:
        started = time.monotonic()
        threads = [threading.Thread(target=self._work) for _ in range(self.given.jobs)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        total = self.counts.total()
        counts = ", ".join(f"{count} {name}" for name, count in self.counts.most_common())
        print(f"{total} cases in {time.monotonic() - started:.0f} s: {counts}")
        return int(self.failed > 0 or total == 0)

    def _work(self) -> None:
        child = Child(self.given.engine, stored=self.given.stored)
        while (number := self._next()) is not None:
            if not child.alive:
                child.stop()
                child = Child(self.given.engine, stored=self.given.stored)
            self._note(child.run(number))
        child.stop()

    def _next(self) -> int | None:
        with self.lock:
            return next(self.numbers, None)

    def _note(self, result: dict[str, Any]) -> None:
        kind = result["outcome"].partition(" ")[0].strip(",")
        with self.lock:
            self.counts[kind] += 1
            if self.given.log:
                with self.given.log.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(result) + "\n")
            if kind not in GOOD:
                self.failed += 1
                engine = f" --engine {self.given.engine}" if self.given.engine else ""
                engine += " --stored" if self.given.stored else ""
                print(f"FAILED python -m tests.fuzz --case {result['case']}{engine}\n  {result['what']}")
                print("  " + result["outcome"][-1500:].strip().replace("\n", "\n  "), flush=True)


if __name__ == "__main__":
    sys.exit(main())
