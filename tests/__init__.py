"""Tests; this file makes a package of them, which goes before any that other distributions install as ``tests``."""
