"""The Reformer: attention in chunks and hash buckets, and reversible layers."""
