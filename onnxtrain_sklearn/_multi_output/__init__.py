"""The estimator that trains several outputs of a graph, each by a loss of its own."""
