"""Tasks on a table of labelled texts."""
