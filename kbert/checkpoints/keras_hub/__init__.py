"""KerasHub's presets and backbones, read and written."""
