"""The operators of random graphs that move, pick and put elements; see ``random_graphs.py``."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import prod

import numpy as np
from hypothesis import strategies as st

from tests.contracts.sketch import Sketch, Value, scalar

# shapes.


def reshape(s: Sketch) -> None:
    x = s.value()
    n = prod(x.shape)
    options = [[n], list(x.shape[::-1]), [1, *x.shape], [*x.shape, 1], [prod(x.shape[:2]), *x.shape[2:]], [*x.shape]]
    shape = s.choice(options) if x.shape else s.choice([[], [1], [1, 1]])
    given = list(shape)
    if given and s.flag():
        i = s.number(0, len(given) - 1)
        given[i] = 0 if i < len(x.shape) and x.shape[i] == given[i] and s.flag() else -1
    s.emit("Reshape", [x, s.ints(*given)], shape, x.bound)


def transpose(s: Sketch) -> None:
    x = s.value()
    perm = s.draw(st.permutations(range(len(x.shape))))
    if not perm or s.flag():
        s.emit("Transpose", [x], x.shape[::-1], x.bound)
    else:
        s.emit("Transpose", [x], [x.shape[i] for i in perm], x.bound, perm=list(perm))


def flatten(s: Sketch) -> None:
    x = s.value()
    axis = s.number(-len(x.shape), len(x.shape))
    cut = axis + len(x.shape) if axis < 0 else axis
    s.emit("Flatten", [x], (prod(x.shape[:cut]), prod(x.shape[cut:])), x.bound, axis=axis)


def squeeze(s: Sketch) -> None:
    x = s.value(where=lambda v: 1 in v.shape)
    ones = [i for i, n in enumerate(x.shape) if n == 1]
    axes = s.subset(ones)
    shape = [n for i, n in enumerate(x.shape) if i not in (axes or ones)]
    s.emit("Squeeze", [x, *([s.ints(*(i - len(x.shape) * s.flag() for i in axes))] if axes else [])], shape, x.bound)


def unsqueeze(s: Sketch) -> None:
    x = s.value(0, 3)
    rank = len(x.shape) + s.number(1, 2)
    axes = list(s.draw(st.permutations(range(rank))))[: rank - len(x.shape)]
    sizes = iter(x.shape)
    shape = [1 if i in axes else next(sizes) for i in range(rank)]
    s.emit("Unsqueeze", [x, s.ints(*(i - rank * s.flag() for i in axes))], shape, x.bound)


def expand(s: Sketch) -> None:
    x = s.value(where=lambda v: prod(v.shape) < 20)
    given = [s.number(1, 3) if n == 1 else s.choice([1, n]) for n in x.shape]
    given = [s.number(1, 2), *given] if s.flag() and len(x.shape) < 4 else given[s.number(0, len(given)) :]
    s.emit("Expand", [x, s.ints(*given)], np.broadcast_shapes(x.shape, tuple(given)), x.bound)


def tile(s: Sketch) -> None:
    x = s.value(1, where=lambda v: prod(v.shape) < 20)
    repeats = [s.number(1, 2) for _ in x.shape]
    s.emit("Tile", [x, s.ints(*repeats)], np.multiply(x.shape, repeats), x.bound)


def concat(s: Sketch) -> None:
    x = s.value(1, where=lambda v: prod(v.shape) < 30)
    axis = s.axis(x)
    at = axis % len(x.shape)

    def fits(v: Value) -> bool:
        same = len(v.shape) == len(x.shape) and prod(v.shape) < 30
        return same and all(i == at or n == m for i, (n, m) in enumerate(zip(v.shape, x.shape, strict=True)))

    parts = [x]
    for _ in range(s.number(0, 2)):
        sizes = [s.number(1, 2) if i == at else n for i, n in enumerate(x.shape)]
        parts.append(s.choice([v for v in s.pool if fits(v)][::-1]) if s.flag() else s.source(sizes))
    parts = s.draw(st.permutations(parts))
    total = sum(v.shape[at] for v in parts)
    shape = [total if i == at else n for i, n in enumerate(x.shape)]
    s.emit("Concat", parts, shape, max(v.bound for v in parts), axis=axis)


def split(s: Sketch) -> None:
    x = s.value(1, where=lambda v: max(v.shape, default=1) > 1)
    at = s.choice([i for i, n in enumerate(x.shape) if n > 1])
    n, axis = x.shape[at], at - len(x.shape) * s.flag()
    if n % 2 == 0 and s.flag():
        sizes, rest, settings = [n // 2] * 2, [], {"num_outputs": 2} if s.opset >= 18 else {}
    else:
        first = s.number(1, n - 1)
        sizes, settings = [first, n - first], {}
        rest = [s.ints(*sizes)]
    shapes = [[size if i == at else m for i, m in enumerate(x.shape)] for size in sizes]
    s.emit_several("Split", [x, *rest], shapes, x.bound, axis=axis, **settings)


def slices(s: Sketch) -> None:
    x = s.value(1)
    axes = s.subset(range(len(x.shape)))
    shape, bounds = list(x.shape), []
    for i in axes:
        n = x.shape[i]
        start, end, step = s.number(-n - 1, n), s.number(-n - 1, n + 1), s.choice([1, 2, -1, -2] if s.full else [1, 2])
        if not range(n)[start:end:step]:
            start, end, step = 0, 2**62, 1
        shape[i] = len(range(n)[start:end:step])
        bounds.append((start, end, step))
    if axes:
        starts, ends, steps = (s.ints(*one) for one in zip(*bounds, strict=True))
        given = s.ints(*(i - len(x.shape) * s.flag() for i in axes))
        plain = all(step == 1 for _, _, step in bounds)
        s.emit("Slice", [x, starts, ends, given, *([] if plain else [steps])], shape, x.bound)


def pad(s: Sketch) -> None:
    x = s.value(1, where=lambda v: prod(v.shape) < 20)
    modes = ["reflect", "edge", *(["wrap"] if s.opset >= 19 else [])]
    mode = s.choice(["constant", "constant", *(modes if s.full else [])])
    axes = range(len(x.shape))
    some = list(s.draw(st.permutations(axes)))[: s.number(1, len(x.shape))] if s.full and s.opset >= 18 else []
    cut = [s.number(-1 if x.shape[i] > 1 and mode == "constant" else 0, 2) for i in axes]
    pads = [cut, [s.number(0, 2) for i in axes]]
    if mode in ("reflect", "wrap"):
        pads = [[min(p, x.shape[i] - 1) for i, p in enumerate(one)] for one in pads]
    reached = some or axes
    shape = [n + (pads[0][i] + pads[1][i]) * (i in reached) for i, n in enumerate(x.shape)]
    inputs = [x, s.ints(*(one[i] for one in pads for i in reached)), scalar(s, 0.3) if mode == "constant" else ""]
    s.emit("Pad", [*inputs, *([s.ints(*some)] if some else [])], shape, x.bound, mode=mode)


def trilu(s: Sketch) -> None:
    x = s.value(2)
    s.emit("Trilu", [x, s.constant(np.array(s.number(-2, 2), np.int64))], x.shape, x.bound, upper=int(s.flag()))


def depth(operator: str, s: Sketch) -> None:
    n, c, h, w = (s.number(1, 2) for _ in range(4))
    shapes = (n, 4 * c, h, w), (n, c, 2 * h, 2 * w)
    start, end = shapes if operator == "DepthToSpace" else shapes[::-1]
    same = [v for v in s.pool if prod(v.shape) == prod(start)]
    x = s.emit("Reshape", [s.choice(same), s.ints(*start)], start, 3.0) if same and s.flag() else s.source(start)
    s.emit(operator, [x], end, x.bound, blocksize=2)


def reverse_sequence(s: Sketch) -> None:
    x, time = s.value(2), s.number(0, 1)
    lengths = [s.number(1, x.shape[time]) for _ in range(x.shape[1 - time])]
    s.emit("ReverseSequence", [x, s.ints(*lengths)], x.shape, x.bound, time_axis=time, batch_axis=1 - time)


def compress(s: Sketch) -> None:
    x = s.value(1)
    axis = s.choice([None, s.axis(x)])
    size = prod(x.shape) if axis is None else x.shape[axis]
    chosen = s.rng.random(s.number(1, size)) < 0.6
    chosen[0] = True
    shape = [n if i != (axis or 0) % len(x.shape) else chosen.sum() for i, n in enumerate(x.shape)]
    settings = {} if axis is None else {"axis": axis}
    s.emit("Compress", [x, s.constant(chosen)], [chosen.sum()] if axis is None else shape, x.bound, **settings)


# indices.


def gather(s: Sketch) -> None:
    x = s.value(1, 3)
    axis = s.axis(x)
    at, n = axis % len(x.shape), x.shape[axis]
    index = s.rng.integers(-n, n, size=s.shape(0, 2)).astype(s.choice([np.int64, np.int32]))
    s.emit("Gather", [x, s.constant(index)], (*x.shape[:at], *index.shape, *x.shape[at + 1 :]), x.bound, axis=axis)


def gather_elements(s: Sketch) -> None:
    x = s.value(1)
    axis = s.axis(x)
    at = axis % len(x.shape)
    shape = [s.number(1, 3) if i == at else s.number(1, n) for i, n in enumerate(x.shape)]
    index = s.rng.integers(-x.shape[at], x.shape[at], size=shape)
    s.emit("GatherElements", [x, s.constant(index)], shape, x.bound, axis=axis)


def gather_nd(s: Sketch) -> None:
    x = s.value(1)
    batch = s.number(0, 1) if len(x.shape) > 1 else 0
    depth = s.number(1, len(x.shape) - batch)
    shape = (*x.shape[:batch], *s.shape(0, 2))
    sizes = x.shape[batch : batch + depth]
    index = np.stack([s.rng.integers(-n, n, size=shape) for n in sizes], axis=-1)
    s.emit("GatherND", [x, s.constant(index)], (*shape, *x.shape[batch + depth :]), x.bound, batch_dims=batch)


def scatter_elements(s: Sketch) -> None:
    x = s.value(1)
    axis = s.axis(x)
    at = axis % len(x.shape)
    order = np.argsort(s.rng.random(x.shape), axis=at)
    index = order[tuple(slice(s.number(1, n)) for n in x.shape)]
    settings = {}
    if s.full and s.opset >= 16 and s.flag():
        index, settings = s.rng.integers(0, x.shape[at], size=index.shape), {"reduction": "add"}
    index = index - x.shape[at] * (s.rng.random(index.shape) < 0.3)
    inputs = [x, s.constant(index), updates(s, index.shape)]
    s.emit("ScatterElements", inputs, x.shape, x.bound + 3, axis=axis, **settings)


def updates(s: Sketch, shape: tuple[int, ...]) -> Value:
    same = [v for v in s.pool if v.shape == tuple(shape)]
    return s.choice(same[::-1]) if same and s.flag() else s.source(shape)


def scatter_nd(s: Sketch) -> None:
    x = s.value(1)
    depth = s.number(1, len(x.shape))
    places = np.stack(np.unravel_index(s.rng.permutation(prod(x.shape[:depth])), x.shape[:depth]), axis=-1)
    index, settings = places[: s.number(1, 3)], {}
    if s.full and s.opset >= 16 and s.flag():
        index, settings = s.rng.choice(places, s.number(1, 3)), {"reduction": "add"}
    inputs = [x, s.constant(index), updates(s, (len(index), *x.shape[depth:]))]
    s.emit("ScatterND", inputs, x.shape, x.bound + 3, **settings)


def top_k(s: Sketch) -> None:
    x = s.value(1)
    axis = s.axis(x)
    k = s.number(1, x.shape[axis])
    shape = list(x.shape)
    shape[axis] = k
    name = f"i{len(s.nodes)}"
    settings = {"axis": axis, "largest": int(s.flag()), "sorted": 1}
    y = s.emit("TopK", [x, s.ints(k)], shape, x.bound, **settings)
    s.nodes[-1].output.append(name)
    assert y.shape == tuple(shape)


MOVES: dict[str, Callable[[Sketch], object]] = {
    **{name: partial(depth, name) for name in ("DepthToSpace", "SpaceToDepth")},
    "Compress": compress,
    "Concat": concat,
    "Expand": expand,
    "Flatten": flatten,
    "Gather": gather,
    "GatherElements": gather_elements,
    "GatherND": gather_nd,
    "Pad": pad,
    "Reshape": reshape,
    "ReverseSequence": reverse_sequence,
    "ScatterElements": scatter_elements,
    "ScatterND": scatter_nd,
    "Slice": slices,
    "Split": split,
    "Squeeze": squeeze,
    "Tile": tile,
    "TopK": top_k,
    "Transpose": transpose,
    "Trilu": trilu,
    "Unsqueeze": unsqueeze,
}
