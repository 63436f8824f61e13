"""Architectures of encoders with rotary positions in all layers, and their shared functions."""
