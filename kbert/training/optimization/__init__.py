"""Optimizers, schedules, rates by layer, and what is frozen."""
