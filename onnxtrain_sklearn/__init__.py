"""Scikit-learn estimators that train any ONNX graph."""

from . import losses, schedules
from ._estimators import OrtGradientClassifier, OrtGradientRegressor
from ._gradient.engine import gradient_graph
from ._graph.limits import ModelLimits, model_limits
from ._inputs import Inputs
from .export import register_converters
from .models import MLP, Linear
from .optimizers import LBFGS, SGD, Adagrad, Adam, AdamW, RMSprop

__version__ = "0.1.0"

register_converters()

__all__ = [
    "LBFGS",
    "MLP",
    "SGD",
    "Adagrad",
    "Adam",
    "AdamW",
    "Inputs",
    "Linear",
    "ModelLimits",
    "OrtGradientClassifier",
    "OrtGradientRegressor",
    "RMSprop",
    "gradient_graph",
    "losses",
    "model_limits",
    "schedules",
]
