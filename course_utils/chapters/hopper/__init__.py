"""What the cells of chapter 07 call."""
