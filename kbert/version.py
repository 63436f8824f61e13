"""The version, read by setup.py too."""

__version__ = "1.1.0.dev0"
