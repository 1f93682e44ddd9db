"""Lowering: replaces operators without a gradient rule by operators that have one."""
