"""Masking: the choice of units of tokens, and what replaces them."""
