"""The version, read by setup.py too."""

__version__ = "0.3.0"
