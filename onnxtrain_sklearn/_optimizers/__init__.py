"""Optimizers, inside: the update graph that is run in place, and L-BFGS."""
