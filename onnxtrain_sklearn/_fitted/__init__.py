"""Fitted scikit-learn models as trainable graphs, and back."""
