"""Answers to questions, as pieces of a context."""
