"""The trainable graph, which ``trainable`` makes from a loaded model, and the operations on it.

Read a graph: ``constants`` stores the weights of a file as initializers and asks ``roles`` which constants are weights;
``weights`` lists those of the package's own graphs. ``activation`` finds the scores before the final activation;
``ranges`` bounds an output. ``links`` goes from scores to predictions.

Change a graph: ``batch_axis`` frees or fixes the number of rows, ``modes`` switches between training and inference,
``precision`` widens narrow floats, ``weights`` gives it other weights, ``heads`` replaces, splits off and joins parts.

Serve the training step: ``loss_terms`` emits losses and penalties, ``batch_axis`` finds where rows meet (one row of the
minibatch affects the result of another), ``row_reads`` takes embedding reads and sparse products out of the graph.
``graph_comparison`` compares a file with the graph made from it.
"""
