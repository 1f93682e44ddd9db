"""What users give: columns of X, minibatches, targets, validation data."""
