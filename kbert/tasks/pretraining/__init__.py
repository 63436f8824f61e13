"""Pretraining tasks: objectives on shards of text, and the predictions of the trained models."""
