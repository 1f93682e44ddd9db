"""Gradient rules of the portable engine, one module per family of operators.

Each module holds a registry, ``RULES``, and its rules. Convolution has three: ``convolution`` for any windows, their
geometry in ``windows``, and faster forms in ``convolution_products``.
"""
