"""The kinds of tokenizers that are trained."""

KINDS = ("wordpiece", "bpe", "unigram", "words")
