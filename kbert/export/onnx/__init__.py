"""Models for ONNX Runtime, and the tokenizer inside one."""
