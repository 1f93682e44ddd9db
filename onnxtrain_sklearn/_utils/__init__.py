"""Helpers for every subpackage: parameters, caches, errors of other libraries, types of their objects."""
