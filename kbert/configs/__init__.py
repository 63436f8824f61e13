"""Configurations of models: frozen dataclasses, checked when they are made."""
