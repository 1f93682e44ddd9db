"""Graphs built from blocks: losses, optimizers and training models, with the interface of onnxruntime-training."""

from . import blocks, loss, optim
from .blocks import Block, base, custom_op_library, empty_base
from .checkpoint import load_checkpoint_to_model, save_checkpoint
from .training import ForwardBlock, TrainingBlock

__all__ = [
    "Block",
    "ForwardBlock",
    "TrainingBlock",
    "base",
    "blocks",
    "custom_op_library",
    "empty_base",
    "load_checkpoint_to_model",
    "loss",
    "optim",
    "save_checkpoint",
]
