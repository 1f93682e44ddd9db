"""Scikit-learn estimators that train any ONNX graph."""

from ._utils import imports  # noqa: F401  # isort: skip  # before the packages that it prepares are imported
from . import callbacks, graph, losses, schedules
from ._data.inputs import Inputs
from ._data.padded_rows import PaddedRows
from ._data.row_blocks import RowBlocks
from ._estimators.classifier import OrtGradientClassifier
from ._estimators.regressor import OrtGradientRegressor
from ._export.training import load_training
from ._fitted import skl2onnx_bridge
from ._gradient.derivatives import gradient_graph, hvp_graph, jacobian_graph, jvp_graph, vjp_graph
from ._ir.limits import ModelLimits, model_limits
from ._multi_output.estimator import OrtGradientMultiOutput
from ._multi_output.export_training import export_training
from ._recipes.realmlp import RealMLPClassifier, RealMLPRegressor
from ._recipes.tabm import TabMClassifier, TabMRegressor
from ._skl2onnx.registration import register_converters
from ._utils.cache import clear_cache
from .adapters import LoRA
from .finetuning import FineTuner
from .models import MLP, ConvNet, GraphModel, Linear, RealMLP, TabM
from .optimizers import LBFGS, SGD, Adagrad, Adam, AdamW, RMSprop
from .runtime import Runtime

__version__ = "0.1.0"

skl2onnx_bridge.register_when_imported(register_converters)

__all__ = [
    "LBFGS",
    "MLP",
    "SGD",
    "Adagrad",
    "Adam",
    "AdamW",
    "ConvNet",
    "FineTuner",
    "GraphModel",
    "Inputs",
    "Linear",
    "LoRA",
    "ModelLimits",
    "OrtGradientClassifier",
    "OrtGradientMultiOutput",
    "OrtGradientRegressor",
    "PaddedRows",
    "RMSprop",
    "RealMLP",
    "RealMLPClassifier",
    "RealMLPRegressor",
    "RowBlocks",
    "Runtime",
    "TabM",
    "TabMClassifier",
    "TabMRegressor",
    "callbacks",
    "clear_cache",
    "export_training",
    "gradient_graph",
    "graph",
    "hvp_graph",
    "jacobian_graph",
    "jvp_graph",
    "load_training",
    "losses",
    "model_limits",
    "register_converters",
    "schedules",
    "vjp_graph",
]
