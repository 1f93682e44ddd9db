"""Input data: columns of X, minibatches, targets, validation data."""
