"""Whole words, and the characters of words."""
