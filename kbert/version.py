"""The version, read by setup.py too."""

__version__ = "1.0.0"
