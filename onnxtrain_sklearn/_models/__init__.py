"""The graph builders of the package, in modules of their own; `models` is their public module."""
