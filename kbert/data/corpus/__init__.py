"""Text to shards: tokenises documents once, into blocks that any number of workers can write."""
