"""Tasks that generate text."""
