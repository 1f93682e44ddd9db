"""The trainable graph, which ``trainable`` makes of a loaded model, and the operations on it.

Reading a graph: ``constants`` stores the weights of a foreign graph as initializers and asks ``roles`` which constants
are weights; ``weights`` lists those of the package's own graphs. ``activation`` finds the scores before the final
activation, by ``expressions``; ``ranges`` bounds an output. ``links`` and ``score_axes`` go from scores to predictions.

Changing a graph: ``batch_axis`` frees the batch axis, ``modes`` switches between training and inference, ``precision``
widens narrow floats, ``stable_forms`` bounds exponents, ``reweighted`` and ``low_rank`` give it other weights.
``new_head``, ``frozen_part`` and ``joined_outputs`` replace, split off and join parts of it.

Serving the training step: ``loss_terms`` emits losses and penalties, ``row_axis`` finds where rows meet, ``row_reads``
takes embedding reads and sparse products out, ``clip_derivative`` knows the derivative of Clip at its bounds.
``reference`` compares a file as given with the graph that was made from it.
"""
