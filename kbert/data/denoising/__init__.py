"""Denoising: corrupted text for an encoder, and what its decoder predicts."""
