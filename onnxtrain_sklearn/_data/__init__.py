"""Input data: from X and y to minibatches of arrays.

``inputs`` checks X, and ``columns`` holds the data of each input of the graph. ``row_blocks`` reads tables that need
not fit into memory. ``targets`` encodes y, ``class_weight`` computes the weights of rows, and ``target_scale`` scales
numeric targets. ``held_out`` splits off validation rows and scores them; ``batches`` draws minibatches; ``statistics``
computes statistics of the data before the first step.
"""
