"""Gradient graphs: the engine protocol, the choice of an engine, and the two engines."""
