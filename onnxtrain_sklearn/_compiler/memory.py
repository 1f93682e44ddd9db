"""Where buffers are in the memory of a run: one takes the place of others that are read no more."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from .product_stage import ProductStage
from .stages import Stage
from .views import Buffer

LINE_NUMBERS = 16
"""Numbers to a line of the processor's cache."""


def places_of(stages: Sequence[Stage], external: Collection[Buffer]) -> tuple[dict[Buffer, int], int]:
    """Return the first element of each buffer that is not external, and the elements of all."""
    last = {view.buffer: i for i, stage in enumerate(stages) for view in stage.read()}
    places, ends, known = dict[Buffer, int](), dict[Buffer, int](), set(external)
    total = 0
    for i, stage in enumerate(stages):
        for buffer in _new(stage, known):
            place = _free_place(buffer.size, places, ends)
            places[buffer] = ends[buffer] = place
            ends[buffer] += -(-buffer.size // LINE_NUMBERS) * LINE_NUMBERS
            total = max(total, ends[buffer])
        for buffer in [buffer for buffer in ends if last.get(buffer, i) <= i]:
            del ends[buffer]
    return places, total


def _new(stage: Stage, known: set[Buffer]) -> list[Buffer]:
    """Return the buffers that a stage is the first to write."""
    written = [view.buffer for view in stage.written()]
    written += [stage.scratch] if isinstance(stage, ProductStage) else []
    found = [buffer for buffer in dict.fromkeys(written) if buffer not in known]
    known.update(found)
    return found


def _free_place(size: int, places: Mapping[Buffer, int], ends: Mapping[Buffer, int]) -> int:
    """Return the first place with enough room between the buffers that are still read."""
    start = 0
    for buffer in sorted(ends, key=places.__getitem__):
        if places[buffer] - start >= size:
            break
        start = max(start, ends[buffer])
    return start
