"""Recipes: estimators for raw tables that join preprocessing, a network and its training settings in one ONNX file.

``realmlp`` and ``tabm`` are the public estimators, and ``base`` their base class. ``raw_table`` decides which cells are
numbers, categories or missing, ``preprocessing`` turns them into a matrix of floats, and ``ensemble`` trains the
networks and joins their graphs, or exports the networks before training.
"""
