"""MobileBERT: narrow blocks between bottlenecks."""
