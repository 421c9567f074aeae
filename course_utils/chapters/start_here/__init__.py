"""What the cells of chapter 00 call."""
