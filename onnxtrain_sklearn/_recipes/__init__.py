"""Recipes: estimators for raw tables that join preprocessing, a network and its training settings in one ONNX file.

``realmlp`` and ``tabm`` are the public estimators; ``base`` holds what they share, ``parameters`` their parameters.
``raw_table`` decides which cells are numbers, categories or missing, ``preprocessing`` turns them into a matrix of
floats with the ``scaling`` of the recipe, and ``ensemble`` trains the networks and joins their graphs.
``training_files`` exports the networks before training; ``skl2onnx_plugin`` converts recipes inside pipelines of
scikit-learn.
"""
