"""Optimizers, learning rate schedules, layer-wise rates, and freezing."""
