"""Write ``lora_run.npz``: 20 steps of low-rank factors beside frozen matrices, in PyTorch, as peft defines them.

Run with PyTorch: ``python tests/files/make_lora_run.py``.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

STEPS, BATCH, RATE, RANK, ALPHA = 20, 8, 0.02, 2, 4.0


def main() -> None:
    rng = np.random.default_rng(0)
    found = {"W1": rng.normal(0, 0.5, (5, 6)), "b1": rng.normal(0, 0.5, 6), "W2": rng.normal(0, 0.5, (6, 3))}
    found |= {"A1": rng.uniform(-1, 1, (RANK, 5)) / 5**0.5, "A2": rng.uniform(-1, 1, (RANK, 6)) / 6**0.5}
    found = {name: array.astype(np.float32) for name, array in found.items()}
    X = rng.normal(size=(STEPS * BATCH, 5)).astype(np.float32)
    y = rng.integers(0, 3, STEPS * BATCH)
    w = {name: torch.from_numpy(array.copy()) for name, array in found.items()}
    w |= {"B1": torch.zeros(6, RANK), "B2": torch.zeros(3, RANK)}
    factors = [w[name].requires_grad_() for name in ("A1", "B1", "A2", "B2")]
    optimizer, losses = torch.optim.AdamW(factors, RATE), []
    for i in range(STEPS):
        rows = slice(BATCH * i, BATCH * i + BATCH)
        x = torch.from_numpy(X[rows])
        hidden = x @ w["W1"] + w["b1"] + ALPHA / RANK * (x @ w["A1"].T) @ w["B1"].T
        hidden = torch.tanh(hidden)
        scores = hidden @ w["W2"] + ALPHA / RANK * (hidden @ w["A2"].T) @ w["B2"].T
        loss = torch.nn.functional.cross_entropy(scores, torch.from_numpy(y[rows]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    final = {f"final/{name}": w[name].detach().numpy() for name in ("A1", "B1", "A2", "B2")}
    np.savez_compressed(Path(__file__).parent / "lora_run.npz", X=X, y=y, losses=losses, **found, **final)


if __name__ == "__main__":
    main()
