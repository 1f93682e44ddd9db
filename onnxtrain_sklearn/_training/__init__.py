"""Training: parameters, loss graph, training steps on host and device, epoch loop."""
