"""What the cells of chapter 04 call."""
