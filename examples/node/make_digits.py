"""Writes what digits.mjs trains: python make_digits.py FOLDER. A second run reads what it trained."""

import sys
from pathlib import Path

from sklearn.datasets import load_digits

from onnxtrain_sklearn import MLP, OrtGradientClassifier


def main(folder: Path) -> None:
    """Export an untrained network, and load the state that digits.mjs wrote, if there is one."""
    X, y = load_digits(return_X_y=True)
    X = (X / 16).astype("float32")
    folder.mkdir(parents=True, exist_ok=True)
    classifier = OrtGradientClassifier(MLP((32,)), batch_size=32, shuffle=False, random_state=0)
    classifier.export_training(folder / "digits", X, y)
    X.tofile(folder / "X.float32")
    y.astype("int32").tofile(folder / "y.int32")
    trained = folder / "trained.safetensors"
    if trained.exists():
        classifier.partial_fit(X, y, classes=range(10)).load_state(trained)
        print(f"trained elsewhere: accuracy {classifier.score(X, y):.3f}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
