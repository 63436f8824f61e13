"""SentencePiece's unigram language model."""
