"""The command line: ``program`` parses the arguments and runs a command, each in a module of its name.

``console`` defines commands, outcomes and their output, ``arguments`` the options that several commands share.
``model_option`` resolves ``--model``; ``table_files`` reads tables and ``table_columns`` takes their columns apart.
``train`` uses ``fitting``, which trains each kind of model, ``onnx_files``, which writes and runs the result, and
``report``.
"""
