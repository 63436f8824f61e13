"""SqueezeBERT: dense layers with groups of columns."""
