"""MPNet: relative position biases."""
