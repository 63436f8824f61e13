"""Models that generate text: the Transformer, GPT, and encoders converted to either."""
