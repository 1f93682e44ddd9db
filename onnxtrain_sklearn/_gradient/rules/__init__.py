"""Gradient rules by operator, one module per family; each has a table ``RULES``, which the portable engine merges."""
