"""Gradient rules, a module for each family of operators."""
