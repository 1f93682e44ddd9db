"""The losses of the package, in modules of their own; `losses` is their public module."""
