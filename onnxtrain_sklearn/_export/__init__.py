"""Export: training graphs as files that any onnxruntime trains, and a loop over them in Python.

An estimator makes an ``ExportSource`` (``source``) of itself. ``folder`` writes and reads the folder of its graphs:
those that ``graphs`` chooses, the ``manifest`` that describes them, and the state (``state_files``). ``step_graph`` is
a whole training step, made of ``step_pass``, ``step_update`` and ``target_inputs``; ``epoch_graph``, ``predict_graph``
and ``several_networks`` are made of it. ``training_info`` writes a step into an ONNX model itself. ``loop`` trains
either form, with the data that ``loop_data`` encodes.
"""
