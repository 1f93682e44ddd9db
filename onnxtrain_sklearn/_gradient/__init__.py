"""Gradient graphs: the choice of an engine, and the two engines.

``engine`` holds ``gradient_graph`` and chooses; ``ort_training`` and ``portable`` are the engines. Both differentiate
the nodes on the ``path`` of the gradient. The portable engine first lowers operators (``lowering``), then calls a rule
for each node: those in ``rules``, one module per family, by the interface in ``reverse``, or that of If, Loop and Scan
in ``subgraph_rules``. ``recomputation`` edits a finished gradient graph so that it takes less memory.
"""
