"""Callbacks: their base class, the context that they are called with, and the callbacks of this package."""
