"""ConvBERT: convolutions in parallel with the attention."""
