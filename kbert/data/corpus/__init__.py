"""Text to shards: documents tokenised once, in blocks, whatever the number of workers."""
