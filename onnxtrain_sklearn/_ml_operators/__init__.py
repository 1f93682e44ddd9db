"""Operators of ai.onnx.ml, rewritten as operators of the default domain that have gradients.

``rewrite`` applies the rules of the other modules, one per family: ``linear`` models, ``kernel_methods`` (support
vector machines, distances), ``trees``, ``preprocessing``. ``rewritten_node`` is the interface of a rule.
"""
