"""Gradient graphs as machine code: their nodes as loops in LLVM's assembly language.

``code`` compiles a graph and runs it. ``nodes`` translates each ONNX node: to ``views`` of values, to operations of
``elementwise``, or to stages, which write loops: those of ``stages``, ``reductions`` and ``products``. ``plan``
collects the stages and assigns memory; ``rows`` proves which stages may leave out padding rows. ``kernels`` are the
functions that products call, and ``llvm_text`` writes instructions.
"""
