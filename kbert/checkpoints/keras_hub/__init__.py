"""Reads and writes KerasHub's presets and backbones."""
