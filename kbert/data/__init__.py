"""Text to shards, shards to batches: everything between a corpus and `fit`."""

from kbert.data.manifest import Manifest, read_manifest, verify_corpus

__all__ = ["Manifest", "read_manifest", "verify_corpus"]
