"""Longformer: windows and global tokens."""
