"""Export: training graphs as files that any onnxruntime trains, and a loop over them in Python.

An estimator makes an ``ExportedTraining`` (``exported``) of itself. ``step_graph`` makes a whole training step of it,
and ``graphs`` makes epoch and predictions from the step. ``folder`` writes and reads these graphs, the ``manifest``
that describes them, and the state (``state_files``). ``training_info`` writes a step into an ONNX model itself.
``training`` reads either form and trains it.
"""
