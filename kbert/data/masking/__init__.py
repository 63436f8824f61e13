"""What is masked: units of tokens, and what stands in their place."""
