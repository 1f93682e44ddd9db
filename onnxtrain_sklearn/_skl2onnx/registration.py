"""Register all converters of this package with skl2onnx: the public function ``register_converters``."""

from __future__ import annotations

from .estimators import register_estimators
from .meta_estimators import register_meta_estimators
from .recipes import register_recipes
from .several_outputs import register_multi_output


def register_converters() -> None:
    """Register the converters of all estimators of this package with skl2onnx.

    Pipelines and ensembles that contain these estimators can then be converted by skl2onnx. Importing
    ``onnxtrain_sklearn`` after skl2onnx does the same, and so does the next ``fit`` or unpickling of one of the
    estimators after skl2onnx was imported. Call this where skl2onnx is imported later than that.

    The meta-estimators of scikit-learn that change numbers or labels, such as ``CalibratedClassifierCV`` or
    ``VotingClassifier``, get converters that repeat ``predict`` around these estimators. A class for which you
    registered a converter keeps it.

    Raises
    ------
    ModelError
        skl2onnx cannot be imported.

    Examples
    --------
    >>> from sklearn.datasets import make_regression
    >>> from sklearn.ensemble import BaggingRegressor
    >>> from onnxtrain_sklearn import Linear, OrtGradientRegressor, register_converters
    >>> X, y = make_regression(200, 5, random_state=0)
    >>> bag = BaggingRegressor(OrtGradientRegressor(Linear(), optimizer="lbfgs"), 3, random_state=0).fit(X, y)
    >>> from skl2onnx import to_onnx
    >>> register_converters()
    >>> [output.name for output in to_onnx(bag, X[:1].astype("float32"), target_opset=18).graph.output]
    ['variable']
    """
    register_estimators()
    register_meta_estimators()
    register_multi_output()
    register_recipes()
