"""XLNet: two streams of attention over relative positions, with a memory."""
