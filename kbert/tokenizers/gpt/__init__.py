"""GPT's tokenizer: byte-pair encoding of characters, with a mark at the end of each word."""
