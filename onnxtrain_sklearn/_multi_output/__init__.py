"""The estimator that trains several outputs of a graph together, each with its own loss."""
