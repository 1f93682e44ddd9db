"""Gradient engines: a forward graph in, the graph of its gradients out."""
