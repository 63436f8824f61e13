"""Pairs of sentences to batches of similar length."""
