"""MPNet: biases of distances."""
