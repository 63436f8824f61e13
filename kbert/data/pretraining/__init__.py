"""Shards to batches of pretraining, exact at any position."""
