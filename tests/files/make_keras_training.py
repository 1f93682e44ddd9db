"""Write ``keras_training.onnx`` and ``.npz``: a network with BatchNormalization, and how Keras trains it.

Run with Keras 3.15 on PyTorch 2.13: ``python tests/files/make_keras_training.py``. The archive holds rows ``X``,
classes ``y``, the losses of ten steps of gradient descent over minibatches in training mode, and the weights after
them.
"""

from __future__ import annotations

import os
from pathlib import Path

os.environ["KERAS_BACKEND"] = "torch"

import keras
import numpy as np
import torch
from keras import layers

FOLDER = Path(__file__).parent
STEPS, BATCH, RATE = 10, 16, 0.1


def main() -> None:
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [layers.Input((6, 6, 2)), layers.Conv2D(4, 3), layers.BatchNormalization(), layers.ReLU(),
         layers.GlobalAveragePooling2D(), layers.Dense(5), layers.BatchNormalization(epsilon=1e-4), layers.ReLU(),
         layers.Dense(3)]
    )  # fmt: skip
    rng = np.random.default_rng(0)
    for variable in model.weights:
        positive = "gamma" in variable.path or "variance" in variable.path
        noise = rng.uniform(0.5, 1.5, variable.shape) if positive else rng.normal(0, 0.1, variable.shape)
        variable.assign(noise if positive else variable + noise)
    X = rng.normal(size=(STEPS * BATCH, 6, 6, 2)).astype(np.float32)
    y = rng.integers(0, 3, STEPS * BATCH)
    example = torch.from_numpy(X[:2])
    model(example)
    mode = torch.onnx.TrainingMode.TRAINING
    settings = {"input_names": ["X"], "output_names": ["scores"], "dynamic_axes": {"X": [0], "scores": [0]}}
    path = FOLDER / "keras_training.onnx"
    torch.onnx.export(model, (example,), path, dynamo=False, training=mode, do_constant_folding=False, **settings)
    losses, start = [], model(torch.from_numpy(X)).detach().numpy()
    for i in range(STEPS):
        rows = slice(BATCH * i, BATCH * i + BATCH)
        scores = model(torch.from_numpy(X[rows]), training=True)
        loss = torch.nn.functional.cross_entropy(scores, torch.from_numpy(y[rows]))
        model.zero_grad()
        loss.backward()
        with torch.no_grad():
            for variable in model.trainable_variables:
                variable.value.sub_(RATE * variable.value.grad)
        losses.append(loss.item())
    found = {f"final/{v.path.partition('/')[2]}": v.numpy() for v in model.weights}
    scores = model(torch.from_numpy(X)).detach().numpy()
    np.savez_compressed(FOLDER / "keras_training.npz", X=X, y=y, losses=losses, start=start, scores=scores, **found)
    print(losses)


if __name__ == "__main__":
    main()
