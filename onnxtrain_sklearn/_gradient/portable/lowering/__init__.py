"""Operators without a gradient rule, replaced by operators that have one."""
