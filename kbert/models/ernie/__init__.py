"""ERNIE: an embedding of the task."""
