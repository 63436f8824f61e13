"""Marian's tokenizer: SentencePiece models of two languages and the ids of a vocabulary."""
