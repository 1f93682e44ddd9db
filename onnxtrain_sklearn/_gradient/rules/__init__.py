"""Gradient rules of the portable engine, one module per family of operators.

Each module holds a registry, ``RULES``, and its rules. Convolution has four: ``convolution`` for any windows, the
geometry of ``windows``, and faster forms in ``convolution_products`` and ``winograd``.
"""
