"""Tasks that write text."""
