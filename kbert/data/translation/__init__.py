"""Pairs of sentences to batches of like length."""
