"""ELMo: the bidirectional language model, and the encoder of its layers."""
