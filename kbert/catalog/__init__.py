"""Published values: configs of families, recipes of pretraining, names of repositories.

Plain values only: importing them loads neither TensorFlow nor Keras.
"""
