"""Published values: configs of families, recipes of pretraining, names of repositories.

Values alone: neither TensorFlow nor Keras is imported for them.
"""
