"""The Reformer: attention in chunks and in buckets, and layers that can be run backwards."""
