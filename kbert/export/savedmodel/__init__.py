"""SavedModels, and the files that TensorFlow Serving reads in addition."""
