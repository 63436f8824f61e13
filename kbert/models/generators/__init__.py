"""Models that write: the Transformer, GPT, and encoders made into either."""
