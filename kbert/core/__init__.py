"""What every room stands on: options, registered names, types. Without TensorFlow and Keras."""
