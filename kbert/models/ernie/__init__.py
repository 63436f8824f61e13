"""ERNIE: a vector of the task."""
