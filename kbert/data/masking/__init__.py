"""Masking: choosing units of tokens, and replacing them."""
