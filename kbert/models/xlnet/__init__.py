"""XLNet: two-stream attention with relative positions and a memory."""
