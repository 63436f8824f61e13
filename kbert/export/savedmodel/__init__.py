"""SavedModels, and what TensorFlow Serving reads beside them."""
