"""Training: parameters, the loss graph, the steps on host and device, the loop."""
