"""Rewriting rules by family of operators; :mod:`onnxtrain_sklearn._graph.rewrite` lists them."""
