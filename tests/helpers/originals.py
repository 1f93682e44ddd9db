"""The first steps of RealMLP and TabM as their authors' packages train them, with PyTorch.

``python -m tests.helpers.originals`` writes them to tests/files/originals.npz, from which the tests compare without
PyTorch. It needs pytabkit 1.7.3, tabm 0.0.3 and rtdl_num_embeddings 0.0.12.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

FILE = Path(__file__).parents[1] / "files" / "originals.npz"
STEPS, BATCH, WIDTH = 20, 32, 16
CODES = {3: 3, 4: 5, 5: 12}
"""The categorical columns, and how many codes each has."""

Arrays = dict[str, np.ndarray]


def table(seed: int = 0) -> np.ndarray:
    """Return a table of three numbers and three categories."""
    rng, n = np.random.default_rng(seed), STEPS * BATCH
    codes = [rng.integers(0, size, n) for size in CODES.values()]
    return np.column_stack([rng.normal(size=(n, 3)), *codes]).astype(np.float32)


def targets(X: np.ndarray, classes: int) -> np.ndarray:
    """Return labels of some classes, or numbers where ``classes`` is 0."""
    signal = X[:, 0] + np.sin(3 * X[:, 1]) + (X[:, 5] > 5) - 0.3 * X[:, 3]
    if not classes:
        return signal.astype(np.float32) * 10 + 50
    return np.searchsorted(np.quantile(signal, np.arange(1, classes) / classes), signal).astype(np.int64)


def realmlp(variant: str, classes: int) -> Arrays:
    """Return the table with scaled numbers, the targets, the losses of the steps, the weights before and after them."""
    import torch
    from pytabkit.models.alg_interfaces.base import InterfaceResources, SplitIdxs
    from pytabkit.models.data.data import DictDataset, TensorInfo
    from pytabkit.models.sklearn.default_params import DefaultParams
    from pytabkit.models.training.lightning_modules import TabNNModule

    torch.manual_seed(0)
    name = f"RealMLP_{variant.upper().replace('-', '_')}_{'CLASS' if classes else 'REG'}"
    config = {**getattr(DefaultParams, name), "hidden_sizes": [WIDTH] * 3, "p_drop": 0.0, "batch_size": BATCH}
    X = table()
    y = targets(X, classes)
    tensors = {"x_cont": X[:, :3], "x_cat": X[:, 3:].astype(np.int64), "y": y[:, None]}
    infos = {
        "x_cont": TensorInfo(feat_shape=[3]),
        "x_cat": TensorInfo(cat_sizes=list(CODES.values())),
        "y": TensorInfo(cat_sizes=[classes]) if classes else TensorInfo(feat_shape=[1]),
    }
    data = DictDataset({key: torch.tensor(value) for key, value in tensors.items()}, infos)
    module = TabNNModule(**{**config, "n_epochs": 1})
    rows = torch.arange(len(X))[None]
    module.compile_model(data, [SplitIdxs(rows, None, None, 0, [0], 0)], InterfaceResources(1, []))
    optimizer, data = module.configure_optimizers(), module.creator.static_model(data)
    if variant == "td-s":  # the first steps from an output layer of zeros would move it alone
        parameters = list(module.model.parameters())
        with torch.no_grad():
            parameters[-2].normal_()
    start = _realmlp_weights(module)
    losses = [_realmlp_step(module, optimizer, data.get_batch(idxs=rows[:, i : i + BATCH])) for i in _starts()]
    return {"X": np.hstack([_scaled(X[:, :3]), X[:, 3:]]), "y": y, "losses": np.array(losses)} | _named(
        start, _realmlp_weights(module)
    )


def _scaled(numbers: np.ndarray) -> np.ndarray:
    """Return numbers as the original scales and clips them inside its network, which ours takes so."""
    low, median, high = np.quantile(numbers, [0.25, 0.5, 0.75], axis=0)
    z = (numbers - median) / (high - low)
    return (z / np.sqrt(1 + z**2 / 9)).astype(np.float32)


def _realmlp_step(module: Any, optimizer: Any, batch: Any) -> float:
    module.hp_manager.update_hypers(module)
    module.model.train()
    output = module.model(batch)
    loss = module.criterion(output["x_cont"], output["y"]).sum()
    loss.backward()
    optimizer.step(loss=loss)
    optimizer.zero_grad()
    module.progress.epoch_float += 1 / STEPS
    return float(loss.item())


def _realmlp_weights(module: Any) -> Arrays:
    """Return the weights under the names of this package."""
    inner = {"weight_1": "frequencies", "bias_1": "phases", "weight_2": "weight", "bias_2": "bias"}
    found = {}
    for parameter in module.model.parameters():
        parts, array = str(parameter.context.scope).strip("/").split("/"), parameter.detach().numpy()[0].copy()
        if "plr" in parts:
            found[f"embedding.{inner[parts[-1]]}"] = array
        elif parts[-1] == "emb":
            found["categories.weight"] = array
        elif parts[-1] == "scale":
            found["scale"] = array[0]
        else:
            layer = f"layers.{parts[-2].partition('-')[2]}"
            found[f"{layer}.{parts[-1].replace('act', 'activation')}"] = array if parts[-1] == "weight" else array[0]
    return found


def tabm(mini: bool, bins: int, classes: int) -> Arrays:
    """Return the same of TabM; ``bins`` of piecewise-linear embeddings, none where it is 0."""
    import rtdl_num_embeddings as embeddings
    import tabm as package
    import torch

    torch.manual_seed(0)
    X = table()
    y = targets(X, classes)
    numbers, codes = torch.tensor(X[:, :3]), torch.tensor(X[:, 3:].astype(np.int64))
    edges = embeddings.compute_bins(numbers, n_bins=bins) if bins else None
    model = package.TabM.make(
        n_num_features=3,
        cat_cardinalities=list(CODES.values()),
        d_out=classes or 1,
        num_embeddings=edges and embeddings.PiecewiseLinearEmbeddings(edges, 4, activation=False, version="B"),
        k=4,
        d_block=WIDTH,
        dropout=0.0,
        arch_type="tabm-mini" if mini else "tabm",
    )
    optimizer = torch.optim.AdamW(_groups(model), lr=0.002, weight_decay=3e-4)
    labels = torch.tensor(y) if classes else torch.tensor((y - y.mean()) / y.std())
    loss = torch.nn.functional.cross_entropy if classes else torch.nn.functional.mse_loss
    start, losses = _tabm_weights(model), []
    for i in _starts():
        outputs = model(numbers[i : i + BATCH], codes[i : i + BATCH])
        expected = labels[i : i + BATCH].repeat_interleave(4)
        value = loss(outputs.flatten(0, 1) if classes else outputs.flatten(), expected)
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        losses.append(float(value.item()))
    return {"X": X, "y": y, "losses": np.array(losses)} | _named(start, _tabm_weights(model))


def _groups(model: Any) -> list[dict[str, Any]]:
    """Return the groups of pytabkit: biases and the linear part of embeddings do not decay."""
    groups: list[dict[str, Any]] = [{"params": []}, {"params": [], "weight_decay": 0.0}]
    for name, parameter in model.named_parameters():
        groups[name.endswith("bias") or ".linear0." in name]["params"].append(parameter)
    return groups


def _tabm_weights(model: Any) -> Arrays:
    """Return the weights under the names of this package."""
    own = {"r": "input_weight", "s": "output_weight"}
    found = {}
    for name, parameter in model.named_parameters():
        array, parts = parameter.detach().numpy().copy(), name.split(".")
        if parts[0] == "num_module":
            key = {"linear0.weight": "slope", "linear0.bias": "bias", "linear.weight": "weight"}[".".join(parts[1:])]
            found[f"embedding.{key}"] = array
        elif parts[0] == "output":
            found[f"heads.{parts[1]}"] = array if parts[1] == "weight" else array[:, None]
        elif parts[1] == "affine":
            found["input_weight"] = array[:, None]
        else:
            key = f"layers.{parts[2]}.{own.get(parts[-1], parts[-1])}"
            found[key] = array.T if parts[-1] == "weight" else array[:, None] if array.ndim == 2 else array
    return found


def _starts() -> range:
    return range(0, STEPS * BATCH, BATCH)


def _named(start: Arrays, final: Arrays) -> Arrays:
    return {f"start/{k}": a for k, a in start.items()} | {f"final/{k}": a for k, a in final.items()}


RUNS: dict[str, tuple[Callable[..., Arrays], tuple[Any, ...]]] = {
    "realmlp-td-2": (realmlp, ("td", 2)),
    "realmlp-td-3": (realmlp, ("td", 3)),
    "realmlp-td-0": (realmlp, ("td", 0)),
    "realmlp-td-s-3": (realmlp, ("td-s", 3)),
    "realmlp-td-s-0": (realmlp, ("td-s", 0)),
    "tabm-2": (tabm, (False, 0, 2)),
    "tabm-0": (tabm, (False, 0, 0)),
    "tabm-mini-3": (tabm, (True, 0, 3)),
    "tabm-pwl-3": (tabm, (False, 8, 3)),
    "tabm-mini-pwl-0": (tabm, (True, 8, 0)),
}
"""What is run, by name; the last number is that of the classes, 0 for regression."""


def stored(name: str) -> Arrays:
    """Return the arrays of a run from the file."""
    with np.load(FILE) as file:
        return {key.partition(":")[2]: file[key] for key in file.files if key.startswith(f"{name}:")}


def computed(name: str) -> Arrays:
    """Return the arrays of a run, which the original trains now."""
    function, arguments = RUNS[name]
    return function(*arguments)


def _all() -> Iterator[tuple[str, np.ndarray]]:
    for name in RUNS:
        yield from ((f"{name}:{key}", array) for key, array in computed(name).items())


if __name__ == "__main__":
    np.savez_compressed(FILE, **dict(_all()))
