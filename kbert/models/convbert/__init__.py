"""ConvBERT: convolutions beside the attention."""
