"""Models for OpenVINO, and the tokenizer inside one."""
