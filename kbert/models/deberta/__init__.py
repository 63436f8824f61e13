"""DeBERTa: attention to contents and distances."""
