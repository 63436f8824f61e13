"""From shards to pretraining batches, which can be resumed exactly at any position."""
