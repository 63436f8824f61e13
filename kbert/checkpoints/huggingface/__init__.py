"""Reads and writes Hugging Face's folders: config, and weights in one file or in shards."""
