"""bilm-tf's files: ELMo's weights and options, read and written."""
