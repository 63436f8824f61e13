"""The train step, for one device or many, on TensorFlow and JAX."""
