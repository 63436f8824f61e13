"""SqueezeBERT: products of groups of columns."""
