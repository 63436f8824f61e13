"""Tables of labelled texts, their tokenised rows, and batches by length."""
