"""The classic low-level training interfaces of onnxruntime and onnxcustom, on both engines and without PyTorch.

``ortgradient`` runs forward and backward passes under the caller's control; ``grad_helper`` builds gradient graphs.
``training_session`` trains with loss, gradients and optimizer in one object, by the formulas in ``optimizers``.
``artifacts`` writes the files for on-device training, from the losses, optimizers and training models of ``onnxblock``.
Public names are those of the originals, listed in ``docs/classic.md``.
"""
