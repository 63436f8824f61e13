"""Tables of labelled texts, their tokenised rows, and batches of rows of similar length."""
