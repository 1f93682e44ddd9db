"""The command line: ``program`` parses the arguments and runs a command.

``train``, ``predict``, ``inspect`` and ``demo`` are commands; ``doctor`` holds ``bench`` too, and ``export`` holds
``gradient`` and ``export-training``. They share ``console`` (outcomes, output, ``--set``), ``model_option`` (the value
of ``--model``) and ``tables`` (CSV and Parquet files). ``report`` writes the report of ``train``.
"""
