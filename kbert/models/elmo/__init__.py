"""ELMo: a bidirectional language model, and an encoder of its layers."""
