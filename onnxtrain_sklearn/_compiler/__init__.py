"""Gradient graphs as machine code: their nodes as loops in LLVM's assembly language.

``code`` compiles a graph and runs it. ``nodes`` and ``indexing`` translate each ONNX node: to ``views`` of values, to
operations of ``elementwise`` and ``functions``, or to ``stages``, ``reductions`` and ``products``, which write
``loops``. ``plan`` collects the stages and assigns memory; ``rows`` proves which stages may leave out padding rows.
``kernels`` are the functions that products call, ``llvm_text`` writes instructions, and ``tuning`` holds bounds between
forms.
"""
