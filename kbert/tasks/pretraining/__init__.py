"""Objectives on shards of text, and what the trained model answers."""
