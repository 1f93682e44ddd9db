"""Pictures of training, of weights, and of graphs."""
