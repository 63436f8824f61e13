"""Byte-level byte-pair encoding."""
