"""DeBERTa: attention to content and distance."""
