"""Write ``keras_*.onnx`` and ``keras_*.npz``: networks that Keras exports from TensorFlow, and how Keras trains them.

Run with Keras 3.15, TensorFlow 2.21 and tf2onnx 1.17: ``python tests/files/make_keras_exports.py``,
with names of networks for some of them. An archive holds
rows ``X``, classes ``y``, the losses of ten steps of gradient descent with momentum over all rows in evaluation mode
(rate 0.05, momentum 0.9) in float64, the scores after them, and under ``gradient/`` those of the first step.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ |= {"KERAS_BACKEND": "tensorflow", "TF_CPP_MIN_LOG_LEVEL": "3"}

import keras
import numpy as np
import tensorflow as tf
from keras import layers

FOLDER = Path(__file__).parent
STEPS, RATE, MOMENTUM = 10, 0.05, 0.9
BUILDERS = {
    "mlp": lambda: keras.Sequential(
        [layers.Input((6,)), layers.Dense(8, "relu"), layers.LayerNormalization(), layers.Dense(8, "tanh"),
         layers.Dense(3)]
    ),
    "lstm": lambda: keras.Sequential(
        [layers.Input((5,), dtype="int32"), layers.Embedding(9, 3), layers.LSTM(4), layers.Dense(3)]
    ),
    "gelu": lambda: keras.Sequential(
        [layers.Input((6,)), layers.Dense(8, "gelu"), layers.Dense(5, "celu"), layers.Dense(3)]
    ),
    "recurrent": lambda: keras.Sequential(
        [layers.Input((5, 3)), layers.LSTM(4, return_sequences=True, use_bias=False), layers.LSTM(4), layers.Dense(3)]
    ),
    "separable": lambda: keras.Sequential(
        [layers.Input((6, 6, 2)), layers.SeparableConv2D(4, 3, activation="relu"), layers.DepthwiseConv2D(2),
         layers.Flatten(), layers.Dense(3)]
    ),
    "cnn": lambda: keras.Sequential(
        [layers.Input((6, 6, 2)), layers.Conv2D(4, 3), layers.BatchNormalization(), layers.ReLU(),
         layers.GlobalAveragePooling2D(), layers.Dense(3)]
    ),
}  # fmt: skip


def as_trained(model: keras.Model, rng: np.random.Generator) -> None:
    """Give a network the numbers of one that has been trained: none is equal to another."""
    for variable in model.weights:
        positive = "gamma" in variable.path or "variance" in variable.path
        noise = rng.uniform(0.5, 1.5, variable.shape) if positive else rng.normal(0, 0.1, variable.shape)
        variable.assign(noise if positive else variable + noise)


def rows_of(model: keras.Model, rng: np.random.Generator) -> np.ndarray:
    shape = (16, *model.inputs[0].shape[1:])
    is_text = "int" in model.inputs[0].dtype
    return rng.integers(0, 9, shape).astype(np.int32) if is_text else rng.normal(size=shape).astype(np.float32)


def train(model: keras.Model, X: np.ndarray, y: np.ndarray) -> dict[str, np.ndarray]:
    moved, losses, found = [0.0] * len(model.trainable_variables), [], {}
    for step in range(STEPS):
        with tf.GradientTape() as tape:
            scores = model(X, training=False)
            loss = -tf.reduce_mean(tf.gather(tf.nn.log_softmax(scores), y, batch_dims=1))
        gradients = [tf.convert_to_tensor(g) for g in tape.gradient(loss, model.trainable_variables)]
        losses.append(float(loss))
        for i, (variable, gradient) in enumerate(zip(model.trainable_variables, gradients, strict=True)):
            if not step:
                found[f"gradient/{variable.path.partition('/')[2]}"] = gradient.numpy()
            moved[i] = MOMENTUM * moved[i] + gradient
            variable.assign_sub(RATE * moved[i])
    return {"losses": np.array(losses), "scores": model(X, training=False).numpy(), **found}


def main() -> None:
    for name in sys.argv[1:] or BUILDERS:
        build = BUILDERS[name]
        keras.config.set_floatx("float32")
        keras.utils.clear_session()
        keras.utils.set_random_seed(0)
        rng, model = np.random.default_rng(0), build()
        as_trained(model, rng)
        X, y = rows_of(model, rng), rng.integers(0, 3, 16)
        model(X)  # a model is exported as it was called
        model.export(FOLDER / f"keras_{name}.onnx", format="onnx", verbose=False)
        weights = model.get_weights()
        keras.config.set_floatx("float64")
        keras.utils.clear_session()
        exact = build()
        exact.set_weights(weights)
        statistics = {v.path.partition("/")[2]: v.numpy() for v in exact.non_trainable_variables if "moving" in v.path}
        found = train(exact, X if name == "lstm" else X.astype(np.float64), y)
        np.savez_compressed(FOLDER / f"keras_{name}.npz", X=X, y=y, **statistics, **found)


if __name__ == "__main__":
    main()
