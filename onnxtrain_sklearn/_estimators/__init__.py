"""The estimators: scikit-learn's interface to a training run."""
