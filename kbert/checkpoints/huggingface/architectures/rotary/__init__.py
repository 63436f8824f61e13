"""Encoders with rotary positions in all layers, and what their tables share."""
