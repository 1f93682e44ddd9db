"""
Fine-tune a fitted scikit-learn model
=====================================

A pipeline was fitted on the images of one scanner. A second scanner holds the paper
at an angle and gives dimmer images, and there are sixty labeled images of it: few
to fit a model on, but enough to adapt the one that exists. ``fit`` of a fitted
model does that, without a setting to search for. The result goes back into
scikit-learn, or into an ONNX file.
"""

import matplotlib.pyplot as plt
import numpy as np
import onnxruntime
from scipy import ndimage
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler

from onnxtrain_sklearn import OrtGradientClassifier


def second_scanner(rows):
    """Return the images turned by fifteen degrees, and dimmer."""
    images = rows.reshape(-1, 8, 8)
    return 0.7 * ndimage.rotate(
        images, 15, axes=(1, 2), reshape=False, order=1
    ).reshape(-1, 64)


X, y = load_digits(return_X_y=True)
X_old, X_new, y_old, y_new = train_test_split(
    X, y, test_size=0.5, stratify=y, random_state=0
)
X_few, X_test, y_few, y_test = train_test_split(
    second_scanner(X_new), y_new, train_size=60, stratify=y_new, random_state=0
)
pipeline = make_pipeline(
    MinMaxScaler(), PCA(0.95), LogisticRegression(max_iter=1000)
)
old = clone(pipeline).fit(X_old, y_old)

# %%
# Fine-tune it
# ------------
#
# The fitted pipeline is the model. It becomes one ONNX graph, which predicts what
# the pipeline predicts; ``fit`` checks that on rows of ``X``. Cross-validation on
# the sixty images then decides how far the weights may leave the old ones.

tuned = OrtGradientClassifier(old, random_state=0).fit(X_few, y_few)
scores = {
    "old model": old.score(X_test, y_test),
    "fitted on the sixty": clone(pipeline).fit(X_few, y_few).score(X_test, y_test),
    "fitted on old and new": clone(pipeline)
    .fit(np.r_[X_old, X_few], np.r_[y_old, y_few])
    .score(X_test, y_test),
    "fine-tuned": tuned.score(X_test, y_test),
}
for name, score in scores.items():
    print(f"{name:21} accuracy {score:.3f}")
assert scores["fine-tuned"] > max(
    scores["old model"], scores["fitted on the sixty"]
)

# %%
# ``fine_tuning_`` tells how the result was chosen: the candidates, their gain over
# the old model on rows that were held out, and their share in the result.

table = tuned.fine_tuning_
for i in np.argsort(table["share"])[:-4:-1]:
    print(
        f"{table['candidate'][i]:9} strength {table['strength'][i]:.0e}:", end=" "
    )
    print(
        f"gain {table['gain'][i]:.2f} ± {table['standard_error'][i]:.2f}", end=", "
    )
    print(f"share {table['share'][i]:.2f}")

# %%
# Back into scikit-learn, or into a file
# --------------------------------------
#
# ``to_sklearn`` returns a copy of the pipeline with the tuned numbers in its
# attributes. ``to_onnx`` returns the whole pipeline as one graph, which any
# onnxruntime runs on raw rows. Both predict the same.

back = tuned.to_sklearn()
session = onnxruntime.InferenceSession(
    tuned.to_onnx().SerializeToString(), providers=["CPUExecutionProvider"]
)
labels, _ = session.run(None, {"X": X_test.astype(np.float32)})
assert (back.predict(X_test) == tuned.predict(X_test)).all()
assert (labels == tuned.predict(X_test)).all()
moved = abs(back["logisticregression"].coef_ - old["logisticregression"].coef_)
print(
    f"largest change of a coefficient {moved.max():.2f}; the PCA is as it was:",
    end=" ",
)
print((back["pca"].components_ == old["pca"].components_).all())

# %%
# The two scanners, and the accuracy on images of the second one that no model has
# seen.

figure = plt.figure(figsize=(9, 3), layout="constrained")
images, bars = figure.subfigures(1, 2, width_ratios=[1, 1.2])
for digit, column in enumerate(images.subplots(2, 5).T):
    for axes, rows, targets in zip(
        column, (X_old, X_few), (y_old, y_few), strict=True
    ):
        axes.imshow(
            rows[targets == digit][0].reshape(8, 8), cmap="gray_r", vmin=0, vmax=16
        )
        axes.set_axis_off()
images.suptitle("First scanner (above), second (below)", fontsize=10)
axes = bars.subplots()
drawn = axes.barh(
    list(scores),
    list(scores.values()),
    color=["silver", "silver", "silver", "tab:orange"],
)
axes.bar_label(drawn, fmt="%.2f", padding=3)
axes.set(xlim=(0, 1.1), xlabel="accuracy on the second scanner")
axes.invert_yaxis()
plt.show()
