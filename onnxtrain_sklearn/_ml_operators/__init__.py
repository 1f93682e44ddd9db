"""Operators of ai.onnx.ml, rewritten as operators of the default domain that have gradients.

``rewrite`` applies the rules of the other modules, one per family: ``linear``, ``svm``, ``distances``, ``trees``,
``preprocessing``. ``context`` is the interface of a rule.
"""
