"""Helpers for every room: parameters, caches, errors of other libraries, types of their objects."""
