"""Hugging Face's folders: config, weights in one file or in shards, read and written."""
